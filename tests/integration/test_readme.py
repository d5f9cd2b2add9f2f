"""README's quick start, run word for word."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from coordinator import Storage
from coordinator.sequences.ledger import open_book
from coordinator.testing.azurite import Azurite
from tests.support.readme import PROJECT, python_blocks
from tests.support.stack import wait_until


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


async def test_the_quick_start_runs_as_it_stands(environ: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "quick_start.py"
    script.write_text(python_blocks()[0])
    done = subprocess.run([sys.executable, script], env=environ, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "node-7 leads, epoch 1\n", "")
    async with Storage.from_env(environ) as storage:
        state = await storage.gate("start-order-processing").read()
        assert (state.state, state.by, state.reason) == ("closed", "olga", "stock check")
        queue = storage.queue("orders-in", type=Order)
        [peeked] = await queue.peek()
        assert peeked.items == (Order("ticket", 4200), Order("poster", 900))
        book = open_book(storage, "orders")
        report = book.verify()
        assert report.is_ok and (report.used, report.returned) == (1, 999)


async def test_the_quick_starts_worker_waits_sells_and_stops(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "billing.py").write_text(python_blocks()[1])
    output = tmp_path / "output"
    async with Storage.from_env(environ) as storage:
        await storage.queue("orders-in", type=Order).put(Order("ticket", 4200), Order("poster", 900))
        with output.open("wb") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "coordinator", "run", "billing:worker"],
                env=environ,
                cwd=tmp_path,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            wait_until(lambda: "start-order-processing" in output.read_text(), "the worker waits at the gate")
            assert not sold(output)
            await storage.gate("start-order-processing").open(by="olga")
            wait_until(lambda: len(sold(output)) == 2, "both orders are sold")
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(30) == 0, output.read_text()
        except AssertionError:
            print(output.read_text())
            raise
        finally:
            worker.kill()
            worker.wait()
    numbers, orders = zip(*(line.split(": ") for line in sold(output)), strict=True)
    assert sorted(numbers) == ["order 1", "order 2"]
    assert sorted(orders) == ["poster for 9.00", "ticket for 42.00"]
