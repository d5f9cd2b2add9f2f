"""Promises of openings at a time: what has passed is refused, what will happen is shown first, and nothing is shown as done before."""

from __future__ import annotations

import time
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.contrib.messages import get_messages
from django.test import Client
from msgspec.structs import replace

from coordinator.gates.state import GateState, rollout_bucket
from coordinator.realtime.protocol import GateStatus
from coordinator.testing.clock import ManualClock
from dashboard.core import tokens
from dashboard.core.audit import ActionFailed
from dashboard.core.dispatch import by_name
from dashboard.core.permissions import Actor
from dashboard.gates import actions
from dashboard.hub import runtime
from dashboard.hub.runtime import Runtime
from dashboard.live import fragments
from dashboard.live import releases as plans
from dashboard.live.fleet import Fleet, ReleaseView, Sample, StorageView
from dashboard.live.fleet_state import Rates, compose
from dashboard.live.presence import Presence
from dashboard.models import AuditRow, Scope

from .making import NOW, hello, releases_of, waiting, worker

GATE = "start-it"
OLGA = Actor("olga", "operator")
SLIPPED = 1_577_836_800.0  # 2020
NOVEMBER = 1_795_770_000.0  # Fri 27 Nov 2026 09:00 UTC


@pytest.fixture
def olga(client: Client) -> Client:
    user = User.objects.create_user("olga")
    user.groups.add(Group.objects.get(name="operator"))
    client.force_login(user)
    return client


def fleet_with(state: GateState, *, workers: int = 20, now: float = NOW, **releases: ReleaseView) -> Fleet:
    present = [worker(f"w-{n}", gates=(GateStatus(GATE, "closed", waiting=True),)) for n in range(workers)]
    sample = Sample(at=now, storage=StorageView(as_of=now), gates=(state,), gates_as_of=now)
    return compose(sample, present, releases or {}, Rates(), now=now, requests={})


# --- what has passed ------------------------------------------------------------------------------------------------


@pytest.mark.django_db
@pytest.mark.parametrize("ago", [1.0, 60.0, 2e8])
def test_an_opening_in_the_past_is_refused_and_audited_whoever_asks(client: Client, ago: float) -> None:
    at = time.time() - ago
    with pytest.raises(ActionFailed, match=r"Nothing changed\. The opening time .* has passed\. Set a later"):
        actions.unleash(OLGA, GATE, at=at)
    with pytest.raises(ActionFailed, match="has passed"):
        by_name(OLGA, "gate.open", GATE, {"at": at})
    token = tokens.create("ci", scope=Scope.ACT, role="operator")
    answer = client.post(
        f"/api/v1/gates/{GATE}/open",
        {"at": at},
        content_type="application/json",
        headers={"Authorization": f"Bearer {token}"},
    )
    assert answer.status_code == 409 and "has passed" in answer.content.decode()
    assert {row.outcome for row in AuditRow.objects.filter(action="gate.open")} == {"intent", "failed"}


@pytest.mark.django_db
def test_the_form_refuses_an_opening_in_the_past_and_names_the_day(olga: Client) -> None:
    answer = olga.post(f"/gates/{GATE}/unleash", {"at": "2020-01-01T00:00:00", "page": "gates"})
    (told,) = get_messages(answer.wsgi_request)
    assert told.level_tag == "error" and "Wed 1 Jan 2020 00:00 UTC has passed" in str(told)


@pytest.mark.django_db
def test_a_closing_time_must_come_after_the_opening() -> None:
    later = time.time() + 3600
    with pytest.raises(ActionFailed, match="closing time .* is not after the opening"):
        actions.unleash(OLGA, GATE, at=later, until=later)
    with pytest.raises(ActionFailed, match="closing time .* is not after now"):
        by_name(OLGA, "gate.open", GATE, {"until": SLIPPED})


# --- what will happen -----------------------------------------------------------------------------------------------


def test_a_plan_says_how_many_of_the_connected_workers_may_pass() -> None:
    seen = fleet_with(GateState(name=GATE, epoch=1))
    gone = worker("w-gone", presence="lost", gates=(GateStatus(GATE),))
    seen = replace(seen, workers=(*seen.workers, gone, worker("elsewhere", gates=(GateStatus("other"),))))
    expected = sum(rollout_bucket(GATE, f"w-{n}") < 0.1 for n in range(20))
    assert 0 < expected < 20
    made = plans.plan(seen, GATE, at=NOVEMBER, until=None, share=0.1, now=NOW)
    assert (made.admitted, made.workers, made.problem) == (expected, 20, "")
    assert plans.plan(seen, GATE, at=None, until=None, share=1.0, now=NOW).admitted == 20


@pytest.mark.parametrize(
    ("at", "said"),
    [(NOVEMBER, "Fri 27 Nov 2026 09:00 UTC"), (NOVEMBER + 5, "Fri 27 Nov 2026 09:00:05 UTC"), (0.0, "Thu 1 Jan 1970 00:00 UTC")],
)  # fmt: skip
def test_a_moment_to_come_has_its_weekday(at: float, said: str) -> None:
    assert plans.written(at) == said


