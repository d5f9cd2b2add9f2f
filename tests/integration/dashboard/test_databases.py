"""Promises that hold on SQLite and on PostgreSQL alike."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.dashboard import BareWorker, Dashboard, Person, until


@pytest.fixture(params=["sqlite", "postgresql"])
def on_database(
    request: pytest.FixtureRequest, tmp_path: Path, connection_string: str, storage_prefix: str
) -> Iterator[Dashboard]:
    extra = {}
    if request.param == "postgresql":
        extra["DATABASE_URL"] = _fresh_database(request.getfixturevalue("postgres_url"))
    with Dashboard(tmp_path, connection_string, storage_prefix, extra) as running:
        yield running


async def test_acts_of_many_at_once_make_one_sound_chain_and_history_is_kept(on_database: Dashboard) -> None:
    gates = [f"gate-{number}" for number in range(12)]
    with Person(on_database, "olga") as olga, Person(on_database, "otto") as otto:
        async with BareWorker(on_database, "w-1") as worker:
            await until(lambda: worker.heard)
            worker.beat()

            def press(number: int) -> int:
                person = olga if number % 2 else otto
                return person.post(f"/gates/{gates[number]}/unleash", page="/accounts/logout/").status_code

            with ThreadPoolExecutor(6) as pool:
                loop = asyncio.get_running_loop()
                done = await asyncio.gather(
                    *(loop.run_in_executor(pool, press, n) for n in range(len(gates)))
                )
            assert set(done) == {200}
            # Two rows for each act, and for each of the two sign-ins.
            assert on_database.manage("audit", "verify").startswith("28 rows")
            rows = olga.get("/audit/?q=gate.open").text
            assert all(gate in rows for gate in gates)
            for q, found in (
                ("GATE-1", {"gate-1", "gate-10", "gate-11"}),
                ("done ate-1", set()),
                ("1-gate", set()),
            ):
                rows = olga.get(f"/audit/?q={q}").text
                assert {gate for gate in gates if f">{gate}<" in rows} == found, q
            # What this process samples is kept from when it leads: one look that shows so, and one more.
            led = await until(lambda: _sampled_by_a_leader(olga))
            await until(lambda: (_sampled_by_a_leader(olga) or 0) > led)
            points = olga.get("/api/v1/history?series=workers&seconds=600").json()["points"]
            assert points
            on_database.stop()
            kept = on_database.manage(
                code="import time\nfrom dashboard.live.history import read\n"
                "print(len(read('workers', time.time() - 600, time.time())))"
            )
            assert int(kept) >= 1


def _sampled_by_a_leader(person: Person) -> float | None:
    """When storage was last looked at, once somebody samples for all."""
    fleet = person.get("/api/v1/fleet").json()
    led = any(each["name"] == "dashboard-sampler" and each["holder"] for each in fleet["leaders"])
    return fleet["storage"]["as_of"] if led else None


def _fresh_database(url: str) -> str:
    """A new database on the server."""
    import psycopg

    name = f"kennel_{secrets.token_hex(4)}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    base, _, query = url.partition("?")
    return base.rsplit("/", 1)[0] + "/" + name + ("?" + query if query else "")


_AT_ONCE = """
import time
from concurrent.futures import ThreadPoolExecutor
from django.db import connection
from coordinator.realtime.protocol import HandlerFigures
from dashboard.alerts import actions
from dashboard.core import alert_channels as channels
from dashboard.core.permissions import Actor
from dashboard.live import alerting, tallies
from dashboard.live.fleet import Fleet, Headline, QueueView, StorageView
from dashboard.models import Alert, AlertDelivery, Tally
adam, now = Actor("adam", "admin"), time.time()
actions.save_channel(adam, "ops-mail", "email", "ops@example.org")
actions.save_rule(adam, "deep-queues", actions.RuleForm("queue.depth", 10, names="deep-*", channels=("ops-mail",)))
queues = tuple(QueueView(f"deep-{n}", 11, as_of=now) for n in range(5))
fleet = Fleet(now, Headline("running", ""), StorageView(now), queues=queues)
figures = HandlerFigures("process", 7, 2, 1, {8: 10}, {9: 7})
reports = {(f"i-{n}", f"queue-{n % 3}", "process"): tallies.ListenerTally(figures, now - 60) for n in range(30)}
def look(n):
    try:
        alerting.evaluate(fleet, may_resolve=False)
        tallies.save("account/", reports, now)
    finally:
        connection.close()  # a pool has eight
with ThreadPoolExecutor(4) as pool:
    list(pool.map(look, range(8)))
fired = AlertDelivery.objects.filter(alert__rule_name="deep-queues", event="fired")
print(Alert.objects.filter(rule_name="deep-queues").count(), fired.count(),
      sum(Tally.objects.filter(source="account/", seconds=3600).values_list("done", flat=True)))
"""


def test_processes_that_find_the_same_at_once_make_each_alert_and_count_each_report_once(
    on_database: Dashboard,
) -> None:
    assert on_database.manage(code=_AT_ONCE).split() == ["5", "5", str(30 * 7)]


_TAKE_OVER = """
import time
from dashboard.models import BulkAct
from dashboard.queues import bulk_acts
bulk_acts.storage, bulk_acts.source_of = lambda: None, lambda _: "account/"  # no hub runs here
old = time.time() - 2 * bulk_acts.POISON_SECONDS
BulkAct.objects.create(source="account/", queue="orders-in", verb="requeue", what="all", actor="olga",
                       runner="gone", started_at=old, seen_at=old)
bulk_acts.take_over()
print(*BulkAct.objects.values_list("outcome", flat=True))
"""


def test_an_act_whose_process_ended_long_ago_is_interrupted(on_database: Dashboard) -> None:
    assert on_database.manage(code=_TAKE_OVER).split() == ["interrupted"]


_PLANS = """
import random
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from dashboard.audit.queries import audit
from dashboard.management.commands import seed_demo_data as seed
from dashboard.models import LedgerBook
from dashboard.sequences.statements import months
call_command("migrate", verbosity=0)
seed.seed_audit(4000, ["orders"], random.Random(1))
book = LedgerBook.objects.create(name="orders", next=4001, counter=4001)
with connection.cursor() as cursor:
    cursor.execute("INSERT INTO dashboard_ledgerrow (book_id, first, last, turn, step, granted_at, state) "
                   "SELECT %s, i, i, 0, 1, i, 'used' FROM generate_series(1, 4000) i", [book.pk])
    cursor.execute("ANALYZE")
    with CaptureQueriesContext(connection) as asked:
        assert months("orders") and audit().next and audit(q="olga").next and audit(before=3000).next
    for query in asked.captured_queries:
        if "SELECT" in query["sql"][:20]:
            cursor.execute("EXPLAIN " + query["sql"])
            print(" ".join(query["sql"].split())[:100], *(row[0] for row in cursor.fetchall()), sep="\\n", end="\\n\\n")
"""


def test_postgresql_reads_no_page_from_all_rows_of_a_table(tmp_path: Path, postgres_url: str) -> None:
    extra = {"DATABASE_URL": _fresh_database(postgres_url)}
    plans = Dashboard(tmp_path, "UseDevelopmentStorage=true", "plans-", extra).manage(code=_PLANS)
    assert plans.count("\n\n") == 5
    # A hashed plan is one that collects a whole table before the first row.
    assert not re.search(r"Seq Scan on dashboard_(ledgerrow|auditrow)|hashed SubPlan", plans), plans
