"""The wheel of the library: it is complete, it stands alone, and it knows no Django."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from coordinator.testing.azurite import Azurite
from scripts.wheels import build
from tests.support.readme import PROJECT, python_blocks

STRANGERS = {"django", "channels", "asgiref", "uvicorn", "whitenoise"}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Both wheels: of the library and of the dashboard."""
    return [path for path in build(tmp_path_factory.mktemp("dist")) if path.suffix == ".whl"]


@pytest.fixture(scope="module")
def wheel(wheels: list[Path]) -> Path:
    return wheels[0]


def requirements(wheel: Path) -> list[Requirement]:
    """What the wheel declares."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        lines = archive.read(name).decode().split("\n\n")[0].splitlines()
    return [
        Requirement(line.removeprefix("Requires-Dist: "))
        for line in lines
        if line.startswith("Requires-Dist")
    ]


def closure(wanted: list[Requirement]) -> set[str]:
    """These packages and all that they need, without extras."""
    found: set[str] = set()
    waiting = [requirement for requirement in wanted if "extra" not in str(requirement.marker)]
    while waiting:
        requirement = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if (name := canonicalize_name(requirement.name)) not in found:
            found.add(name)
            waiting += map(Requirement, importlib.metadata.distribution(name).requires or ())
    return found


@pytest.fixture(scope="module")
def alone(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages that holds the wheel's content and what the wheel declares to need, and no more."""
    folder = tmp_path_factory.mktemp("packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    installed = Path(sysconfig.get_path("purelib"))
    for name in closure(requirements(wheel)):
        files = importlib.metadata.distribution(name).files or ()
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(installed / top)
    return folder


def run(folder: Path, *arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Python with nothing but that folder of packages."""
    clean = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-S", *arguments],
        env=clean | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"} | env,
        cwd=folder.parent,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_wheel_holds_the_library_its_types_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name.split("/")[0] for name in names} == {
        "coordinator",
        f"{'-'.join(wheel.name.split('-')[:2])}.dist-info",
    }
    assert "coordinator/py.typed" in names
    assert [name for name in names if name.endswith("/licenses/LICENSE")]
    modules = {str(path.relative_to(PROJECT)) for path in (PROJECT / "coordinator").rglob("*.py")}
    assert modules <= names
    assert not [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".sqlite3"))]


@pytest.mark.parametrize("package", ["coordinator", "dashboard"])
def test_each_wheel_declares_every_package_that_it_imports(wheels: list[Path], package: str) -> None:
    distributions = importlib.metadata.packages_distributions()
    of_library = [name for requirement in requirements(wheels[0]) if (name := requirement.name)]
    own = requirements(wheels[1]) if package == "dashboard" else []
    declared = {canonicalize_name(name) for name in [*of_library, *(each.name for each in own)]}
    missing = set()
    for path in (PROJECT / package).rglob("*.py"):
        if "demo" in path.as_posix():
            continue  # stays in the repository
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported = [node.module]
            else:
                continue
            for name in imported:
                top = name.split(".")[0]
                if top in sys.stdlib_module_names or top in ("coordinator", "dashboard", "azure", "pytest"):
                    continue
                if not declared & {canonicalize_name(found) for found in distributions.get(top, [top])}:
                    missing.add((top, path.name))
    assert missing == set(), "declare it in pyproject.toml, in an extra if it is optional"


def test_the_dashboards_wheel_holds_templates_static_files_and_no_demo(wheels: list[Path]) -> None:
    with zipfile.ZipFile(wheels[1]) as archive:
        names = set(archive.namelist())
    assert {name.split("/")[0] for name in names} == {
        "dashboard",
        f"kennel_dashboard-{wheels[1].name.split('-')[1]}.dist-info",
    }
    for folder, kind in (
        ("templates", "*.html"),
        ("static", "*.css"),
        ("static", "*.js"),
        ("dashboard/migrations", "*.py"),
    ):
        package = PROJECT / folder
        here = "dashboard" if folder != "dashboard/migrations" else ""
        assert {str(Path(here, path.relative_to(PROJECT))) for path in package.rglob(kind)} <= names
    assert {"dashboard/py.typed", "dashboard/static/uplot/uPlot.min.css"} <= names
    assert not [name for name in names if "demo" in name or "__pycache__" in name]


def test_both_packages_have_one_version(wheels: list[Path]) -> None:
    versions = {path.name.split("-")[1] for path in wheels}
    [pinned] = [each for each in requirements(wheels[1]) if each.name == "kennel-coordinator"]
    [extra] = [each for each in requirements(wheels[0]) if each.name == "kennel-dashboard"]
    assert versions == {str(pinned.specifier).removeprefix("=="), str(extra.specifier).removeprefix("==")}


def test_a_wheel_built_from_the_source_archive_is_the_same(wheels: list[Path], tmp_path: Path) -> None:
    for wheel in wheels:
        with tarfile.open(next(wheel.parent.glob(f"{wheel.name.split('-')[0]}-*.tar.gz"))) as archive:
            archive.extractall(tmp_path, filter="data")
        source = next(tmp_path.glob(f"{wheel.name.split('-')[0]}-*/"))
        command = [
            sys.executable,
            "-m",
            "hatchling",
            "build",
            "-t",
            "wheel",
            "--directory",
            tmp_path / "again",
        ]
        subprocess.run(command, cwd=source, check=True, capture_output=True)
        with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(tmp_path / "again" / wheel.name) as second:
            assert set(first.namelist()) == set(second.namelist())


def test_the_quick_start_runs_with_the_declared_packages_alone(
    alone: Path, azurite: Azurite, storage_prefix: str, tmp_path: Path
) -> None:
    script = tmp_path / "quick_start.py"
    script.write_text(python_blocks()[0] + f"\nimport sys\nassert not {STRANGERS!r} & set(sys.modules)\n")
    done = run(
        alone,
        script,
        AZURE_STORAGE_CONNECTION_STRING=azurite.connection_string,
        KENNEL_PREFIX=storage_prefix,
    )
    assert (done.returncode, done.stdout) == (0, "node-7 leads, epoch 1\n"), done.stderr
    for stranger in STRANGERS:
        assert run(alone, "-c", f"import {stranger}").returncode == 1, f"{stranger} came along"


def test_the_installed_command_shows_what_it_can(alone: Path) -> None:
    with (
        alone / next(alone.glob("kennel_coordinator-*.dist-info")).name / "entry_points.txt"
    ).open() as file:
        assert "kennel = coordinator.__main__:main" in file.read()
    done = run(alone, "-m", "coordinator", "--help")
    assert done.returncode == 0, done.stderr
    assert {"run", "release", "leash", "doctor", "ids", "queue"} <= set(done.stdout.split())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("python", ["python3.11", "python3.12", "python3.13"])
def test_the_wheel_installs_in_a_clean_environment(
    python: str, wheel: Path, azurite: Azurite, storage_prefix: str, tmp_path: Path
) -> None:
    program = find_python(python)
    if program is None:
        pytest.skip(f"{python} is not on this machine")
    venv = tmp_path / "venv"
    subprocess.run([program, "-m", "venv", venv], check=True)
    done = subprocess.run(
        [venv / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    script = tmp_path / "quick_start.py"
    script.write_text(python_blocks()[0])
    env = {
        "PATH": os.environ["PATH"],
        "AZURE_STORAGE_CONNECTION_STRING": azurite.connection_string,
        "KENNEL_PREFIX": storage_prefix,
    }
    commands: list[list[str | Path]] = [
        [venv / "bin" / "python", script],
        [venv / "bin" / "kennel", "doctor"],
    ]
    for command in commands:
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
    assert not list(venv.glob("lib/python3*/site-packages/django"))


def find_python(name: str) -> str | None:
    """A working interpreter of that name; a version manager's shim may be there without its version."""
    candidates = [shutil.which(name), *map(str, Path.home().glob(f".pyenv/versions/{name[6:]}*/bin/{name}"))]
    for candidate in filter(None, candidates):
        if subprocess.run([candidate, "--version"], capture_output=True).returncode == 0:
            return candidate
    return None
