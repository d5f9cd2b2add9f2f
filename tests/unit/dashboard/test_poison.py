"""Promises of how poison messages are grouped, filtered and edited, without storage."""

from __future__ import annotations

import time
from typing import Any

import pytest

from coordinator.config import StorageConfig
from coordinator.errors import MoveStopped
from coordinator.queues import envelope as wire
from coordinator.queues.envelope import Envelope, Failure, PoisonRecord
from coordinator.queues.protocols import ReceivedMessage
from coordinator.queues.requeue import Moved
from coordinator.storage import Storage
from dashboard.models import BulkAct, PoisonMessage
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
