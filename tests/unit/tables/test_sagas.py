"""Sagas and the outbox on a table and a queue in memory."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from coordinator.backoff import Backoff
from coordinator.errors import AlreadyExists, ConfigurationError, LeadershipLost, NotFound, StorageUnreachable
from coordinator.queues.delivery import Reject, Retry
from coordinator.queues.queue import Queue
from coordinator.tables.operations import ANY, Insert, Merge
from coordinator.tables.outbox import Outbox
from coordinator.tables.progress import MAX_RUNNERS, SagaError
from coordinator.tables.rows import Key, Row, chunk_columns, join_columns
from coordinator.tables.saga import Saga, SagaContext, SagaMessage
from coordinator.tables.table import Table
from coordinator.testing.clock import ManualClock
from coordinator.testing.queues import memory_queue
from coordinator.testing.tables import MemoryTableStore

AT_ONCE = Backoff(base_seconds=0.001, cap_seconds=0.001)


class Trip:
    """Books a flight, a hotel and a car; `broken` names what fails, and how often (-1: always)."""

    def __init__(self, clock: ManualClock | None = None, **options: Any) -> None:
        self.clock = clock or ManualClock()
        self.store = MemoryTableStore("sagas", clock=self.clock)
        self.queue: Queue[SagaMessage] = memory_queue("trips", type=SagaMessage, clock=self.clock)
        self.did: list[str] = []
        self.broken: dict[str, int] = {}
        self.saga = self.join(**options)

    def join(self, **options: Any) -> Saga[str]:
        """The saga as another process has it."""
        saga: Saga[str] = Saga("trip", Table(self.store), self.queue, input_type=str, **options)
        for name in ("flight", "hotel", "car"):
            self._declare(saga, name)
        return saga

    def _declare(self, saga: Saga[str], name: str) -> None:
        async def book(context: SagaContext[str]) -> str:
            self._act(name)
            return f"{name} for {context.input}"

        async def cancel(context: SagaContext[str]) -> None:
            self._act(f"no {name}")

        book.__name__ = name
        saga.step(attempts=2, backoff=AT_ONCE)(book).compensate(cancel)

    def _act(self, what: str) -> None:
        self.did.append(what)
        if self.broken.get(what):
            self.broken[what] -= 1
            raise RuntimeError(f"{what} failed")

    async def run(self) -> Any:
        """To the end, as a listener would."""
        while True:
            try:
                return await self.saga.run("t1")
            except Retry:
                continue


async def test_steps_run_in_order_and_their_results_are_kept() -> None:
    trip = Trip()
    assert await trip.saga.start("t1", "olga")
    progress = await trip.run()
    assert (progress.state, trip.did) == ("done", ["flight", "hotel", "car"])
    assert progress.results == {
        "flight": "flight for olga",
        "hotel": "hotel for olga",
        "car": "car for olga",
    }
    assert [event.what for event in progress.history] == ["started", "taken", "done", "done", "done"]
    assert await trip.saga.read("t1") == progress


async def test_a_saga_is_started_once_by_its_key() -> None:
    trip = Trip()
    assert await trip.saga.start("t1", "olga")
    assert not await trip.saga.start("t1", "piet")
    await trip.run()
    assert not await trip.saga.start("t1", "olga")
    assert trip.did == ["flight", "hotel", "car"]


async def test_a_step_that_fails_is_tried_again() -> None:
    trip = Trip()
    trip.broken = {"hotel": 1}
    await trip.saga.start("t1", "olga")
    progress = await trip.run()
    assert (progress.state, trip.did) == ("done", ["flight", "hotel", "hotel", "car"])


async def test_a_step_that_keeps_failing_has_everything_undone_in_reverse() -> None:
    trip = Trip()
    trip.broken = {"hotel": -1}
    await trip.saga.start("t1", "olga")
    progress = await trip.run()
    assert (progress.state, trip.did) == (
        "compensated",
        ["flight", "hotel", "hotel", "no hotel", "no flight"],
    )
    assert "hotel failed" in progress.error


async def test_what_cannot_be_undone_is_stuck_until_an_operator_has_it_tried_again() -> None:
    trip = Trip()
    trip.broken = {"hotel": -1, "no flight": 2}
    await trip.saga.start("t1", "olga")
    assert (await trip.run()).state == "stuck"
    await trip.queue.clear()
    await trip.saga.retry("t1", by="olga")
    assert await trip.queue.depth() == 1
    assert (await trip.run()).state == "compensated"
    with pytest.raises(SagaError, match="not stuck"):
        await trip.saga.retry("t1")


async def test_a_step_that_was_undone_by_hand_is_marked_once_and_the_steps_before_it_are_undone() -> None:
    trip = Trip()
    trip.broken = {"hotel": -1, "no hotel": -1}
    await trip.saga.start("t1", "olga")
    assert (await trip.run()).state == "stuck"
    with pytest.raises(SagaError, match="stuck on hotel, not on flight"):
        await trip.saga.mark_repaired("t1", "flight")
    await trip.queue.clear()
    assert await trip.saga.mark_repaired("t1", "hotel", by="olga") == "compensating"
    with pytest.raises(SagaError, match="is compensating and not stuck on a step"):
        await trip.saga.mark_repaired("t1", "hotel", by="otto")
    progress = await trip.run()
    assert (progress.state, trip.did[-1]) == ("compensated", "no flight")
    assert [(event.step, event.by) for event in progress.history if event.what == "repaired"] == [
        ("hotel", "olga")
    ]


async def test_a_saga_whose_last_step_was_undone_by_hand_has_ended() -> None:
    trip = Trip()
    trip.broken = {"flight": -1, "no flight": -1}
    await trip.saga.start("t1", "olga")
    assert (await trip.run()).state == "stuck"
    await trip.queue.clear()
    assert await trip.saga.mark_repaired("t1", "flight") == "compensated"
    assert await trip.queue.depth() == 0
    assert (await trip.saga.read("t1")).state == "compensated"
    with pytest.raises(SagaError, match="not stuck"):
        await trip.saga.retry("t1")


async def test_a_saga_that_is_not_stuck_on_a_step_to_undo_has_nothing_to_mark() -> None:
    trip = Trip()
    await trip.saga.start("t1", "olga")
    with pytest.raises(SagaError, match="is running and not stuck"):
        await trip.saga.mark_repaired("t1", "flight")
    with pytest.raises(NotFound):
        await trip.saga.mark_repaired("t2", "flight")


async def test_a_saga_that_takes_too_long_is_undone() -> None:
    trip = Trip(timeout_seconds=60)
    await trip.saga.start("t1", "olga")
    await trip.clock.advance(61)
    progress = await trip.run()
    assert (progress.state, progress.error, trip.did) == ("compensated", "timed out", ["no flight"])


async def test_a_step_that_takes_too_long_has_failed() -> None:
    trip = Trip()
    saga: Saga[str] = Saga("slow", Table(trip.store), trip.queue)

    @saga.step(timeout_seconds=0.01, attempts=1)
    async def hang(context: SagaContext[str]) -> None:
        await asyncio.Event().wait()

    await saga.start("t1", "olga")
    progress = await saga.run("t1")
    assert progress is not None
    assert (progress.state, progress.error) == ("compensated", "took longer than 0.01 s")


async def test_a_runner_that_was_overtaken_stores_nothing() -> None:
    trip = Trip()
    other = trip.join()
    await trip.saga.start("t1", "olga")

    async def overtake(context: SagaContext[str]) -> None:
        trip.did.append(f"epoch {context.epoch}")
        if context.epoch == 1:
            await other.run("t1")

    trip.saga.steps[0].function = overtake
    assert await trip.saga.run("t1") is None
    assert trip.did == ["epoch 1", "flight", "hotel", "car"]
    progress = await trip.saga.read("t1")
    assert (progress.state, progress.epoch) == ("done", 2)


async def test_progress_is_stored_once_though_its_answer_was_lost() -> None:
    trip = Trip()
    await trip.saga.start("t1", "olga")
    for _ in range(4):
        trip.store.fail_next(StorageUnreachable("cut", maybe_done=True), done=True)
    running = asyncio.create_task(trip.saga.run("t1"))
    while not running.done():
        await trip.clock.advance(1.0)
    assert (await running, trip.did) == (await trip.saga.read("t1"), ["flight", "hotel", "car"])


async def test_what_a_starter_left_unsent_is_sent_by_the_next_one_who_looks() -> None:
    trip = Trip()
    key = ("trip", "saga|t1")

    async def die(*items: Any, **options: Any) -> Any:
        raise StorageUnreachable("the starter dies here", maybe_done=False)

    put, trip.queue.put = trip.queue.put, die  # type: ignore[method-assign]
    with pytest.raises(StorageUnreachable):
        await trip.saga.start("t1", "olga")
    trip.queue.put = put  # type: ignore[method-assign]
    assert key in trip.store.rows
    assert await trip.queue.depth() == 0
    assert not await trip.saga.start("t1", "olga")
    assert await trip.queue.depth() == 1
    assert not [row for row in trip.store.rows if "intent" in row.row]


async def test_a_saga_without_steps_or_with_two_of_a_name_is_refused() -> None:
    trip = Trip()
    with pytest.raises(ConfigurationError, match="no steps"):
        await Saga("bare", Table(trip.store), trip.queue).run("t1")
    with pytest.raises(ConfigurationError, match="has a step car already"):
        trip._declare(trip.saga, "car")
    with pytest.raises(ConfigurationError, match="attempts of at least 1"):
        trip.saga.step(attempts=0)(lambda context: None)


@pytest.fixture
def store() -> MemoryTableStore:
    return MemoryTableStore("orders")


async def test_an_outbox_writes_the_rows_and_sends_or_does_neither(store: MemoryTableStore) -> None:
    outbox = Outbox(Table(store), memory_queue("mails", type=str))
    await outbox.commit("nl", [Insert(("nl", "order-1"), {"cents": 5})], "hello", "again")
    with pytest.raises(AlreadyExists):
        await outbox.commit("nl", [Insert(("nl", "order-1"), {"cents": 6})], "bad")
    seen = [item for message in await outbox.queue.peek() for item in message.items]
    assert (seen, [key.row for key in store.rows]) == (["hello", "again"], ["order-1"])


async def test_what_is_marked_is_done_once(store: MemoryTableStore) -> None:
    table = Table(store)
    await table.write(Insert(("nl", "sum"), {"n": 0}))
    outbox = Outbox(table, memory_queue("mails", type=str))
    done = [
        await outbox.commit("nl", [Merge(("nl", "sum"), {"n": 1}, ANY)], "hi", marker="m1") for _ in range(3)
    ]
    assert (done, await outbox.queue.depth()) == ([True, False, False], 1)


async def test_a_marked_change_with_its_answer_lost_is_done_once(store: MemoryTableStore) -> None:
    outbox = Outbox(Table(store), memory_queue("mails", type=str))
    store.fail_next(StorageUnreachable("cut", maybe_done=True), done=True)
    assert await outbox.commit("nl", [], "hi", marker="m1")
    assert await outbox.queue.depth() == 1


# --- deployments ------------------------------------------------------------------------------------------------


def deployed(trip: Trip, *names: str, undo: bool = True, **options: Any) -> Saga[str]:
    """The saga as another deployment has it."""
    saga: Saga[str] = Saga("trip", Table(trip.store), trip.queue, input_type=str, **options)
    for name in names:

        async def book(context: SagaContext[str], name: str = name) -> None:
            trip._act(name)

        async def cancel(context: SagaContext[str], name: str = name) -> None:
            trip._act(f"no {name}")

        book.__name__ = name
        step = saga.step(attempts=2, backoff=AT_ONCE)(book)
        if undo:
            step.compensate(cancel)
    return saga


async def begun(trip: Trip, at: str = "hotel") -> None:
    """A saga whose runner stopped in the middle of that step."""
    trip.broken = {at: 1}
    await trip.saga.start("t1", "olga")
    with pytest.raises(Retry):
        await trip.saga.run("t1")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("visa", "flight", "hotel", "car"), "the steps here are visa, flight, hotel, car"),
        (("flight", "visa", "hotel", "car"), "the steps here are flight, visa, hotel, car"),
        (("hotel", "car"), "done and not here: flight"),
        (("flight",), "planned and not here: hotel, car"),
        (("flight", "hotel"), "planned and not here: car"),
        (("flight", "hotel", "taxi"), "planned and not here: car"),
        (("flight", "car", "hotel"), "the steps here are flight, car, hotel"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
async def test_a_deployment_that_does_not_fit_makes_a_saga_stuck_and_the_old_one_resumes_it(
    names: tuple[str, ...], words: str
) -> None:
    trip = Trip()
    await begun(trip)
    progress = await deployed(trip, *names).run("t1")
    assert progress is not None
    assert progress.state == "stuck"
    assert words in progress.error
    assert trip.did == ["flight", "hotel"]
    progress = await trip.run()
    assert (progress.state, trip.did) == ("done", ["flight", "hotel", "hotel", "car"])


async def test_steps_that_are_new_after_the_one_in_hand_are_run() -> None:
    trip = Trip()
    await begun(trip)
    progress = await deployed(trip, "flight", "hotel", "insurance", "car", "mail").run("t1")
    assert progress is not None
    assert (progress.state, trip.did) == ("done", ["flight", "hotel", "hotel", "insurance", "car", "mail"])


async def test_a_compensation_that_is_gone_makes_a_saga_stuck() -> None:
    trip = Trip()
    trip.broken = {"hotel": -1, "no hotel": 1}
    await trip.saga.start("t1", "olga")
    for _ in range(2):
        with pytest.raises(Retry):
            await trip.saga.run("t1")
    progress = await deployed(trip, "flight", "hotel", "car", undo=False).run("t1")
    assert progress is not None
    assert "without a compensation here: flight, hotel" in progress.error
    assert await deployed(trip, "flight", "hotel", "car").run("t1") is not None
    assert trip.did[-2:] == ["no hotel", "no flight"]


async def test_an_operator_has_the_old_version_resume_what_did_not_fit() -> None:
    trip = Trip()
    await begun(trip)
    await deployed(trip, "hotel", "car").run("t1")
    await trip.queue.clear()
    bare: Saga[str] = Saga("trip", Table(trip.store), trip.queue)
    assert await bare.retry("t1", by="olga") == "running"
    assert await trip.queue.depth() == 1
    assert (await trip.run()).state == "done"


async def test_versions_run_side_by_side() -> None:
    trip = Trip()
    new = deployed(trip, "train", "hotel", version="2")
    await trip.saga.start("t1", "olga")
    await new.start("t2", "piet")
    stuck = await trip.saga.run("t2")
    assert stuck is not None
    assert "started by version '2'" in stuck.error
    second = await new.run("t2")
    first = await trip.run()
    assert second is not None
    assert (first.state, second.state) == ("done", "done")
    assert trip.did == ["train", "hotel", "flight", "hotel", "car"]


def as_stored_by_place(trip: Trip, *, history: bool = True) -> None:
    """Rewrites the row as versions stored it that knew steps by their place."""
    key = Key("trip", "saga|t1")
    row = trip.store.rows[key]
    kept = ("saga", "key", "input", "state", "done", "tries", "epoch", "started_at", "changed_at", "deadline_at",
            "error", "results", "queue", "history")  # fmt: skip
    progress = json.loads(join_columns("progress", row.values))
    old = {name: value for name, value in progress.items() if name in kept}
    if not history:
        old["history"] = []
    values = {name: row.values[name] for name in ("state", "epoch", "changed_at")}
    trip.store.rows[key] = Row(
        key, {**values, **chunk_columns("progress", json.dumps(old).encode())}, row.etag, row.nonces
    )
    for index in [each for each in trip.store.rows if each.row.startswith("open|")]:
        del trip.store.rows[index]


@pytest.mark.parametrize("history", [True, False], ids=["with history", "history cut"])
async def test_a_row_that_knew_steps_by_their_place_is_carried_on(history: bool) -> None:
    trip = Trip()
    await begun(trip)
    as_stored_by_place(trip, history=history)
    progress = await trip.run()
    assert (progress.state, trip.did) == ("done", ["flight", "hotel", "hotel", "car"])
    assert progress.did == ("flight", "hotel", "car")


async def test_a_row_that_knew_steps_by_their_place_is_undone() -> None:
    trip = Trip()
    trip.broken = {"hotel": -1, "no hotel": 1}
    await trip.saga.start("t1", "olga")
    for _ in range(2):
        with pytest.raises(Retry):
            await trip.saga.run("t1")
    as_stored_by_place(trip)
    assert (await trip.run()).state == "compensated"
    assert trip.did[-3:] == ["no hotel", "no hotel", "no flight"]


async def test_a_row_that_knew_steps_by_their_place_never_runs_another_step_in_its_place() -> None:
    trip = Trip()
    await begun(trip)
    as_stored_by_place(trip)
    progress = await deployed(trip, "visa", "flight", "hotel", "car").run("t1")
    assert progress is not None
    assert (progress.state, trip.did) == ("stuck", ["flight", "hotel"])
    assert (await trip.run()).state == "done"


# --- orphans ----------------------------------------------------------------------------------------------------


async def test_a_runner_that_was_overtaken_keeps_the_message() -> None:
    trip = Trip()
    other = trip.join()
    await trip.saga.start("t1", "olga")

    async def overtake(context: SagaContext[str]) -> None:
        if context.epoch == 1:
            other.steps[0].function = die
            with pytest.raises(LeadershipLost):
                await other.run("t1")  # and its process ends

    async def die(context: SagaContext[str]) -> None:
        raise LeadershipLost("killed")

    trip.saga.steps[0].function = overtake
    with pytest.raises(Retry, match="taken it over"):
        await trip.saga.carry_on("t1", guard="m1")
    assert (await trip.saga.read("t1")).state == "running"


async def test_a_second_message_leaves_the_saga_to_the_runner_of_the_first() -> None:
    trip = Trip()
    other = trip.join()
    await trip.saga.start("t1", "olga")

    async def meanwhile(context: SagaContext[str]) -> None:
        trip.did.append("flight")
        with pytest.raises(Retry, match="is processing it"):
            await other.carry_on("t1", guard="m2")

    trip.saga.steps[0].function = meanwhile
    await trip.saga.carry_on("t1", guard="m1")
    assert trip.did == ["flight", "hotel", "car"]


async def test_a_second_message_takes_over_from_a_runner_that_was_not_heard_of() -> None:
    trip = Trip()
    await begun(trip)
    progress = await trip.saga.read("t1")
    await trip.clock.advance(progress.held_until - trip.clock.time() + 1)
    await trip.saga.carry_on("t1", guard="m2")
    assert trip.did == ["flight", "hotel", "hotel", "car"]


async def test_a_saga_without_message_or_runner_is_found_and_revived_once() -> None:
    trip = Trip()
    await begun(trip)
    await trip.queue.clear()
    assert await trip.saga.sweep() == 0, "its runner may be alive"
    await trip.clock.advance(600)
    assert await trip.saga.sweep() == 1
    assert await trip.queue.depth() == 1
    assert await trip.saga.sweep() == 0
    await trip.clock.advance(600)
    assert await trip.saga.sweep() == 0, "its message waits in the queue"
    assert (await trip.run()).state == "done"


async def test_a_saga_that_was_never_begun_is_found_too() -> None:
    trip = Trip()
    await trip.saga.start("t1", "olga")
    await trip.queue.clear()
    await trip.clock.advance(600)
    assert await trip.saga.sweep() == 1


async def test_a_saga_of_an_older_version_is_found_too() -> None:
    trip = Trip()
    await begun(trip)
    as_stored_by_place(trip)
    await trip.queue.clear()
    await trip.clock.advance(600)
    await trip.saga.sweep()  # finds what has no row in the index
    assert await trip.saga.sweep() == 1


async def test_one_process_sweeps_and_looks_at_open_sagas_only() -> None:
    trip = Trip()
    for number in range(30):
        await trip.saga.start(f"done-{number}", "olga")
        await trip.saga.run(f"done-{number}")
    await trip.saga.sweep()
    await trip.clock.advance(600)
    before = trip.store.requests
    assert await trip.saga.sweep(interval_seconds=300) == 0
    assert trip.store.requests - before <= 3
    before = trip.store.requests
    assert await trip.join().sweep(interval_seconds=300) == 0
    assert trip.store.requests - before == 1


async def test_a_saga_stuck_for_a_deployment_goes_on_once_a_process_fits_again() -> None:
    trip = Trip()
    await begun(trip)
    await trip.queue.clear()
    other = deployed(trip, "hotel", "car")
    await other.run("t1")
    assert await other.sweep() == 0
    assert await trip.saga.sweep() == 1
    assert (await trip.run()).state == "done"


# --- steps ------------------------------------------------------------------------------------------------------


async def test_a_def_step_past_its_time_is_waited_for_and_not_undone() -> None:
    trip, may_end, effects = Trip(), threading.Event(), []
    saga: Saga[str] = Saga("slow", Table(trip.store), trip.queue)

    @saga.step(timeout_seconds=0.01, attempts=1)
    def charge(context: SagaContext[str]) -> str:
        may_end.wait(10)
        effects.append("charged")
        return "receipt"

    @charge.compensate
    def refund(context: SagaContext[str]) -> None:
        effects.append("refunded")

    await saga.start("t1", "olga")
    running = asyncio.create_task(saga.run("t1"))
    while "overdue" not in [event.what for event in (await saga.read("t1")).history]:
        await asyncio.sleep(0)
    assert "waited for" in (await saga.read("t1")).error
    may_end.set()
    progress = await running
    assert progress is not None
    assert (progress.state, progress.results, effects) == ("done", {"charge": "receipt"}, ["charged"])


async def test_a_runner_that_is_stopped_waits_for_its_thread_and_no_second_one_starts() -> None:
    trip, may_end, effects = Trip(), threading.Event(), []
    saga: Saga[str] = Saga("slow", Table(trip.store), trip.queue)

    @saga.step(timeout_seconds=30)
    def charge(context: SagaContext[str]) -> None:
        effects.append("charged")
        may_end.wait(10)

    @saga.step
    async def mail(context: SagaContext[str]) -> None:
        effects.append("mailed")

    await saga.start("t1", "olga")
    running = asyncio.create_task(saga.carry_on("t1", guard="m1"))
    while not effects:
        await asyncio.sleep(0)
    running.cancel()
    while "overdue" not in [event.what for event in (await saga.read("t1")).history]:
        await asyncio.sleep(0)
    for guard in ("m1", "m2", ""):
        with pytest.raises(Retry, match="is processing it"):
            await saga.run("t1", guard=guard)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await saga.read("t1")).did == ("charge",)
    await saga.carry_on("t1", guard="m1")
    assert effects == ["charged", "mailed"]


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("x" * 2**20, "at most 921600 can be kept. Keep the result in a blob"),
        (object(), "cannot be kept as JSON"),
    ],
    ids=["too large", "no JSON"],
)
async def test_a_result_that_cannot_be_kept_ends_the_saga_at_once(result: Any, words: str) -> None:
    trip, tries = Trip(), []
    saga: Saga[str] = Saga("large", Table(trip.store), trip.queue)

    @saga.step(attempts=None)
    async def load(context: SagaContext[str]) -> Any:
        tries.append(context.attempt)
        return result

    await saga.start("t1", "olga")
    progress = await saga.run("t1")
    assert progress is not None
    assert (progress.state, tries) == ("compensated", [1])
    assert words in progress.error


async def test_an_input_that_cannot_be_kept_is_refused_when_starting() -> None:
    with pytest.raises(ConfigurationError, match="its input has 1048578 bytes"):
        await Trip().saga.start("t1", "x" * 2**20)


async def test_a_history_that_grows_too_large_is_cut_and_the_saga_goes_on() -> None:
    trip = Trip()
    saga: Saga[str] = Saga("long", Table(trip.store), trip.queue)

    @saga.step(attempts=None, backoff=AT_ONCE)
    async def fail(context: SagaContext[str]) -> None:
        if context.attempt < 250:
            raise RuntimeError("ü" * 500)

    await saga.start("t1", "x" * 900 * 1000)
    while True:
        try:
            progress = await saga.run("t1")
            break
        except Retry:
            continue
    assert progress is not None
    assert progress.state == "done"


@pytest.mark.parametrize(
    ("raised", "tries", "words"),
    [
        (Reject("no such card"), 1, "Reject: no such card"),
        (TimeoutError("the bank is slow"), 2, "TimeoutError: the bank is slow"),
        (asyncio.CancelledError("mine"), 2, "CancelledError: mine"),
        (SystemExit(3), 2, "SystemExit: 3"),
        (StopIteration("x"), 2, "StopIteration"),
        (RuntimeError("\ud800"), 2, "RuntimeError: \\ud800"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
@pytest.mark.parametrize("kind", ["async def", "def"])
async def test_what_a_step_raises_is_reported_as_its_own(
    kind: str, raised: BaseException, tries: int, words: str
) -> None:
    trip, seen = Trip(), []
    saga: Saga[str] = Saga("odd", Table(trip.store), trip.queue)

    def fail(context: SagaContext[str]) -> None:
        seen.append(context.attempt)
        raise raised

    async def fail_async(context: SagaContext[str]) -> None:
        fail(context)

    if kind == "async def" and isinstance(raised, StopIteration):
        words = "RuntimeError: coroutine raised StopIteration"
    saga.step(attempts=2, backoff=AT_ONCE)(fail if kind == "def" else fail_async)
    await saga.start("t1", "olga")
    for _ in range(tries - 1):
        with pytest.raises(Retry):
            await saga.run("t1")
    progress = await saga.run("t1")
    assert progress is not None
    assert (progress.state, len(seen)) == ("compensated", tries)
    assert words in progress.error


async def test_a_step_that_ends_its_process_again_and_again_is_stuck_and_named() -> None:
    trip = Trip()
    await trip.saga.start("t1", "olga")

    async def die(context: SagaContext[str]) -> None:
        raise LeadershipLost("killed")

    working = trip.saga.steps[0].function
    trip.saga.steps[0].function = die
    for _ in range(MAX_RUNNERS):
        with pytest.raises(LeadershipLost):
            await trip.saga.run("t1")
    progress = await trip.saga.run("t1")
    assert progress is not None
    assert (progress.state, "20 runners ended in the middle of flight" in progress.error) == ("stuck", True)
    trip.saga.steps[0].function = working
    assert await trip.saga.retry("t1") == "running"
    assert (await trip.run()).state == "done"
