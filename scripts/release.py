"""The checklist of a release, followed: version, changelog, wheels, commit, tag.

    .venv/bin/python scripts/release.py 0.2.0 --dry-run      says what it would do
    .venv/bin/python scripts/release.py 0.2.0

Publishes nothing: the last lines are the commands that do.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parent.parent
VERSION = r'^version = "(.+)"$'
PLACES = (
    "pyproject.toml", "packaging/dashboard/pyproject.toml", "deploy/Dockerfile", "deploy/compose.yaml",
    "deploy/kubernetes/kustomization.yaml", "docs/deployment.md",
)  # fmt: skip
"""Every file that names the version of this release."""


class Refused(Exception):
    """The text says what is wrong and what to do."""


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise Refused(f"git {words[0]} failed: {done.stderr.strip()}")
    return done.stdout.strip()


def checked(text: str, tree: str, tags: str) -> tuple[str, str]:
    """The version before and the new one."""
    [before] = re.findall(VERSION, (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    try:
        new = Version(text)
    except InvalidVersion as error:
        raise Refused(f"{text!r} is no version; use MAJOR.MINOR.PATCH") from error
    if new < Version(before) or (new == Version(before) and f"v{new}" in tags.split()):
        raise Refused(f"{new} is not newer than {before}")
    if tree:
        raise Refused("the tree has changes that are not committed; commit or remove them")
    return before, str(new)


def released(changelog: str, version: str, day: str) -> str:
    """The changelog with its unreleased entries under the new version."""
    head, found, rest = changelog.partition("## Unreleased\n")
    entries = re.split(r"^## ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    if not found or "\n- " not in entries:
        raise Refused("CHANGELOG.md has no entries under Unreleased; there is nothing to release")
    return f"{head}## Unreleased\n\n## {version} - {day}\n{rest}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("version")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done")
    given = parser.parse_args()
    try:
        release(given.version, dry_run=given.dry_run)
    except Refused as error:
        print(f"Not released: {error}.", file=sys.stderr)
        return 1
    return 0


def release(text: str, *, dry_run: bool) -> None:
    before, version = checked(text, git("status", "--porcelain"), git("tag"))
    changelog = released((ROOT / "CHANGELOG.md").read_text(), version, datetime.now(UTC).strftime("%Y-%m-%d"))
    old = re.compile(rf"(?<![\d.]){re.escape(before)}(?![\d.])")
    changes = {name: old.sub(version, (ROOT / name).read_text()) for name in PLACES}
    for name in ("CHANGELOG.md", *changes):
        print(f"{'would set' if dry_run else 'sets'} {version} in {name}")
    if dry_run:
        print(f"would build both packages, commit, and tag v{version}")
        return
    for name, content in {**changes, "CHANGELOG.md": changelog}.items():
        (ROOT / name).write_text(content)
    folder = ROOT / ".kennel" / "dist" / version
    done = subprocess.run([sys.executable, ROOT / "scripts" / "wheels.py", folder], cwd=ROOT)
    built = {path.name.split("-")[1].removesuffix(".tar.gz") for path in folder.glob("kennel_*")}
    if done.returncode or built != {version}:
        git("checkout", "--", *changes, "CHANGELOG.md")
        raise Refused(f"the packages in {folder} have versions {sorted(built)}; the files are as before")
    git("add", *changes, "CHANGELOG.md")
    git("commit", "--quiet", "--message", f"Release {version}")
    git("tag", "--annotate", f"v{version}", "--message", f"Kennel {version}")
    print(f"Tagged v{version}. To publish:\n  git push --follow-tags\n  python -m twine upload {folder}/*")


if __name__ == "__main__":
    sys.exit(main())
