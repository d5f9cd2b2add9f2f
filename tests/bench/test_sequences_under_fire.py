"""Numbers while processes are killed and stopped and storage misbehaves: none twice, every one accounted for."""

from __future__ import annotations

import array
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from coordinator.config import StorageConfig
from coordinator.sequences.ledger import open_book
from coordinator.storage import Storage
from coordinator.testing.azurite import Azurite
from coordinator.testing.faults import FaultProxy
from coordinator.testing.processes import ProcessBench
from tests.support.processes import start_server


class Bench(ProcessBench):
    """Of workers that need not import the libraries of others."""

    def launch(self, command: Sequence[str], log: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        return start_server(command, log=log, env=env)


def soak(
    azurite: Azurite,
    prefix: str,
    folder: Path,
    *,
    numbers: int,
    range_size: int,
    faults: float,
    seed: int,
    every: float,
) -> None:
    with FaultProxy(azurite.connection_string) as proxy:
        proxy.at_random(faults, seed=seed)
        bench = Bench(
            lambda place, record: [
                sys.executable,
                "-m",
                "tests.bench.number_worker",
                str(record),
                prefix,
                "orders",
                str(range_size),
                "0.002",
            ],
            workers=8,
            folder=folder,
            seed=seed,
            env={"AZURE_STORAGE_CONNECTION_STRING": proxy.connection_string, "PYTHONPATH": os.getcwd()},
        )
        with bench:
            while bench.recorded_bytes < 8 * numbers:
                time.sleep(every)
                bench.mistreat()
            proxy.heal()
            failed = bench.finish()
        assert not failed, [bench.log(run)[-2000:] for run in failed]
        assert any("killed" in what for what in bench.actions)
        assert any("stopped" in what for what in bench.actions)
        assert len({each.fault for each in proxy.applied}) > 5

    storage = Storage.from_connection_string(azurite.connection_string, config=StorageConfig(prefix=prefix))
    book = open_book(storage, "orders")
    report = book.verify()
    assert report.is_ok, report.summary
    assert report.unattributed == 0
    owner_of_number = {number: run.pid for run, data in bench.records() for number in array.array("q", data)}
    issued = sum(len(data) // 8 for _, data in bench.records())
    assert issued >= numbers
    assert len(owner_of_number) == issued, f"{issued - len(owner_of_number)} numbers were issued twice"
    attributed = 0
    for grant in book.rows():
        for number in range(grant.first, grant.covers_to + 1):
            if number in owner_of_number:
                attributed += 1
                assert owner_of_number[number] == grant.owner.pid, f"{number} is not {grant.owner}'s"
    assert attributed == issued
    storage.close()
    print(f"{issued} numbers, {len(bench.runs)} process starts, {len(proxy.applied)} faults, {report}")


def test_200_000_numbers_by_eight_mistreated_processes_are_distinct_and_accounted_for(
    own_azurite: Azurite, storage_prefix: str, tmp_path: Path
) -> None:
    seed = random.randrange(10**6)
    print(f"repeat with seed {seed}")
    soak(
        own_azurite,
        storage_prefix,
        tmp_path,
        numbers=200_000,
        range_size=250,
        faults=0.1,
        seed=seed,
        every=0.5,
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_10_000_000_numbers_by_eight_mistreated_processes_are_distinct_and_accounted_for(
    own_azurite: Azurite, storage_prefix: str, tmp_path: Path
) -> None:
    seed = random.randrange(10**6)
    print(f"repeat with seed {seed}")
    soak(
        own_azurite,
        storage_prefix,
        tmp_path,
        numbers=10_000_000,
        range_size=5000,
        faults=0.05,
        seed=seed,
        every=1.0,
    )
