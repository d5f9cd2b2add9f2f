"""Faults that meet a handler: each with every form of message, in `async def` and in `def`."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from coordinator.queues import listener as listener_module
from coordinator.queues import watchdog as stalls
from coordinator.queues.envelope import PoisonRecord
from coordinator.queues.listener import QueueListener
from coordinator.queues.queue import Queue
from coordinator.queues.settling import RetryPolicy
from coordinator.testing.clock import ManualClock
from coordinator.testing.faults import DROP_ANSWER, Fault, FaultyStore, answer_delayed, throttled
from coordinator.testing.invariants import checked
from coordinator.testing.queues import MemoryClaimStore, MemoryQueueTransport, memory_queue
from tests.support.reliability import Cell, Table

FORMS = {
    "single": "single",
    "bundled": "bundled",
    "compressed": "compressed",
    "claimed": "in a blob",
    "foreign": "foreign",
}
KINDS = ("async def", "def")
SUBJECTS = [(form, kind) for form in FORMS for kind in KINDS]
AWAY = Fault("away", committed=False, answer="close")

KILLED = "The item is in poison after `attempts` deaths, with their number; other items of its message run twice at most"
TRIED = "A failed attempt: logged, tried again, and in poison after `attempts` attempts with the reason"
HUNG_ASYNC = "Cancelled after `timeout` and counted as a failed attempt; in poison after `attempts` attempts"
HUNG_DEF = "Counted as a failed attempt after `timeout`; `held` turns False for the thread; in poison after `attempts` attempts"
OUTAGE = "Every item runs, at most once more, and the message is settled when storage is back"
BLOCKS = "A warning names the handler while it blocks; the message is settled"
BLOCKS_NOT = "No effect: a thread blocks no event loop, and its message is renewed"
STOPPED_ASYNC = "Finished within the deadline, else cancelled, given back and run by another worker"
STOPPED_DEF = "The message stays hidden until the thread ends, so that no other worker runs it"
PATIENT = "The worker waits as long as the service asks; the item runs once"
LOST = "The item runs once"
NO_SPACE = f"[Errno {errno.ENOSPC}] {os.strerror(errno.ENOSPC)}"


def _cells() -> list[Cell]:
    by_kind: dict[str, tuple[str, str]] = {
        "It ends its process": (KILLED, KILLED),
        "It raises `CancelledError`": (TRIED, TRIED),
        "It calls `sys.exit()`": (TRIED, TRIED),
        "It finds the disk full": (TRIED, TRIED),
        "It hangs": (HUNG_ASYNC, HUNG_DEF),
        "Storage is away for longer than the visibility": (OUTAGE, OUTAGE),
        "It blocks for longer than 5 s": (BLOCKS, BLOCKS_NOT),
        "SIGTERM while it runs": (STOPPED_ASYNC, STOPPED_DEF),
        "Throttled with Retry-After": (PATIENT, PATIENT),
        "An answer is lost": (LOST, LOST),
        "An answer comes late": (LOST, LOST),
    }
    return [
        Cell(fault, f"{FORMS[form]} (`{kind}`)", outcomes[KINDS.index(kind)])
        for fault, outcomes in by_kind.items()
        for form, kind in SUBJECTS
    ]


TABLE = Table(
    "Handlers of messages",
    "A fault meets a handler, `async def` or `def`, while it has a message: a single item, several (*bundled*), a payload "
    "that is compressed or kept in a blob, or one without Kennel's envelope (*foreign*). Each message is settled, given "
    "back, or dropped because it was lost: the tests check this between any two awaits.",
    tuple(_cells()),
    order=20,
)


def cells(fault: str) -> Any:
    """The table's cells of one fault, each with its form and kind."""
    chosen = [cell for cell in TABLE.cells if cell.fault == fault]
    assert len(chosen) == len(SUBJECTS)
    return pytest.mark.parametrize(
        ("form", "kind"),
        [pytest.param(*subject, id=str(cell)) for cell, subject in zip(chosen, SUBJECTS, strict=True)],
    )


