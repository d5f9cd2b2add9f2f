"""``python -m coordinator`` as an operator types it, on a real account."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from coordinator import Storage
from coordinator import __main__ as shell
from coordinator.cli import gates
from coordinator.config import StorageConfig
from coordinator.testing.azurite import Azurite
from coordinator.testing.faults import FaultProxy, answer_delayed


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch, connection_string: str, storage_prefix: str) -> str:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection_string)
    monkeypatch.setenv("KENNEL_PREFIX", storage_prefix)
    monkeypatch.setenv("USER", "olga")
    return storage_prefix


def kennel(*words: str, stdin: str = "") -> Result:
    return CliRunner().invoke(shell.main, words, input=stdin)


async def test_a_gate_is_opened_and_closed_by_whoever_typed_it(account: str, connection_string: str) -> None:
    told = await asyncio.to_thread(kennel, "release", "sales", "--reason", "tickets on sale")
    assert told.stdout == "sales is open (epoch 1)\n"
    async with Storage.from_connection_string(
        connection_string, config=StorageConfig(prefix=account)
    ) as storage:
        state = await storage.gate("sales").read()
        assert (state.state, state.reason) == ("open", "tickets on sale")
        told = await asyncio.to_thread(kennel, "leash", "sales", "--by", "nina", "--reason", "stock")
        assert told.stdout == "sales is closed (epoch 2)\n"
        assert (await storage.gate("sales").read()).by == "nina"
    assert (await asyncio.to_thread(kennel, "leash", "sales")).exit_code == 2, "a reason is needed"


def test_leashing_a_gate_that_does_not_exist_fails_and_stores_nothing(account: str) -> None:
    for _ in range(2):
        told = kennel("leash", "start-order-procesing", "--reason", "stock")
        assert (told.exit_code, told.stdout) == (1, "")
        assert "gate start-order-procesing does not exist; nothing changed" in told.stderr
    assert kennel("release", "start-order-procesing").exit_code == 0, "opening creates it"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", [["queue", "list"], ["ids", "export", "orders"]])
def test_output_that_cannot_be_written_ends_with_one_line(
    account: str, connection_string: str, words: list[str]
) -> None:
    kennel("queue", "create", f"{account}work")
    storage = Storage.from_connection_string(connection_string, config=StorageConfig(prefix=account))
    with storage.sequence("orders") as orders:
        orders.next_id()
    storage.close()
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "coordinator", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "Error: the output cannot be written: No space left on device\n"


def test_a_command_that_waits_says_so_and_goes_on(
    account: str, azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "PATIENCE_SECONDS", 0.05)
    with FaultProxy(azurite.connection_string) as proxy:
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", proxy.connection_string)
        proxy.once(answer_delayed(0.3), service="blob")
        told = kennel("release", "sales")
    assert told.stdout == "sales is open (epoch 1)\n"
    assert "Storage has not answered yet; still trying." in told.stderr


def test_a_queue_is_made_once_filled_in_portions_and_swept(account: str) -> None:
    name = f"{account}work"
    assert kennel("queue", "create", name).stdout == f"Created {name}\n"
    assert kennel("queue", "create", name).stdout == f"Queue {name} already exists\n"
    lines = "".join(f"{number}\n" for number in range(20))
    told = kennel("queue", "put", name, "--batch", "2", stdin=lines).stderr
    assert told.split("\r") == ["", "16 items", f"Sent 20 items to {name}\n"]
    assert kennel("queue", "count", name).stdout == "10\n"
    assert kennel("queue", "put", name, "--batch", "2", stdin="1\n" * 16).stderr.endswith(
        f"Sent 16 items to {name}\n"
    )
    assert kennel("queue", "sweep", name).stdout == "Removed 0 payloads\n"
    assert kennel("queue", "delete", name, "--yes").stdout == f"Deleted {name}\n"


def test_moving_many_messages_shows_how_far_it_is(account: str) -> None:
    name = f"{account}work"
    kennel("queue", "put", name, "--batch", "1", stdin="1\n" * 100)
    told = kennel("queue", "move", name, f"{name}2")
    assert told.stderr == "\r100 messages"
    assert told.stdout == f"\rMoved 100 messages from {name} to {name}2\n"


def test_prune_counts_first_and_finds_nothing_in_a_new_account(account: str) -> None:
    told = kennel("prune", "--days", "30", "--dry-run").stdout
    assert told == "Would delete 0 batches, 0 sagas and 0 scaling changes\n"
    assert kennel("prune", "--days", "30").stdout == "Deleted 0 batches, 0 sagas and 0 scaling changes\n"
    assert kennel("prune", "--days", "0").exit_code == 2


def test_the_doctor_examines_and_writes_nothing_if_told_to(account: str) -> None:
    told = kennel("doctor", "--read-only", "--json", "--queue", f"{account}work")
    findings = {each["check"]: each for each in map(json.loads, told.stdout.splitlines())}
    assert told.exit_code == 0
    assert findings["blob service"]["verdict"] == "ok" and "blob rights" not in findings
    assert findings[f"queue {account}work"]["found"] == "does not exist"
    assert kennel("doctor").stdout.splitlines()[-1].startswith("no faults, ")


def test_who_had_a_number_that_another_program_took(account: str, connection_string: str) -> None:
    config = StorageConfig(prefix=account)
    storage = Storage.from_connection_string(connection_string, config=config)
    with storage.sequence("orders", range_size=10, max_range_size=10) as orders:
        orders.next_id()
    blob = storage.blocking.blobs.get_blob_client(config.container("sequences"), "orders")
    blob.upload_blob(b"1000", overwrite=True)
    with storage.sequence("orders", range_size=10, max_range_size=10) as orders:
        assert orders.next_id() >= 1000
    told = kennel("ids", "who", "orders", "500")
    assert told.exit_code == 1 and told.stdout == (
        "500: unattributed; another program moved the counter past it\n"
    )
    storage.close()
