"""Promises of the ledger as the pages read it, from a real table."""

from __future__ import annotations

import asyncio
import csv
import io
import os
from urllib.parse import urlencode

from coordinator.protocol import SequenceStatus, WorkerState
from coordinator.storage import Storage
from tests.support.dashboard import BareWorker, Dashboard, Person, until


async def test_ranges_are_shown_in_use_used_and_lost_and_found_by_number_and_owner(
    own_dashboard: Dashboard,
) -> None:
    environment = {
        "AZURE_STORAGE_CONNECTION_STRING": own_dashboard.connection_string,
        "KENNEL_PREFIX": own_dashboard.prefix,
    }

    def take(owner: str, numbers: int, *, close: bool) -> None:
        storage = Storage.from_env(environment)
        storage.identity = owner
        orders = storage.sequence("orders", range_size=10)
        for _ in range(numbers):
            orders.next_id()
        if close:
            orders.close()
        storage.close()

    await asyncio.to_thread(take, "alice", 30, close=True)
    await asyncio.to_thread(take, "bob", 5, close=False)
    await asyncio.to_thread(take, "carol", 5, close=False)
    async with BareWorker(own_dashboard, "bob") as bob:
        await until(lambda: bob.heard)
        bob.state = WorkerState(sequences=(SequenceStatus("orders", 31, 40, 35, issued=5),))
        assert bob.hello().pid == os.getpid()
        bob.beat()
        with Person(own_dashboard, "vera") as vera:
            await until(lambda: "bob" in vera.get("/workers/").text)
            rows = _ledger(vera)
            assert {row["owner"] for row in rows} == {"alice", "bob", "carol"}
            firsts = [int(row["first"]) for row in rows]
            assert firsts == sorted(firsts, reverse=True)
            assert {row["state"] for row in rows if row["owner"] == "alice"} <= {"used", "returned", "free"}
            assert {row["state"] for row in rows if row["owner"] == "carol"} == {"lost"}
            assert {row["state"] for row in rows if row["owner"] == "bob"} == {"in use"}
            assert {row["owner"] for row in _ledger(vera, owner="caro")} == {"carol"}
            assert _rows(vera, "number=7") == ["alice"]


def _ledger(person: Person, **query: str) -> list[dict[str, str]]:
    text = person.get("/ledger.csv?" + urlencode({"sequence": "orders", **query})).text
    return list(csv.DictReader(io.StringIO(text.lstrip("\ufeff"))))


def _rows(person: Person, query: str) -> list[str]:
    """The owners in the page's table of ranges."""
    text = person.get(f"/sequences/?sequence=orders&{query}").text
    table = text[text.index("<table", text.index("edger")) :]
    return [owner for owner in ("alice", "bob", "carol") if owner in table]