class World:
    """A queue service and its processes, by a clock that the test moves."""

    def __init__(self, form: str, kind: str) -> None:
        self.form, self.kind = form, kind
        self.clock = ManualClock()
        self.service = {
            name: MemoryQueueTransport(name, clock=self.clock) for name in ("work", "work-poison")
        }
        self.claims = MemoryClaimStore(self.clock)
        self.runs: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.release = threading.Event()
        self.items = self._items()

    def _items(self) -> list[str]:
        if self.form == "bundled":
            return [f"{number}:" for number in range(6)]
        if self.form == "compressed":
            return ["0:" + "x" * 200_000]
        if self.form == "claimed":
            return ["0:" + random.Random(1).randbytes(100_000).hex()]
        return ["0:"]

    async def put(self) -> None:
        await self.service["work"].create()
        if self.form == "foreign":
            await self.service["work"].put('"0:"')
            return
        (kept,) = await self.process().queue.put(*self.items)
        assert bool(kept.envelope.z) == (self.form == "compressed")
        assert bool(kept.envelope.claim) == (self.form == "claimed")

    def process(self) -> Process:
        return Process(self)

    async def poisoned(self) -> list[PoisonRecord]:
        await self.service["work-poison"].create()
        return [message.items[0] for message in await self.process().queue.poison.peek()]

    async def pass_time(self, seconds: float) -> None:
        """Second by second, so that threads keep up."""
        for _ in range(int(seconds)):
            await self.clock.advance(1)
            if self.kind == "def":
                await asyncio.sleep(0.0015)

    async def until(self, condition: Callable[[], Any], seconds: float = 1000) -> None:
        waited = 0
        while not condition():
            assert waited < seconds, "it did not happen in time"
            await self.pass_time(1)
            waited += 1

    @property
    def is_empty(self) -> bool:
        return not (self.service["work"]._messages or {})

    def slow(self, seconds: float) -> None:
        """For a handler in a thread: so long by the test's clock."""
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end and not self.release.is_set():
            time.sleep(0.0005)


