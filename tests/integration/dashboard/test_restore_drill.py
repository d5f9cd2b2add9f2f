"""The drill: everything is lost but a backup and the account, a gate of which is lost too; then an old gate is put back."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from coordinator import Storage
from coordinator.config import StorageConfig
from coordinator.gates.azure import list_gates
from coordinator.gates.state import GateState, encode, phase
from coordinator.journal import Journal
from tests.support.dashboard import TOKEN, BareWorker, Dashboard, Person, audit_of, until

GATE, OTHER = "start-it", "stays-open"


@pytest.mark.timeout(240)
async def test_a_backup_brings_back_people_audit_and_missing_gates_and_the_audit_still_proves_itself(
    own_dashboard: Dashboard, tmp_path: Path
) -> None:
    file = tmp_path / "kennel.jsonl.gz"
    with Person(own_dashboard, "olga") as olga:
        for gate in (GATE, OTHER):
            assert olga.post(f"/gates/{gate}/unleash", {"reason": "tickets"}).ok
        assert "2 gates" in await asyncio.to_thread(own_dashboard.manage, "backup", str(file))
        # After the backup: acts that will be lost, the end of which is kept in the account.
        assert olga.post(f"/gates/{GATE}/leash", {"reason": "stock check"}).ok
        assert olga.post(f"/gates/{GATE}/unleash", {"reason": "again"}).ok
    before = await asyncio.to_thread(audit_of, own_dashboard)
    config = StorageConfig(prefix=own_dashboard.prefix)
    async with Storage.from_connection_string(own_dashboard.connection_string, config=config) as storage:
        journal = Journal(storage, "audit")
        while not any(f'"id": {before[-1]["id"]}' in line for line in await journal.lines()):
            await asyncio.sleep(0.5)
        epoch = next(state.epoch for state in await list_gates(storage) if state.name == GATE)
        await storage.aio.blobs.get_blob_client(config.container("gates"), GATE).delete_blob()
    own_dashboard.stop()
    with pytest.raises(AssertionError, match=r"holds rows of auth.User already"):
        own_dashboard.manage("restore", str(file))
    again = own_dashboard.sibling(DATABASE_URL=f"sqlite:///{tmp_path / 'restored.sqlite3'}")
    again.manage("migrate", "--noinput", "--verbosity", "0")
    said = again.manage("restore", str(file))
    assert f"1 missing gates created, closed: {GATE}." in said
    assert "revoke again those that were revoked since" in said
    async with Storage.from_connection_string(own_dashboard.connection_string, config=config) as storage:
        states = {state.name: state for state in await list_gates(storage)}
    assert (phase(states[GATE], time.time()), phase(states[OTHER], time.time())) == ("closed", "open")
    assert states[GATE].epoch > epoch, "no late worker may slip through an old opening"
    verified = again.manage("audit", "verify")
    assert "each as it was written" in verified and "ends kept" in verified
    rows = audit_of(again)
    assert rows[-1]["action"] == "restore" and rows[-1]["outcome"] == "done"
    assert [row["digest"] for row in before][: len(rows) - 2] == [row["digest"] for row in rows[:-2]]

    again.start()
    try:
        with Person(again, "olga") as olga:
            page = await until(
                lambda: text if "restored from the backup" in (text := olga.get("/gates/").text) else ""
            )
            assert GATE in page and OTHER in page
            assert olga.post(f"/gates/{GATE}/unleash").ok
        async with BareWorker(again, "w", token=TOKEN) as worker:
            await until(lambda: worker.heard)
        assert audit_of(again)[-1]["outcome"] == "done"
        assert "each as it was written" in again.manage("audit", "verify")
    finally:
        again.stop()


@pytest.mark.timeout(240)
async def test_an_old_gate_that_is_put_back_is_shown_as_what_it_is(own_dashboard: Dashboard) -> None:
    config = StorageConfig(prefix=own_dashboard.prefix)
    with Person(own_dashboard, "olga") as olga:
        assert olga.post(f"/gates/{GATE}/unleash", {"reason": "the old opening"}).ok
        async with Storage.from_connection_string(own_dashboard.connection_string, config=config) as storage:
            blob = storage.aio.blobs.get_blob_client(config.container("gates"), GATE)
            download = await blob.download_blob()
            old, metadata = await download.readall(), download.properties.metadata
            assert olga.post(f"/gates/{GATE}/leash", {"reason": "the newer closing"}).ok
            await blob.upload_blob(old, overwrite=True, metadata=metadata)
            await until(lambda: "the old opening" in olga.get("/gates/").text, seconds=30)
            assert "the newer closing" not in olga.get("/gates/").text
            assert olga.post(f"/gates/{GATE}/leash", {"reason": "closed anew"}).ok
            [state] = await list_gates(storage)
            assert phase(state, time.time()) == "closed"
            assert state.epoch >= 3, "above every epoch that was seen"


@pytest.mark.timeout(240)
async def test_an_account_that_is_restored_while_the_dashboard_is_away_is_noticed_when_it_comes_back(
    own_dashboard: Dashboard,
) -> None:
    config = StorageConfig(prefix=own_dashboard.prefix)
    kept = "from dashboard.models import GatePeak; print(*GatePeak.objects.values_list('epoch', flat=True))"
    with Person(own_dashboard, "olga") as olga:
        for verb in ("unleash", "leash", "unleash"):
            assert olga.post(f"/gates/{GATE}/{verb}", {"reason": "before"}).ok
        while await asyncio.to_thread(own_dashboard.manage, code=kept) != "3\n":
            await asyncio.sleep(0.2)
    own_dashboard.stop(kill=True)
    async with Storage.from_connection_string(own_dashboard.connection_string, config=config) as storage:
        text = encode(GateState(name=GATE, epoch=1, state="open", by="backup", changed_at=1e9))
        blob = storage.aio.blobs.get_blob_client(config.container("gates"), GATE)
        await blob.upload_blob(text.encode(), overwrite=True, metadata={"gate": text})
        # The whole account was restored: what it remembers of epochs is as old.
        await storage.aio.tables.delete_table(config.table("epochs"))
        own_dashboard.start()
        with Person(own_dashboard, "olga") as olga:
            told = "epoch went back from 3 to 1: storage was restored?"
            await until(lambda: told in olga.get("/gates/").text, seconds=10)
            assert told in olga.get("/").text
            assert olga.post(f"/gates/{GATE}/leash", {"reason": "sort it out"}).ok
            await until(lambda: told not in olga.get("/gates/").text, seconds=5)
        [state] = await list_gates(storage)
        assert (state.state, state.epoch) == ("closed", 4)
