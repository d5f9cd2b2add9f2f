"""README, tutorial and the page of workers, typed word for word in an empty folder."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from coordinator import Storage
from coordinator.testing.azurite import ACCOUNT, KEY, SERVICES, find_node
from scripts.wheels import build
from tests.support.ports import free_ports
from tests.support.readme import PROJECT, without_each_line
from tests.support.stack import wait_until

TUTORIAL = (PROJECT / "docs" / "tutorial.md").read_text()
README = (PROJECT / "README.md").read_text()
STARTS_EMULATOR = "npx azurite "
LISTENS = re.compile(r"Azurite (Blob|Queue|Table) service is successfully listening at http://[^:]+:(\d+)")


def typed(text: str) -> list[str]:
    """The indented blocks of a page: what its reader types, in order."""
    blocks = re.findall(r"(?:^    .*\n)+", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.MULTILINE)
    return [block.replace("\n    ", "\n").strip() for block in blocks]


def environment(folder: Path, connection_string: str, **more: str) -> dict[str, str]:
    """A shell with nothing of Kennel but the account."""
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "PATH") if name in os.environ}
    return kept | {"AZURE_STORAGE_CONNECTION_STRING": connection_string, "PWD": str(folder)} | more


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The connection string of the emulator that the tutorial's command starts, on free ports."""
    [command] = [block for block in typed(TUTORIAL) if block.startswith(STARTS_EMULATOR)]
    node, script = find_node(), PROJECT / "node_modules" / "azurite" / "dist" / "src" / "azurite.js"
    assert node is not None and script.is_file(), "run make setup"
    folder = tmp_path_factory.mktemp("emulator")
    ports = [part for service in SERVICES for part in (f"--{service}Port", "0")]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [node, script, *shlex.split(command.removeprefix(STARTS_EMULATOR)), *ports],
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(lambda: len(LISTENS.findall((folder / "log").read_text())) == 3, "the emulator listens")
        found = dict(LISTENS.findall((folder / "log").read_text()))
        endpoints = "".join(
            f"{name}Endpoint=http://127.0.0.1:{port}/{ACCOUNT};" for name, port in found.items()
        )
        yield f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};{endpoints}"
    finally:
        process.kill()
        process.wait()


def library(folder: Path) -> dict[str, str]:
    """The library alone, as the wheel has it: no examples, no tests."""
    packages = folder / "packages"
    packages.mkdir()
    (packages / "coordinator").symlink_to(PROJECT / "coordinator")
    return {"PYTHONPATH": str(packages)}


def test_the_doctor_finds_no_fault_in_the_emulator_of_the_tutorial(emulator: str, tmp_path: Path) -> None:
    env = environment(tmp_path, emulator, **library(tmp_path))
    command = [sys.executable, "-m", "coordinator", "doctor"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "no faults" in done.stdout, done.stdout + done.stderr


def test_readme_and_tutorial_start_the_same_emulator() -> None:
    readme = typed(README)
    [command] = [block for block in typed(TUTORIAL) if block.startswith(STARTS_EMULATOR)]
    assert [line for block in readme for line in block.splitlines() if "azurite" in line] == [command]


def test_the_worker_of_its_page_starts_and_stops(emulator: str, tmp_path: Path) -> None:
    page = (PROJECT / "docs" / "worker.md").read_text()
    [code] = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "billing.py").write_text(code)
    [command] = typed(page)
    env = environment(tmp_path, emulator, KENNEL_PREFIX="page-", **library(tmp_path))
    words = [sys.executable, *shlex.split(command)[1:]]
    log = tmp_path / "log"
    with log.open("w") as output:
        worker = subprocess.Popen(words, env=env, cwd=tmp_path, stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: "Waiting at gate" in log.read_text(), "the worker waits at the gate")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0, log.read_text()
    finally:
        worker.kill()
        worker.wait()


# --- a reader who types all of it --------------------------------------------------------------------------------------

