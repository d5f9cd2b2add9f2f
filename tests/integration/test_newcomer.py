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
from pathlib import Path

import pytest

from coordinator.testing.azurite import ACCOUNT, KEY, SERVICES, find_node
from scripts.wheels import build
from tests.support.ports import free_ports
from tests.support.readme import PROJECT, python_blocks
from tests.support.stack import wait_until

TUTORIAL = (PROJECT / "docs" / "tutorial.md").read_text()
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
    readme = typed((PROJECT / "README.md").read_text())
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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_newcomer_follows_readme_and_tutorial_with_the_wheel(emulator: str, tmp_path: Path) -> None:
    """One shell, an environment of its own, each command as printed; only the emulator's ports are others."""
    here = tmp_path / "empty"
    here.mkdir()
    clone = tmp_path / "clone"
    shutil.copytree(PROJECT / "coordinator", clone / "coordinator")
    for name in ("LICENSE", "README.md", "pyproject.toml"):
        shutil.copy(PROJECT / name, clone)
    until_dashboard, dashboard = TUTORIAL.split("## Add the dashboard")
    [code] = re.findall(r"^```python\n(.*?)^```", until_dashboard, re.MULTILINE | re.DOTALL)
    (here / "tickets.py").write_text(code)
    quick, billing = python_blocks()
    (here / "quick.py").write_text(quick)
    (here / "billing.py").write_text(billing)
    until_sold = 'until [ "$(grep -o " sold 2" log | wc -l)" = 200 ]; do sleep 0.2; done'
    script = ["set -e", "set -m"]
    for block in typed(until_dashboard):
        if block.startswith(STARTS_EMULATOR):
            continue
        if "ids verify" in block:
            script.append(until_sold)
        text = block.replace("=UseDevelopmentStorage=true", f"='{emulator}'")  # its ports are others
        text = text.replace("PATH/TO/CLONE", str(clone))
        script.append(text.replace("tickets:worker &", "tickets:worker >>log 2>&1 &"))
    script += re.findall(r"`(python -m coordinator leash [^`]+|kill %2 %3)`", until_dashboard)
    script += ["kill %1", "wait", "python quick.py", "kennel run billing:worker >billing.log 2>&1 &"]
    script += ['until grep -q "Waiting at gate" billing.log; do sleep 0.2; done']
    script += [line.split("#")[0] for line in typed((PROJECT / "README.md").read_text())[-1].splitlines()[1:]]
    script += ['until [ "$(grep -c "^order " billing.log)" = 2 ]; do sleep 0.2; done', "kill %%", "wait"]
    script += with_dashboard(dashboard, clone)
    done = subprocess.run(
        ["timeout", "400", "bash", "-c", "\n".join(script)],
        env={
            name: value
            for name, value in environment(here, "").items()
            if name != "AZURE_STORAGE_CONNECTION_STRING"
        },
        cwd=here,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok: " in done.stdout and "node-7 leads, epoch 1" in done.stdout
    numbers = re.findall(r"order (\d+)", (here / "log").read_text())
    assert len(numbers) == len(set(numbers)) == 200
    assert "Connected to the hub" in (here / "hub.log").read_text()


def with_dashboard(text: str, clone: Path) -> list[str]:
    """The commands of the tutorial's last part: the dashboard beside the shell, on a free port, and a worker that it knows."""
    install, serve, connect = typed(text)
    make, pip = install.splitlines()
    assert make == "make -C PATH/TO/CLONE wheels"
    build(clone / ".kennel" / "dist")
    port = str(free_ports(1)[0])
    create, hub, token, run = connect.splitlines()
    return [
        pip.replace("PATH/TO/CLONE", str(clone)),
        f"{serve} --port {port} >dashboard.log 2>&1 &",
        'until grep -q "Uvicorn running" dashboard.log; do sleep 0.2; done',
        f"printed=$({create} | tail -1)",
        hub.replace("8000", port),
        token.split("#")[0].replace("…", '"$printed"'),
        f"{run} >hub.log 2>&1 &",
        'until grep -q "Connected to the hub" hub.log; do sleep 0.2; done',
        "kill $(jobs -p)",
        "wait",
    ]
