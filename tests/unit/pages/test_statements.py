"""Promises of a month's statement: each number once, sums that agree with the counter, and a seal that finds changes."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from coordinator.realtime.protocol import SequenceStatus, WorkerState
from coordinator.testing.clock import ManualClock
from dashboard.core.pdf import Sheet
from dashboard.core.permissions import Actor
from dashboard.hub import runtime
from dashboard.hub.runtime import Runtime
from dashboard.live.ledger_index import next_to_sweep
from dashboard.models import AuditRow, LastIssued, LedgerBook, LedgerOwner, LedgerRow
from dashboard.sequences import balance
from dashboard.sequences.balance import Balance
from dashboard.sequences.queries import account, balance_of
from dashboard.sequences.statements import KINDS, Month, Seal, Statement
from dashboard.sequences.views import ledger_parts
from tests.unit.dashboard.making import hello

pytestmark = pytest.mark.django_db
NAME = "orders"


def at(day: str) -> float:
    return datetime.fromisoformat(f"{day}T12:00:00+00:00").replace(tzinfo=UTC).timestamp()


@pytest.fixture
def book() -> LedgerBook:
    """Numbers 1 to 1,500 of September and October 2026: used, returned and granted again, lost, and another program's."""
    book = LedgerBook.objects.create(
        name=NAME, source="account/kennel-", next=1501, counter=1501, read_at=time.time()
    )
    ada, bob = (
        LedgerOwner.objects.create(name=name, host="h", pid=pid) for name, pid in (("ada", 1), ("bob", 2))
    )

    def row(first: int, last: int, state: str, day: str, owner: LedgerOwner = ada, **more: int) -> LedgerRow:
        return LedgerRow(
            book=book, first=first, last=last, state=state, granted_at=at(day), owner=owner, **more
        )

    LedgerRow.objects.bulk_create(
        [
            row(1, 100, "used", "2026-09-01"),
            row(101, 200, "returned", "2026-09-30", issued_through=150),
            row(151, 200, "used", "2026-10-02", turn=1),
            row(201, 1200, "used", "2026-10-01"),
            LedgerRow(book=book, first=1201, last=1300, state="unattributed"),
            row(1301, 1400, "granted", "2026-10-03", bob),
            row(1401, 1500, "returned", "2026-10-31", issued_through=1400),
            row(1401, 1500, "free", "2026-10-31", turn=1),
        ]
    )
    return book


@pytest.fixture
def vera(client: Client) -> Iterator[Client]:
    """Somebody who may look, while one worker is connected."""
    user = User.objects.create_user("vera")
    user.groups.add(Group.objects.get(name="viewer"))
    client.force_login(user)
    made = Runtime(clock=ManualClock(start=1000.0))
    runtime.use(made)
    made.presence.joined(hello("w-1"))
    yield client
    runtime.use(None)


def of(month: str) -> tuple[list[dict[str, str]], str, Seal]:
    """The rows, the text that has them, and its seal."""
    made = Statement(NAME, Month.parse(month))
    text = "".join(made.parts())
    return list(csv.DictReader(io.StringIO(text))), text, made.seal(Actor("vera", "viewer"))


def sums(rows: list[dict[str, str]]) -> Counter[str]:
    return Counter({name: sum(int(row[name]) for row in rows) for name in ("numbers", *KINDS)})


def test_each_number_is_in_one_row_of_one_month_and_the_sums_agree_with_the_counter(
    vera: Client, book: LedgerBook
) -> None:
    september, october = of("2026-09")[0], of("2026-10")[0]
    assert [(row["first"], row["last"], row["state"]) for row in september] == [
        ("1", "100", "used"), ("101", "150", "returned"), ("151", "200", "used"),
    ]  # fmt: skip
    assert sums(september) == Counter(numbers=200, issued=200)
    assert sums(october) == Counter(numbers=1300, issued=1000, unused=100, lost=100, unaccounted=100)
    numbers = [n for row in september + october for n in range(int(row["first"]), int(row["last"]) + 1)]
    assert numbers == list(range(1, book.counter))
    for row in september + october:
        assert int(row["numbers"]) == sum(int(row[kind]) for kind in KINDS)
    assert of("2026-08")[0] == of("2027-01")[0] == []


def test_issued_free_in_use_and_lost_add_up_to_the_counter_as_the_statements_do(
    vera: Client, book: LedgerBook
) -> None:
    LedgerRow.objects.filter(book=book, first=201).update(state="granted", issued_through=None)
    LedgerOwner.objects.create(name="w-1", host="host", pid=1)
    LedgerRow.objects.filter(book=book, first=201).update(owner=LedgerOwner.objects.get(name="w-1"))
    presence = runtime.current().presence
    presence.report("i-w-1", WorkerState(sequences=(SequenceStatus(NAME, 201, 1200, 900),)))
    LastIssued.objects.create(
        sequence=NAME, first=1301, owner="bob", pid=2, last_issued=1337, at=at("2026-10-04")
    )
    LastIssued.objects.create(sequence=NAME, first=1301, owner="bob", pid=3, last_issued=1399, at=0)
    LastIssued.objects.create(sequence="other", first=1301, owner="bob", pid=2, last_issued=1399, at=0)
    found = balance_of(account(NAME))
    assert found == Balance(issued=937, unused=100, in_use=300, lost=63, unaccounted=100, start=1, next=1501)
    assert sum(part.numbers for part in found.parts) == found.numbers == 1500
    of_months = sums(of("2026-09")[0] + of("2026-10")[0])
    assert [of_months[kind] for kind in KINDS] == [part.numbers for part in found.parts]

    page = " ".join(vera.get("/sequences/?sequence=orders").content.decode().split())
    words = ("issued 937", "free 100", "in use 300", "lost 63", "unaccounted for 100")
    assert f'aria-label="{", ".join(words)}"' in page
    assert re.findall(r"<dt><svg.*?</svg> ([a-z ]+)</dt>", page) == [
        word.rstrip("0123456789 ") for word in words
    ]
    assert "= next free number 1 501 − 1" in page and 'class="num">1 500</dd>' in page
    assert "at most 63" in page and "heartbeat" in page
    answers = [
        " ".join(vera.get(f"/sequences/?sequence=orders&number={n}").content.decode().split())
        for n in (1337, 1338)
    ]
    assert "issued: 1 337 was issued." in answers[0]
    assert "at most 63 more were. It is unknown whether 1 338 was issued." in answers[1]
    lost = next(row for row in csv.DictReader(io.StringIO(async_to_sync(_file)())) if row["state"] == "lost")
    assert (lost["last_issued"], lost["heard_at"]) == ("1337", "2026-10-04T12:00:00.000+00:00")


