"""Moving messages and bringing them back: what storage does meanwhile loses, hides and hushes up nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from typing import Any, TypeVar

import pytest

from coordinator.errors import MoveStopped
from coordinator.queues.envelope import PoisonRecord
from coordinator.queues.queue import Queue
from coordinator.queues.requeue import Moved, move, requeue_poison
from coordinator.testing.clock import ManualClock
from coordinator.testing.faults import BUSY, DROP_ANSWER, FaultyStore, throttled
from coordinator.testing.queues import MemoryClaimStore, MemoryQueueTransport, memory_queue

T = TypeVar("T")
LARGE = random.Random(4).randbytes(80_000).hex()


class Queues:
    """Queues whose every call can be made to fail; `claims` of the first two queues are their own."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.stores: dict[str, Any] = {}
        self.claims: dict[str, Any] = {}

    def queue(self, name: str = "work") -> Queue[Any]:
        for each in (name, f"{name}-poison"):
            self.stores.setdefault(
                each, FaultyStore(MemoryQueueTransport(each, clock=self.clock), clock=self.clock)
            )
        home = name.removesuffix("-poison")
        claims = self.claims.setdefault(home, FaultyStore(MemoryClaimStore(self.clock), clock=self.clock))
        return memory_queue(name, clock=self.clock, transports=self.stores, claims=claims)

    async def fail(self, item: Any) -> None:
        queue = self.queue()
        (kept,) = await queue.put(item)
        await queue.poison.put(PoisonRecord("work", kept.id, kept.text, "no", [], 1.0, 2.0, 5))
        await queue.transport.delete(kept.id, kept.receipt)

    async def until(self, work: Awaitable[T]) -> T:
        """The result of what waits by the clock."""
        running = asyncio.ensure_future(work)
        while not running.done():
            await self.clock.advance(0.5)
            await asyncio.sleep(0)
        return await running


@pytest.fixture
def queues() -> Queues:
    return Queues()


async def items(queue: Queue[Any]) -> list[Any]:
    return sorted(item for message in await queue.peek() for item in message.items)


@pytest.mark.parametrize("fault", [BUSY, throttled(2), throttled(1, status=429), DROP_ANSWER])
@pytest.mark.parametrize("method", ["get", "delete", "put"])
async def test_trouble_of_a_few_requests_is_waited_out(queues: Queues, method: str, fault: Any) -> None:
    source, target = queues.queue("old"), queues.queue("new")
    for number in range(5):
        await source.put(number)
    await target.create()
    queues.stores["new" if method == "put" else "old"].times(3, fault, method=method)
    moved = await queues.until(move(source, target))
    assert (moved, moved.left, moved.in_doubt) == (5, 0, 0)
    assert set(await items(target)) == set(range(5))
    assert await source.depth() == 0


async def test_a_get_whose_answer_was_lost_hides_nothing_from_the_move(queues: Queues) -> None:
    for number in range(40):
        await queues.fail(number)
    queues.stores["work-poison"].once(DROP_ANSWER, method="get")
    assert await queues.until(requeue_poison(queues.queue())) == 40
    assert await queues.queue().poison.depth() == 0


async def test_storage_that_stays_away_ends_it_with_a_report_and_another_run_goes_on(queues: Queues) -> None:
    for number in range(40):
        await queues.fail(number)
    queue, passed = queues.queue(), 10
    queues.stores["work"].times(10_000, BUSY, method="put", skip=passed)
    with pytest.raises(MoveStopped) as caught:
        await queues.until(requeue_poison(queue))
    stopped = caught.value
    assert (stopped.moved, stopped.left, stopped.in_doubt) == (passed, 0, 1)
    assert stopped.maybe_done and (len(stopped.moved_ids), len(stopped.in_doubt_ids)) == (passed, 1)
    assert "10 moved, 0 left, 1 in doubt" in str(stopped)
    assert len(await queue.poison.peek()) == 30, "all that was not moved can be seen at once"
    queues.stores["work"].heal()
    assert await queues.until(requeue_poison(queue)) == 30
    assert await queue.depth() == 40