@pytest.mark.django_db
def test_the_page_shows_what_an_opening_will_do_before_it_is_made(olga: Client) -> None:
    made = Runtime(clock=ManualClock())
    runtime.use(made)
    try:
        for n in range(20):
            made.presence.joined(hello(f"w-{n}", state=waiting()))
        shown = olga.get(
            f"/gates/{GATE}/opening", {"at": "2096-11-27T09:00", "share": "0.1"}
        ).content.decode()
    finally:
        runtime.use(None)
    admitted = sum(rollout_bucket(GATE, f"w-{n}") < 0.1 for n in range(20))
    words = " ".join(shown.split())
    assert "Tue 27 Nov 2096 09:00 UTC</time>;" in words and f"10 % = {admitted} of 20 workers" in words


@pytest.mark.django_db
def test_the_preview_says_what_is_wrong_with_the_times(olga: Client) -> None:
    def shown(**given: str) -> str:
        return olga.get(f"/gates/{GATE}/opening", given).content.decode()

    assert "has passed" in shown(at="2020-01-01T00:00")
    assert "A time or the share is not valid" in shown(at="soon")
    assert "A time or the share is not valid" in shown(share="1.5")
    assert "is not after now" in shown(until="2020-01-01T00:00")


@pytest.mark.django_db
def test_without_a_script_a_schedule_is_shown_before_it_is_made(
    olga: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(actions, "unleash", lambda actor, gate, **given: made.append(given))
    given = {"at": "2096-11-27T09:00", "until": "2096-11-27T18:00", "share": "0.5", "reason": "sale"}
    page = olga.post(f"/gates/{GATE}/unleash", given).content.decode()
    assert made == [] and "Open start-it?" in page and 'name="seen" value="1"' in page
    for name, value in given.items():
        assert f'name="{name}" value="{value}"' in page
    answer = olga.post(f"/gates/{GATE}/unleash", {**given, "seen": "1"})
    assert answer.status_code == 302
    (opened,) = made
    assert (opened["share"], opened["reason"], opened["until"] - opened["at"]) == (0.5, "sale", 9 * 3600)


# --- what is shown of it ---------------------------------------------------------------------------------------------


def test_an_armed_gate_shows_its_date_and_no_release() -> None:
    state = GateState(
        name=GATE,
        epoch=4,
        state="armed",
        not_before=NOVEMBER,
        until=NOVEMBER + 9 * 3600,
        share=0.1,
        by="olga",
    )
    seen = fleet_with(
        state, now=NOVEMBER - 100, **{GATE: ReleaseView(GATE, 4, NOVEMBER, NOVEMBER - 100, 4, 0)}
    )
    (gate,) = seen.gates
    assert (gate.release, gate.until) == (None, NOVEMBER + 9 * 3600)
    text = " ".join(fragments.render_each("gates", seen, "operator")["gates"].split())
    assert "Fri 27 Nov 2026 09:00 UTC" in text and "Closes by itself" in text and "18:00 UTC" in text
    assert f"10 % = {gate.admitted} of 20 workers" in text
    assert "released" not in text and "Written" not in text
    opened = fleet_with(
        state, now=NOVEMBER + 1, **{GATE: ReleaseView(GATE, 4, NOVEMBER, NOVEMBER - 100, 4, 4)}
    )
    text = " ".join(fragments.render_each("gates", opened, "operator")["gates"].split())
    assert "Opened on schedule" in text and "4 of 4" in text and "Pushed" not in text


def test_a_gate_that_closed_by_the_clock_was_closed_by_nobody() -> None:
    state = GateState(name=GATE, epoch=4, state="open", changed_at=NOW - 900, until=NOW - 60, by="olga")
    text = " ".join(fragments.render_each("gates", fleet_with(state), "viewer")["gates"].split())
    assert "Closed by itself" in text and "Opened by <strong>olga</strong>" in text
    assert "Closed by <strong>" not in text


async def test_who_waits_when_an_armed_gate_opens_is_expected_and_not_who_waited_when_it_was_armed() -> None:
    clock = ManualClock()
    presence = Presence("here", clock=clock)
    releases = releases_of(presence, clock)
    presence.joined(hello("early", state=waiting()))
    opens = clock.time() + 100
    state = GateState(name=GATE, epoch=2, state="armed", not_before=opens)
    releases.begin(GATE, 2, written_at=opens)
    presence.joined(hello("late", state=waiting()))
    presence.entries.pop("i-early")
    releases.sampled([state])
    assert releases.views()[GATE].stragglers == ("late",)
    await clock.advance(101)
    presence.joined(hello("after", state=waiting()))
    releases.sampled([state])
    assert releases.views()[GATE].stragglers == ("late",), "who comes after the opening is no part of it"
