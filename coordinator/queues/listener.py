"""The queue listener (S6-S9): takes messages in batches, hands them out, deletes what is done, loses nothing."""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, Generic, TypeVar

import msgspec

from coordinator.backoff import TRANSIENT, Backoff
from coordinator.bus import RESYNC, Hint
from coordinator.errors import (
    AccessDenied,
    BeingDeleted,
    ConfigurationError,
    MessageUndecodable,
    NotFound,
    StorageError,
)
from coordinator.gates.gate import Gate
from coordinator.protocol import ListenerStatus
from coordinator.queues.delivery import Delivery, Unit
from coordinator.queues.idle import Idle, IdleBackoff, QueueEmpty, WorkDetected, fetch_size
from coordinator.queues.leases import LeaseManager
from coordinator.queues.outcomes import DONE
from coordinator.queues.pace import Pace
from coordinator.queues.queue import Queue
from coordinator.queues.rules import DEFAULT_RULE, Decision, Measured, ScalingRule, decide
from coordinator.queues.running import Handler, Middleware, Runner
from coordinator.queues.settling import RetryPolicy, Settler

T = TypeVar("T")
_log = logging.getLogger("coordinator.queues")
_OUTAGE = Backoff(base_seconds=0.1, cap_seconds=2.0)
_DECIDE_SECONDS = 2.0
_MAX_UNDELETED = 256


class QueueState(msgspec.Struct, frozen=True, rename="pascal"):
    """What `query_state()` tells (S6). `current_queue_depth` is approximate and includes what is in hand; None: unknown."""

    current_queue_depth: int | None
    active_dequeue_tasks: int
    total_dequeue_tasks: int
    wanted_dequeue_tasks: int
    in_hand: int
    buffered: int
    done: int
    failed: int
    retried: int
    poisoned: int
    given_back: int
    stale_receipts: int
    renewals: int
    per_second: float
    service_seconds: float | None
    visibility_seconds: float
    idle: int
    state: str
    reason: str