async def test_a_message_that_another_took_meanwhile_is_in_doubt(queues: Queues) -> None:
    await queues.fail(1)
    queue, poison = queues.queue(), queues.stores["work-poison"]
    put = queues.stores["work"]._store.put

    async def slow(text: str, **options: Any) -> Any:
        await queues.clock.advance(60)
        await poison.get(1, visibility_seconds=600)
        return await put(text, **options)

    queues.stores["work"]._store.put = slow
    moved = await requeue_poison(queue)
    assert (moved, moved.left, moved.in_doubt) == (0, 0, 1)
    assert (await queue.depth(), await queue.poison.depth()) == (1, 1)


async def test_slow_storage_leaves_no_message_to_be_moved_after_others_see_it_again(queues: Queues) -> None:
    source, target = queues.queue("old"), queues.queue("new")
    for number in range(32):
        await source.put(number)
    put = queues.stores["new"]._store.put

    async def slow(text: str, **options: Any) -> Any:
        await queues.clock.advance(3)
        return await put(text, **options)

    queues.stores["new"]._store.put = slow
    await target.create()
    assert await move(source, target) == 32
    assert await items(target) == list(range(32))


async def test_a_move_keeps_what_is_left_of_the_time_to_live(queues: Queues) -> None:
    source, target = queues.queue("old"), queues.queue("new")
    await source.put("a minute", ttl=60)
    await source.put("for ever")
    await queues.clock.advance(20)
    assert await move(source, target) == 2
    now = queues.clock.time()
    lasts = {message.items[0]: message.expires_at - now for message in await target.peek()}
    assert lasts["a minute"] == pytest.approx(40, abs=2)
    assert lasts["for ever"] > 10**9


async def test_poison_moved_aside_and_back_keeps_the_payload_of_its_messages(queues: Queues) -> None:
    await queues.fail(LARGE)
    await queues.fail("small")
    assert await move(queues.queue("work-poison"), queues.queue("aside")) == 2
    assert queues.claims["work"].blobs == {}
    assert len(queues.claims["aside"].blobs) == 1
    assert await move(queues.queue("aside"), queues.queue("work-poison")) == 2
    assert await requeue_poison(queues.queue()) == 2
    assert await items(queues.queue()) == sorted([LARGE, "small"])
    assert queues.claims["aside"].blobs == {}
    assert len(queues.claims["work"].blobs) == 1


async def test_claims_that_cannot_be_read_for_a_while_are_waited_for(queues: Queues) -> None:
    await queues.fail(LARGE)
    await queues.queue("old").put(LARGE)
    queues.claims["work"].times(3, BUSY, method="get")
    queues.claims["old"].times(3, DROP_ANSWER, method="get")
    assert await queues.until(requeue_poison(queues.queue())) == 1
    assert await queues.until(move(queues.queue("old"), queues.queue("new"))) == 1
    assert await items(queues.queue()) == await items(queues.queue("new")) == [LARGE]


async def test_a_put_whose_payload_cannot_be_written_says_that_nothing_was_put(queues: Queues) -> None:
    queue = queues.queue()
    await queue.create()
    queues.claims["work"].always(DROP_ANSWER)
    with pytest.raises(Exception, match="put") as caught:
        await queues.until(queue.put(LARGE))
    assert not getattr(caught.value, "maybe_done", True)
    assert await queue.depth() == 0


async def test_a_put_in_doubt_says_so_whatever_the_last_try_met(queues: Queues) -> None:
    queue = queues.queue()
    await queue.create()
    queues.stores["work"].once(DROP_ANSWER, method="put")
    queues.stores["work"].times(10_000, throttled(1, status=429), method="put")
    with pytest.raises(Exception, match="put") as caught:
        await queues.until(queue.put(LARGE))
    assert getattr(caught.value, "maybe_done", False)
    assert await items(queue) == [LARGE], "the copy that was stored has its payload"


def test_a_report_counts_like_a_number() -> None:
    moved = Moved(3, left=1, reasons=["why"])
    assert (moved, f"{moved}", moved.left, moved.in_doubt, moved.reasons) == (3, "3", 1, 0, ("why",))
