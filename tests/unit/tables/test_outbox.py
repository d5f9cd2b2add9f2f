"""What an outbox does with what a dead process left, and what it refuses."""

from __future__ import annotations

import logging

import pytest

from coordinator.errors import (
    AccessDenied,
    AlreadyExists,
    ConfigurationError,
    NotFound,
    StorageError,
    StorageUnreachable,
)
from coordinator.tables.commit import commit
from coordinator.tables.operations import ANY, Delete, Insert, Merge
from coordinator.tables.outbox import INTENT, Outbox, RelayingListener
from coordinator.tables.rows import chunk_columns
from coordinator.tables.table import Table
from coordinator.testing.queues import memory_queue
from coordinator.testing.tables import MemoryTableStore


@pytest.fixture
def table() -> Table:
    return Table(MemoryTableStore("orders"))


@pytest.fixture
def outbox(table: Table) -> Outbox[str]:
    return Outbox(table, memory_queue("mails", type=str))


async def left_behind(table: Table, name: str, content: bytes = b'["hello"]') -> None:
    """An intent whose process died before it sent anything."""
    await table.write(Insert(("nl", INTENT + name), chunk_columns("items", content)))


async def test_an_outbox_with_nothing_to_send_or_mark_is_refused(outbox: Outbox[str]) -> None:
    with pytest.raises(ConfigurationError, match="needs items to send or a marker"):
        await outbox.commit("nl", [Insert(("nl", "order-1"), {"cents": 5})])


async def test_a_marker_alone_sends_nothing(outbox: Outbox[str]) -> None:
    assert await outbox.commit("nl", [], marker="m1") and not await outbox.commit("nl", [], marker="m1")
    assert await outbox.queue.depth() == 0


@pytest.mark.parametrize("partition", ["nl", None])
async def test_what_was_left_behind_is_sent_and_counted(outbox: Outbox[str], partition: str | None) -> None:
    for name in ("one", "two"):
        await left_behind(outbox.table, name)
    assert (await outbox.relay(partition), await outbox.relay(partition)) == (2, 0)
    assert await outbox.queue.depth() == 2


async def test_one_intent_is_sent_by_its_name_and_no_other(outbox: Outbox[str]) -> None:
    for name in ("order-1", "order-10"):
        await left_behind(outbox.table, name)
    assert await outbox.relay_one("nl", "order-1") and not await outbox.relay_one("nl", "order-1")
    assert await outbox.queue.depth() == 1


async def test_a_damaged_intent_is_named_and_stays(outbox: Outbox[str]) -> None:
    await left_behind(outbox.table, "one", b"{")
    with pytest.raises(StorageError, match=r"the intent .*one.* of table orders is damaged"):
        await outbox.relay("nl")
    assert await outbox.table.read(("nl", INTENT + "one"))


async def test_a_row_that_exists_is_no_marker_that_was_set(outbox: Outbox[str]) -> None:
    await outbox.table.write(Insert(("nl", "order-1"), {"cents": 5}))
    with pytest.raises(AlreadyExists):
        await outbox.commit("nl", [Insert(("nl", "order-1"), {"cents": 6})], "bad", marker="m1")
    assert await outbox.queue.depth() == 0


def test_a_listener_that_never_relays_is_refused(outbox: Outbox[str]) -> None:
    async def handle(item: str) -> None: ...

    with pytest.raises(ConfigurationError, match="relay_seconds must be positive, got 0"):
        RelayingListener(outbox, "nl", handle, relay_seconds=0)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (StorageUnreachable("cut"), "The search for unsent messages of mails failed: cut"),
        (ValueError("no row"), "The search for unsent messages of mails failed and will be repeated"),
    ],
)
async def test_a_listener_goes_on_relaying_after_an_error(
    outbox: Outbox[str], error: Exception, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "coordinator.tables")
    rounds = 0

    class Enough(BaseException): ...

    async def besides() -> None:
        nonlocal rounds
        rounds += 1
        if rounds > 1:
            raise Enough
        raise error

    async def handle(item: str) -> None: ...

    async def at_once(seconds: float) -> None:
        assert seconds == 300.0

    listener = RelayingListener(outbox, "nl", handle, besides=besides)
    outbox.table.store.clock = _Clock(at_once)  # type: ignore[assignment]
    with pytest.raises(Enough):
        await listener._relay()
    assert said in caplog.text


class _Clock:
    def __init__(self, sleep: object) -> None:
        self.sleep = sleep

    def time(self) -> float:
        return 0.0

    def monotonic(self) -> float:
        return 0.0


# --- commit ---------------------------------------------------------------------------------------------------------


async def test_a_transaction_that_leaves_no_row_behind_is_refused(table: Table) -> None:
    with pytest.raises(ConfigurationError, match="leaves a row"):
        await commit(table, Delete(("nl", "order-1"), ANY))


async def test_a_row_that_is_not_there_is_an_error_and_not_our_own_doing(table: Table) -> None:
    with pytest.raises(NotFound):
        await commit(table, Merge(("nl", "order-1"), {"n": 1}, ANY))


async def test_a_transaction_with_its_answer_lost_gives_the_tags_of_its_rows(table: Table) -> None:
    await table.write(Insert(("nl", "old"), {"n": 0}))
    store = table.store
    assert isinstance(store, MemoryTableStore)
    store.fail_next(StorageUnreachable("cut", maybe_done=True), done=True)
    tags = await commit(table, Insert(("nl", "new"), {"n": 1}), Delete(("nl", "old"), ANY))
    assert tags == [(await table.read(("nl", "new"))).etag, ""]


async def test_an_account_that_refuses_is_reported_at_once(table: Table) -> None:
    store = table.store
    assert isinstance(store, MemoryTableStore)
    store.fail_next(AccessDenied("no right"), done=False)
    with pytest.raises(AccessDenied, match="no right"):
        await commit(table, Insert(("nl", "new"), {"n": 1}))


# --- questions ------------------------------------------------------------------------------------------------------


async def test_questions_that_make_no_sense_are_refused_before_anything_is_asked(table: Table) -> None:
    with pytest.raises(ConfigurationError, match="either prefix or row_from and row_before"):
        table.scan(prefix="a", row_from="b")
    with pytest.raises(ConfigurationError, match="page_size must be between 1 and"):
        table.scan(page_size=0)
    with pytest.raises(ConfigurationError, match="top needs a count of at least 1, got 0"):
        await table.top(0)


async def test_a_scan_that_has_ended_has_no_token(table: Table) -> None:
    await table.write(Insert(("nl", "order-1"), {"n": 1}))
    scan = table.scan(partition="nl")
    assert [len(page) async for page in scan.pages()] == [1]
    assert scan.token == ""
