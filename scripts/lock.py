"""Writes the lock files: every package with the hashes of its files, from requirements*.txt and constraints.txt.

    .venv/bin/python scripts/lock.py           rewrites them; run it whenever a requirement or a constraint changes
    .venv/bin/python scripts/lock.py --sbom    also writes .kennel/sbom.json, what the dashboard is made of (CycloneDX)

`make setup` and the images install from these files with --require-hashes: a package whose file is another is refused.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = {
    "requirements.lock": "requirements.txt",
    "requirements-docs.lock": "requirements-docs.txt",
    "requirements-dev.lock": "requirements-dev.txt",
    "requirements-worker.lock": "pyproject.toml",
    "requirements-node.lock": "requirements-node.txt",
    "requirements-uv.lock": "requirements-uv.txt",
}
HEAD = "# Written by scripts/lock.py; do not edit. Made of {source} and constraints.txt.\n"
OLDEST_PYTHON = "3.11.5"
ENTRY = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)(.*?)(?=^[A-Za-z0-9]|\Z)", re.MULTILINE | re.DOTALL)


def lock(name: str, source: str) -> None:
    """Write one lock file. What it names already stays as it is as long as the requirements allow it."""
    made = subprocess.run(
        [
            Path(sys.executable).with_name("uv"), "pip", "compile", source, "--constraint", "constraints.txt",
            "--universal", "--python-version", OLDEST_PYTHON, "--generate-hashes", "--no-header", "--no-annotate",
            "--no-config", "--quiet",
        ],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode:
        sys.exit(f"{name} was not written:\n{made.stderr}")
    (ROOT / name).write_text(HEAD.format(source=source) + made.stdout)


def packages(name: str) -> dict[str, tuple[str, list[str]]]:
    """What a lock file holds: package (as PyPI spells names) to version and SHA-256 digests."""
    found = {}
    for package, version, rest in ENTRY.findall((ROOT / name).read_text()):
        digests = re.findall(r"--hash=sha256:([0-9a-f]{64})", rest)
        found[re.sub(r"[-_.]+", "-", package).lower()] = (version, digests)
    return found


def sbom() -> dict[str, object]:
    """The packages of the dashboard and the parts of its pages, as CycloneDX 1.6."""
    components: list[dict[str, object]] = [
        {
            "type": "library", "name": name, "version": version, "purl": f"pkg:pypi/{name}@{version}",
            "bom-ref": f"pkg:pypi/{name}@{version}",
        }
        for name, (version, _digests) in packages("requirements.lock").items()
    ]  # fmt: skip
    locked = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    for path, part in locked.items():
        if path and not {"dev", "optional", "devOptional"} & part.keys():
            name = path.rpartition("node_modules/")[2]
            purl = f"pkg:npm/{name.replace('@', '%40')}@{part['version']}"
            components.append(
                {"type": "library", "name": name, "version": part["version"], "purl": purl, "bom-ref": purl}
            )
    version = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[0]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid4()}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
            "component": {"type": "application", "name": "kennel", "version": version, "bom-ref": "kennel"},
        },
        "components": components,
    }


def main() -> None:
    for name, source in LOCKS.items():
        lock(name, source)
        print(f"{name}: {len(packages(name))} packages")
    if "--sbom" in sys.argv[1:]:
        target = ROOT / ".kennel" / "sbom.json"
        target.parent.mkdir(exist_ok=True)
        target.write_text(json.dumps(sbom(), indent=2) + "\n")
        print(f"{target.relative_to(ROOT)} written")


if __name__ == "__main__":
    main()
