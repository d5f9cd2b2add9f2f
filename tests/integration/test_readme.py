"""README's quick start, run word for word."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from coordinator import Storage
from coordinator.leadership.azure import list_leaders
from coordinator.sequences.ledger import open_book
from coordinator.testing.azurite import Azurite
from tests.support.readme import PROJECT, python_blocks, without_each_line
from tests.support.stack import wait_until

SHOWS_RESULT = """
import asyncio, runpy, sys
from coordinator import Storage
run, aclose, closed = asyncio.run, Storage.aclose, []

async def noted(storage):
    await aclose(storage)
    closed.append(storage)

asyncio.run, Storage.aclose = lambda main: print(run(main)), noted
runpy.run_path(sys.argv[1], run_name="__main__")
assert len(closed) == 1, "the storage was not closed"
"""


class Order(msgspec.Struct):
    item: str
    cents: int


@pytest.fixture
def environ(own_azurite: Azurite, tmp_path: Path) -> dict[str, str]:
    """What the README says to set, in an account of its own. Nothing of the clone but the library is found."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AZURE_", "KENNEL_"))}
    return clean | {
        "AZURE_STORAGE_CONNECTION_STRING": own_azurite.connection_string,
        "PYTHONPATH": str(library(tmp_path)),
        "PYTHONWARNINGS": "error",
    }


def library(folder: Path) -> Path:
    """A folder that holds the library alone, as the wheel does: no examples, no tests."""
    packages = folder / "packages"
    packages.mkdir()
    (packages / "coordinator").symlink_to(PROJECT / "coordinator")
    return packages


def sold(output: Path) -> list[str]:
    """What the handler printed between the log lines."""
    return [line for line in output.read_text().splitlines() if line.startswith("order ")]


async def follow_quick_start(code: str, environ: dict[str, str], folder: Path, seconds: float = 60) -> None:
    """Run the code; fails unless it does all that its lines are for."""
    script = folder / "quick_start.py"
    script.write_text(code)
    shown = [sys.executable, "-c", SHOWS_RESULT, script]
    done = subprocess.run(shown, env=environ, capture_output=True, text=True, timeout=seconds)
    assert (done.returncode, done.stderr) == (0, "")
    [said, returned] = done.stdout.splitlines()
    assert said == "node-7 leads, epoch 1"
    assert returned.startswith("(1, Release(") and "epoch=1" in returned, returned
    async with Storage.from_env(environ) as storage:
        state = await storage.gate("start-order-processing").read()
        assert (state.state, state.by, state.reason) == ("closed", "olga", "stock check")
        queue = storage.queue("orders-in", type=Order)
        [peeked] = await queue.peek()
        assert peeked.items == (Order("ticket", 4200), Order("poster", 900))
        book = open_book(storage, "orders")
        report = book.verify()
        assert report.is_ok and (report.used, report.returned) == (1, 999)


async def follow_worker(code: str, environ: dict[str, str], folder: Path, seconds: float = 60) -> None:
    """Run the worker; fails unless it waits, sells, leads and stops."""
    (folder / "billing.py").write_text(code)
    output = folder / "output"
    async with Storage.from_env(environ) as storage:
        await storage.queue("orders-in", type=Order).put(Order("ticket", 4200), Order("poster", 900))
        with output.open("wb") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "coordinator", "run", "billing:worker"],
                env=environ,
                cwd=folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            wait_until(
                lambda: "start-order-processing" in output.read_text(),
                "the worker waits at the gate",
                seconds,
            )
            assert not sold(output)
            await storage.gate("start-order-processing").open(by="olga")
            wait_until(lambda: len(sold(output)) == 2, "both orders are sold", seconds)
            async with asyncio.timeout(seconds):
                while "month-end" not in [leader.name for leader in await list_leaders(storage)]:
                    await asyncio.sleep(0.2)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(30) == 0, output.read_text()
        except (AssertionError, TimeoutError):
            print(output.read_text())
            raise
        finally:
            worker.kill()
            worker.wait()
    numbers, orders = zip(*(line.split(": ") for line in sold(output)), strict=True)
    assert sorted(numbers) == ["order 1", "order 2"]
    assert sorted(orders) == ["poster for 9.00", "ticket for 42.00"]


async def test_the_quick_start_runs_as_it_stands(environ: dict[str, str], tmp_path: Path) -> None:
    await follow_quick_start(python_blocks()[0], environ, tmp_path)


async def test_the_quick_starts_worker_waits_sells_and_stops(environ: dict[str, str], tmp_path: Path) -> None:
    await follow_worker(python_blocks()[1], environ, tmp_path)


QUICK, BILLING = map(without_each_line, python_blocks())


@pytest.mark.slow
@pytest.mark.parametrize(("line", "code"), QUICK, ids=[line for line, _ in QUICK])
async def test_no_line_of_the_quick_start_can_be_missing(
    line: str, code: str, environ: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises((AssertionError, ValueError, subprocess.TimeoutExpired)):
        await follow_quick_start(code, environ, tmp_path, 30)


@pytest.mark.slow
@pytest.mark.parametrize(("line", "code"), BILLING, ids=[line for line, _ in BILLING])
async def test_no_line_of_the_worker_can_be_missing(
    line: str, code: str, environ: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises((AssertionError, TimeoutError, ValueError)):
        await follow_worker(code, environ, tmp_path, 30)
