"""Whatever its form and however long its history, a message comes back from poison whole, twice in a row."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.errors import StorageUnreachable
from coordinator.queues import envelope as wire
from coordinator.queues.envelope import Failure, PoisonRecord
from coordinator.queues.queue import Queue
from coordinator.queues.requeue import requeue_poison
from coordinator.testing.queues import MemoryClaimStore, MemoryQueueTransport, memory_queue

FORMS = {
    "inline": (1_000, 16_000, 40_000, 62_000),
    "packed": (1_000, 16_000, 30_000, 41_500),
    "claimed": (50_000, 200_000, 1_000_000, 2_000_000),
    "foreign": (1_000, 30_000, 60_000, 65_500),
}
TRACES = (0, 1, 2, 4, 8, 16)
CASES = [(form, size, traces) for form, sizes in FORMS.items() for size in sizes for traces in TRACES]


class Queues:
    def __init__(self) -> None:
        self.transports: dict[str, MemoryQueueTransport] = {}
        self.claims = MemoryClaimStore()
        self.queue: Queue[Any] = memory_queue("work", transports=self.transports, claims=self.claims)

    async def fail(self, traces: int, *, left: list[int] | None = None, seed: int = 0) -> None:
        """The one message of the queue goes to poison with so many failures, as a listener does it."""
        (message,) = await self.queue.take(1, visibility_seconds=60)
        envelope = wire.decode(message.text)
        notes = [
            Failure("it failed", "ValueError", trace(seed * 100 + number), "billing-1", 5, 1.0, number)
            for number in range(traces)
        ]
        record = PoisonRecord(
            "work", message.id, message.text, "it failed", [*envelope.history, *notes], 1.0, 2.0, 5, left
        )
        await self.queue.poison.put(record)
        await self.queue.transport.delete(message.id, message.receipt)

    async def items(self) -> list[Any]:
        (message,) = await self.queue.transport.peek(1)
        _, items = await self.queue.open(message.text)
        return [item for _, item in items]


def trace(seed: int) -> str:
    return random.Random(seed).randbytes(2_048).hex()


def payload(form: str, size: int) -> list[Any]:
    noise = random.Random(size).randbytes(size).hex()
    match form:
        case "inline":
            return [noise[: size // 4]] * 4
        case "packed":
            return [[noise, "x" * 70_000]]
        case "claimed":
            return [[noise, 1]]
        case _:
            return ["&" * (size // 5) if size == 60_000 else noise[: size - 2]]


async def put(queues: Queues, form: str, size: int) -> list[Any]:
    items = payload(form, size)
    if form == "foreign":
        await queues.queue.put_text(f'"{items[0]}"')
        return items
    (kept,) = await queues.queue.put(*items)
    found = "claimed" if kept.envelope.claim else "packed" if kept.envelope.z else "inline"
    assert found == form
    return items


@pytest.mark.parametrize(("form", "size", "traces"), CASES)
async def test_a_message_comes_back_whole_twice(form: str, size: int, traces: int) -> None:
    queues = Queues()
    items = await put(queues, form, size)
    for stay in (1, 2):
        await queues.fail(traces, seed=stay)
        assert await requeue_poison(queues.queue) == 1
        assert await queues.queue.poison.depth() == 0
        assert await queues.items() == items
        (message,) = await queues.queue.transport.peek(1)
        assert wire.fits(message.text)
    assert len(queues.claims.blobs) == (1 if wire.decode(message.text).claim else 0), (
        "each claim has its message"
    )


def test_there_are_96_cases() -> None:
    assert len(CASES) == 96


async def test_of_a_history_that_has_no_room_the_longest_traces_go_first_and_it_says_so() -> None:
    queues = Queues()
    items = await put(queues, "inline", 40_000)
    await queues.fail(16)
    await requeue_poison(queues.queue)
    (message,) = await queues.queue.transport.peek(1)
    history = wire.decode(message.text).history
    assert [failure.reason for failure in history] == ["it failed"] * 16
    kept = [failure.trace for failure in history]
    left_out = [text for text in kept if "left out" in text]
    assert kept == left_out + [trace(number) for number in range(len(left_out), 16)], (
        "the oldest are left out first"
    )
    assert 8 < len(left_out) < 16
    assert await queues.items() == items


async def test_a_history_of_a_thousand_failures_keeps_the_newest_and_counts_the_others() -> None:
    queues = Queues()
    await put(queues, "inline", 1_000)
    await queues.fail(1_000)
    await requeue_poison(queues.queue)
    (message,) = await queues.queue.transport.peek(1)
    first, *others = wire.decode(message.text).history
    assert (
        first.reason
        == f"{1_000 - len(others)} earlier failures are left out: the message has no room for them"
    )
    assert [failure.item for failure in others] == list(range(1_000 - len(others), 1_000))
    assert len(others) > 100


failures = st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 5_000)), max_size=30)


@given(
    st.sampled_from(["inline", "packed", "claimed", "foreign"]),
    st.integers(0, 63_000),
    st.lists(failures, min_size=1, max_size=3),
    st.integers(0, 2**32),
)
@settings(max_examples=60)
async def test_any_history_leaves_any_payload_whole(
    form: str, size: int, stays: list[list[tuple[int, int]]], seed: int
) -> None:
    queues, rng = Queues(), random.Random(seed)
    text = rng.randbytes(size).hex() if form == "claimed" else "".join(rng.choices('ab&<"ü\\', k=size // 7))
    items: list[Any] = [text]
    if form == "foreign":
        await queues.queue.put_text(bytes(wire.encode_item(text)).decode())
    else:
        await queues.queue.put(*items)
    for stay in stays:
        (message,) = await queues.queue.take(1, visibility_seconds=60)
        notes = [Failure("r" * reason, "E", "t<" * (length // 2)) for reason, length in stay]
        history = [*wire.decode(message.text).history, *notes]
        await queues.queue.poison.put(
            PoisonRecord("work", message.id, message.text, "no", history, 1.0, 2.0, 5)
        )
        await queues.queue.transport.delete(message.id, message.receipt)
        assert await requeue_poison(queues.queue) == 1
        assert await queues.items() == items


async def test_one_message_that_cannot_come_back_leaves_the_others_neither_hidden_nor_behind() -> None:
    queues = Queues()
    for number in range(33):
        await queues.queue.put(number)
        await queues.fail(1)
    (lost,) = await queues.queue.put(*payload("claimed", 50_000))
    (message, *_) = [
        each for each in await queues.queue.take(32, visibility_seconds=60) if each.text == lost.text
    ]
    record = PoisonRecord("work", message.id, message.text, "no", [], 1.0, 2.0, 5)
    await queues.queue.poison.put(record)
    await queues.queue.transport.delete(message.id, message.receipt)
    assert lost.envelope.claim is not None
    await queues.claims.delete(lost.envelope.claim.name)
    moved = await requeue_poison(queues.queue)
    assert (moved, moved.left, moved.in_doubt) == (33, 1, 0)
    assert "payload is gone" in moved.reasons[0]
    (peeked,) = await queues.queue.poison.peek()
    assert peeked.items[0].message_id == message.id


async def test_a_message_of_a_newer_program_comes_back_as_it_was() -> None:
    queues = Queues()
    text = '{"kennel":2,"id":"x","items":{"of":"another shape"}}'
    await queues.queue.put_text(text)
    (message,) = await queues.queue.take(1, visibility_seconds=60)
    await queues.queue.poison.put(PoisonRecord("work", message.id, text, "newer", [], 1.0, 2.0, 5))
    await queues.queue.transport.delete(message.id, message.receipt)
    assert await requeue_poison(queues.queue) == 1
    assert [each.text for each in await queues.queue.transport.peek(1)] == [text]


async def test_two_records_of_one_failure_bring_the_message_back_once() -> None:
    """The answer of the record's put was lost, so it is in poison twice."""
    queues = Queues()
    items = await put(queues, "claimed", 50_000)
    await queues.fail(1)
    (record,) = await queues.queue.poison.transport.peek(1)
    await queues.queue.poison.transport.put(record.text)
    moved = await requeue_poison(queues.queue)
    assert (moved, moved.repeated) == (1, 1)
    assert await queues.items() == items
    assert await queues.queue.depth() == 1


