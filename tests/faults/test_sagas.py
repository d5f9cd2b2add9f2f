"""Sagas when a step or any request of their runner crashes, hangs, is cancelled, lost, late or refused, or the code changes."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from coordinator.backoff import Backoff
from coordinator.errors import StorageError
from coordinator.queues.delivery import Reject, Retry
from coordinator.tables.progress import Progress
from coordinator.tables.saga import Saga, SagaContext, SagaMessage
from coordinator.tables.table import Table
from coordinator.testing.faults import (
    DROP_ANSWER,
    FAILED_COMMITTED,
    HANGS_AFTER,
    RESET_BEFORE,
    FaultyStore,
    answer_delayed,
    throttled,
)
from coordinator.testing.queues import MemoryQueueTransport, memory_queue
from coordinator.testing.tables import MemoryTableStore
from tests.support.dying import HastyClock, Killed, Mortal
from tests.support.reliability import Cell
from tests.support.reliability import Table as Promises

NAMES = ("flight", "hotel", "car")
AT_ONCE = Backoff(base_seconds=0.001, cap_seconds=0.001)
REQUESTS = {
    "request lost": RESET_BEFORE,
    "answer lost": DROP_ANSWER,
    "500, carried out": FAILED_COMMITTED,
    "answer late": answer_delayed(2.0),
    "connection hangs": HANGS_AFTER,
    "503 with Retry-After": throttled(3),
    "429 with Retry-After": throttled(3, status=429),
}
KINDS = ("async def step", "def step")
WAYS = {"saga that ends done": "done", "saga that is undone": "compensated"}

LOST = [
    Cell(fault, way, f"Each request in turn: it ends `{end}`, each step at least once and in order")
    for fault in REQUESTS
    for way, end in WAYS.items()
]
KILLED = [
    Cell(
        "process killed",
        way,
        f"Before or after each request: another runner continues it, and it ends `{end}`",
    )
    for way, end in WAYS.items()
]
DEPLOYED = [
    Cell(
        "deployment with other steps",
        "step removed",
        "At each moment: stuck, and says which; the old version resumes it",
    ),
    Cell(
        "deployment with other steps",
        "step added before",
        "At each moment: stuck, and says which; the old version resumes it",
    ),
    Cell(
        "deployment with other steps",
        "steps swapped",
        "At each moment: stuck, and says which; the old version resumes it",
    ),
    Cell(
        "deployment with other steps",
        "step added at the end",
        "At each moment: it continues, and the new step runs",
    ),
]
STEPS = [
    Cell(
        "step hangs",
        "async def step",
        "It is cancelled at its time-out and tried again, then everything is rolled back",
    ),
    Cell(
        "step hangs",
        "def step",
        "It is shown as overdue and waited for; nothing is rolled back while it may still take effect",
    ),
    *(
        Cell("runner cancelled", kind, "No second runner starts the step in parallel; the next one continues")
        for kind in KINDS
    ),
    *(Cell("step raises Reject", kind, "Everything is rolled back at once") for kind in KINDS),
    *(
        Cell("step raises its own TimeoutError", kind, "It is tried again; the error is the step's own")
        for kind in KINDS
    ),
    *(
        Cell("result of 1 MB", kind, "Everything is rolled back at once; the error names the limit")
        for kind in KINDS
    ),
]
ORPHANS = [
    Cell("queue cleared", "running saga", "It is found within minutes, gets a new message, and ends `done`"),
    Cell("message delivered twice", "running saga", "The second waits; no step runs twice"),
    Cell("runner overtaken", "running saga", "It keeps the message until the saga has ended"),
]
TABLE = Promises(
    "Sagas",
    "Steps with compensations. Each fault of a request meets each request of the runner in turn.",
    (*LOST, *KILLED, *DEPLOYED, *STEPS, *ORPHANS),
    order=41,
)


class Trip:
    """A saga on stores that outlive its processes."""

    def __init__(self, way: str = "saga that ends done") -> None:
        self.clock = HastyClock()
        self.store = MemoryTableStore("sagas", clock=self.clock)
        self.transport = MemoryQueueTransport("trips", clock=self.clock)
        self.is_broken = way == "saga that is undone"
        self.did: list[str] = []

    def saga(self, *names: str, store: Any = None, transport: Any = None) -> Saga[str]:
        """As one process has it."""
        queue = memory_queue(
            "trips", type=SagaMessage, clock=self.clock, transports={"trips": transport or self.transport}
        )
        saga: Saga[str] = Saga("trip", Table(store or self.store), queue, input_type=str)
        for name in names or NAMES:
            self._declare(saga, name)
        return saga

    def _declare(self, saga: Saga[str], name: str) -> None:
        async def book(context: SagaContext[str]) -> str:
            self.did.append(name)
            if self.is_broken and name == "car":
                raise RuntimeError("no car")
            return name

        async def cancel(context: SagaContext[str]) -> None:
            self.did.append(f"no {name}")

        book.__name__ = name
        saga.step(attempts=2, backoff=AT_ONCE)(book).compensate(cancel)

    async def carried_on(self, saga: Saga[str]) -> None:
        """What a listener does, one message after the other, until the queue is empty."""
        while messages := await saga.queue.transport.get(1, visibility_seconds=30):
            message = messages[0]
            items: Any = (await saga.queue.open(message.text))[1]
            try:
                await saga.carry_on(items[0][1].key, guard=message.id)
            except Retry as later:
                await saga.queue.transport.update(message.id, message.receipt, visibility_seconds=0)
                self.clock.skip(later.after or 1.0)
            else:
                await saga.queue.transport.delete(message.id, message.receipt)

    async def recovered(self) -> Progress:
        """Another process, after a while: it starts again what nobody stored, looks for orphans, and listens."""
        saga = self.saga()
        await saga.start("t1", "olga")
        for _ in range(6):
            self.clock.skip(400)
            await saga.outbox.relay("trip")
            await saga.sweep()
            await self.carried_on(saga)
            if (progress := await saga.read("t1")).is_ended:
                return progress
        return await saga.read("t1")

    def must_have_ended(self, state: str, progress: Progress) -> None:
        assert progress.state == state, progress.error
        firsts = [name for index, name in enumerate(self.did) if name not in self.did[:index]]
        undone = [] if state == "done" else [f"no {name}" for name in reversed(NAMES)]
        assert firsts == [*NAMES, *undone]
        assert not [key for key in self.store.rows if key.row.startswith("open|")], (
            "nothing is left in the index"
        )


@pytest.mark.parametrize("cell", LOST, ids=str)
async def test_each_request_of_a_runner_may_fail(cell: Cell) -> None:
    faulty = FaultyStore(MemoryTableStore())
    turns = 0
    for turn in faulty.for_each_request(REQUESTS[cell.fault]):
        turns += 1
        trip = Trip(cell.subject)
        faulty._store, faulty._clock = trip.store, trip.clock
        with turn:
            try:
                saga = trip.saga(store=faulty)
                await saga.start("t1", "olga")
                await trip.carried_on(saga)
            except StorageError:
                pass
        trip.must_have_ended(WAYS[cell.subject], await trip.recovered())
        if cell.fault == "answer lost" and cell.subject == "saga that ends done":
            assert trip.did == list(NAMES), turn
    assert turns >= 8


@pytest.mark.parametrize("cell", KILLED, ids=str)
async def test_a_runner_may_be_killed_at_each_request(cell: Cell) -> None:
    deaths = 0
    for after in (False, True):
        for number in range(1, 100):
            trip, mortal = Trip(cell.subject), Mortal(number, after=after)
            saga = trip.saga(store=mortal.wrap(trip.store), transport=mortal.wrap(trip.transport))
            try:
                await saga.start("t1", "olga")
                await trip.carried_on(saga)
            except Killed:
                deaths += 1
                trip.must_have_ended(WAYS[cell.subject], await trip.recovered())
                continue
            trip.must_have_ended(WAYS[cell.subject], await trip.saga().read("t1"))
            break
    assert deaths > 20


@pytest.mark.parametrize("cell", DEPLOYED, ids=str)
async def test_a_deployment_may_come_at_each_request(cell: Cell) -> None:
    names = {
        "step removed": ("flight", "car"),
        "step added before": ("visa", *NAMES),
        "steps swapped": ("hotel", "flight", "car"),
        "step added at the end": (*NAMES, "mail"),
    }[cell.subject]
    is_same = cell.subject == "step added at the end"
    for number in range(3, 100):
        trip, mortal = Trip(), Mortal(number, after=True)
        old = trip.saga(store=mortal.wrap(trip.store), transport=mortal.wrap(trip.transport))
        try:
            await old.start("t1", "olga")
            await trip.carried_on(old)
        except Killed:
            pass
        else:
            break
        if (await trip.saga().read("t1")).is_ended:
            continue
        before = list(trip.did)
        new = await trip.saga(*names).run("t1")
        assert new is not None
        if is_same:
            assert (new.state, trip.did[-1]) == ("done", "mail")
            continue
        assert (new.state, trip.did) == ("stuck", before), number
        assert "the steps changed while it ran" in new.error
        trip.must_have_ended("done", await trip.recovered())


def odd(trip: Trip, kind: str, act: Any, **options: Any) -> Saga[str]:
    """A saga of one step that does `act`, and its compensation."""
    saga = trip.saga()
    saga.steps.clear()

    def step(context: SagaContext[str]) -> Any:
        trip.did.append("step")
        return act()

    async def step_async(context: SagaContext[str]) -> Any:
        trip.did.append("step")
        result = act()
        return await result if asyncio.iscoroutine(result) else result

    chosen = step_async if kind == "async def step" else step
    chosen.__name__ = "step"

    async def undo(context: SagaContext[str]) -> None:
        trip.did.append("undo")

    saga.step(**{"attempts": 2, "backoff": AT_ONCE, **options})(chosen).compensate(undo)
    return saga


async def until_overdue(saga: Saga[str]) -> None:
    while "overdue" not in [event.what for event in (await saga.read("t1")).history]:
        await asyncio.sleep(0)


@pytest.mark.parametrize("cell", STEPS, ids=str)
async def test_a_step_may_do_what_it_likes(cell: Cell) -> None:
    trip, release = Trip(), threading.Event()

    def hang() -> Any:
        return asyncio.Event().wait() if cell.subject == "async def step" else release.wait(10)

    def raise_(error: Exception) -> Any:
        raise error

    acts = {
        "step hangs": hang,
        "runner cancelled": hang,
        "step raises Reject": lambda: raise_(Reject("no such card")),
        "step raises its own TimeoutError": lambda: raise_(TimeoutError("the bank is slow")),
        "result of 1 MB": lambda: "x" * 2**20,
    }
    options = {"timeout_seconds": 0.01} if cell.fault == "step hangs" else {}
    saga = odd(trip, cell.subject, acts[cell.fault], **options)
    await saga.start("t1", "olga")
    running = asyncio.create_task(trip.carried_on(saga))
    if cell.fault == "step hangs" and cell.subject == "def step":
        await until_overdue(saga)
        assert trip.did == ["step"]
        release.set()
        await running
        assert ((await saga.read("t1")).state, trip.did) == ("done", ["step"])
        return
    if cell.fault == "runner cancelled":
        await cancelled(trip, saga, running, release, cell.subject)
        return
    await running
    progress = await saga.read("t1")
    tries, words = {
        "step hangs": (2, "took longer than 0.01 s"),
        "step raises Reject": (1, "Reject: no such card"),
        "step raises its own TimeoutError": (2, "TimeoutError: the bank is slow"),
        "result of 1 MB": (1, "at most 921600 can be kept"),
    }[cell.fault]
    assert (progress.state, trip.did) == ("compensated", ["step"] * tries + ["undo"])
    assert words in progress.error


async def cancelled(
    trip: Trip, saga: Saga[str], running: asyncio.Task[None], release: threading.Event, kind: str
) -> None:
    while not trip.did:
        await asyncio.sleep(0)
    running.cancel()
    if kind == "def step":
        await until_overdue(saga)
        with pytest.raises(Retry, match="is processing it"):
            await odd(trip, kind, lambda: None).run("t1", guard="m1")
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    trip.clock.skip(60)
    await trip.carried_on(odd(trip, kind, lambda: None))
    progress = await saga.read("t1")
    assert (progress.state, trip.did) == ("done", ["step"] * (1 if kind == "def step" else 2))


@pytest.mark.parametrize("cell", ORPHANS, ids=str)
async def test_a_message_may_be_gone_or_there_twice(cell: Cell) -> None:
    trip = Trip()
    saga = trip.saga()
    await saga.start("t1", "olga")
    if cell.fault == "queue cleared":
        await saga.queue.clear()
        trip.must_have_ended("done", await trip.recovered())
        return
    other = trip.saga()
    booked = saga.steps[0].function

    async def meanwhile(context: SagaContext[str]) -> Any:
        if cell.fault == "message delivered twice":
            with pytest.raises(Retry, match="is processing it"):
                await other.carry_on("t1", guard="another")
        elif context.epoch == 1:
            mortal = Mortal(3)
            with pytest.raises(Killed):
                await trip.saga(store=mortal.wrap(trip.store)).run("t1")
        return await booked(context)

    saga.steps[0].function = meanwhile
    if cell.fault == "runner overtaken":
        with pytest.raises(Retry, match="taken it over"):
            await saga.carry_on("t1", guard="first")
        trip.must_have_ended("done", await trip.recovered())
        return
    await saga.carry_on("t1", guard="first")
    assert trip.did == list(NAMES)
    trip.must_have_ended("done", await saga.read("t1"))
