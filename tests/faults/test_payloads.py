"""Each request of putting, settling, requeueing and moving fails in turn: every form of message stays whole, and none hides."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import pytest

from coordinator.backoff import Backoff, retry
from coordinator.config import StorageConfig
from coordinator.errors import MoveStopped, StorageError
from coordinator.queues import envelope as wire
from coordinator.queues import requeue
from coordinator.queues.delivery import Reject
from coordinator.queues.envelope import Failure, PoisonRecord
from coordinator.queues.polling import IdleBackoff
from coordinator.queues.queue import Queue, QueueConfig
from coordinator.storage import Storage
from coordinator.testing.azurite import Azurite
from coordinator.testing.faults import BUSY, DROP_ANSWER, RESET_BEFORE, FaultProxy, answer_delayed, throttled
from tests.support.azurite import started_azurite
from tests.support.reliability import Cell, Table

AT_ONCE = 24
pytestmark = pytest.mark.timeout(300)  # all cells run while the first one waits
LATE = "answer later than the time-out"
NOISE = random.Random(15).randbytes(60_000).hex()
FORMS: dict[str, list[Any]] = {
    "single": ["one"],
    "bundled": ["one", "two", {"three": 3}],
    "compressed": [[NOISE[:8_000], "x" * 70_000]],
    "claimed": [[NOISE, 1]],
    "foreign": ["from elsewhere"],
}
FAULTS = {
    "request lost": RESET_BEFORE,
    "answer lost": DROP_ANSWER,
    LATE: answer_delayed(1.3),
    "503": BUSY,
    "429 with Retry-After": throttled(1, status=429),
}


@dataclass
class Site:
    """One turn: requests of `behind` fail within `turn`, those of `plain` do not."""

    behind: Storage
    plain: Storage
    name: str
    items: list[Any]
    is_foreign: bool
    most: int = 2

    def queue(self, storage: Storage, name: str = "") -> Queue[Any]:
        return storage.queue(f"{self.name}{name}", config=QueueConfig(write_seconds=20))

    async def put(self, queue: Queue[Any]) -> None:
        if self.is_foreign:
            await queue.put_text(f'"{self.items[0]}"')
        else:
            await queue.put(*self.items)

    async def poisoned(self) -> None:
        """The message is in poison with three long traces, as a listener leaves it there."""
        queue = self.queue(self.plain)
        await self.put(queue)
        (message,) = await queue.take(1, visibility_seconds=60)
        notes = [Failure("no", "ValueError", NOISE[:4096], "billing-1", 5, 1.0, item) for item in range(3)]
        await queue.poison.put(PoisonRecord(queue.name, message.id, message.text, "no", notes, 1.0, 2.0, 5))
        await queue.transport.delete(message.id, message.receipt)

    async def whole(self, queue: Queue[Any], *, most: int = 0) -> None:
        """Each copy of the message, ended one after the other as by listeners, has all its items."""
        copies = 0
        while messages := await queue.take(32, visibility_seconds=60):
            for message in messages:
                envelope, items = await queue.open(message.text)
                assert [item for _, item in items] == self.items
                await queue.transport.delete(message.id, message.receipt)
                if not envelope.claim_kept:
                    await retry(partial(queue.payloads.discard, envelope), backoff=Backoff())
                copies += 1
        assert 1 <= copies <= (most or self.most)
        assert await queue.depth() == 0, "nothing is hidden"


class _Soon(random.Random):
    """Waits as short as may be."""

    def uniform(self, a: float, b: float) -> float:
        return min(a, b, 1.0)


async def put(site: Site, turn: Any) -> None:
    with turn:
        await site.put(site.queue(site.behind))
    await site.whole(site.queue(site.plain))


async def listened(site: Site, turn: Any, handler: Callable[[Any], Awaitable[None]]) -> None:
    """A listener works on the message until the queue is empty."""
    queue = site.queue(site.plain)
    await site.put(queue)
    listener = site.queue(site.behind).listener(
        handler,
        tasks=range(1, 2),
        visibility_seconds=2,
        idle=IdleBackoff(maximum_seconds=0.3),
        rng=_Soon(),
    )
    with turn:
        running = asyncio.create_task(listener.run())
        while await queue.depth():
            await asyncio.sleep(0.1)
        await listener.stop(5)
        await running


async def settle(site: Site, turn: Any) -> None:
    got: list[Any] = []

    async def handler(item: Any) -> None:
        got.append(item)

    await listened(site, turn, handler)
    assert await site.queue(site.plain).poison.depth() == 0
    for item in site.items:
        assert 1 <= got.count(item) <= site.most


async def give_up(site: Site, turn: Any) -> None:
    async def handler(item: Any) -> None:
        raise Reject("no")

    await listened(site, turn, handler)
    queue = site.queue(site.plain)
    assert await requeue.requeue_poison(queue) == 1
    await site.whole(queue, most=1)


async def requeued(site: Site, turn: Any) -> None:
    await site.poisoned()
    queue = site.queue(site.plain)
    with turn:
        moved = await requeue.requeue_poison(site.queue(site.behind))
    assert (moved, moved.left, moved.in_doubt) == (1, 0, 0)
    assert await queue.poison.depth() == 0
    await site.whole(queue)


async def moved(site: Site, turn: Any) -> None:
    await site.put(site.queue(site.plain))
    with turn:
        moved = await requeue.move(site.queue(site.behind), site.queue(site.behind, "-aside"))
    assert (moved, moved.left, moved.in_doubt) == (1, 0, 0)
    assert await site.queue(site.plain).depth() == 0
    await site.whole(site.queue(site.plain, "-aside"))


OPERATIONS = {
    "put": (
        put,
        "Stored unchanged; after a lost answer it may be there twice, each copy with a payload of its own",
    ),
    "settle": (settle, "Every item is handled, after a lost answer perhaps twice; nothing goes to poison"),
    "give up": (give_up, "In poison unchanged with the reason, and comes back from there unchanged and once"),
    "requeue from poison": (
        requeued,
        "Comes back unchanged and leaves poison; after a lost answer perhaps twice; nothing stays hidden",
    ),
    "move to another queue": (
        moved,
        "Arrives unchanged and leaves the old queue; after a lost answer perhaps twice; nothing stays hidden",
    ),
}

# --- storage that stays away --------------------------------------------------------------------------------------------


async def no_put(site: Site, proxy: FaultProxy) -> None:
    """The blobs are away, the queues are not."""
    proxy.times(10_000, BUSY, service="blob")
    queue = site.behind.queue(site.name, config=QueueConfig(write_seconds=1))
    with pytest.raises(StorageError) as caught:
        await asyncio.wait_for(queue.put(*site.items), 60)
    assert not caught.value.maybe_done
    assert await site.queue(site.plain).depth() == 0


async def waits(site: Site, proxy: FaultProxy) -> None:
    await site.put(site.queue(site.plain))
    proxy.times(3, BUSY, service="blob")
    got: list[Any] = []

    async def handler(item: Any) -> None:
        got.append(item)

    queue = site.queue(site.behind)
    listener = queue.listener(handler, tasks=range(1, 2), rng=_Soon())
    running = asyncio.create_task(listener.run())
    while not got:
        await asyncio.sleep(0.1)
    await listener.stop(5)
    await running
    assert got == site.items
    assert await site.queue(site.plain).poison.depth() == 0


async def stops(site: Site, proxy: FaultProxy) -> None:
    await site.poisoned()
    await site.poisoned()
    queue = site.behind.queue(site.name, config=QueueConfig(write_seconds=1))
    proxy.times(10_000, BUSY, service="queue", method="POST")
    with pytest.raises(MoveStopped) as caught:
        await requeue.requeue_poison(queue)
    assert (caught.value.moved, caught.value.left, caught.value.in_doubt) == (0, 0, 1)
    assert len(await site.queue(site.plain).poison.peek()) == 2, "nothing is hidden"
    proxy.heal()
    assert await requeue.requeue_poison(queue) == 2
    await site.whole(site.queue(site.plain), most=2)


async def gone(site: Site, proxy: FaultProxy) -> None:
    await site.poisoned()
    await site.poisoned()
    queue = site.queue(site.plain)
    (first, _) = await queue.poison.peek()
    envelope = wire.decode(first.items[0].text)
    await queue.payloads.discard(envelope)
    moved = await requeue.requeue_poison(site.queue(site.behind))
    assert (moved, moved.left, moved.in_doubt) == (1, 1, 0)
    assert "payload is gone" in moved.reasons[0]
    assert [each.id for each in await queue.poison.peek()] == [first.id]
    await site.whole(queue, most=1)


AWAY = {
    ("payloads cannot be written", "put, claimed"): (
        no_put,
        "The put raises, nothing is stored, and the error says that nothing may have been",
    ),
    ("payloads cannot be read", "settle, claimed"): (
        waits,
        "The message is given back and handled later; nothing goes to poison",
    ),
    ("storage is busy for longer than write_seconds", "requeue, claimed"): (
        stops,
        "`MoveStopped` says how many moved, are left and are in doubt; all are visible, and another run brings them back",
    ),
    ("the payload was deleted", "requeue, claimed"): (
        gone,
        "It stays in poison, visible and named; the others come back",
    ),
}
TABLE = Table(
    "Payloads of messages",
    "Each request of an operation in turn meets the fault, for a single, a bundled, a compressed, a claimed (kept in a blob) "
    "and a foreign message.",
    (
        *(
            Cell(fault, operation, outcome)
            for fault in FAULTS
            for operation, (_, outcome) in OPERATIONS.items()
        ),
        *(Cell(fault, subject, outcome) for (fault, subject), (_, outcome) in AWAY.items()),
    ),
    order=31,
)
_numbers = count()


async def check(plain: Storage, connection_string: str, cell: Cell, form: str) -> int:
    """How many requests met the fault."""
    # On a busy machine every answer may be late: only where that is the fault is the time-out short.
    config = StorageConfig(read_seconds=1.0 if cell.fault == LATE else 20.0, prefix="payloads-")

    def site(behind: Storage) -> Site:
        most = 100 if cell.fault == LATE else 2
        return Site(behind, plain, f"work-{next(_numbers)}", FORMS[form], form == "foreign", most)

    met = 0
    with FaultProxy(connection_string) as proxy:
        async with Storage.from_connection_string(proxy.connection_string, config=config) as behind:
            if (cell.fault, cell.subject) in AWAY:
                await AWAY[cell.fault, cell.subject][0](site(behind), proxy)
                return 1
            for turn in proxy.for_each_request(FAULTS[cell.fault]):
                await asyncio.wait_for(OPERATIONS[cell.subject][0](site(behind), turn), 240)
                met += turn.applied is not None
    return met


Run = tuple[Cell, str]
ALL: list[Run] = [
    (cell, form)
    for cell in TABLE.cells
    for form in FORMS
    if form == "claimed" or (cell.fault, cell.subject) not in AWAY
]
# Each cell, with every form where the answer is lost, and with the one of most requests where something else goes wrong.
SHORT = [(cell, form) for cell, form in ALL if form == "claimed" or cell.fault == "answer lost"]


def carried_out(runs: list[Run]) -> dict[str, int | BaseException]:
    azurite: Azurite = started_azurite()
    patched = pytest.MonkeyPatch()
    patched.setattr(requeue, "_HOLD_SECONDS", 10.0)  # how long a test waits for what a lost answer took
    patched.setattr(requeue, "_BEGIN_WITHIN_SECONDS", 5.0)

    async def all_runs() -> list[int | BaseException]:
        places = asyncio.Semaphore(AT_ONCE)
        config = StorageConfig(prefix="payloads-", read_seconds=60)
        async with Storage.from_connection_string(azurite.connection_string, config=config) as plain:

            async def one(cell: Cell, form: str) -> int:
                async with places:
                    return await check(plain, azurite.connection_string, cell, form)

            return await asyncio.gather(*(one(*run) for run in runs), return_exceptions=True)

    try:
        found = asyncio.run(all_runs())
    finally:
        azurite.kill()
        patched.undo()
    return {_name(*run): result for run, result in zip(runs, found, strict=True)}


def _name(cell: Cell, form: str) -> str:
    return f"{cell} / {form}"


def _judge(result: int | BaseException) -> None:
    if isinstance(result, BaseException):
        raise result
    assert result >= 1, "no request met the fault"


@pytest.fixture(scope="module")
def results() -> dict[str, int | BaseException]:
    return carried_out(SHORT)


@pytest.mark.parametrize("cell", TABLE.cells, ids=str)
def test_what_was_promised_holds(cell: Cell, results: dict[str, int | BaseException]) -> None:
    for each, form in SHORT:
        if each == cell:
            _judge(results[_name(cell, form)])


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_it_holds_for_every_form_and_fault() -> None:
    for name, result in carried_out(ALL).items():
        try:
            _judge(result)
        except BaseException as error:
            raise AssertionError(name) from error