async def test_a_requeue_that_ended_between_put_and_delete_leaves_two_messages_with_a_payload_each() -> None:
    queues = Queues()
    items = await put(queues, "claimed", 50_000)
    await queues.fail(1)
    poison = queues.transports["work-poison"]
    delete = poison.delete

    async def cut(id: str, receipt: str) -> None:
        raise KeyboardInterrupt

    poison.delete = cut  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        await requeue_poison(queues.queue)
    poison.delete = delete  # type: ignore[method-assign]
    assert len(await queues.queue.poison.peek()) == 1, "it is not hidden"
    (first,) = await queues.queue.take(1, visibility_seconds=600)
    await queues.queue.transport.delete(first.id, first.receipt)
    await queues.queue.payloads.discard(wire.decode(first.text))
    assert await requeue_poison(queues.queue) == 1
    assert await queues.items() == items


async def test_copies_of_a_put_whose_answer_was_lost_have_a_payload_each() -> None:
    queues = Queues()
    transport = queues.transports["work"]
    await queues.queue.create()
    original, lost = transport.put, 0

    async def losing(text: str, **options: Any) -> Any:
        nonlocal lost
        stored = await original(text, **options)
        if lost < 2:
            lost += 1
            raise StorageUnreachable("the answer was lost", maybe_done=True)
        return stored

    transport.put = losing  # type: ignore[method-assign]
    items = payload("claimed", 50_000)
    await queues.queue.put(*items)
    copies = await queues.queue.take(32, visibility_seconds=60)
    assert len(copies) == 3
    for copy in copies:
        envelope, found = await queues.queue.open(copy.text)
        assert [item for _, item in found] == items
        await queues.queue.transport.delete(copy.id, copy.receipt)
        await queues.queue.payloads.discard(envelope)
    assert queues.claims.blobs == {}
