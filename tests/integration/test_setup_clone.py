"""What `make setup` promises."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts import lock, setup
from tests.support import missing

ROOT = Path(__file__).resolve().parents[2]
PINNED = re.compile(r"([A-Za-z0-9._-]+)(?:\[[a-z,]+\])?==([A-Za-z0-9.]+)")


def pins(name: str) -> dict[str, str]:
    """The pins of a requirements file by normal name; fails on a line that is no exact pin."""
    found: dict[str, str] = {}
    for line in (ROOT / name).read_text().splitlines():
        if not line or line.startswith(("#", "-r ", "-c ")):
            continue
        pin = PINNED.fullmatch(line)
        assert pin, f"{name}: {line!r} is not an exact pin"
        found[canonicalize_name(pin[1])] = pin[2]
    return found


def installed_closure(names: set[str]) -> dict[str, str]:
    """The installed versions of these packages and of all that they need."""
    found: dict[str, str] = {}
    waiting = [Requirement(name) for name in names]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        package = importlib.metadata.distribution(name)
        news = name not in found or wanted.extras
        found[name] = package.version
        for line in package.requires or () if news else ():
            needed = Requirement(line)
            extras = ["", *wanted.extras]
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(needed)
    return found


def test_every_package_that_we_need_is_pinned_and_installed_as_pinned() -> None:
    constraints = pins("constraints.txt")
    direct = pins("requirements.txt") | pins("requirements-dev.txt")
    assert direct.items() <= constraints.items()
    needed = installed_closure(direct.keys() | {"uvicorn[standard]", "psycopg[binary]", "psycopg[pool]"})
    del needed["setuptools"]  # comes with the venv
    assert len(needed) > len(direct)
    assert {name: (version, constraints.get(name)) for name, version in needed.items()} == {
        name: (version, version) for name, version in needed.items()
    }


def test_npm_packages_are_exact_and_name_no_registry() -> None:
    declared = json.loads((ROOT / "package.json").read_text())
    for version in {**declared["dependencies"], **declared["devDependencies"]}.values():
        assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    lock = json.loads((ROOT / "package-lock.json").read_text())
    assert not [name for name, package in lock["packages"].items() if "resolved" in package]
    assert all("integrity" in package for name, package in lock["packages"].items() if name)


def test_a_step_is_done_once_and_again_only_when_its_inputs_change(tmp_path: Path) -> None:
    done: list[str] = []
    stamp = tmp_path / "deep" / "stamp"
    for wanted in ("one", "one", "two", "two", "one"):
        setup.step(stamp, wanted, "Working", lambda wanted=wanted: done.append(wanted))
    assert done == ["one", "two", "one"]


def test_a_step_that_failed_is_done_again(tmp_path: Path) -> None:
    stamp = tmp_path / "stamp"
    stamp.write_text("older")

    def fail() -> None:
        raise setup.SetupError("no network")

    with pytest.raises(setup.SetupError):
        setup.step(stamp, "wanted", "Working", fail)
    assert setup.step(stamp, "wanted", "Working", lambda: None)
    assert not setup.step(stamp, "wanted", "Working", fail)


def test_a_failed_command_shows_its_words_and_ours() -> None:
    with pytest.raises(setup.SetupError, match=r"(?s)their words.*our advice"):
        setup.run([sys.executable, "-c", "import sys; print('their words'); sys.exit(3)"], "our advice")


def test_a_linked_environment_of_another_folder_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "pyvenv.cfg").write_text("theirs")
    (tmp_path / ".venv").symlink_to(other)
    monkeypatch.setattr(setup, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(setup.venv, "create", lambda place, **how: place.mkdir(exist_ok=True))
    setup.make_venv()
    assert not (tmp_path / ".venv").is_symlink()
    assert (other / "pyvenv.cfg").read_text() == "theirs"


def test_a_second_setup_with_nothing_to_do_takes_under_3_seconds() -> None:
    def make_setup() -> tuple[str, float]:
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "scripts/setup.py"], cwd=ROOT, capture_output=True, text=True, timeout=110
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout, time.monotonic() - began

    make_setup()
    said, seconds = make_setup()
    assert said.splitlines()[-1].startswith("Set-up complete")
    assert len(said.splitlines()) == 1, f"did something: {said}"
    assert seconds < 3.0


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_a_missing_part_fails_in_ci_and_skips_on_a_laptop(
    ci: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="Redis is missing: run `make setup`"):
        missing("Redis", "run `make setup`")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_fresh_clone_sets_itself_up_without_node(tmp_path: Path) -> None:
    clone = tmp_path / "kennel"
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("make", "sh", "env"):
        program = shutil.which(name)
        assert program
        (tools / name).symlink_to(program)
    base = Path(sys.base_prefix) / "bin" / "python3.11"
    home = tmp_path / "home"
    home.mkdir()
    env = {**os.environ, "PATH": str(tools), "HOME": str(home)}
    for variable in ("CI", "PYTHONPATH", "VIRTUAL_ENV", "DJANGO_SETTINGS_MODULE", "DATABASE_URL"):
        env.pop(variable, None)

    def make_setup() -> tuple[str, float]:
        began = time.monotonic()
        done = subprocess.run(
            ["make", "setup", f"PYTHON={base}"], cwd=clone, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout, time.monotonic() - began

    said, _ = make_setup()
    assert "installing one into .venv" in said
    code = "from coordinator.testing.azurite import Azurite\nwith Azurite() as running: print(running.ports)"
    started = subprocess.run(
        [clone / ".venv/bin/python", "-c", code], cwd=clone, env=env, capture_output=True, text=True
    )
    assert started.returncode == 0, started.stderr
    assert "'table'" in started.stdout
    _, again = make_setup()
    assert again < 3.0
    assert not list(home.rglob("*")), "something was written outside the clone"
    status = subprocess.run(
        ["git", "status", "--short"], cwd=clone, capture_output=True, text=True, check=True
    )
    assert status.stdout == "", "set-up changed or added files that git sees"


@pytest.mark.parametrize(
    ("name", "source"), [("requirements.lock", "requirements.txt"), ("requirements-dev.lock", "requirements-dev.txt")]
)  # fmt: skip
def test_the_lock_files_hold_every_package_as_pinned_with_hashes(name: str, source: str) -> None:
    constraints = pins("constraints.txt")
    direct = pins("requirements.txt") | (pins(source) if source != "requirements.txt" else {})
    held = lock.packages(name)
    advice = "run .venv/bin/python scripts/lock.py"
    assert {each: version for each, (version, _) in held.items()}.items() <= constraints.items() | {
        (each, version) for each, (version, _) in held.items() if each == "setuptools"
    }, advice
    assert direct.items() <= {each: version for each, (version, _) in held.items()}.items(), advice
    assert [each for each, (_, digests) in held.items() if not digests] == []


def test_set_up_and_images_install_nothing_whose_hash_is_not_known() -> None:
    text = (ROOT / "scripts" / "setup.py").read_text()
    installs = re.findall(r"pip_install\((\".*)\)", text)
    assert len(installs) == 2
    assert all('"--require-hashes"' in each for each in installs)
    lines = [
        line
        for line in (ROOT / "deploy" / "Dockerfile").read_text().splitlines()
        if "bin/pip install" in line
    ]
    assert len(lines) == 3
    assert all("--require-hashes" in line or "--no-deps ." in line for line in lines)


def test_the_bill_of_materials_names_every_package_of_the_dashboard_and_its_pages() -> None:
    bill = lock.sbom()
    named = {str(each["purl"]) for each in cast(list[dict[str, object]], bill["components"])}
    assert bill["bomFormat"] == "CycloneDX"
    assert {
        f"pkg:pypi/{name}@{version}" for name, (version, _) in lock.packages("requirements.lock").items()
    } <= named
    assert any(each.startswith("pkg:npm/uplot@") for each in named)
