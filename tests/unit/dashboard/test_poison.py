"""Promises of how poison messages are grouped, filtered and edited, without storage."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from coordinator.config import StorageConfig
from coordinator.errors import MoveStopped
from coordinator.queues import envelope as wire
from coordinator.queues.envelope import Envelope, Failure, PoisonRecord
from coordinator.queues.protocols import ReceivedMessage
from coordinator.queues.requeue import Moved
from coordinator.storage import Storage
from dashboard.core.audit import ActionFailed
from dashboard.core.permissions import Actor
from dashboard.hub.runtime import current
from dashboard.live.releases import source_of
from dashboard.models import AuditRow, BulkAct, PoisonMessage
from dashboard.queues import bulk_acts, poison
from dashboard.queues.poison import Filter


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("order 4711 has no lines", "order … has no lines"),
        ("no answer from 10.0.0.17 in 2.5 s", "no answer from … in … s"),
        ("customer 0b9f3a52-1c2d-4e5f-8a9b-0c1d2e3f4a5b is gone", "customer … is gone"),
        ("card of ann@example.com declined", "card of … declined"),
        ("object at 0x7f3a2c", "object at …"),
        ("'customer'", "'customer'"),
        ("first line\nand 400 more", "first line"),
        ("", ""),
    ],
)
def test_what_differs_from_message_to_message_is_left_out_of_the_kind(reason: str, kind: str) -> None:
    assert poison.normalised(reason) == kind


def test_a_filter_says_what_it_asks_for_and_refuses_a_time_that_is_none() -> None:
    asked = Filter.of({"kind": "k", "since": "2026-11-01T10:00", "page": "3"})
    assert (asked.query, str(asked)) == ("kind=k&since=2026-11-01T10%3A00", "kind k, since 2026-11-01T10:00")
    assert (Filter.of({}).query, str(Filter())) == ("", "all")
    with pytest.raises(ValueError, match="yesterday"):
        Filter.of({"since": "yesterday"})


def poisoned(*items: object, foreign: bool = False) -> str:
    message = Envelope(kennel=1, id="m", at=5.0, by="shop", items=[wire.encode_item(each) for each in items])
    record = PoisonRecord(
        "orders",
        "m-1",
        '"bare"' if foreign else wire.encode(message),
        "no stock",
        [Failure("no stock", "ValueError", handler="bill", at=time.time())],
        1.0,
        2.0,
        5,
    )
    return wire.encode(Envelope(kennel=1, id="p", items=[wire.encode_item(record)]))


def test_an_edited_message_keeps_everything_but_its_item() -> None:
    record = poison.record_of(poison.edited(poisoned({"n": 1}), '{"n": 2}'))
    before = poison.record_of(poisoned({"n": 1}))
    assert record is not None and before is not None
    assert (record.message_id, record.reason, record.failures[0].handler) == ("m-1", "no stock", "bill")
    envelope = wire.decode(record.text)
    assert [bytes(item) for item in envelope.items] == [b'{"n":2}']
    assert (envelope.id, envelope.by, envelope.at) == ("m", "shop", 5.0)


@pytest.mark.parametrize(
    ("text", "body", "why"),
    [
        (poisoned({"n": 1}), "{", "not JSON"),
        (poisoned({"n": 1}), "NaN", "not JSON"),
        (poisoned(foreign=True), "1", "cannot be edited"),
        ('"left here by hand"', "1", "cannot be edited"),
    ],
)
def test_what_cannot_be_edited_is_refused(text: str, body: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        poison.edited(text, body)


@pytest.mark.django_db
def test_a_page_that_peeked_meanwhile_does_not_replace_what_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poison, "storage", lambda: None)
    monkeypatch.setattr(poison, "source_of", lambda _: "account/kennel-")
    read = [ReceivedMessage(f"m-{n}", f"r-{n}", poisoned(n), 1, 1.0, 0.0) for n in range(40)]
    peeked = [message._replace(receipt="") for message in read[:32]]
    poison.keep("orders", peeked, are_peeked=True)
    poison.keep("orders", read)
    poison.keep("orders", peeked, are_peeked=True)
    rows = poison.kept("orders")
    assert (rows.count(), rows.filter(receipt="").count()) == (40, 0)
    poison.keep("orders", read[:5])
    assert poison.kept("orders").count() == 5


@pytest.mark.django_db
def test_an_act_goes_on_where_storage_stopped_it_and_counts_each_message_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    account = Storage.from_connection_string(
        "UseDevelopmentStorage=true", config=StorageConfig(prefix="act-")
    )
    monkeypatch.setattr(poison, "storage", lambda: account)
    monkeypatch.setattr(bulk_acts, "storage", lambda: account)
    monkeypatch.setattr(bulk_acts, "PAUSE_SECONDS", 0.0)
    names = [f"m-{n}" for n in range(6)]
    poison.keep("orders", [ReceivedMessage(name, "r", poisoned(1), 1, 1.0, 0.0) for name in names])
    asked: list[list[str]] = []

    def call(do: Any) -> Moved:
        asked.append([each.id for each in do.keywords["known"]])
        if len(asked) == 1:  # two were deleted; the answer for the third was lost
            raise MoveStopped(
                "away", resource="orders", moved=2, left=0, in_doubt=1,
                moved_ids=frozenset(names[:2]), in_doubt_ids=frozenset(names[2:3]),
            )  # fmt: skip
        # The third is not there any more, and somebody has received the last one.
        return Moved(2, left=2, left_ids=[names[2], names[5]], reasons=["somebody received it"])

    monkeypatch.setattr(bulk_acts, "call", call)
    act = BulkAct.objects.create(
        source="s",
        queue="orders",
        verb="delete",
        what="all",
        actor="adam",
        total=6,
        started_at=0.0,
        seen_at=0.0,
    )
    rows = list(PoisonMessage.objects.order_by("message_id").values_list("pk", flat=True))
    said = [act.problem for _ in bulk_acts._each(act, rows)]
    assert asked == [names, names[2:]]
    assert "trying again" in said[0] and said[1] == "somebody received it"
    assert (act.done, act.left) == (5, 1)
    assert list(PoisonMessage.objects.values_list("message_id", flat=True)) == [names[5]]


@pytest.fixture
def left_behind(monkeypatch: pytest.MonkeyPatch) -> Callable[..., BulkAct]:
    """An act on 40 messages whose process ended after ten of them; what is deleted from now on is noted in `deleted`."""
    account = Storage.from_connection_string(
        "UseDevelopmentStorage=true", config=StorageConfig(prefix="act-")
    )
    monkeypatch.setattr(poison, "storage", lambda: account)
    monkeypatch.setattr(bulk_acts, "storage", lambda: account)
    monkeypatch.setattr(
        bulk_acts,
        "_submit",
        lambda actor, act, rows, is_in_doubt: bulk_acts._run(current(), actor, act, rows, is_in_doubt),
    )
    read = [ReceivedMessage(f"m-{n:02}", "r", poisoned(1), 1, 1.0, 0.0) for n in range(40)]
    poison.keep("orders", read)

    def begun(**values: Any) -> BulkAct:
        last = max(PoisonMessage.objects.values_list("pk", flat=True))
        PoisonMessage.objects.filter(message_id__lt="m-10").delete()
        now = time.time()
        known = {
            "source": source_of(account), "queue": "orders", "verb": "delete", "what": "all", "only": "{}", "actor": "adam",
            "total": 40, "done": 10, "last_row": last, "runner": "dead", "started_at": now - 200, "seen_at": now - 100,
        }  # fmt: skip
        return BulkAct.objects.create(**known | values)

    return begun


def deleting(
    monkeypatch: pytest.MonkeyPatch, then: Callable[[], object] = lambda: None, gone: str = ""
) -> list[str]:
    """What is deleted from now on; of `gone` the receipt is not good any more."""
    deleted: list[str] = []

    def call(do: Any) -> Moved:
        deleted.extend(each.id for each in do.keywords["known"])
        then()
        left = [each.id for each in do.keywords["known"] if each.id == gone]
        return Moved(len(do.keywords["known"]) - len(left), left=len(left), left_ids=left)

    monkeypatch.setattr(bulk_acts, "call", call)
    return deleted


@pytest.mark.django_db(transaction=True)
def test_another_process_goes_on_with_an_act_and_does_the_rest_of_what_was_there_when_it_began(
    left_behind: Callable[..., BulkAct], monkeypatch: pytest.MonkeyPatch
) -> None:
    act = left_behind()
    PoisonMessage.objects.filter(message_id="m-39").update(id=act.last_row + 1)  # read again since
    deleted = deleting(monkeypatch)
    (waiting,) = bulk_acts.shown("orders")
    assert (waiting.outcome, waiting.problem) == ("running", bulk_acts.WAITING)
    bulk_acts.take_over()
    assert sorted(deleted) == [f"m-{n}" for n in range(10, 39)]
    act.refresh_from_db()
    assert (act.outcome, act.done, act.left) == ("done", 39, 1)
    assert act.problem == bulk_acts.GONE.format(1)
    bulk_acts.take_over()
    assert len(deleted) == 29
    rows = [row.action for row in AuditRow.objects.order_by("pk")]
    assert rows == ["queue.delete_messages.resumed", "queue.delete_messages.ended"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("seen_at", "problem"), [(1.0, bulk_acts.UNSURE.format(1)), (0.0, "")])
def test_what_a_crashed_process_may_have_done_is_called_unsure_and_what_one_that_stopped_left_is_not(
    left_behind: Callable[..., BulkAct], monkeypatch: pytest.MonkeyPatch, seen_at: float, problem: str
) -> None:
    act = left_behind(seen_at=seen_at)
    deleting(monkeypatch, gone="m-12")
    bulk_acts.take_over()
    act.refresh_from_db()
    assert (act.outcome, act.done, act.left, act.problem) == ("done", 39, 1, problem)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("values", "outcome"),
    [
        ({"abort": "olga"}, "aborted"),
        ({"started_at": 0.0}, "interrupted"),
        ({"seen_at": time.time() + 3600}, "running"),
    ],
)
def test_an_act_that_was_aborted_is_too_old_or_has_a_runner_is_not_taken_over(
    left_behind: Callable[..., BulkAct], monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], outcome: str
) -> None:
    act, deleted = left_behind(**values), deleting(monkeypatch)
    bulk_acts.take_over()
    act.refresh_from_db()
    assert (act.outcome, deleted) == (outcome, [])


@pytest.mark.django_db(transaction=True)
def test_a_runner_that_was_taken_for_dead_stops_and_overwrites_nothing(
    left_behind: Callable[..., BulkAct], monkeypatch: pytest.MonkeyPatch
) -> None:
    act = left_behind()
    deleted = deleting(monkeypatch, lambda: BulkAct.objects.update(runner="other", done=25))
    bulk_acts.take_over()
    assert len(deleted) == 30
    act.refresh_from_db()
    assert (act.outcome, act.done, act.runner) == ("running", 25, "other")


@pytest.mark.django_db(transaction=True)
def test_a_process_that_ends_hands_its_act_on_at_once(
    left_behind: Callable[..., BulkAct], monkeypatch: pytest.MonkeyPatch
) -> None:
    act = left_behind()
    runtime = current()
    deleting(monkeypatch, lambda: monkeypatch.setattr(type(runtime), "is_running", True))
    monkeypatch.setattr(bulk_acts, "A_TURN", 8)
    bulk_acts.take_over()
    act.refresh_from_db()
    assert (act.outcome, act.done, act.seen_at) == ("running", 18, 0.0)


@pytest.mark.django_db(transaction=True)
def test_of_two_acts_that_are_pressed_at_the_same_moment_one_is_refused(
    left_behind: Callable[..., BulkAct], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = left_behind(seen_at=time.time())
    monkeypatch.setattr(bulk_acts, "shown", lambda queue: [])  # as it was when the second was pressed
    with pytest.raises(ActionFailed, match="Another act on this poison queue is running"):
        bulk_acts.delete(Actor("adam", "admin"), "orders", Filter())
    assert [act.pk for act in BulkAct.objects.all()] == [first.pk]
    assert AuditRow.objects.latest("pk").outcome == "failed"


@pytest.mark.django_db(transaction=True)
def test_an_act_that_nobody_can_go_on_with_stands_in_nobodys_way(
    left_behind: Callable[..., BulkAct], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = left_behind(started_at=0.0)
    ended: Future[None] = Future()
    ended.set_result(None)
    monkeypatch.setattr(bulk_acts, "_submit", lambda actor, act, rows: ended)
    assert bulk_acts.delete(Actor("adam", "admin"), "orders", Filter()).total == 30
    old.refresh_from_db()
    assert old.outcome == "interrupted"
