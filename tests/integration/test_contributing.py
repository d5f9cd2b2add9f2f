"""What a contributor is told: commands that exist, hooks that run, and a release script that follows its checklist."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.readme import PROJECT


def makefile_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))


def test_what_the_page_names_exists() -> None:
    page = (PROJECT / "CONTRIBUTING.md").read_text()
    assert set(re.findall(r"make ([a-z]+)", page)) <= makefile_targets()
    for name in re.findall(
        r"`((?:coordinator|dashboard|deploy|docs|scripts|templates|tests|benchmarks)/[\w./-]*)`", page
    ):
        assert (PROJECT / name).exists(), name
    for name in re.findall(r"(?:benchmarks|scripts|tests)/[\w/]+\.py", page):
        assert (PROJECT / name).is_file(), name


def test_workflow_container_and_hooks_call_commands_of_this_repository() -> None:
    workflow = yaml.safe_load((PROJECT / ".github" / "workflows" / "test.yml").read_text())
    commands = [step["run"] for step in workflow["jobs"]["test"]["steps"] if "run" in step]
    container = json.loads((PROJECT / ".devcontainer" / "devcontainer.json").read_text())
    for command in [*commands, container["postCreateCommand"]]:
        tool, _, target = command.partition(" ")
        assert (PROJECT / tool).is_file() if tool != "make" else target in makefile_targets(), command
    [hooks] = [
        repo["hooks"] for repo in yaml.safe_load((PROJECT / ".pre-commit-config.yaml").read_text())["repos"]
    ]
    for hook in hooks:
        [program] = re.findall(r"\.venv/bin/([\w-]+)", hook["entry"])
        assert shutil.which(program, path=str(Path(sys.executable).parent)), hook["id"]
    for schema, file in (("vendor.github-workflows", ".github/workflows/test.yml"),):
        done = subprocess.run(
            [Path(sys.executable).with_name("check-jsonschema"), "--builtin-schema", schema, PROJECT / file],
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The files of the repository, committed in a repository of their own."""
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    for name in names:
        if name.startswith(("tests/", "docs/images/", "benchmarks/")) or not (PROJECT / name).is_file():
            continue
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROJECT / name, tmp_path / name)
    (tmp_path / "node_modules").symlink_to(PROJECT / "node_modules")
    (tmp_path / ".gitignore").write_text((PROJECT / ".gitignore").read_text() + "node_modules\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "All")
    return tmp_path


def git(folder: Path, *words: str) -> str:
    person = {
        f"GIT_{who}_{what}": f"a@b.{what.lower()}"
        for who in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | person
    done = subprocess.run(["git", *words], cwd=folder, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def release(clone: Path, *words: str) -> subprocess.CompletedProcess[str]:
    person = {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    return subprocess.run(
        [sys.executable, "scripts/release.py", *words],
        cwd=clone, env={**os.environ, **person}, capture_output=True, text=True, timeout=100,
    )  # fmt: skip


def test_a_release_has_one_version_everywhere_wheels_and_a_tag(clone: Path) -> None:
    before = git(clone, "rev-parse", "HEAD")
    tried = release(clone, "7.8.9", "--dry-run")
    assert tried.returncode == 0 and "would build both packages, commit, and tag v7.8.9" in tried.stdout
    assert git(clone, "rev-parse", "HEAD") == before and not git(clone, "status", "--porcelain")
    done = release(clone, "7.8.9")
    assert done.returncode == 0, done.stderr
    assert git(clone, "tag").split() == ["v7.8.9"]
    assert not git(clone, "status", "--porcelain")
    built = sorted(path.name for path in (clone / ".kennel" / "dist" / "7.8.9").iterdir())
    assert built == [
        f"kennel_{name}-7.8.9{end}"
        for name in ("coordinator", "dashboard")
        for end in ("-py3-none-any.whl", ".tar.gz")
    ]
    [old] = re.findall(r'^version = "(.+)"$', (PROJECT / "pyproject.toml").read_text(), re.MULTILINE)
    for place in ("pyproject.toml", "packaging", "deploy"):
        assert not git_grep(clone, old, place), place
    changelog = (clone / "CHANGELOG.md").read_text()
    assert re.search(
        r"^## Unreleased\n\n## 7\.8\.9 - \d{4}-\d\d-\d\d\n\n### Added\n", changelog, re.MULTILINE
    )
    assert "Not released: 7.8.9 is not newer than 7.8.9." in release(clone, "7.8.9").stderr
    assert "CHANGELOG.md has no entries under Unreleased" in release(clone, "8.0.0").stderr


def git_grep(folder: Path, text: str, place: str) -> str:
    return subprocess.run(
        ["git", "grep", "-F", text, "--", place], cwd=folder, capture_output=True, text=True
    ).stdout


def test_a_release_is_refused_in_words(clone: Path) -> None:
    assert "'next' is no version" in release(clone, "next").stderr
    assert "0.0.1 is not newer than" in release(clone, "0.0.1").stderr
    (clone / "README.md").write_text("changed")
    refused = release(clone, "9.0.0")
    assert refused.returncode == 1 and "changes that are not committed" in refused.stderr
