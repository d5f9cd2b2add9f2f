"""Promises of isolation: one bad item costs itself, a dead loop is seen from outside, and no release stops the pages."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.contrib.messages import get_messages
from django.http import QueryDict
from django.test import AsyncClient, Client
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest

from coordinator.testing.clock import ManualClock
from dashboard.api import metrics
from dashboard.core import tokens
from dashboard.core.audit import ActionFailed
from dashboard.core.dispatch import by_name
from dashboard.core.loops import DEAD_SECONDS, PATIENT
from dashboard.core.pages import registry
from dashboard.core.permissions import Actor
from dashboard.gates.actions import unleash
from dashboard.hub import runtime
from dashboard.hub.runtime import Runtime
from dashboard.hub.viewers import TICK_SECONDS
from dashboard.live.fleet import Fleet
from dashboard.models import AuditRow, Scope
from dashboard.pages import queries
from dashboard.pages.tables import rows_of
from tests.unit.pages.fleets import NOW, full

OLGA = Actor("olga", "operator")
BEYOND = (4_102_444_801.0, NOW * 1000, 1e300)


@pytest.fixture
def olga(client: Client) -> Client:
    user = User.objects.create_user("olga")
    user.groups.add(Group.objects.get(name="operator"))
    client.force_login(user)
    return client


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def own(clock: ManualClock) -> Iterator[Runtime]:
    made = Runtime(clock=clock)
    runtime.use(made)
    yield made
    runtime.use(None)


# --- moments --------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
@pytest.mark.parametrize("at", BEYOND)
def test_a_press_for_a_moment_beyond_2099_is_refused_and_audited(at: float) -> None:
    with pytest.raises(ActionFailed, match="not milliseconds"):
        unleash(OLGA, "start-it", at=at)
    assert "failed" in {row.outcome for row in AuditRow.objects.filter(action="gate.open")}


@pytest.mark.django_db
@pytest.mark.parametrize("at", BEYOND)
def test_what_a_socket_asks_for_a_moment_beyond_2099_is_refused(at: float) -> None:
    with pytest.raises(ActionFailed):
        by_name(OLGA, "gate.open", "start-it", {"at": at})


@pytest.mark.django_db
@pytest.mark.parametrize("at", BEYOND)
def test_the_api_refuses_a_moment_beyond_2099(client: Client, at: float) -> None:
    token = tokens.create("ci", scope=Scope.ACT, role="operator")
    answer = client.post(
        "/api/v1/gates/start-it/open",
        {"at": at},
        content_type="application/json",
        headers={"Authorization": f"Bearer {token}"},
    )
    assert answer.status_code == 422, answer.content


@pytest.mark.django_db
@pytest.mark.parametrize("at", ["2100-01-01 00:00:01", "9999-12-31T23:59:59-12:00", "1800000000000", "1e300"])
def test_the_form_refuses_a_moment_beyond_2099(olga: Client, at: str) -> None:
    answer = olga.post("/gates/start-it/unleash", {"at": at, "page": "gates"})
    (told,) = [str(each) for each in get_messages(answer.wsgi_request)]
    assert "not milliseconds" in told or "is not valid" in told


# --- the loops, through the address -----------------------------------------------------------------------------------


async def _health(client: AsyncClient) -> tuple[int, list[str]]:
    answer = await client.get("/healthz")
    return answer.status_code, json.loads(answer.content).get("dead", [])


async def test_the_address_of_health_names_a_loop_that_has_ended(
    own: Runtime, async_client: AsyncClient
) -> None:
    async def ends() -> None:
        return

    assert await _health(async_client) == (200, [])
    own.loops.start("viewers", ends)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert await _health(async_client) == (503, ["viewers"])
    await own.loops.stop()


async def test_the_address_of_health_names_a_sampler_that_has_ended_and_one_that_is_stuck(
    own: Runtime, async_client: AsyncClient, clock: ManualClock
) -> None:
    stuck = asyncio.Event()

    async def samples() -> None:
        own.loops.alive("sampler")
        await stuck.wait()

    own.loops.start("sampler", samples)
    await clock.advance(DEAD_SECONDS - 1)
    assert await _health(async_client) == (200, [])
    await clock.advance(2)
    assert await _health(async_client) == (503, ["sampler"])
    stuck.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert await _health(async_client) == (503, ["sampler"])
    await own.loops.stop()


@pytest.mark.parametrize(
    "name",
    ["viewers", "announcements", "gate-news", "summaries", "receipts", *PATIENT],
)
async def test_every_loop_that_is_stuck_is_named_and_one_that_waits_for_work_is_not(
    own: Runtime, async_client: AsyncClient, clock: ManualClock, name: str
) -> None:
    patience = PATIENT.get(name, DEAD_SECONDS)
    own.loops.alive(name)
    await clock.advance(patience - 1)
    assert await _health(async_client) == (200, [])
    await clock.advance(2)
    assert await _health(async_client) == (503, [name])
    own.loops.resting(name)
    await clock.advance(patience * 2)
    assert await _health(async_client) == (200, [])


async def test_loops_that_wait_for_work_say_so(own: Runtime, clock: ManualClock) -> None:
    for each in (own.viewers, own.announcements, own.gate_news, own.releases):
        said: list[str] = []
        each.rested = lambda said=said: said.append("rests")  # type: ignore[misc]
        running = asyncio.create_task(each.run())
        for _ in range(20):
            await asyncio.sleep(0)
        if each is not own.viewers:
            assert said == ["rests"]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


# --- releases and live updates ----------------------------------------------------------------------------------------


async def test_however_many_releases_there_are_pages_are_drawn_in_most_of_each_second(
    own: Runtime, clock: ManualClock
) -> None:
    held = ticks = 0
    for turn in range(1000):
        own.releases.hold_pages()
        await clock.advance(TICK_SECONDS / 5)
        if turn % 5 == 4:
            ticks += 1
            held += own.releases.holds_pages
    assert held / ticks <= 0.4


# --- one bad row ------------------------------------------------------------------------------------------------------


def _with_a_bad_one(fleet: Fleet) -> Fleet:
    gate, queue, worker = fleet.gates[0], fleet.queues[0], fleet.workers[0]
    return replace(
        fleet,
        gates=(replace(gate, name="bad", waiting=None), *fleet.gates),
        queues=(replace(queue, name="bad", depth=10**400), replace(queue, name="\ud800"), *fleet.queues),
        workers=(replace(worker, name="bad", state=None), *fleet.workers),
        leaders=(replace(fleet.leaders[0], name="bad", standbys=7), *fleet.leaders),
        sequences=(replace(fleet.sequences[0], name="bad", next_number=10**400), *fleet.sequences),
    )


@pytest.mark.django_db
@pytest.mark.parametrize("form", ["csv", "json"])
@pytest.mark.parametrize("name", ["gates", "queues", "workers", "leaders"])
def test_a_file_has_all_rows_but_the_bad_one_which_says_so(
    olga: Client, monkeypatch: pytest.MonkeyPatch, name: str, form: str
) -> None:
    fleet = full()
    before = list(rows_of(registry().tables[name], fleet, QueryDict("")))
    named = next(iter(before[0]))
    good = {str(row[named]) for row in before}
    monkeypatch.setattr(queries, "fleet", lambda: _with_a_bad_one(fleet))
    answer = olga.get(f"/tables/{name}.{form}")
    assert answer.status_code == 200
    text = answer.content.decode()
    rows = list(csv.DictReader(io.StringIO(text))) if form == "csv" else json.loads(text)
    assert good <= {str(row.get(named, "")) for row in rows}
    assert any("unreadable: " in (row.get("problem") or "") for row in rows)


def test_metrics_have_all_values_but_the_bad_ones() -> None:
    registry = CollectorRegistry()
    bad = replace(_with_a_bad_one(full()), workers=full().workers, gates=full().gates)
    registry.register(metrics.FleetCollector(replace(bad, requests={**bad.requests, "odd": "x"})))
    text = generate_latest(registry).decode()
    assert 'kennel_queue_depth{queue="orders-in"} 120.0' in text
    assert 'kennel_sequence_next{sequence="orders"} 3001.0' in text
    assert 'operation="odd"' not in text
    assert 'kennel_queue_depth{queue="bad"}' not in text


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("path", "broken", "region", "still"),
    [
        ("/leaders/", "found_leaders", "leaders", "All elections"),
        ("/gates/", "found_gates", "gates", "region-pulse"),
        ("/queues/", "queues", "queues", "region-status"),
        ("/", "pressing_gates", "gates", "region-workers"),
    ],
)
def test_a_page_is_whole_but_for_the_region_that_fails(
    olga: Client, monkeypatch: pytest.MonkeyPatch, path: str, broken: str, region: str, still: str
) -> None:
    def fails(*_: Any) -> Any:
        raise OverflowError("one bad row")

    monkeypatch.setitem(registry().context, broken, fails)
    answer = olga.get(path)
    assert answer.status_code == 200
    page = answer.content.decode()
    assert f'<div id="region-{region}">' in page
    assert "unreadable: OverflowError" in page
    assert still in page


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("query", "status"), [("", 404), ("?sequence=no-such", 404), ("?sequence=orders", 503)]
)
def test_the_file_of_a_missing_ledger_differs_from_one_not_read_yet(
    olga: Client, monkeypatch: pytest.MonkeyPatch, query: str, status: int
) -> None:
    monkeypatch.setattr(queries, "fleet", full)
    assert olga.get(f"/ledger.csv{query}").status_code == status
