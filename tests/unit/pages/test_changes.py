"""The audit's changes, the events of sagas and unused sequences, in words that are true."""

from __future__ import annotations

import json
from typing import NamedTuple

import msgspec
import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from coordinator.realtime.protocol import SequenceStatus, WorkerState
from coordinator.testing.clock import ManualClock
from dashboard.core import audit
from dashboard.core.permissions import Actor
from dashboard.hub import runtime
from dashboard.hub.runtime import Runtime
from dashboard.live import fragments
from dashboard.live.fleet import Fleet, Sample, SequenceView, StorageView
from dashboard.models import AuditOutcome
from dashboard.overview.search import find
from dashboard.templatetags.changes import change
from dashboard.templatetags.work import saga_event
from tests.unit.dashboard.making import hello
from tests.unit.pages.fleets import NOW, full


class Row(NamedTuple):
    before: str = ""
    after: str = ""


def row(before: object = "", after: object = "") -> Row:
    return Row(*(each if isinstance(each, str) else json.dumps(each) for each in (before, after)))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            row(
                {"state": "closed", "epoch": 3},
                {"state": "armed", "epoch": 4, "not_before": 1_795_770_000.0, "share": 0.1},
            ),
            "closed (epoch 3) → opens Fri 27 Nov 2026 09:00 UTC, 10 % (epoch 4)",
        ),
        (
            row("", {"state": "open", "epoch": 1, "until": 1_795_770_000.0}),
            "open, closes Fri 27 Nov 2026 09:00 UTC (epoch 1)",
        ),
        (row({"per_day": 5.0, "by": "adam"}, {"per_day": 10.0, "by": "adam"}), "per day 5 → per day 10"),
        (row("", {"requeued": 3, "left": 0}), "requeued 3, left 0"),
        (row(["operator"], ["admin", "operator"]), "operator → admin, operator"),
        (row({"depth": 7}), "was depth 7"),
        (row("", "storage did not answer"), "storage did not answer"),
        (row("", "{not json"), "{not json"),
        (row({"a": None}, {"a": True}), "a none → a yes"),
        (row(), ""),
    ],
)
def test_a_change_is_told_in_words(changed: Row, said: str) -> None:
    assert change(changed) == said


def test_no_json_is_on_the_page_of_the_audit(client: Client, admin_row: None) -> None:
    text = client.get("/audit/").content.decode()
    assert "closed (epoch 3) → open (epoch 4)" in text
    assert "{&quot;" not in text


@pytest.fixture
def admin_row(client: Client, db: None) -> None:
    user = User.objects.create_user("vera")
    user.groups.add(Group.objects.get(name="viewer"))
    client.force_login(user)
    begun = audit.intent(Actor("olga", "operator"), "gate.open", "start-it")
    before, after = ({"state": state, "epoch": epoch} for state, epoch in (("closed", 3), ("open", 4)))
    audit.settle(begun, AuditOutcome.DONE, before=json.dumps(before), after=json.dumps(after))


def test_a_failed_step_and_a_failed_rollback_are_told_apart() -> None:
    words = {what: saga_event(what) for what in ("failed", "undo failed", "done", "undone")}
    assert len({text.split("</svg>")[-1] for text in words.values()}) == 4
    assert "Step failed" in words["failed"] and "Rollback of step failed" in words["undo failed"]
    assert saga_event("<taken>") == "&lt;taken&gt;"


def test_an_unused_sequence_is_not_used_yet_and_an_unread_one_not_read_yet() -> None:
    def shown(read_at: float | None) -> str:
        fleet = msgspec.structs.replace(
            full(), sequences=(SequenceView("invoices"),), read_at={"sequences": read_at}
        )
        return str(fragments.render_each("sequences", fleet, "viewer")["sequences"])

    assert "Not used yet" in shown(NOW)
    assert "Not used yet" not in shown(None)


@pytest.mark.django_db
def test_the_ledger_of_an_unused_sequence_says_so(client: Client) -> None:
    user = User.objects.create_user("vera")
    user.groups.add(Group.objects.get(name="viewer"))
    client.force_login(user)
    made = Runtime(clock=ManualClock(start=NOW))
    runtime.use(made)
    try:
        made.presence.joined(hello("w-1", state=WorkerState(sequences=(SequenceStatus("invoices"),))))
        assert "has not been read yet" in client.get("/sequences/?sequence=invoices").content.decode()
        made.fleet_state.apply(Sample(at=NOW, storage=StorageView(as_of=NOW), sequences_as_of=NOW))
        text = client.get("/sequences/?sequence=invoices").content.decode()
        file = client.get("/ledger.csv?sequence=invoices")
    finally:
        runtime.use(None)
    assert "Not used yet" in text and "has not been read yet" not in text
    assert file.status_code == 200


def numbered() -> Fleet:
    return msgspec.structs.replace(full(), sequences=(SequenceView("orders", 3001, as_of=NOW),))


@pytest.mark.parametrize(
    "q", ["1204", "1,204", "1 204", "1\N{NO-BREAK SPACE}204", "1\N{NARROW NO-BREAK SPACE}204"]
)
def test_a_number_is_found_as_people_write_it(q: str) -> None:
    hits, _ = find(numbered(), q)
    assert [hit.name for hit in hits if hit.kind == "Number"] == ["1204 of orders"]


@pytest.mark.parametrize("q", ["12,04", "1,2045", ",204", "1,204,"])
def test_what_is_not_a_number_is_not_taken_for_one(q: str) -> None:
    assert all(hit.kind != "Number" for hit in find(numbered(), q)[0])


@pytest.mark.parametrize(
    ("q", "url"),
    [("/tv/", "/tv"), ("/tv", "/tv"), ("wallboard", "/tv"), ("/queues/", "/queues/"), ("Audit", "/audit/")],
)
def test_pages_are_found_by_address_and_title(q: str, url: str) -> None:
    assert url in [hit.url for hit in find(numbered(), q)[0] if hit.kind == "Page"]


@pytest.mark.django_db
def test_the_wallboard_is_there_with_and_without_a_slash(client: Client) -> None:
    user = User.objects.create_user("vera")
    user.groups.add(Group.objects.get(name="viewer"))
    client.force_login(user)
    assert [client.get(path).status_code for path in ("/tv", "/tv/")] == [200, 200]