class Process:
    """A worker's process: its connections can be cut, and it can die without a word."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.stores = {
            name: FaultyStore(transport, clock=world.clock) for name, transport in world.service.items()
        }
        self.queue: Queue[Any] = memory_queue(
            "work", type=str, clock=world.clock, transports=dict(self.stores), claims=world.claims
        )
        self.is_dead = False

    def die(self) -> None:
        self.is_dead = True
        self.away()

    def away(self) -> None:
        for store in self.stores.values():
            store.always(AWAY)

    def back(self) -> None:
        for store in self.stores.values():
            store.heal()

    @asynccontextmanager
    async def listening(
        self, script: Callable[[str], Any], seconds: float = 0.0, **options: Any
    ) -> AsyncIterator[QueueListener[Any]]:
        """`script(item)` says what the handler does: it raises, or answers "hang" or None; then it takes `seconds`."""
        world = self.world

        async def on_loop(item: str) -> None:
            name = item[:2]
            world.runs[name] += 1
            if script(name) == "hang":
                await asyncio.Event().wait()
            if seconds:
                await world.clock.sleep(seconds)
            world.ended[name] += 1

        def in_thread(item: str) -> None:
            name = item[:2]
            world.runs[name] += 1
            if script(name) == "hang":
                world.release.wait()
                return
            if seconds:
                world.slow(seconds)
            world.ended[name] += 1

        handler = on_loop if world.kind == "async def" else in_thread
        listener = self.queue.listener(handler, linger_seconds=120, **options)
        with checked(listener.leases.check):
            running = asyncio.create_task(listener.run())
            await world.clock.settle()
            try:
                yield listener
            finally:
                if self.is_dead:
                    world.release.set()
                stopping = asyncio.create_task(listener.stop(5))
                for _ in range(300):
                    if stopping.done():
                        break
                    await world.pass_time(1)
                await stopping
                await running
                world.release.clear()
        assert not len(listener.leases)


@pytest.fixture
def world(form: str, kind: str) -> Any:
    made = World(form, kind)
    yield made
    made.release.set()


@cells("It ends its process")
async def test_what_kills_its_process_is_found_and_set_aside(world: World) -> None:
    await world.put()
    deaths = 0
    for _ in range(12):
        process = world.process()

        def script(item: str, process: Process = process) -> Any:
            if item != "0:":
                return None
            process.die()
            return "hang"

        async with process.listening(script, retries=RetryPolicy(attempts=3)):
            await world.until(lambda process=process: process.is_dead or world.is_empty, 300)
        deaths += process.is_dead
        if world.is_empty:
            break
        await world.clock.advance(31)
    (record,) = await world.poisoned()
    assert (deaths, record.reason) == (3, "killed 3 processes")
    assert record.left in (None, [0])
    neighbours = [item[:2] for item in world.items[1:]]
    assert all(1 <= world.runs[item] <= 2 for item in neighbours), world.runs
    assert all(world.ended[item] for item in neighbours)
    if world.form == "foreign":
        assert record.text == '"0:"', "the bytes of others are kept whole"


@pytest.mark.parametrize(
    ("fault", "raised", "reason"),
    [
        ("It raises `CancelledError`", asyncio.CancelledError, "the handler raised CancelledError"),
        ("It calls `sys.exit()`", lambda: sys.exit(3), "the handler raised SystemExit"),
        ("It finds the disk full", lambda: OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), NO_SPACE),
        ("It finds the disk full", lambda: Path("/dev/full").write_text("x"), NO_SPACE),
    ],
)
@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: f"{FORMS[subject[0]]}, {subject[1]}")
async def test_what_ends_a_task_is_a_failed_try(
    fault: str, raised: Any, reason: str, subject: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    assert any(cell.fault == fault for cell in TABLE.cells)
    world = World(*subject)
    await world.put()

    def script(item: str) -> None:
        if item == "0:":
            error = raised()
            raise error

    async with world.process().listening(script, retries=RetryPolicy(attempts=3)) as listener:
        await world.until(lambda: world.is_empty, 60)
        assert listener.status().poisoned == 1
    (record,) = await world.poisoned()
    assert record.reason.startswith(reason)
    assert world.runs["0:"] == 3
    assert all(world.runs[item[:2]] == 1 for item in world.items[1:])
    tries = [entry.getMessage() for entry in caplog.records if getattr(entry, "action", "") == "retry"]
    assert len(tries) == 2
    assert all(reason in said for said in tries)


@cells("It hangs")
async def test_what_hangs_is_ended_by_its_time_out(world: World) -> None:
    told: list[Any] = []

    def script(item: str) -> Any:
        return "hang" if item == "0:" else None

    async with world.process().listening(script, timeout=50, retries=RetryPolicy(attempts=2)) as listener:
        listener.try_failed = told.append
        await world.put()
        await world.until(lambda: world.is_empty, 300)
        world.release.set()
    (record,) = await world.poisoned()
    assert record.reason == "it took longer than its time-out of 50 s"
    assert [(failed.attempt, failed.again_seconds is None) for failed in told] == [(1, False), (2, True)]
    assert world.runs == Counter({item[:2]: 2 if item.startswith("0") else 1 for item in world.items})


@cells("Storage is away for longer than the visibility")
async def test_an_outage_longer_than_the_visibility_loses_no_item(world: World) -> None:
    await world.put()
    process = world.process()
    async with process.listening(lambda item: None, seconds=25, tasks=range(1, 3)):
        await world.pass_time(4)
        process.away()
        await world.pass_time(60)
        process.back()
        await world.until(lambda: world.is_empty, 600)
    assert set(world.ended) == {item[:2] for item in world.items}
    assert max(world.runs.values()) <= 2
    assert await world.poisoned() == []


@cells("It blocks for longer than 5 s")
async def test_a_handler_that_blocks_the_loop_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stalls, "BEAT_SECONDS", 0.02)
    monkeypatch.setattr(stalls, "BLOCKED_SECONDS", 0.1)
    monkeypatch.setattr(listener_module, "STALLS", stalls.Stalls())
    await world.put()
    named = threading.Event()

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "on_loop of work blocked the event loop" in record.getMessage():
                named.set()

    heard = Heard()
    logging.getLogger("coordinator.queues").addHandler(heard)
    try:
        async with world.process().listening(
            lambda item: named.wait(10 if world.kind == "async def" else 0.2)
        ):
            await world.until(lambda: world.is_empty, 600)
    finally:
        logging.getLogger("coordinator.queues").removeHandler(heard)
    assert set(world.runs.values()) == {1}
    assert named.is_set() == (world.kind == "async def")
    assert not any("in_thread" in entry.getMessage() for entry in caplog.records)


@cells("SIGTERM while it runs")
async def test_a_stop_leaves_nothing_running_beside_its_successor(world: World) -> None:
    await world.put()
    overlaps: list[str] = []
    first, second = world.process(), world.process()
    busy: Counter[str] = Counter()

    def began(item: str) -> None:
        if world.runs[item] - 1 > busy[item]:
            overlaps.append(item)

    async with first.listening(began, seconds=60) as listener:
        await world.pass_time(2)
        assert set(world.runs.values()) == {1}
        async with second.listening(began, seconds=60):
            stopping = asyncio.create_task(listener.stop(20))
            if world.kind == "async def":
                await world.until(stopping.done, 40)
                busy.update(world.runs)  # cancelled: these have ended
            await world.until(lambda: world.is_empty, 400)
            await world.until(stopping.done, 60)
    assert overlaps == []
    assert set(world.runs.values()) == ({2} if world.kind == "async def" else {1})
    assert await world.poisoned() == []


@cells("Throttled with Retry-After")
async def test_the_pause_that_the_service_asks_for_is_kept(world: World) -> None:
    await world.put()
    process = world.process()
    begun = world.clock.monotonic()
    for method in ("get", "delete", "update"):
        process.stores["work"].once(throttled(9), method=method)
    async with process.listening(lambda item: None, seconds=40):
        await world.pass_time(8)
        assert not world.runs, "it asked again too early"
        await world.until(lambda: len(world.ended) == len(world.items))
        await world.pass_time(8)
        assert not world.is_empty, "it asked again too early"
        await world.until(lambda: world.is_empty, 20)
    assert set(world.runs.values()) == {1}
    assert world.clock.monotonic() - begun >= 9 + 40 + 9


async def every_request(world: World, fault: Fault) -> None:
    """The same work again and again, each time with another request of the listener that meets the fault."""
    for method in ("get", "update", "delete"):
        world.runs.clear()
        await world.put()
        process = world.process()
        process.stores["work"].once(fault, method=method)
        async with process.listening(lambda item: None, seconds=40):
            await world.until(lambda: world.is_empty, 500)
        assert set(world.runs.values()) == {1}, method
        assert process.stores["work"].applied, "nothing met the fault"
    assert await world.poisoned() == []


@cells("An answer is lost")
async def test_a_lost_answer_repeats_nothing(world: World) -> None:
    await every_request(world, DROP_ANSWER)


@cells("An answer comes late")
async def test_a_late_answer_repeats_nothing(world: World) -> None:
    await every_request(world, answer_delayed(25))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(20))
async def test_a_storm_of_faults_loses_nothing(seed: int) -> None:
    """Kills, outages, lost and late answers at random over 120 items; run with -s to see the seeds."""
    print(f"seed {seed}")
    rng, world = random.Random(seed), World("bundled", "async def")
    await world.service["work"].create()
    expected = set()
    for first in range(10, 70, 6):
        items = [f"{number}:" for number in range(first, first + 6)]
        expected |= {item[:2] for item in items}
        await world.process().queue.put(*items)
    for life in range(40):
        process = world.process()
        for number, store in enumerate(process.stores.values()):
            faults = (DROP_ANSWER, AWAY, throttled(3), answer_delayed(4))
            store.at_random(0.1, seed=1000 * seed + 2 * life + number, faults=faults)
        async with process.listening(lambda item: None, seconds=rng.choice([0, 1, 9]), tasks=range(1, 5)):
            await world.pass_time(rng.randrange(10, 90))
            if rng.random() < 0.5:
                process.away()
                await world.pass_time(rng.randrange(5, 60))
                process.back()
            if life < 30 and rng.random() < 0.4:
                process.die()
            else:
                await world.pass_time(30)
        if world.is_empty:
            break
    assert world.is_empty
    poisoned = {item[:2] for record in await world.poisoned() for item in expected if item in record.text}
    assert expected <= set(world.ended) | poisoned, f"seed {seed}"


def test_every_cell_is_checked() -> None:
    assert len(TABLE.cells) == 11 * len(SUBJECTS)