WAIT = """
until_true() { for _ in $(seq PATIENCE); do eval "$1" && return; sleep 0.2; done; echo "never: $1" >&2; exit 1; }"""
TOOLS = ("bash", "cat", "cp", "env", "grep", "mkdir", "rm", "seq", "sh", "sleep", "tail", "timeout", "wc")
# Stand-ins for what takes minutes: they take the one command that the page shows, and do what the true one does, in a moment.
VENV = """#!/bin/sh
[ "$*" = "-m venv venv" ] || { echo "python3 $*?" >&2; exit 64; }
mkdir -p venv/bin venv/packages
echo "export PATH=\"$PWD/venv/bin:\\$PATH\"" >venv/bin/activate
cp HERE/python HERE/pip venv/bin
"""
PYTHON = """#!/bin/sh
if [ "$1 $2" = "-m pip" ]; then shift 2; exec "${0%/*}/pip" "$@"; fi
PYTHONPATH="${0%/*}/../packages" exec REAL "$@"
"""
PIP = """#!REAL -I
import pathlib, sys, zipfile
venv = pathlib.Path(sys.argv[0]).absolute().parent.parent
packages, kennel = venv / "packages", venv / "bin" / "kennel"
assert sys.argv[1] == "install" and sys.argv[2:], sys.argv
for path in map(pathlib.Path, sys.argv[2:]):
    linked = packages / "coordinator"
    if path.is_dir():
        assert 'name = "kennel-coordinator"' in (path / "pyproject.toml").read_text()
        linked.symlink_to(path / "coordinator")
    else:
        with zipfile.ZipFile(path) as wheel:
            if linked.is_symlink() and "coordinator/__init__.py" in wheel.namelist():
                linked.unlink()
            wheel.extractall(packages)
kennel.write_text(KENNEL_TEXT)
kennel.chmod(0o755)
"""
KENNEL = """#!/bin/sh
PYTHONPATH="${0%/*}/../packages" exec REAL -P -c 'from coordinator.__main__ import main; main(prog_name="kennel")' "$@"
"""
MAKE = """#!/bin/sh
[ "$*" = "-C CLONE wheels" ] || { echo "make $*?" >&2; exit 64; }
mkdir -p CLONE/.kennel && cp -r DIST CLONE/.kennel/dist
"""