async def _file() -> str:
    return "".join([part async for part in ledger_parts(NAME)])


def test_nothing_is_said_of_a_sequence_without_numbers_or_with_more_open_ranges_than_a_page_can_add_up(
    vera: Client, book: LedgerBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert balance_of(account("none")) is None
    LedgerBook.objects.create(name="new", source="account/kennel-", read_at=time.time())
    assert balance_of(account("new")) is None
    monkeypatch.setattr(balance, "MOST_OPEN", 1)
    assert balance_of(account(NAME)) is None
    assert b"What became of all numbers" not in vera.get("/sequences/?sequence=orders").content


@pytest.mark.skipif(connection.vendor != "sqlite", reason="SQLite alone needs to be led to the index")
def test_rows_that_may_change_are_found_without_a_look_at_the_others(book: LedgerBook) -> None:
    with CaptureQueriesContext(connection) as asked:
        next_to_sweep(book, 1501)
        balance_of(account(NAME))
    plans = []
    with connection.cursor() as cursor:
        for query in asked.captured_queries:
            if "IN ('granted'" in query["sql"]:
                cursor.execute("EXPLAIN QUERY PLAN " + query["sql"].replace("%", "%%"))
                plans.append(" ".join(str(row) for row in cursor.fetchall()))
    assert len(plans) >= 3
    assert all("ledger_unsettled" in plan for plan in plans), plans


def test_the_seal_is_a_row_of_the_audit_with_the_digest_of_the_lines(vera: Client, book: LedgerBook) -> None:
    _, above, seal = of("2026-10")
    row = AuditRow.objects.get(action="sequence.statement")
    after = json.loads(row.after)
    assert (row.actor, row.target, row.outcome) == ("vera", NAME, "done")
    assert after["sha256"] == hashlib.sha256(above.encode()).hexdigest()
    assert (after["opening"], after["closing"], after["numbers"]) == (201, 1501, 1300)
    assert seal == (row.pk, row.digest, after["sha256"])


def test_the_document_has_the_sums_and_the_digest_of_the_same_lines(vera: Client, book: LedgerBook) -> None:
    _, above, _ = of("2026-10")
    answer = vera.post("/sequences/statement", {"sequence": NAME, "month": "2026-10", "form": "pdf"})
    assert answer["Content-Type"] == "application/pdf"
    assert 'filename="orders-2026-10.pdf"' in answer["Content-Disposition"]
    text = written(answer.content)
    for said in (
        "Order numbers of orders, October 2026", hashlib.sha256(above.encode()).hexdigest(),
        "Granted in the month: 1,300 numbers.", "2026-10-03", "1,201", "bob", "other program",
    ):  # fmt: skip
        assert said in text


def test_months_that_are_none_and_a_ledger_that_is_not_read_yet_are_refused(
    vera: Client, book: LedgerBook
) -> None:
    def refused(month: str) -> str:
        answer = vera.post("/sequences/statement", {"sequence": NAME, "month": month}, follow=True)
        assert answer.redirect_chain
        return answer.content.decode()

    for month in ("", "2026", "2026-13", "0000-01", "2026-10-01"):
        assert "A month is written as 2026-10." in refused(month)
    LedgerBook.objects.update(counter=1601)
    assert "The ledger is read up to 1,501 of 1,601." in refused("2026-10")
    LedgerBook.objects.all().delete()
    assert "The ledger has not been read yet." in refused("2026-10")
    assert not AuditRow.objects.filter(action="sequence.statement").exists()


def test_months_follow_each_other_over_the_years() -> None:
    december = Month.parse("2026-12")
    assert (str(december.after), str(Month(2027, 1).before), december.title) == (
        "2027-01",
        "2026-12",
        "December 2026",
    )


def test_a_long_document_goes_on_on_new_pages_and_letters_that_its_fonts_lack_do_no_harm() -> None:
    sheet = Sheet("Ünder (one) \\ two")
    sheet.text("Ω " * 200 + "x" * 500)
    sheet.table(("Day", "Count"), [(str(n), "1") for n in range(200)])
    data = sheet.data()
    assert b"/Count 4>>" in data
    text = written(data)
    assert "Ünder (one) \\ two" in text and "? ? ?" in text
    assert text.count("Day") == 4


def written(data: bytes) -> str:
    """The texts that a document draws, joined."""
    found = []
    for packed in re.findall(rb"stream\n(.*?)\nendstream", data, re.S):
        for drawn in re.findall(rb"\((.*)\) Tj", zlib.decompress(packed)):
            found.append(re.sub(rb"\\(.)", rb"\1", drawn).decode("cp1252"))
    return " ".join(found).replace("  ", " ")
