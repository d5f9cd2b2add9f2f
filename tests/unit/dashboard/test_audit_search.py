"""Promises of searching the audit. PostgreSQL keeps them too: see tests/integration/dashboard/test_databases.py."""

from __future__ import annotations

from datetime import date, datetime

import pytest
from django.db import connection

from dashboard.audit import queries as selectors
from dashboard.core import audit
from dashboard.core.permissions import Actor
from dashboard.models import AuditOutcome, AuditRow

pytestmark = pytest.mark.django_db

OLGA = Actor("olga", "operator", "10.0.0.1", "0123e456789abcde")


def act(target: str, reason: str = "", result: AuditOutcome = AuditOutcome.DONE) -> None:
    audit.outcome(audit.intent(OLGA, "queue.requeue", target, reason=reason), result)


def found(q: str) -> list[str]:
    return [row.target for row in selectors.audit(q=q).rows]


@pytest.mark.parametrize(
    ("q", "targets"),
    [
        ("orders-in", ["orders-in"]),
        ("ORDERS", ["orders-out", "orders-in"]),
        ("in-orders", []),
        ("requeue", ["müller", "orders-out", "orders-in"]),
        ("queue.req failed", ["orders-out"]),
        ("parser", ["orders-in"]),
        ("0123e456789abcde", ["müller", "orders-out", "orders-in"]),
        ("müll", ["müller"]),
        ("mended orders", ["orders-in"]),
        ("rders", []),
        ("--", []),
        ('" NEAR *', []),
        ("  ", ["müller", "orders-out", "orders-in"]),
    ],
)
def test_each_part_of_a_query_is_the_beginning_of_a_word(q: str, targets: list[str]) -> None:
    act("orders-in", reason="mended the parser")
    act("orders-out", result=AuditOutcome.FAILED)
    act("müller")
    assert found(q) == targets


def test_the_index_follows_whatever_is_done_to_the_table() -> None:
    act("orders-in")
    AuditRow.objects.filter(target="orders-in").update(target="invoices")
    assert (found("orders"), found("invoices")) == ([], ["invoices"])
    AuditRow.objects.filter(target="invoices").delete()
    assert found("invoices") == []
    AuditRow.objects.bulk_create(
        [AuditRow(id=7, at=0.0, actor="otto", action="x", target="late", outcome="done")]
    )
    assert found("otto") == ["late"]


def test_what_is_found_is_paged_by_key() -> None:
    for number in range(5):
        act(f"orders-{number}")
    act("invoices")
    first = selectors.audit(q="orders", limit=3)
    rest = selectors.audit(q="orders", limit=3, before=first.next)
    assert [row.target for row in (*first.rows, *rest.rows)] == [f"orders-{n}" for n in (4, 3, 2, 1, 0)]
    assert rest.next is None


def test_neither_a_search_nor_its_pages_read_the_whole_table() -> None:
    if connection.vendor != "sqlite":
        pytest.fail("this reads the plans of SQLite")
    from dashboard.audit.search import _SQLITE

    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN QUERY PLAN " + _SQLITE, ['"olga"*', 10, 0, 50])
        plan = [row[3] for row in cursor.fetchall()]
    assert any("VIRTUAL TABLE INDEX" in step for step in plan), plan
    assert not any("SCAN r" in step or "TEMP B-TREE" in step for step in plan), plan


def test_days_bound_what_is_shown_and_found(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"first": "2026-09-30T23:59:59", "second": "2026-10-01T00:00:00", "third": "2026-10-31T23:59:59"}
    for name, at in (times | {"fourth": "2026-11-01T00:00:00"}).items():
        moment = datetime.fromisoformat(f"{at}+00:00").timestamp()
        monkeypatch.setattr("time.time", lambda moment=moment: moment)
        act(name)
    october = selectors.Days(date(2026, 10, 1), date(2026, 10, 31))
    assert [row.target for row in selectors.audit(days=october).rows] == ["third", "second"]
    assert [row.target for row in selectors.audit(q="second", days=october).rows] == ["second"]
    assert [row.target for row in selectors.audit(q="fourth", days=october).rows] == []
    newest = selectors.audit(days=october, limit=1)
    assert [row.target for row in selectors.audit(days=october, limit=1, before=newest.next).rows] == [
        "second"
    ]
    assert len(selectors.audit(days=selectors.Days(since=date(2026, 10, 31))).rows) == 2
    assert selectors.audit(days=selectors.Days(since=date(2030, 1, 1))).rows == ()
