"""One process samples the storage account for all viewers, chosen by the product's own election.

If nobody has sampled for a while (the election is not settled, or storage is away), each process looks for itself, so
that its pages say so and notice the return.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.errors import KennelError, StorageError
from coordinator.gates.azure import GateListing
from coordinator.leadership.azure import LeaderListing
from coordinator.leadership.term import LeaseConfig
from coordinator.realtime.bus import Hint
from coordinator.realtime.protocol import ListenerStatus
from coordinator.sequences.azure import CounterListing
from coordinator.storage import Storage
from dashboard.core.backplane import Backplane
from dashboard.live import reading
from dashboard.live import workloads as work
from dashboard.live.fleet import Depth, Sample, StorageView
from dashboard.live.history import Recorder
from dashboard.live.ledger_index import LedgerIndex
from dashboard.live.workloads import Work

AGAIN_SECONDS = 10.0
UNKNOWN_SECONDS = 60.0
UNKNOWN_AT_ONCE = 1
"""Each hint goes to every worker: of hundreds of queues that nobody is known to listen to, one at each look."""


class QueueNotifier:
    """Which queues need a hint now. No I/O.

    A queue whose front message is visible although everybody who listens to it is idle gets one, at most every 10 s. One
    that no known listener names gets one a minute, and of many such queues one at each look, in turn: it may be the
    second queue or the shard of a listener that names another. Messages that are invisible (delayed, in flight) wake
    nobody, nor does a queue held by a gate or a pause.
    """

    def __init__(self) -> None:
        self._described: dict[str, float] = {}

    def due(self, queues: Iterable[Depth], listeners: Iterable[ListenerStatus], now: float) -> list[str]:
        """Names of queues to announce, noted as announced at `now` (monotonic seconds)."""
        statuses: dict[str, list[ListenerStatus]] = {}
        for listener in listeners:
            statuses.setdefault(listener.queue, []).append(listener)
        waiting = {queue.name for queue in queues if queue.depth and queue.oldest_at is not None}
        self._described = {name: at for name, at in self._described.items() if name in waiting}
        due = [name for name in sorted(waiting) if self._is_due(name, statuses, now)]
        unknown = sorted(
            (name for name in due if name not in statuses), key=lambda name: self._described.get(name, 0.0)
        )
        passed_over = set(unknown[UNKNOWN_AT_ONCE:])
        found = [name for name in due if name not in passed_over]
        self._described.update(dict.fromkeys(found, now))
        return found

    def _is_due(self, name: str, statuses: Mapping[str, list[ListenerStatus]], now: float) -> bool:
        reported = statuses.get(name, [])
        if any(status.state != "idle" or status.in_hand for status in reported):
            return False
        pause = AGAIN_SECONDS if reported else UNKNOWN_SECONDS
        return now - self._described.get(name, float("-inf")) >= pause


if TYPE_CHECKING:
    from dashboard.live.fleet_state import FleetState

log = logging.getLogger(__name__)
T = TypeVar("T")

ELECTION = "dashboard-sampler"
WATCHED_SECONDS = 1.0
UNWATCHED_SECONDS = 5.0
ALERTED_SECONDS = 3.0
ALONE_SECONDS = 2.5
REST_TIMES, MOST_REST_SECONDS = 3.0, 2.0
READ_SECONDS = 4.0
MOST_REST_BETWEEN_SECONDS = 0.1
NAMES_SECONDS = 10.0
WORK_SECONDS = 2.0
WORK_UNWATCHED_SECONDS = 30.0


class Sampler:
    """Reads storage, gives the sample to the fleet state, records history. `step` is one look."""

    def __init__(
        self, storage: Storage, fleet_state: FleetState, backplane: Backplane, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.storage, self.fleet_state, self.backplane, self.clock = storage, fleet_state, backplane, clock
        self._gates = GateListing(storage)
        self._leaders = LeaderListing(storage)
        self._counters = CounterListing(storage)
        self.recorder = Recorder()
        self._notifier = QueueNotifier()
        self.ledgers = LedgerIndex(storage, clock=clock, watched=lambda: self.watched())
        self.watched: Callable[[], bool] = lambda: True
        self.alerts: Callable[[], bool] = lambda: False
        """Whether somebody is to be notified of what is found, though nobody looks."""
        self.turned: Callable[[], None] = lambda: None
        self.failed: Callable[[Exception], None] = lambda error: None
        self._leading = False
        self._names: tuple[float, tuple[str, ...]] | None = None
        self._work_at: float | None = None
        self._wake, self._turns = asyncio.Event(), asyncio.Semaphore(1)
        self._election: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def every_seconds(self) -> float:
        if self.watched():
            return WATCHED_SECONDS
        return ALERTED_SECONDS if self.alerts() else UNWATCHED_SECONDS

    @property
    def is_leading(self) -> bool:
        """Whether this process does what one does for all."""
        return self._leading

    @property
    def judges(self) -> bool:
        """Whether this process says what the fleet is like: it leads, or nobody samples."""
        return self._leading or self._nobody_samples()

    def wake(self) -> None:
        """Look now rather than at the next turn."""
        self._wake.set()

    async def run(self) -> None:
        """Sample until stopped."""
        if self._election is None or self._election.done():
            self._election = asyncio.create_task(self._stand(), name=ELECTION)
        while not self._stopping:
            self.turned()
            started = self.clock.monotonic()
            self._wake.clear()
            if self._leading or self._nobody_samples():
                try:
                    await self.step(record=self._leading)
                except Exception as error:
                    # A sampler that ended would leave every page stale for ever.
                    log.exception("Sampling failed; trying again")
                    self.failed(error)
            # Whoever does not lead only looks whether somebody samples, which costs nothing.
            every = self.every_seconds if self._leading else WATCHED_SECONDS
            # Each press asks for a look. Where one takes long, presses would wait behind those that others asked for.
            took = self.clock.monotonic() - started
            if self.fleet_state.sample.storage.unreachable_since is None and took > 0:
                await self.clock.sleep(min(REST_TIMES * took, MOST_REST_SECONDS))
            await self.clock.wait(self._wake, max(0.1, every - (self.clock.monotonic() - started)))

    async def stop(self) -> None:
        """Give up the election and write what is not yet written."""
        self._stopping = True
        self._wake.set()
        if self._election is not None:
            self._election.cancel()
            await asyncio.gather(self._election, return_exceptions=True)
        if self._leading:
            await self.recorder.flush()

    async def step(self, *, record: bool) -> Sample:
        """One look at everything; publishes and returns what it found."""
        at = self.clock.time()
        before, storage = self.fleet_state.sample, self.storage
        gates, leaders, sequences, names = await asyncio.gather(
            self._in_turn(self._gates.read),
            self._in_turn(lambda: reading.leaders(self._leaders, at)),
            self._in_turn(lambda: reading.sequences(self._counters, self.fleet_state.presence, at)),
            self._in_turn(self._queue_names),
        )
        seen_work = await self._work(before.work, at)
        known = {depth.name: depth for depth in before.queues}
        queues, depths = before.queues, reading.Result()
        if names.error is None:
            queues, depths = await reading.depths(
                storage, names.value, known, at=at, seconds=READ_SECONDS, busy=self._busy()
            )
        results = (gates, leaders, sequences, names, depths)
        sample = Sample(
            at=at,
            storage=_storage_view(before.storage, results, at),
            gates=before.gates if gates.error else tuple(each.state for each in gates.value if each.state),
            gates_as_of=before.gates_as_of if gates.error else at,
            odd_gates=before.odd_gates
            if gates.error
            else {each.name: each.problem for each in gates.value if each.problem},
            leaders_as_of=before.leaders_as_of if leaders.error else at,
            sequences_as_of=before.sequences_as_of if sequences.error else at,
            queues=queues,
            queues_as_of=before.queues_as_of if names.error else at,
            leaders=before.leaders if leaders.error else leaders.value,
            sequences=before.sequences if sequences.error else sequences.value,
            work=seen_work,
            requests=storage.meter.by_operation(),
            queue_requests=storage.meter.by_queue(),
            queue_traffic=storage.meter.traffic(),
            every_seconds=self.every_seconds,
        )
        await self.fleet_state.publish(sample)
        if record:
            await self._wake_listeners(sample)
            await self.recorder.record(at, self.fleet_state.newest_values())
        return sample

    def _listeners(self) -> list[ListenerStatus]:
        entries = list(self.fleet_state.presence.entries.values())
        return [listener for entry in entries if entry.connected for listener in entry.state.listeners]

    def _busy(self) -> set[str]:
        """Queues with connected listeners."""
        return {listener.queue for listener in self._listeners()}

    async def _wake_listeners(self, sample: Sample) -> None:
        for name in self._notifier.due(sample.queues, self._listeners(), self.clock.monotonic()):
            await self.storage.bus.publish(Hint(topic=f"queue:{name}", origin="dashboard"))
            await asyncio.sleep(0)  # a hint is a loop over all workers: others come in between

    async def _queue_names(self) -> tuple[str, ...]:
        now = self.clock.monotonic()
        if self._names is None or now - self._names[0] > NAMES_SECONDS:
            self._names = (now, await reading.queue_names(self.storage))
        return self._names[1]

    async def _work(self, before: Work, at: float) -> Work:
        """Batches, sagas and pools change slowly: not read at every look."""
        now = self.clock.monotonic()
        every = WORK_SECONDS if self.watched() else WORK_UNWATCHED_SECONDS
        if self._work_at is not None and now - self._work_at < every:
            return before
        self._work_at = now
        return await work.read(self.storage, before, at=at, seconds=READ_SECONDS)

    async def _in_turn(self, read: Callable[[], Awaitable[T]]) -> reading.Result:
        """One listing at a time: what a press writes waits behind one of them, not behind all. Waiting counts as reading."""

        async def after_others() -> T:
            async with self._turns:
                began = self.clock.monotonic()
                try:
                    return await read()
                finally:
                    took = self.clock.monotonic() - began
                    if took > 0:
                        await self.clock.sleep(min(took, MOST_REST_BETWEEN_SECONDS))

        return await reading.attempt(after_others, READ_SECONDS)

    def forget_names(self) -> None:
        """Something was made or changed: read all again."""
        self._names = self._work_at = None
        self.wake()

    def _nobody_samples(self) -> bool:
        newest = self.fleet_state.sampled_at
        return newest is None or self.clock.monotonic() - newest > self.every_seconds + ALONE_SECONDS

    async def _stand(self) -> None:
        """Take part in the election for ever."""
        while True:
            try:
                election = self.storage.election(
                    ELECTION,
                    identity=f"dashboard-{self.backplane.process_id}",
                    config=LeaseConfig(),  # without a sampler all figures are old
                )
                await election.run(self._lead)
            except KennelError as error:
                log.warning("The election of the sampler failed: %s", error)
            except Exception as error:
                log.exception("The election of the sampler failed; trying again")
                self.failed(error)
            await self.clock.sleep(2.0)

    async def _lead(self, term: Any) -> None:
        self._leading = True
        self.wake()
        try:
            await self.ledgers.run()
        finally:
            self._leading = False
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(self.recorder.flush())


def _storage_view(before: StorageView, results: tuple[reading.Result, ...], at: float) -> StorageView:
    """Unreachable since the first failure; reachable again when everything could be read.

    An answer that made no sense (a corrupt gate, say) is an error to be reported, not an account that is away.
    """
    errors = [result.error for result in results if result.error is not None]
    failed = next((error for error in errors if isinstance(error, StorageError | TimeoutError)), None)
    if failed is None:
        return StorageView(as_of=at, error=str(errors[0]) if errors else "")
    text = str(failed) if isinstance(failed, KennelError) else "no answer in time"
    return replace(before, unreachable_since=before.unreachable_since or at, error=text)
