"""Promises of the ledger as the pages read it, from a real table."""

from __future__ import annotations

import asyncio
import csv
import hashlib
import io
import os
import re
from datetime import UTC, datetime
from urllib.parse import urlencode

from coordinator.realtime.protocol import SequenceStatus, WorkerState
from coordinator.storage import Storage
from tests.support.dashboard import BareWorker, Dashboard, Person, audit_of, until


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
            await until(lambda: {row["owner"] for row in _ledger(vera)} == {"alice", "bob", "carol"})
            rows = _ledger(vera)
            firsts = [int(row["first"]) for row in rows]
            assert firsts == sorted(firsts, reverse=True)
            assert {row["state"] for row in rows if row["owner"] == "alice"} <= {"used", "returned", "free"}
            assert {row["state"] for row in rows if row["owner"] == "carol"} == {"lost"}
            assert {row["state"] for row in rows if row["owner"] == "bob"} == {"in use"}
            assert {row["owner"] for row in _ledger(vera, owner="caro")} == {"carol"}
            assert _rows(vera, "number=7") == ["alice"]
            said = _said(vera, "number=7")
            assert "7 went to alice" in said
            assert "All numbers of the range were issued" in said
            his = next(row for row in rows if row["owner"] == "bob")
            first, last = int(his["first"]), int(his["last"])
            bob.state = WorkerState(sequences=(SequenceStatus("orders", first, last, first + 2, issued=3),))
            bob.beat()
            await until(lambda: f"Last issued: {first + 2}." in _said(vera, f"number={last}"))
            hers = next(row["last"] for row in rows if row["owner"] == "carol")
            assert "Process crashed" in _said(vera, f"number={hers}")
            assert "The next free number is" in _said(vera, "number=5000")
            assert "starts at 1" in _said(vera, "number=0")
            text, row = _statement(vera), audit_of(own_dashboard)[-1]
            above, seal = text[: text.index("Sealed")], text[text.index("Sealed") :]
            assert f"row {row['id']} " in seal and row["digest"] in seal
            assert hashlib.sha256(above.rstrip('"').encode()).hexdigest() in seal
            counts = list(csv.DictReader(io.StringIO(above.rstrip('"'))))
            assert {each["state"] for each in counts if each["lost"] != "0"} == {"lost"}
            through = sum(int(each["numbers"]) for each in counts)
            await until(
                lambda: _next_number(vera) == through + 1
            )  # the dashboard reads counters every few seconds


def _ledger(person: Person, **query: str) -> list[dict[str, str]]:
    text = person.get("/ledger.csv?" + urlencode({"sequence": "orders", **query})).text
    return list(csv.DictReader(io.StringIO(text.lstrip("\ufeff"))))


def _statement(person: Person) -> str:
    """Of this month, with its seal."""
    month = f"{datetime.now(UTC):%Y-%m}"
    form = {"sequence": "orders", "month": month, "form": "csv"}
    answer = person.post("/sequences/statement", form, page="/sequences/")
    assert answer.headers["Content-Disposition"] == f'attachment; filename="orders-{month}.csv"'
    return str(answer.text)


def _next_number(person: Person) -> int:
    text = person.get("/tables/sequences.csv").text
    lines = csv.DictReader(io.StringIO(text.lstrip("\ufeff")))
    return next(int(line["next_number"] or 0) for line in lines if line["sequence"] == "orders")


def _said(person: Person, query: str) -> str:
    """What the page says of a number, in words."""
    text = person.get(f"/sequences/?sequence=orders&{query}").text
    words = re.sub(r"<[^>]*>", " ", text[text.index('id="answer">') + 12 :].partition("</p>")[0])
    return " ".join(words.split())


def _rows(person: Person, query: str) -> list[str]:
    """The owners in the page's table of ranges."""
    text = person.get(f"/sequences/?sequence=orders&{query}").text
    table = text[text.index("<table", text.index("edger")) :]
    return [owner for owner in ("alice", "bob", "carol") if owner in table]
