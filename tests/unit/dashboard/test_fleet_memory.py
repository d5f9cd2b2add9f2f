"""Promises of what outlives a restart: who was there, how it ended, and how far the newest release had come."""

from __future__ import annotations

import asyncio
import re
import time

import msgspec
import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from coordinator.leadership.terms import TermRecord
from coordinator.realtime.protocol import (
    GateStatus,
    LeadershipStatus,
    ListenerStatus,
    Receipt,
    SequenceStatus,
    WorkerState,
)
from coordinator.sequences.grants import Grant, Owner
from coordinator.testing.clock import ManualClock
from dashboard.core import audit
from dashboard.core.permissions import Actor
from dashboard.hub import runtime
from dashboard.hub.runtime import Runtime
from dashboard.live import fleet_memory, fragments, ledger
from dashboard.live.fleet import Sample, StorageView
from dashboard.live.fleet_state import Rates, compose
from dashboard.live.presence import FORGET_SECONDS, LATE_SECONDS, Presence
from dashboard.models import AuditOutcome, LastIssued, PastRelease, PastWorker, PoisonMessage
from dashboard.workers import timeline

from .making import NOW, hello, releases_of, waiting, worker

pytestmark = pytest.mark.django_db
SOURCE = "account/kennel-"
BUSY = WorkerState(
    gates=(GateStatus("start-it", "open", 3, passed_epoch=3),),
    listeners=(ListenerStatus("orders-in", 2, 10, 2, 5, done=40),),
    elections=(LeadershipStatus("month-end", "leader", 4),),
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(start=time.time())


def restarted(presence: Presence, clock: ManualClock) -> Presence:
    """The dashboard ends, whatever it knew having been kept, and another begins."""
    fleet_memory.save_workers(SOURCE, presence.take_fates())
    after = Presence("next", clock=clock)
    after.expect(fleet_memory.expected(SOURCE))
    return after


def test_of_a_report_as_long_as_a_frame_the_first_things_are_kept(clock: ManualClock) -> None:
    before = Presence("first", clock=clock)
    long = WorkerState(
        mode="draining",
        gates=tuple(GateStatus(f"g-{n}-{'x' * 100}", "closed", waiting=True) for n in range(400)),
        listeners=tuple(ListenerStatus(f"q-{n}", reason="ü" * 500) for n in range(30)),
        requests={f"made-up-{n}": n for n in range(500)},
    )
    before.joined(hello("talks", state=long), token="fleet")
    before.joined(hello("usual", state=BUSY), token="fleet")
    fleet_memory.save_workers(SOURCE, before.take_fates())
    kept = dict(PastWorker.objects.values_list("name", "report"))
    assert max(map(len, kept.values())) <= fleet_memory.MOST_BYTES
    found, usual = (fleet_memory.one(SOURCE, f"i-{name}") for name in ("talks", "usual"))
    assert found is not None and usual is not None
    assert (found.hello.state.mode, found.hello.state.gates) == ("draining", long.gates[:10])
    assert usual.hello.state == BUSY


def test_a_worker_that_died_before_the_restart_is_lost_after_it(clock: ManualClock) -> None:
    before = Presence("first", clock=clock)
    for name in ("dies", "lives"):
        before.joined(hello(name, state=BUSY), token="fleet")
    before.left("i-dies")
    asyncio.run(clock.advance(5))
    after = restarted(before, clock)
    after.admit_missing()
    assert after.workers() == [], "nobody is called lost before it could come back"
    after.joined(hello("lives", state=BUSY), token="fleet")
    asyncio.run(clock.advance(LATE_SECONDS))
    after.report("i-lives", BUSY)
    after.admit_missing()
    assert {view.name: view.presence for view in after.workers()} == {"dies": "lost", "lives": "ok"}
    assert after.waiting_at("start-it") == {}
    asyncio.run(clock.advance(FORGET_SECONDS))
    after.forget()
    fleet_memory.save_workers(SOURCE, after.take_fates())
    assert ("dies", "lost") in {(each.hello.worker, each.ended) for each in fleet_memory.ended(SOURCE)}


def test_a_worker_that_started_again_meanwhile_is_not_lost(clock: ManualClock) -> None:
    before = Presence("first", clock=clock)
    before.joined(hello("w-1", instance="old"), token="fleet")
    after = restarted(before, clock)
    after.joined(hello("w-1", instance="new"), token="fleet")
    asyncio.run(clock.advance(LATE_SECONDS))
    after.report("new", WorkerState())
    after.admit_missing()
    assert [view.instance for view in after.workers()] == ["new"]


def test_a_worker_that_signed_off_has_stopped_and_keeps_its_last_report(clock: ManualClock) -> None:
    presence = Presence("first", clock=clock)
    presence.joined(hello("w-1", state=BUSY))
    presence.report("i-w-1", msgspec.structs.replace(BUSY, mode="stopping"))
    presence.left("i-w-1")
    after = restarted(presence, clock)
    asyncio.run(clock.advance(LATE_SECONDS))
    after.admit_missing()
    assert after.workers() == []
    (ended,) = fleet_memory.ended(SOURCE)
    assert (ended.ended, ended.hello.state.listeners) == ("stopped", BUSY.listeners)
    assert fleet_memory.ended("another/account-") == []


def test_a_connected_worker_is_noted_as_seen(clock: ManualClock) -> None:
    presence = Presence("first", clock=clock)
    presence.joined(hello("w-1"))
    fleet_memory.save_workers(SOURCE, presence.take_fates())
    fleet_memory.still_there(SOURCE, ["i-w-1"], 7_000_000_000.0)
    assert PastWorker.objects.get().seen_at == 7_000_000_000.0


def test_what_could_not_be_saved_is_given_again_unless_it_changed(clock: ManualClock) -> None:
    presence = Presence("first", clock=clock)
    presence.joined(hello("w-1"))
    fates = presence.take_fates()
    presence.report("i-w-1", WorkerState(mode="stopping"))
    presence.left("i-w-1")
    presence.put_back(fates)
    assert {key: fate.ended for key, fate in presence.take_fates().items()} == {"i-w-1": "stopped"}


def test_four_of_four_stay_four_of_four(clock: ManualClock) -> None:
    presence = Presence("first", clock=clock)
    for name in "abcd":
        presence.joined(hello(name, state=waiting()))
    releases = releases_of(presence, clock)
    releases.begin("start-it", 3, written_at=clock.time())
    for name in "abcd":
        releases.count(f"i-{name}", Receipt("start-it", 3, "push", 0.05, clock.time()))
    fleet_memory.save_releases(SOURCE, releases.news())
    other = Presence("next", clock=clock)
    for name in "abc":
        other.joined(hello(name))
    after = releases_of(other, clock)
    after.merge(fleet_memory.releases(SOURCE))
    view = after.views()["start-it"]
    assert (view.passed, view.expected, view.stragglers) == (4, 4, ())


def test_an_older_release_does_not_replace_a_newer_one(clock: ManualClock) -> None:
    releases = releases_of(Presence("first", clock=clock), clock)
    releases.begin("start-it", 3, written_at=1.0)
    (old,) = releases.news()
    fleet_memory.save_releases(SOURCE, [msgspec.structs.replace(old, epoch=5)])
    fleet_memory.save_releases(SOURCE, [old])
    assert [each.epoch for each in fleet_memory.releases(SOURCE)] == [5]


def test_what_another_release_wrote_costs_its_own_row() -> None:
    PastWorker.objects.create(source=SOURCE, instance="x", name="x", ended="lost", seen_at=1.0, report="{}")
    PastRelease.objects.create(source=SOURCE, gate="x", epoch=1, at=1.0, news="[")
    assert (fleet_memory.ended(SOURCE), fleet_memory.releases(SOURCE)) == ([], [])


def test_after_30_days_they_are_removed() -> None:
    now = time.time()
    for name, age in (("new", 29), ("old", 31)):
        seen = now - age * 86_400
        PastWorker.objects.create(
            source=SOURCE, instance=name, name=name, ended="lost", seen_at=seen, report=""
        )
        PastRelease.objects.create(source=SOURCE, gate=name, epoch=1, at=seen, news="")
    fleet_memory.forget_old()
    assert [row.name for row in PastWorker.objects.all()] == ["new"]
    assert [row.gate for row in PastRelease.objects.all()] == ["new"]


def test_the_row_of_a_lost_worker_says_what_it_last_reported_and_not_that_it_runs() -> None:
    def row(presence: str) -> str:
        seen = worker(
            "w-1",
            presence=presence,
            mode="running",
            gates=BUSY.gates,
            listeners=BUSY.listeners,
            elections=BUSY.elections,
        )
        sample = Sample(at=NOW, storage=StorageView(as_of=NOW), gates_as_of=NOW)
        fleet = compose(sample, [seen], {}, Rates(), now=NOW, requests={})
        return " ".join(fragments.render_each("workers", fleet, "viewer")["workers"].split())

    alive, lost = row("ok"), row("lost")
    assert "Running" in alive and "5 in flight" in alive and "Leader" in alive
    assert "Running" not in lost and "Leader" not in lost and "Passed" not in lost
    assert "last reported: running" in lost and "had 5 in flight" in lost and ">led<" in lost


def test_the_page_lists_those_that_ended(client: Client) -> None:
    user = User.objects.create_user("vera")
    user.groups.add(Group.objects.get(name="viewer"))
    client.force_login(user)
    made = Runtime(clock=ManualClock())
    made.source = SOURCE
    runtime.use(made)
    try:
        for n in range(30):
            fate = {f"i-{n}": fleet_memory.Fate(hello(f"w-{n}", state=BUSY), 1000.0 + n, "", "lost")}
            fleet_memory.save_workers(SOURCE, fate)
        first = client.get("/workers/").content.decode()
        older = client.get("/workers/?ended_before=1005").content.decode()
        odd = client.get("/workers/?ended_before=soon")
    finally:
        runtime.use(None)
    assert "w-29" in first and "w-4" not in first and "?ended_before=1005" in first
    assert "w-4" in older and "w-29" not in older and odd.status_code == 200
    assert "orders-in: 5 in flight, 40 done" in " ".join(first.split()) and "led month-end" in first


def test_a_worker_that_died_has_a_page_with_what_it_did(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = User.objects.create_user("vera")
    user.groups.add(Group.objects.get(name="viewer"))
    client.force_login(user)
    made = Runtime(clock=ManualClock())
    made.source = SOURCE
    runtime.use(made)
    started = hello("w-1", state=BUSY).started_at
    terms = [
        TermRecord("month-end", 4, "w-1", started + 10, started + 40, "lease lost"),
        TermRecord("month-end", 3, "another", started + 5, started + 10),
        TermRecord("month-end", 2, "w-1", started - 900, started - 800, "another process of that name"),
    ]
    monkeypatch.setattr(timeline, "look", lambda *_: runtime.Seen(terms))
    gate = msgspec.structs.replace(
        BUSY.gates[0], inside=2, offset_seconds=-1.25, problem="storage has epoch 3, this process has seen 8"
    )
    trouble = msgspec.structs.replace(BUSY, gates=(gate,))
    release = made.releases.begin("start", 7, written_at=started + 2.0, share=1.0)
    release.delays["i-w-1"] = 0.25
    audit.outcome(audit.intent(Actor("olga", "operator"), "worker.drain", "i-w-1"), AuditOutcome.DONE)
    PoisonMessage.objects.create(
        source=SOURCE,
        queue="orders-in",
        message_id="m-1",
        worker="w-1",
        error="KeyError",
        reason="'customer'",
        first_at=1.0,
        last_at=started + 30,
        read_at=1.0,
    )
    try:
        fate = {"i-w-1": fleet_memory.Fate(hello("w-1", state=trouble), started + 50, "", "lost")}
        fleet_memory.save_workers(SOURCE, fate)
        page = " ".join(client.get("/workers/i-w-1/").content.decode().split())
        missing = client.get("/workers/i-nobody/")
    finally:
        runtime.use(None)
    assert missing.status_code == 404
    assert "5 in flight, 40 done" in page and "passed epoch 3" in page
    assert "2 pieces of work inside" in page and "clock off by -1.250 s" in page
    assert "storage has epoch 3, this process has seen 8" in page
    told = re.findall(r'data-label="What" class="wrap">([^<]+)<', page)
    assert told == [
        "worker.drain by olga: done",
        "Last heartbeat: the process crashed, hung or lost its connection",
        "Stopped leading: lease lost",
        "Gave up a message: KeyError &#x27;customer&#x27;",
        "Led, epoch 4",
        "Passed epoch 7, 0.25 s after the opening",
        "Started",
    ]


def test_what_a_lost_worker_said_last_of_its_numbers_is_known_at_once_and_kept_for_a_year(
    clock: ManualClock,
) -> None:
    presence = Presence("first", clock=clock)
    state = WorkerState(
        sequences=(SequenceStatus("orders", 2001, 3000, 2508), SequenceStatus("none", 1, 100))
    )
    presence.joined(hello("killed", pid=7, state=state), token="fleet")
    presence.joined(hello("stays"), token="fleet")
    seen = clock.time()
    asyncio.run(clock.advance(60))
    presence.report("i-stays", WorkerState())
    grant = Grant(2001, 3000, Owner("killed", "host", 7), "", seen)
    owners = ledger.owners_of(presence, "orders")
    view = ledger.judge("orders", grant, owners, clock.time())
    assert (view.state, view.last_issued, view.heard_at) == ("lost", 2508, pytest.approx(seen, abs=1))
    asyncio.run(clock.advance(700))
    presence.report("i-stays", WorkerState())
    presence.forget()
    assert not ledger.owners_of(presence, "orders").heard
    fleet_memory.save_workers(SOURCE, presence.take_fates())
    owners = ledger.with_last_words(ledger.owners_of(presence, "orders"), "orders", [grant])
    again = ledger.judge("orders", grant, owners, clock.time())
    assert (again.state, again.last_issued, again.heard_at) == ("lost", 2508, pytest.approx(seen, abs=1))
    assert LastIssued.objects.count() == 1
    LastIssued.objects.update(at=time.time() - 399 * 86_400)
    fleet_memory.forget_old()
    assert LastIssued.objects.count() == 1
    LastIssued.objects.update(at=time.time() - 401 * 86_400)
    fleet_memory.forget_old()
    assert LastIssued.objects.count() == 0