@dataclass
class Reader:
    """Somebody in an empty folder, who types what a page shows. With `path`, only these programs are there."""

    here: Path
    clone: Path
    connection: str
    seconds: int
    path: str = ""

    def run(self, script: list[str]) -> str:
        """The output of one shell that runs it; an error ends it."""
        waits = WAIT.replace("PATIENCE", str(self.seconds * 5))
        end = f"timeout {self.seconds * 3} bash"
        text = "\n".join(
            [
                "set -e",
                "set -m",
                "trap 'code=$?; kill -9 $(jobs -p) 2>/dev/null || true; exit $code' EXIT",
                waits,
                *script,
            ]
        )
        kept = {name: value for name, value in environment(self.here, "").items() if "AZURE" not in name}
        done = subprocess.run(
            [*end.split(), "-c", text],
            env=kept | ({"PATH": self.path} if self.path else {}),
            cwd=self.here,
            capture_output=True,
            text=True,
        )
        logs = "".join(f"{path.name}:\n{path.read_text()[-1500:]}\n" for path in self.here.glob("*.log"))
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{logs}"
        return done.stdout

    def text(self, block: str) -> str:
        """A block as it is typed here: the place of the clone, and the account on other ports."""
        block = block.replace("PATH/TO/CLONE", str(self.clone))
        return block.replace("=UseDevelopmentStorage=true", f"='{self.connection}'")

    def follow_tutorial(self, page: str) -> None:
        """Each command in order; fails if one fails, or says something else than the page promises."""
        until_dashboard, dashboard = page.split("## Add the dashboard")
        [code] = re.findall(r"^```python\n(.*?)^```", until_dashboard, re.MULTILINE | re.DOTALL)
        assert "`tickets.py`" in until_dashboard
        (self.here / "tickets.py").write_text(code)
        blocks = typed(until_dashboard)
        assert len(blocks) == 7
        assert blocks[1] == next(block for block in typed(TUTORIAL) if block.startswith(STARTS_EMULATOR))
        script = []
        for block in [blocks[0], *blocks[2:]]:
            script.append(self.text(block).replace("tickets:worker &", "tickets:worker >>tickets.log 2>&1 &"))
            if "run tickets:worker" in block:
                script.append("until_true '[ $(grep -c started tickets.log) = 3 ]'")
            if "release sale" in block:
                script.append("until_true '[ $(grep -o \" sold 2\" tickets.log | wc -l) -ge 200 ]'")
        prose = re.findall(r"`(python -m coordinator leash [^`]+|kill -9|kill %2 %3)`", until_dashboard)
        leash, kill, end = prose
        script += [leash, f"{kill} %1", end, "wait"]
        said = self.run([*script, *with_dashboard(dashboard, self)])
        log = (self.here / "tickets.log").read_text()
        sold = re.findall(r" sold 2 seats to (customer \d+): order (\d+)", log)
        assert len({who for who, _ in sold}) == len({number for _, number in sold}) == 200
        assert len({*re.findall(r"Worker (\S+) started", log)} & {"tickets-1", "tickets-2", "tickets-3"}) == 3
        assert said.splitlines().count("200") == 1, said  # the depth while all wait
        for promised in ("no faults", "…1000  tickets-", "ok: ", "sale is open", "sale is closed"):
            assert promised in said, f"{promised!r} is not in {said}"
        assert log.count(" stopped") == 2
        assert "Connected to the hub" in (self.here / "hub.log").read_text()

    def follow_readme(self, page: str) -> None:
        """The commands of the quick start, in order, with its two programs."""
        quick, billing = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
        (self.here / "quick.py").write_text(quick)
        assert "Save this as `billing.py`" in page
        (self.here / "billing.py").write_text(billing)
        demo, start, fleet = typed(page)
        make, target = demo.split("#")[0].split()
        assert (make, f"\n{target}:" in (PROJECT / "Makefile").read_text()) == ("make", True)
        [install] = re.findall(r"Run `(pip install [^`]+)` in a virtual environment", page)
        emulator, account = start.splitlines()
        assert emulator == next(block for block in typed(TUTORIAL) if block.startswith(STARTS_EMULATOR))
        run, release = (line.split("#")[0].strip() for line in fleet.splitlines())
        said = self.run(
            [
                "python3 -m venv venv",
                ". venv/bin/activate",
                *map(self.text, (install, account)),
                "python quick.py",
                f"{run} >billing.log 2>&1 &",
                "until_true 'grep -q \"Waiting at gate\" billing.log'",
                release,
                "until_true '[ $(grep -c \"^order \" billing.log) = 2 ]'",
                "kill %%",
                "wait",
            ]
        )
        assert "node-7 leads, epoch 1" in said


def with_dashboard(text: str, reader: Reader) -> list[str]:
    """The commands of the tutorial's last part: the dashboard beside the shell, on a free port, and a worker that it knows."""
    install, serve, connect = typed(text)
    port = str(free_ports(1)[0])
    create, hub, token, run = connect.splitlines()
    assert "KENNEL_HUB_URL" in hub and "KENNEL_WORKER_TOKEN" in token
    return [
        reader.text(install),
        f"{serve} --port {port} >dashboard.log 2>&1 &",
        "until_true 'grep -q \"Uvicorn running\" dashboard.log'",
        f"printed=$({create} | tail -1)",
        hub.replace("8000", port),
        token.split("#")[0].replace("…", '"$printed"'),
        f"{run} >hub.log 2>&1 &",
        "until_true 'grep -q \"Connected to the hub\" hub.log'",
        "kill $(jobs -p)",
        "wait",
    ]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both wheels."""
    folder = tmp_path_factory.mktemp("dist")
    build(folder)
    for path in folder.iterdir():
        if path.suffix != ".whl":
            path.unlink()
    return folder


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What pip needs of the clone."""
    folder = tmp_path / "clone"
    folder.mkdir()
    (folder / "coordinator").symlink_to(PROJECT / "coordinator")
    for name in ("LICENSE", "README.md", "pyproject.toml"):
        shutil.copy(PROJECT / name, folder)
    return folder


