"""The queue listener: takes messages in batches, hands them out, deletes what is done, loses nothing."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, Generic, TypedDict, TypeVar

import msgspec

from coordinator.backoff import TRANSIENT, Backoff
from coordinator.bounds import MAX_HELD, MAX_REASON, one_line
from coordinator.cost import Budget, Spending
from coordinator.errors import (
    AccessDenied,
    BeingDeleted,
    ConfigurationError,
    NotFound,
    StorageError,
)
from coordinator.gates.gate import Gate
from coordinator.queues.concurrency import (
    DECIDE_SECONDS,
    ConcurrencyController,
    ConcurrencyDecisions,
    answer_of,
    depth_of,
)
from coordinator.queues.fetching import MessageFetcher, PrefetchPolicy
from coordinator.queues.figures import HandlerCounts
from coordinator.queues.handlers import Handler, Middleware, Runner, handler_name
from coordinator.queues.leases import End, LeaseManager
from coordinator.queues.notifications import Subscriptions, follow, wait_any
from coordinator.queues.polling import Idle, IdleBackoff, QueueEmpty, Source, choose, queue_empty, rota
from coordinator.queues.protocols import MAX_VISIBILITY_SECONDS, ListenedQueue
from coordinator.queues.rules import DEFAULT_RULE, ScalingRule, TaskDecision, WorkDetected
from coordinator.queues.settling import RetryPolicy, Settler, TryFailed, ignore
from coordinator.queues.task_pool import TaskPool, ThroughputEstimator
from coordinator.queues.watchdog import STALLS, Overseer
from coordinator.realtime.bus import RESYNC, Notification
from coordinator.realtime.protocol import ListenerStatus

T = TypeVar("T")
_log = logging.getLogger("coordinator.queues")
_OUTAGE = Backoff(base_seconds=0.1, cap_seconds=2.0)
_LONGEST_PAUSE_SECONDS = 60.0


class ListenerOptions(TypedDict, total=False):
    """The options of `QueueListener`, for those who pass them on."""

    tasks: range
    slots: int
    batch: int
    gate: Gate | None
    visibility_seconds: float
    retries: RetryPolicy | None
    idle: IdleBackoff | None
    rule: ScalingRule
    middleware: Sequence[Middleware]
    budget: Budget | None
    spending: Spending | None
    weight: int
    extra_queues: Sequence[tuple[ListenedQueue[Any], int]]
    also: Sequence[tuple[ListenedQueue[Any], int]]
    timeout: float | None
    linger_seconds: float
    rng: random.Random | None


ActiveDequeueTasks = int
"""How many dequeue tasks run: `QueueState.active_dequeue_tasks`, as the source documents name it."""


class QueueState(msgspec.Struct, frozen=True, rename="pascal"):
    """The figures of a listener. As JSON its names are CurrentQueueDepth, ActiveDequeueTasks, TotalDequeueTasks, ….

    Attributes:
        current_queue_depth: Messages in its queues, about, those in flight included; None if it could not be read.
        active_dequeue_tasks: Dequeue tasks that run a handler.
        total_dequeue_tasks: Dequeue tasks that exist.
        desired_dequeue_tasks: Dequeue tasks that the rule asks for.
        in_flight: Messages received and not settled.
        buffered: Those of them that no handler has yet.
        done: Messages deleted after success.
        failed: Failed attempts.
        retried: Messages that were made visible again for another attempt.
        poisoned: Messages moved to the poison queue.
        abandoned: Messages returned unprocessed, as at a stop.
        stale_receipts: Late acknowledgements.
        renewals: Renewals of a visibility timeout.
        per_second: Messages a second, recently.
        service_seconds: Mean time of a handler; None before the first.
        visibility_seconds: The visibility timeout in use.
        idle: How often in a row nothing was found.
        state: What it does, in a word.
        reason: Why the desired number is what it is.
    """

    current_queue_depth: int | None
    active_dequeue_tasks: ActiveDequeueTasks
    total_dequeue_tasks: int
    desired_dequeue_tasks: int = msgspec.field(name="WantedDequeueTasks")
    in_flight: int = msgspec.field(name="InHand")
    buffered: int
    done: int
    failed: int
    retried: int
    poisoned: int
    abandoned: int = msgspec.field(name="GivenBack")
    stale_receipts: int
    renewals: int
    per_second: float
    service_seconds: float | None
    visibility_seconds: float
    idle: int
    state: str
    reason: str

    @property
    def wanted_dequeue_tasks(self) -> int:
        """The earlier name of `desired_dequeue_tasks`."""
        return self.desired_dequeue_tasks

    @property
    def in_hand(self) -> int:
        """The earlier name of `in_flight`."""
        return self.in_flight

    @property
    def given_back(self) -> int:
        """The earlier name of `abandoned`."""
        return self.abandoned


class QueueListener(Generic[T]):
    """Dequeue tasks on one queue, or on several by weight.

    Guarantees: a message is deleted only after its handler returned for all its items, so a crash, a stop or an outage loses
    nothing. While a handler runs and storage answers, no other worker gets its message, however long it takes. An error in a
    message never stops a task. A message that fails `retries.attempts` times, cannot be decoded, or was running each time a
    process died goes to the poison queue, whole, with the reason. The listener resumes by itself after an outage.

    Does not guarantee once-only delivery: a crash between the end of a handler and the delete, or a lost receipt, delivers
    again. Handlers must be idempotent; see `idempotent`.

    `queue_empty` and `work_detected` may be replaced; `try_failed` is called with a `TryFailed` after each failed attempt.

    Args:
        queue: The queue.
        handler: `async def`, or `def` (runs in a thread). With `batch` it gets a list of items, and may return one `Done`,
            `Retry` or `Reject` for each.
        tasks: Minimum and maximum number of dequeue tasks: ``range(0, 51)`` for 0 to 50 (default 1 to 10).
        slots: Handlers that one task runs at a time (default 1).
        batch: Maximum items of one call of the handler; 0 (default) calls it with single items.
        gate: Nothing is received while this gate is closed.
        visibility_seconds: How soon others get the messages of a dead process, 1 s to 7 days (default 30). Smaller recovers
            sooner, larger renews less often.
        retries: Number of attempts and the pauses between them.
        idle: How an empty queue is polled.
        rule: How many tasks are desired. A rule stored for the (first) queue takes precedence.
        middleware: Async context managers around each item.
        budget: With `spending`: past it, idle queues are polled more slowly. Work is never slowed.
        spending: What this process has spent.
        weight: The share of the first queue (default 1).
        extra_queues: Further queues with their weights.
        also: The earlier name of `extra_queues`.
        timeout: Seconds for one call of the handler, middleware included (default: none). An `async def` handler is
            cancelled. A thread cannot be: its item counts as failed and may run elsewhere, and `MessageContext.held` is False.
            Without a time-out, a handler that runs for 10 minutes is named in a warning.
        linger_seconds: How long `stop` waits for threads of `def` handlers beyond its deadline (default 3,600).
        rng: The source of jitter, for tests.

    Raises:
        ConfigurationError: An option is out of bounds.

    Examples:
        >>> listener = queue.listener(process, tasks=range(0, 51), timeout=60)
        >>> await listener.run()
    """

    def __init__(
        self,
        queue: ListenedQueue[T],
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
        budget: Budget | None = None,
        spending: Spending | None = None,
        weight: int = 1,
        extra_queues: Sequence[tuple[ListenedQueue[Any], int]] = (),
        also: Sequence[tuple[ListenedQueue[Any], int]] = (),
        timeout: float | None = None,
        linger_seconds: float = 3600.0,
        rng: random.Random | None = None,
    ) -> None:
        queues = ((queue, weight), *extra_queues, *also)
        check_options(tasks, slots, batch, visibility_seconds, [share for _, share in queues])
        check_time_out(timeout, linger_seconds)
        self.queue, self.name, self.gate, self.tasks = queue, queue.name, gate, tasks
        self.queue_empty: Callable[[QueueEmpty], Any] = self._default_queue_empty
        self.try_failed: Callable[[TryFailed], Any] = ignore
        self.retries = retries or RetryPolicy()
        self.idle = idle or IdleBackoff()
        self.controller = ConcurrencyController(queue.name, tasks, rule, store=queue.rules, clock=queue.clock)
        self.leases = LeaseManager(visibility_seconds=visibility_seconds, clock=queue.clock, rng=rng)
        self.throughput = ThroughputEstimator(queue.clock)
        self.sources: list[Source] = []
        self.state, self.reason = "stopped", ""
        self._clock, self._rng = queue.clock, rng or random.Random()
        threads = (tasks.stop - 1) * slots
        self._runner = Runner(
            queue.name,
            handler,
            batch=batch,
            middleware=middleware,
            threads=threads,
            clock=queue.clock,
            timeout=timeout,
        )
        self._overseer = Overseer(queue.name, self._runner, self.leases, clock=queue.clock)
        self._linger_seconds = linger_seconds
        self.pool = TaskPool(
            queue.name,
            self._runner,
            self.throughput,
            HandlerCounts(one_line(self._runner.name)),
            slots=slots,
            batch=batch,
            clock=queue.clock,
            settle=lambda work_item, outcome: self._fetcher.settle(work_item, outcome),
            on_low_buffer=lambda: self._signal.set(),
            begin=lambda work_item: self._fetcher.quarantine.begin(work_item),
            expired=self.leases.went_stale,
            dropped=lambda work_item: self._fetcher.quarantine.ended(work_item),
        )
        self._fetcher = MessageFetcher(
            self.leases,
            self.throughput,
            clock=queue.clock,
            rng=self._rng,
            add=self.pool.add,
            on_capacity=lambda: self._signal.set(),
        )
        self._signal = asyncio.Event()
        self._stopping = asyncio.Event()
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._stopped = asyncio.Event()
        self._stop_seconds = 20.0
        self._reached = False
        self._passed = False
        self._hints = Subscriptions()
        self._running = False
        self._budget, self._spending = budget, spending
        self._decisions = ConcurrencyDecisions(
            queue,
            self.controller,
            self.pool,
            self.throughput,
            in_flight=lambda: len(self.leases),
            sources=self.sources,
        )
        self._prefetch = PrefetchPolicy(self.pool, self.controller, self.throughput, batch=batch)
        for source, share in queues:
            self.add_source(source, weight=share)

    def add_source(self, queue: ListenedQueue[Any], *, weight: int = 1) -> None:
        """Listen to one more queue, also while running.

        Args:
            queue: The queue.
            weight: Its share, at least 1 (default 1).
        """
        self.sources.append(Source(queue, weight, self._settler(queue)))
        if self._running:
            self._subscribe(self.sources[-1])
            self._signal.set()

    def _settler(self, queue: ListenedQueue[Any]) -> Settler:
        return Settler(
            queue,
            self.leases,
            self.retries,
            self._rng,
            failed=lambda failed: self.try_failed(failed),
            handler=handler_name(self._runner.handler),
        )

    # --- running ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Listen until `stop()`.

        Raises:
            KennelError: Waiting does not help: a refused credential, a gate that is no gate.
        """
        self._running = True
        self._stopping.clear()
        self._stopped.clear()
        self.pool.start()
        for source in self.sources:
            self._subscribe(source)
        self._hints.on(self.queue.bus(), f"rule:{self.name}", self._new_rule)
        others = [
            asyncio.create_task(self.leases.run(), name=f"leases {self.name}"),
            asyncio.create_task(self._overseer.run(), name=f"overseer {self.name}"),
        ]
        unwatch = STALLS.watch(self.name, self._runner.handler)
        if self.gate is not None:  # a listener asleep on an empty queue is to wait at the gate, too
            others.append(asyncio.create_task(follow(self.gate, self._signal.set), name=f"gate {self.name}"))
        try:
            async with AsyncExitStack() as stack:
                if self.gate is not None:
                    await stack.enter_async_context(self.gate.watch())
                self.pool.scale(self.tasks.start)
                await self._pump()
        finally:
            self._stopping.set()
            self._hints.close()
            self._running = False
            try:
                await self._shutdown()
            finally:
                for other in others:
                    other.cancel()
                await asyncio.gather(*others, return_exceptions=True)
                unwatch()
                self._runner.close()
                self.state, self.reason = "stopped", ""
                self._stopped.set()

    async def stop(self, deadline: float = 20.0) -> None:
        """Receive nothing new, finish what runs, abandon the rest; returns when all is done.

        An `async def` handler that still runs at the deadline is cancelled. A `def` handler cannot be cancelled: its message stays
        hidden, and this waits until the handler ends, `linger_seconds` more at most. After that the message reappears when its
        visibility ends; the process ends only when the thread does.

        Args:
            deadline: Seconds for handlers to finish (default 20).
        """
        self._stop_seconds = deadline
        running = self._running
        self._stopping.set()
        self._signal.set()
        if running:
            await self._stopped.wait()

    def pause(self) -> None:
        """Take nothing new until `resume()`; what is in flight is finished."""
        self._resumed.clear()
        self._signal.set()

    def resume(self) -> None:
        """Take messages again after `pause()`."""
        self._resumed.set()
        self._signal.set()

    def _subscribe(self, source: Source) -> None:
        def on_hint(hint: Notification) -> None:
            later = hint.due - self._clock.time()
            if hint.topic == RESYNC:
                source.resynced()
            elif 0 < later <= MAX_VISIBILITY_SECONDS:
                source.pushed = True
                source.expect(self._clock.monotonic() + later)
            else:
                source.triggered()
            self._signal.set()

        self._hints.on(source.queue.bus(), f"queue:{source.name}", on_hint)

    def _new_rule(self, hint: Notification) -> None:
        self.controller.hinted()
        self._signal.set()

    # --- taking -------------------------------------------------------------------------------------------------

    async def _pump(self) -> None:
        """The one place that takes messages: whoever waits in vain waits here, and costs one request for all."""
        failures = 0
        while await self._may_take():
            self._signal.clear()
            if self.pool.busy and self.controller.due:
                await self._decisions.found(0, self.sources[0])
            self._fetcher.abandon(self._prefetch.surplus(self._clock.monotonic()))
            ask = 0 if self._fetcher.is_full else self._prefetch.ask()
            source = choose(self.sources, self._clock.monotonic()) if ask else None
            if source is None:
                await self._wait(full=not ask)
                continue
            try:
                await self._look(source, ask)
                failures = 0
                if self.reason:
                    _log.info("Storage is reachable again; listening to %s", self.name)
                    self.reason = ""
            except StorageError as error:
                if isinstance(error, AccessDenied) and not self._reached:
                    raise
                failures = await self._outage(error, failures)

    async def _wait(self, *, full: bool) -> None:
        """Until there is room, a hint comes, a queue is due for a look, or a new decision is."""
        pause = min(source.due for source in self.sources) - self._clock.monotonic()
        if full or not self.pool.is_idle:
            pause = DECIDE_SECONDS if full else min(pause, DECIDE_SECONDS)
        await self._clock.wait(self._signal, pause)

    async def _look(self, source: Source, ask: int) -> None:
        if source.asleep and not source.expects(self._clock.monotonic()):
            depth = await source.queue.depth()
            self._reached = True
            source.counted(depth, self._clock.monotonic(), self.idle)
            return
        source.looking(self._clock.monotonic())
        try:
            found, newest = await self._fetcher.take(source, ask)
            self._reached = True
        except (NotFound, BeingDeleted):
            found, newest = 0, 0.0
            with suppress(BeingDeleted, *TRANSIENT):
                await source.queue.create()
        if found:
            idle = source.found(known_depth=len(self.leases) if found < ask else None, newest=newest)
            self.state = "running"
            self.throughput.found()
            self._prefetch.answered(found)
            if idle or not self.pool.active or self.controller.due:
                await self._decisions.found(idle, source)
        else:
            await self._rest(source)

    async def _may_take(self) -> bool:
        """Wait out a pause and a closed gate; False if it is time to stop."""
        while not self._stopping.is_set():
            if not self._resumed.is_set():
                self.state = "paused"
                await wait_any(self._stopping, self._resumed.wait())
            elif self.gate is not None and not (self._passed and self.gate.is_open()):
                self.state = "waiting"
                await wait_any(self._stopping, self.gate.wait())
                self._passed = True
            else:
                return True
        return False

    async def _rest(self, source: Source) -> None:
        """An empty look: ask what to do until the next one."""
        source.empty(self._clock.time())
        pushed = source.pushed and self.queue.bus().is_connected
        event = QueueEmpty(source.name, source.idle, self.pool.active, pushed)
        try:
            answer: Idle = await answer_of(self.queue_empty(event))
        except Exception:
            _log.exception("The queue_empty handler of %s failed; using the default delay", source.name)
            answer = self._default_queue_empty(event)
        now = self._clock.monotonic()
        source.wait(now + answer.delay_seconds)
        if (
            answer.stop and not pushed and self.idle.shared
        ):  # one that is idle for good polls in turn with the others
            source.wait(rota().turn(now, answer.delay_seconds, self.idle.safety_seconds))
        if not self.pool.is_idle:
            return
        self.state = "idle"
        if answer.stop:
            if all(other.idle for other in self.sources):
                floor = self.tasks.start if pushed else max(1, self.tasks.start)
                self.controller.emptied(floor)
                self.pool.scale(floor)
            if pushed and not len(self.leases):
                source.sleep(now, self.idle)

    async def _outage(self, error: StorageError, failures: int) -> int:
        if not failures:
            _log.warning("Listening to %s: %s; trying again", self.name, error)
        self.state, self.reason = "unreachable", f"storage: {error}"
        asked = min(error.retry_after_seconds, _LONGEST_PAUSE_SECONDS)
        await self._clock.wait(self._stopping, asked + _OUTAGE.delay(failures) + 0.05)
        return failures + 1

    # --- how many -----------------------------------------------------------------------------------------------

    def _default_queue_empty(self, event: QueueEmpty) -> Idle:
        answer = queue_empty(event, backoff=self.idle, rng=self._rng)
        if self._budget is None or self._spending is None:
            return answer
        return Idle(self._budget.idle_seconds(self._spending.today(), answer.delay_seconds), answer.stop)

    # --- ending -------------------------------------------------------------------------------------------------

    async def _shutdown(self) -> None:
        """Give back what no handler has seen, let handlers finish, then give back what they did not finish."""
        deadline = self._clock.monotonic() + self._stop_seconds
        self.state = "stopping"
        await self._decisions.close()
        unseen = {work_item.delivery for work_item in self.pool.buffer if not work_item.delivery.started}
        unseen |= {delivery for delivery in self._fetcher.quarantine.close() if not delivery.started}
        for work_item in self.pool.buffer:
            work_item.drop()
        self.pool.buffer.clear()
        self._fetcher.abandon(list(unseen))
        for delivery in self.leases:  # from here on this is what sees to their end
            delivery.holders += 1
        left = await self.pool.shutdown(deadline - self._clock.monotonic(), self._linger_seconds)
        for delivery in left:
            _log.error(
                "A handler of %s still runs: it is a thread, or ignores its cancellation. Other workers get its message when its "
                "visibility ends; the process ends when the handler does",
                self.name,
                extra={"action": "stop", "resource": self.name},
            )
            self.leases.drop(delivery, End.ABANDONED)
            delivery.lose("the listener has stopped")
        await self._fetcher.finish()
        await asyncio.gather(*(delivery.settler.abandon(delivery) for delivery in self.leases))

    # --- telling ------------------------------------------------------------------------------------------------

    @property
    def work_detected(self) -> Callable[[WorkDetected], Any]:
        """The function that says how many tasks there should be when work is found; may be replaced."""
        return self._decisions.work_detected

    @work_detected.setter
    def work_detected(self, handler: Callable[[WorkDetected], Any]) -> None:
        self._decisions.work_detected = handler

    @property
    def decision(self) -> TaskDecision:
        """How many tasks are desired, and why."""
        return self.controller.decision

    @property
    def active_tasks(self) -> int:
        """How many dequeue tasks run."""
        return self.pool.active

    @property
    def most_handlers(self) -> int:
        """How many handlers may run at a time, when all dequeue tasks do."""
        return max(1, (self.tasks.stop - 1) * self.pool.slots)

    def status(self) -> ListenerStatus:
        """For telemetry; no I/O."""
        return listener_status(self)

    async def query_state(self) -> QueueState:
        """All figures of the listener; one request for the depth of each queue."""
        return queue_state(self, [await depth_of(source) for source in self.sources])