class QueueListener(Generic[T]):
    """Dequeue tasks on one queue (S6).

    Guarantees: a message is deleted only after its handler returned (for all its items), so nothing is lost to a crash,
    a stop or an outage; while a handler runs and storage answers, nobody else gets its message, however long it takes;
    an error in a message never stops a task; what fails `retries.attempts` times or cannot be decoded is in the poison
    queue, whole, with the reason. Resumes by itself after storage was away. Does not guarantee once-only: a crash between
    a handler's end and the delete, or a lost receipt, delivers again. Handlers must bear that; see `once`.

    `handler`: `async def`, or `def` (runs in a thread); with `batch=n` it gets a list of up to n items and may return one
    `Done`, `Retry` or `Reject` for each. `tasks`: fewest and most dequeue tasks, ``range(0, 51)`` for 0…50; `slots`:
    handlers that one task runs at a time. `gate`: nothing is taken while it is closed. `visibility_seconds` (1 s-7 days):
    how soon others get what a dead process held; smaller recovers sooner, larger renews less. `rule`: how many tasks are
    wanted; a rule stored for this queue goes before it. `queue_empty` and `work_detected` may be replaced (S7, S8).
    """

    def __init__(
        self,
        queue: Queue[T],
        handler: Handler,
        *,
        tasks: range = range(1, 11),
        slots: int = 1,
        batch: int = 0,
        gate: Gate | None = None,
        visibility_seconds: float = 30.0,
        retries: RetryPolicy | None = None,
        idle: IdleBackoff | None = None,
        rule: ScalingRule = DEFAULT_RULE,
        middleware: Sequence[Middleware] = (),
        rng: random.Random | None = None,
    ) -> None:
        if tasks.step != 1 or tasks.start < 0 or len(tasks) == 0 or tasks.stop < 2:
            raise ConfigurationError(
                f"tasks {tasks!r}: give the fewest and the most, such as range(0, 51) for 0 to 50 dequeue tasks"
            )
        if slots < 1 or batch < 0:
            raise ConfigurationError(
                f"slots must be at least 1 and batch at least 0, got {slots} and {batch}"
            )
        if not 1 <= visibility_seconds <= 7 * 24 * 3600:
            raise ConfigurationError(
                f"visibility_seconds must be 1 to 604,800 (7 days), got {visibility_seconds}"
            )
        self.queue = queue
        self.name = queue.name
        self.gate = gate
        self.tasks = tasks
        self.rule = rule
        self.decision = Decision(tasks.start, "nothing was found yet")
        self.queue_empty: Callable[[QueueEmpty], Any] = self._default_queue_empty
        self.work_detected: Callable[[WorkDetected], Any] = self._default_work_detected
        self._slots, self._batch = slots, batch
        self._idle_backoff = idle or IdleBackoff()
        self._clock, self._rng = queue.clock, rng or random.Random()
        self._leases = LeaseManager(visibility_seconds=visibility_seconds, clock=self._clock, rng=self._rng)
        self._settler = Settler(queue, self._leases, retries or RetryPolicy(), self._rng)
        self._runner = Runner(
            queue.name, handler, batch=batch, middleware=middleware, threads=(tasks.stop - 1) * slots
        )
        self._pace = Pace(self._clock)
        self._buffer: deque[Unit] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._busy = 0
        self._idle = 0
        self._pushed = True
        self._heard = False
        self._depth: int | None = None
        self._state, self._reason = "stopped", ""
        self._signal = asyncio.Event()
        self._trigger = asyncio.Event()
        self._stopping = asyncio.Event()
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._stopped = asyncio.Event()
        self._stop_seconds = 20.0
        self._reached = False
        self._decided_at = float("-inf")
        self._since = {"up": float("-inf"), "down": float("-inf")}

    # --- running ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Listen until `stop()`. Raises what waiting cannot cure: a refused credential, a gate that is no gate."""
        loop = asyncio.get_running_loop()
        self._stopping.clear()
        self._stopped.clear()

        def heard(hint: Hint) -> None:
            with suppress(RuntimeError):  # the loop ended while the hint was on its way
                loop.call_soon_threadsafe(self._on_hint, hint)

        unsubscribe = self.queue.bus().subscribe(f"queue:{self.name}", heard)
        leases = asyncio.create_task(self._leases.run(), name=f"leases {self.name}")
        try:
            async with AsyncExitStack() as stack:
                if self.gate is not None:
                    await stack.enter_async_context(self.gate.watch())
                self._scale(self.tasks.start)
                await self._pump()
        finally:
            self._stopping.set()
            unsubscribe()
            try:
                await self._wind_down()
            finally:
                leases.cancel()
                await asyncio.gather(leases, return_exceptions=True)
                self._runner.close()
                self._state, self._reason = "stopped", ""
                self._stopped.set()

    async def stop(self, deadline: float = 20.0) -> None:
        """Take nothing new, finish what runs within `deadline` seconds, give back the rest; returns when all is done.

        An `async def` handler that is still running then is cancelled; a `def` handler cannot be: its message appears to
        others when its visibility ends.
        """
        self._stop_seconds = deadline
        running = self._state != "stopped"
        self._stopping.set()
        self._signal.set()
        self._trigger.set()
        if running:
            await self._stopped.wait()

    def pause(self) -> None:
        """Take nothing new until `resume()`; what is in hand is finished."""
        self._resumed.clear()

    def resume(self) -> None:
        self._resumed.set()
        self._signal.set()
        self._trigger.set()

    def _on_hint(self, hint: Hint) -> None:
        if hint.topic != RESYNC:
            self._heard = self._pushed = True
        self._trigger.set()
        self._signal.set()

    # --- taking -------------------------------------------------------------------------------------------------

    async def _pump(self) -> None:
        """The one place that takes messages: whoever waits in vain waits here, and costs one request for all."""
        failures = 0
        while not self._stopping.is_set():
            if not await self._may_take():
                return
            self._signal.clear()
            ask = self._wanted_messages()
            if not ask:
                await self._clock.wait(self._signal, _DECIDE_SECONDS)
                await self._decide(work=bool(self._busy))
                continue
            self._trigger.clear()  # a hint from here on means another look, even if this one finds nothing
            heard, self._heard = self._heard, False
            try:
                found = await self._take(ask)
                failures = 0
                if self._reason.startswith("storage"):
                    _log.info("Storage answers again; listening to %s", self.name)
                    self._reason = ""
            except (NotFound, BeingDeleted):
                found = 0
                with suppress(BeingDeleted, *TRANSIENT):
                    await self.queue.create()
            except StorageError as error:
                if isinstance(error, AccessDenied) and not self._reached:
                    raise
                failures = await self._outage(error, failures)
                continue
            if found:
                await self._found(found, ask, heard)
            else:
                await self._rest()

    async def _may_take(self) -> bool:
        """Wait out a pause and a closed gate; False if it is time to stop."""
        while not self._stopping.is_set():
            if not self._resumed.is_set():
                self._state = "paused"
                await self._unless_stopped(self._resumed.wait())
            elif self.gate is not None and not (self._reached and self.gate.is_open()):
                self._state = "waiting"
                await self._unless_stopped(self.gate.wait())
                self._reached = True
            else:
                return True
        return False

    async def _unless_stopped(self, waiting: Coroutine[Any, Any, Any]) -> None:
        rivals = [asyncio.ensure_future(waiting), asyncio.ensure_future(self._stopping.wait())]
        try:
            await asyncio.wait(rivals, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for rival in rivals:
                rival.cancel()
            results = await asyncio.gather(*rivals, return_exceptions=True)
        if isinstance(results[0], Exception):
            raise results[0]

    def _wanted_messages(self) -> int:
        if len(self._ending) > _MAX_UNDELETED:
            return 0
        tasks = max(self.active_tasks, self.decision.tasks)
        if self._idle or not self._busy:  # what the rule will start for the first message found
            tasks = max(tasks, decide(self.rule, Measured(waiting=1), allowed=self.tasks).tasks)
        free = tasks * self._slots - self._busy
        if self._batch:
            free *= self._batch
        units = len(self._buffer)
        ahead = self._pace.per_second
        if units and units > min(16.0, ahead * 0.25) and units >= free:
            return 0
        per_message = max(1.0, self._pace.items_per_message)
        return fetch_size(
            waiting=-(-max(0, free) // round(per_message)),
            buffered=round(units / per_message),
            per_second=ahead / per_message,
        )

    async def _take(self, ask: int) -> int:
        """One get; what it brings is held, decoded and buffered. How many messages it brought."""
        sent, seconds = self._clock.monotonic(), self._leases.visibility_seconds
        messages = await self.queue.transport.get(ask, visibility_seconds=seconds)
        self._reached = True
        for message in messages:
            delivery = Delivery(message, self.queue.transport, taken_at=sent, until=sent + seconds)
            self._leases.hold(delivery)
            if self._settler.is_done_already(delivery):
                self._end(self._settler.delete(delivery))
                continue
            await self._unwrap(delivery)
            self._wake()
        return len(messages)

    async def _unwrap(self, delivery: Delivery) -> None:
        queue, problem = self.queue, None
        try:
            delivery.envelope = queue.decode(delivery.message.text)
            items = await queue.items(delivery.envelope)
        except MessageUndecodable as error:
            problem = error
        except StorageError as error:  # its claim cannot be had just now
            _log.info("A message of %s waits for its payload: %s", self.name, error)
            self._end(self._settler.give_back(delivery, after_seconds=self._rng.uniform(5, 30)))
            return
        except Exception as error:
            problem = MessageUndecodable(f"the message could not be read: {type(error).__name__}: {error}")
        if problem is not None:
            items = [(0, problem)]
        delivery.indexes = [index for index, _ in items]
        delivery.pending = len(items)
        self._pace.unpacked(len(items))
        if not items:
            self._end(self._settler.delete(delivery))
        for index, item in items:
            if isinstance(item, Exception):
                self._settle(Unit(delivery, index, None), item)
            else:
                self._buffer.append(Unit(delivery, index, item))

    async def _found(self, found: int, ask: int, heard: bool) -> None:
        idle, self._idle = self._idle, 0
        self._state = "running"
        if idle and not heard:
            self._pushed = False  # this work was not announced: don't rely on triggers until one comes
        self._depth = len(self._leases) if found < ask else None
        self._pace.found()
        if idle or not self._tasks:
            await self._detected(idle)
        else:
            await self._decide(work=True)

    async def _rest(self) -> None:
        """An empty look: ask what to do, and wait for a trigger or the delay."""
        self._idle += 1
        pushed = self._pushed and self.queue.bus().is_connected
        event = QueueEmpty(self.name, self._idle, self.active_tasks, pushed)
        try:
            answer: Idle = await _answer(self.queue_empty(event))
        except Exception:
            _log.exception("The queue_empty handler of %s failed; the usual delay is used", self.name)
            answer = self._default_queue_empty(event)
        if not self._busy and not self._buffer:
            self._state = "idle"
        delay = answer.delay_seconds
        if answer.stop and not self._busy and not self._buffer:
            floor = self.tasks.start if pushed else max(1, self.tasks.start)
            self.decision = Decision(floor, f"{floor} because the queue is empty")
            self._scale(floor)
            if pushed and not len(self._leases):
                await self._sleep_until_triggered()
                return
        await self._clock.wait(self._trigger, delay)

    async def _sleep_until_triggered(self) -> None:
        """With push nobody polls; but what is invisible now comes back unannounced, so look for that first."""
        while not self._stopping.is_set() and not self._trigger.is_set():
            try:
                self._depth = await self.queue.transport.count()
            except StorageError:
                self._depth = None
            if self._depth != 0:
                await self._clock.wait(self._trigger, self._idle_backoff.maximum_seconds)
                return
            await self._clock.wait(self._trigger, self._idle_backoff.safety_seconds)
            if not self._pushed or not self.queue.bus().is_connected:
                return

    async def _outage(self, error: StorageError, failures: int) -> int:
        if not failures:
            _log.warning("Listening to %s: %s; trying again", self.name, error)
        self._state, self._reason = "unreachable", f"storage: {error}"
        await self._clock.wait(self._stopping, _OUTAGE.delay(failures) + 0.05)
        return failures + 1

    # --- how many -----------------------------------------------------------------------------------------------

    @property
    def active_tasks(self) -> int:
        return -(-len(self._tasks) // self._slots)

    def _default_queue_empty(self, event: QueueEmpty) -> Idle:
        delay = self._idle_backoff.delay(event.idle, self._rng)
        return Idle(delay, stop=delay >= self._idle_backoff.maximum_seconds)

    async def _default_work_detected(self, event: WorkDetected) -> int:
        if self._depth is None:
            self._depth = await self._read_depth()
        held, now = len(self._leases), self._clock.monotonic()
        measured = Measured(
            waiting=None if self._depth is None else max(0, self._depth - held),
            in_hand=held,
            tasks=self.active_tasks,
            arrival_per_second=self._pace.arrival_per_second(self._depth),
            service_seconds=self._pace.service_seconds,
            since_up_seconds=now - self._since["up"],
            since_down_seconds=now - self._since["down"],
        )
        self.decision = decide(self.rule, measured, allowed=self.tasks)
        return self.decision.tasks

    async def _read_depth(self) -> int | None:
        try:
            return await self.queue.transport.count()
        except StorageError:
            return None

    async def _decide(self, *, work: bool) -> None:
        if work and self._clock.monotonic() - self._decided_at >= _DECIDE_SECONDS:
            await self._detected(0)

    async def _detected(self, idle: int) -> None:
        self._decided_at = self._clock.monotonic()
        event = WorkDetected(self.name, idle, self.active_tasks, self._depth)
        try:
            wanted = int(await _answer(self.work_detected(event)))
        except Exception:
            _log.exception("The work_detected handler of %s failed; the rule decides", self.name)
            wanted = await self._default_work_detected(event)
        self._scale(max(1, wanted))

    def _scale(self, wanted: int) -> None:
        """Start what is missing; what is too many ends when it is free."""
        wanted = max(self.tasks.start, min(self.tasks.stop - 1, wanted))
        if wanted != self.decision.tasks:
            self.decision = Decision(wanted, f"{wanted} by the work_detected handler")
        count = len(self._tasks)
        if wanted * self._slots != count:
            self._since["up" if wanted * self._slots > count else "down"] = self._clock.monotonic()
        for _ in range(wanted * self._slots - count):
            task = asyncio.create_task(self._dequeue(), name=f"dequeue {self.name}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._wake(all_waiting=len(self._tasks) > wanted * self._slots)

    # --- handing out --------------------------------------------------------------------------------------------

    async def _dequeue(self) -> None:
        me = asyncio.current_task()
        assert me is not None
        while units := await self._next(me):
            self._busy += 1
            started = self._clock.monotonic()
            try:
                outcomes = await self._runner.run(units)
            finally:
                self._busy -= 1
            self._pace.handled(len(units), self._clock.monotonic() - started)
            for unit, outcome in zip(units, outcomes, strict=True):
                self._settle(unit, outcome)

    async def _next(self, me: asyncio.Task[None]) -> list[Unit]:
        """The next work; nothing when this task is one too many."""
        while True:
            if self._stopping.is_set() or len(self._tasks) > self.decision.tasks * self._slots:
                self._tasks.discard(me)
                return []
            units: list[Unit] = []
            while self._buffer and len(units) < max(1, self._batch):
                unit = self._buffer.popleft()
                if unit.delivery.held:
                    unit.delivery.started = True
                    units.append(unit)
            if len(self._buffer) <= 16:
                self._signal.set()
            if units:
                return units
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                if waiter.cancelled():
                    with suppress(ValueError):
                        self._waiters.remove(waiter)

    def _wake(self, *, all_waiting: bool = False) -> None:
        number = len(self._waiters) if all_waiting else min(len(self._buffer), len(self._waiters))
        for _ in range(number):
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def _settle(self, unit: Unit, outcome: Any) -> None:
        if unit.delivery.settle(unit.index, outcome):
            self._end(self._settler.settle(unit.delivery))

    def _end(self, work: Coroutine[Any, Any, None]) -> None:
        """Deletes and the like run beside the handlers."""
        task = asyncio.create_task(work, name=f"settle {self.name}")
        self._ending.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("A message of %s could not be settled", self.name, exc_info=error)

    async def _wind_down(self) -> None:
        """Give back what no handler has seen, let handlers finish, then give back what they did not finish."""
        deadline = self._clock.monotonic() + self._stop_seconds
        self._state = "stopping"
        unseen = {unit.delivery for unit in self._buffer if not unit.delivery.started}
        self._buffer.clear()
        self._wake(all_waiting=True)
        await asyncio.gather(*(self._settler.give_back(delivery) for delivery in unseen))
        running = set(self._tasks)
        if running:
            await asyncio.wait(running, timeout=max(0.0, deadline - self._clock.monotonic()))
        threads = self._busy and not self._runner.is_async
        for task in (unfinished := {task for task in running if not task.done()}):
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)
        while self._ending:
            await asyncio.wait(set(self._ending))
        if not threads:
            await asyncio.gather(*(self._settler.give_back(delivery) for delivery in list(self._leases)))
        self._tasks.clear()

    # --- telling ------------------------------------------------------------------------------------------------

    def status(self) -> ListenerStatus:
        """For telemetry; no I/O."""
        counts = self._settler.counts
        return ListenerStatus(
            queue=self.name,
            active_tasks=self.active_tasks,
            total_tasks=self.tasks.stop - 1,
            wanted_tasks=self.decision.tasks,
            in_hand=len(self._leases),
            done=counts.done,
            failed=counts.failed,
            poisoned=counts.poisoned,
            stale_receipts=self._leases.stale,
            oldest_seconds=self._leases.oldest_seconds(),
            state=self._state,
            reason=self._reason or self.decision.reason,
        )

    async def query_state(self) -> QueueState:
        """All there is to know; one request for the depth."""
        counts, status = self._settler.counts, self.status()
        return QueueState(
            current_queue_depth=await self._read_depth(),
            active_dequeue_tasks=status.active_tasks,
            total_dequeue_tasks=status.total_tasks,
            wanted_dequeue_tasks=status.wanted_tasks,
            in_hand=status.in_hand,
            buffered=len(self._buffer),
            done=counts.done,
            failed=counts.failed,
            retried=counts.retried,
            poisoned=counts.poisoned,
            given_back=counts.given_back,
            stale_receipts=status.stale_receipts,
            renewals=self._leases.renewals,
            per_second=self._pace.per_second,
            service_seconds=self._pace.service_seconds,
            visibility_seconds=self._leases.visibility_seconds,
            idle=self._idle,
            state=status.state,
            reason=status.reason,
        )


async def _answer(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


__all__ = ["DONE", "QueueListener", "QueueState"]