@pytest.fixture
def reader(emulator: str, clone: Path, dist: Path, tmp_path: Path) -> Reader:
    """With stand-ins for venv, pip and make, and no other Python than theirs."""
    programs, stand_ins, here = tmp_path / "bin", tmp_path / "stand-ins", tmp_path / "here"
    for folder in (programs, stand_ins, here):
        folder.mkdir()
    for tool in TOOLS:
        (programs / tool).symlink_to(shutil.which(tool) or tool)
    pip = PIP.replace("KENNEL_TEXT", repr(KENNEL.replace("REAL", sys.executable)))
    for path, text in (
        (programs / "python3", VENV), (programs / "make", MAKE), (stand_ins / "python", PYTHON), (stand_ins / "pip", pip),
    ):  # fmt: skip
        text = text.replace("REAL", sys.executable).replace("HERE", str(stand_ins))
        path.write_text(text.replace("CLONE", str(clone)).replace("DIST", str(dist)))
        path.chmod(0o755)
    return Reader(here, clone, emptied(emulator), 60, str(programs))


def emptied(connection: str) -> str:
    """The account without what an earlier reader left in it."""
    storage = Storage.from_connection_string(connection)
    for queue in storage.blocking.queues.list_queues():
        storage.blocking.queues.delete_queue(queue.name)
    for container in storage.blocking.blobs.list_containers():
        storage.blocking.blobs.delete_container(container.name)
    for table in storage.blocking.tables.list_tables():
        storage.blocking.tables.delete_table(table.name)
    storage.close()
    return connection


@pytest.mark.timeout(300)
def test_the_tutorial_does_what_it_says(reader: Reader) -> None:
    reader.follow_tutorial(TUTORIAL)


@pytest.mark.timeout(300)
def test_the_readme_does_what_it_says(reader: Reader) -> None:
    reader.follow_readme(README)


def without_each_command(page: str) -> list[tuple[str, str]]:
    """Each line that a reader types, be it code or command, and the page without it."""
    shown = {
        line
        for block in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
        for line in block.splitlines()
    }
    return [
        (line, text)
        for line, text in without_each_line(page)
        if (original := page.splitlines()[int(line.split()[0]) - 1]) in shown or original.startswith("    ")
    ]


IN_TUTORIAL = without_each_command(TUTORIAL)
IN_README = [(line, text) for line, text in without_each_command(README) if typed(text) != typed(README)]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("line", "page"), IN_TUTORIAL, ids=[line for line, _ in IN_TUTORIAL])
def test_no_line_of_the_tutorial_can_be_missing(line: str, page: str, reader: Reader) -> None:
    reader.seconds = 20
    with pytest.raises((AssertionError, ValueError)):
        reader.follow_tutorial(page)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("line", "page"), IN_README, ids=[line for line, _ in IN_README])
def test_no_command_of_the_readme_can_be_missing(line: str, page: str, reader: Reader) -> None:
    """Its programs are tested so in `test_readme`."""
    reader.seconds = 20
    with pytest.raises((AssertionError, ValueError)):
        reader.follow_readme(page)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_newcomer_follows_tutorial_and_readme_with_the_wheel(
    emulator: str, clone: Path, dist: Path, tmp_path: Path
) -> None:
    """With true environments, pip and packages; only the emulator's ports are others."""
    (clone / "coordinator").unlink()
    shutil.copytree(PROJECT / "coordinator", clone / "coordinator")
    (clone / "Makefile").write_text(f"wheels:\n\tmkdir -p .kennel && cp -r {dist} .kennel/dist\n")
    for name in ("tutorial", "readme"):
        here = tmp_path / name
        here.mkdir()
        reader = Reader(here, clone, emptied(emulator), 200)
        reader.follow_tutorial(TUTORIAL) if name == "tutorial" else reader.follow_readme(README)