def listener_status(listener: QueueListener[Any]) -> ListenerStatus:
    counts = [source.settler.counts for source in listener.sources]
    return ListenerStatus(
        queue=listener.name,
        active_tasks=listener.pool.active,
        total_tasks=listener.tasks.stop - 1,
        wanted_tasks=listener.decision.tasks,
        in_hand=min(len(listener.leases), MAX_HELD),
        done=sum(count.done for count in counts),
        failed=sum(count.failed for count in counts),
        poisoned=sum(count.poisoned for count in counts),
        stale_receipts=listener.leases.stale,
        oldest_seconds=listener.leases.oldest_seconds(),
        state=listener.state,
        # A rule may be the user's own, with words of any length.
        reason=one_line(listener.reason or listener.decision.reason, MAX_REASON),
        figures=listener.pool.counts.figures(),
        oldest_task_seconds=listener._runner.oldest_seconds(),
    )


def queue_state(listener: QueueListener[Any], depths: list[int | None]) -> QueueState:
    status = listener_status(listener)
    counts = [source.settler.counts for source in listener.sources]
    return QueueState(
        current_queue_depth=None if None in depths else sum(depth or 0 for depth in depths),
        active_dequeue_tasks=status.active_tasks,
        total_dequeue_tasks=status.total_tasks,
        desired_dequeue_tasks=status.wanted_tasks,
        in_flight=status.in_hand,
        buffered=len(listener.pool.buffer),
        done=status.done,
        failed=status.failed,
        retried=sum(count.retried for count in counts),
        poisoned=status.poisoned,
        abandoned=sum(count.abandoned for count in counts),
        stale_receipts=status.stale_receipts,
        renewals=listener.leases.renewals,
        per_second=listener.throughput.per_second,
        service_seconds=listener.throughput.service_seconds,
        visibility_seconds=listener.leases.visibility_seconds,
        idle=min(source.idle for source in listener.sources),
        state=status.state,
        reason=status.reason,
    )


def check_options(
    tasks: range, slots: int, batch: int, visibility_seconds: float, weights: list[int]
) -> None:
    """Raise `ConfigurationError` naming the option that is out of bounds."""
    if tasks.step != 1 or tasks.start < 0 or len(tasks) == 0 or tasks.stop < 2:
        raise ConfigurationError(
            f"tasks {tasks!r}: give the fewest and the most, such as range(0, 51) for 0 to 50 dequeue tasks"
        )
    if (tasks.stop - 1) * slots > MAX_HELD:
        raise ConfigurationError(
            f"tasks {tasks!r} with {slots} slots each: at most {MAX_HELD:,} handlers run in one process"
        )
    if slots < 1 or batch < 0:
        raise ConfigurationError(f"slots must be at least 1 and batch at least 0, got {slots} and {batch}")
    if not 1 <= visibility_seconds <= 7 * 24 * 3600:
        raise ConfigurationError(
            f"visibility_seconds must be 1 to 604,800 (7 days), got {visibility_seconds}"
        )
    if min(weights) < 1:
        raise ConfigurationError(f"a queue's weight must be at least 1, got {min(weights)}")


def check_time_out(timeout: float | None, linger_seconds: float) -> None:
    """Raise `ConfigurationError` naming the option that is out of bounds."""
    if timeout is not None and not 0 < timeout <= 30 * 24 * 3600:
        raise ConfigurationError(
            f"timeout must be more than 0 and at most 2,592,000 seconds (30 days), or None, got {timeout}"
        )
    if not 0 <= linger_seconds <= 7 * 24 * 3600:
        raise ConfigurationError(f"linger_seconds must be 0 to 604,800 (7 days), got {linger_seconds}")
