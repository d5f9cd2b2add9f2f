"""`Worker`: one process of the fleet, put together from gates, sequences, listeners and elections."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import secrets
import signal
import socket
import time
import typing
import uuid
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from coordinator.bounds import MAX_SHORT, one_line
from coordinator.errors import ConfigurationError
from coordinator.gates.azure import GateOptions
from coordinator.gates.gate import Gate, Release
from coordinator.leadership.azure import ElectionOptions
from coordinator.leadership.election import Election
from coordinator.leadership.every import Job, run_every
from coordinator.leadership.repeating import Again, OnError, lead_on
from coordinator.leadership.schedule import Missed, Schedule
from coordinator.queues.figures import bounded
from coordinator.queues.listener import ListenerOptions, QueueListener
from coordinator.queues.queue import Queue
from coordinator.realtime import protocol
from coordinator.realtime.hub_client import HubConnection
from coordinator.scaling.azure import save_report
from coordinator.scaling.reporting import PoolReporter
from coordinator.scaling.reports import WorkerReport
from coordinator.sequences.generator import UniqueIdGenerator
from coordinator.sequences.grants import SequenceOptions
from coordinator.storage import Storage

log = logging.getLogger(__name__)

Handler = Callable[[Any], Any]
H = typing.TypeVar("H", bound=Handler)
STOP_SECONDS, MAX_STOP_SECONDS = 20.0, 86_400.0


class Worker:
    """A worker process: declares what it does, then `run()`.

    Guarantees that nothing is sent before `run()`; that each part stops when one of them cannot recover; and that a
    stop returns what the process holds (messages, leases, unused numbers) within `stop_seconds`. Without a hub it
    polls, and everything still works.

    Does not guarantee that a `def` handler ends by then: a thread cannot be stopped, and its message stays hidden
    until it ends.

    Args:
        name: What kind of worker it is.
        identity: What tells it from all others, 1 to 200 characters (default: ``KENNEL_WORKER_NAME``, otherwise name,
            host and process id).
        storage: The storage account (default: ``AZURE_STORAGE_CONNECTION_STRING`` or ``AZURE_STORAGE_ACCOUNT_URL``,
            and ``KENNEL_PREFIX``).
        environ: The environment (default: that of the process). ``KENNEL_HUB_URL`` and ``KENNEL_WORKER_TOKEN``
            connect it to the dashboard, and ``KENNEL_POOL`` names the pool to whose scaling agent it reports.
        stop_seconds: How long a stop may take, in seconds (default ``KENNEL_STOP_SECONDS``, otherwise 20).

    Raises:
        ConfigurationError: The environment names no storage account, or a hub but no token.

    Examples:
        >>> worker = Worker("billing")
        >>> @worker.listen("orders-in", gate=worker.gate("start-order-processing"))
        ... async def process(order: Order) -> None: ...
    """

    def __init__(
        self,
        name: str,
        *,
        identity: str = "",
        storage: Storage | None = None,
        environ: Mapping[str, str] | None = None,
        stop_seconds: float | None = None,
    ) -> None:
        env = os.environ if environ is None else environ
        self.name = name
        self.host = socket.gethostname()
        self._process = (0, "", "")
        self.identity = identity or env.get("KENNEL_WORKER_NAME") or f"{name}-{self.host}-{os.getpid()}"
        if one_line(self.identity) != self.identity or not self.identity:
            raise ConfigurationError(
                f"worker identity {self.identity[:60]!r}: use 1 to {MAX_SHORT} characters and no control characters"
            )
        self.storage = storage or Storage.from_env(env)
        self.storage.identity = self.identity
        self.mode: typing.Literal["starting", "running", "draining", "stopping"] = "starting"
        self.stop_seconds = _stop_seconds(env) if stop_seconds is None else stop_seconds
        self._pool = env.get("KENNEL_POOL", "")
        self._cpu_at: tuple[float, float] | None = None
        self._started_at = time.time()
        self._gates: dict[str, Gate] = {}
        self._sequences: dict[str, UniqueIdGenerator] = {}
        self._listeners: list[QueueListener[Any]] = []
        self._elections: list[tuple[Election, Callable[..., Coroutine[Any, Any, None]]]] = []
        self._jobs: dict[str, list[Job]] = {}
        self._scheduling: list[Election] = []
        self._stop = asyncio.Event()
        self._hub: HubConnection | None = None
        self._reporter: PoolReporter | None = None
        if hub_url := env.get("KENNEL_HUB_URL"):
            token = env.get("KENNEL_WORKER_TOKEN")
            if not token:
                raise ConfigurationError(
                    "KENNEL_HUB_URL is set but KENNEL_WORKER_TOKEN is not: create one in the dashboard"
                )
            self._hub = HubConnection(hub_url, token, hello=self._hello, on_command=self._on_command)
            self.storage.bus = self._hub

    @property
    def instance(self) -> str:
        """Identifies this process; a process that was forked from it has one of its own."""
        return self._own_process()[1]

    def _own_process(self) -> tuple[int, str, str]:
        """The process id, and the instance and the secret that this process shows to the hub."""
        if self._process[0] != os.getpid():
            self._process = (os.getpid(), uuid.uuid4().hex, secrets.token_urlsafe(24))
        return self._process

    # --- what it does -------------------------------------------------------------------------------------------

    def gate(self, name: str, **options: typing.Unpack[GateOptions]) -> Gate:
        """The gate of that name. The worker confirms each pass to the dashboard.

        Args:
            name: The gate.
            **options: As for `Storage.gate`.

        Returns:
            The gate; the same one each time.

        Raises:
            ConfigurationError: The name or an option is out of bounds.
        """
        if name not in self._gates:
            options.setdefault("identity", self.identity)
            gate = self._gates[name] = self.storage.gate(name, **options)
            gate.on_pass = lambda release: self._passed(name, release)
        return self._gates[name]

    def sequence(self, name: str, **options: typing.Unpack[SequenceOptions]) -> UniqueIdGenerator:
        """The sequence of that name. This worker owns the ranges that it takes, and `run` closes it at the end.

        Args:
            name: The sequence.
            **options: As for `Storage.sequence`.

        Returns:
            The generator.

        Raises:
            ConfigurationError: The name or an option is out of bounds.
        """
        self._sequences[name] = self.storage.sequence(name, **options)
        return self._sequences[name]

    def listen(self, queue: str | Queue[Any], **options: typing.Unpack[ListenerOptions]) -> Callable[[H], H]:
        """Decorate the handler of a queue's messages, `def` or `async def`. The annotation of its parameter is the type
        of the items.

        Args:
            queue: The queue's name, or a queue of `worker.storage.queue(…)`, which has its own type and options.
            **options: As for `QueueListener`, such as `tasks`, `gate`, `batch`, `timeout` and `retries`.

        Returns:
            The decorator.

        Raises:
            ConfigurationError: The name, an option or the handler is invalid.

        Examples:
            >>> @worker.listen("orders-in", tasks=range(0, 51), timeout=60)
            ... async def process(order: Order) -> None: ...
        """

        def register(handler: H) -> H:
            annotations = typing.get_type_hints(handler)
            annotations.pop("return", None)
            kind = next(iter(annotations.values()), Any)
            source = self.storage.queue(queue, type=kind) if isinstance(queue, str) else queue
            self._listeners.append(source.listener(handler, **options))
            return handler

        return register

    def add(self, listener: QueueListener[Any]) -> None:
        """Run one more listener, such as one of a saga (`saga.listener()`) or of a pipeline (`pipeline.processors()`).

        Args:
            listener: The listener.
        """
        self._listeners.append(listener)

    def lead(
        self,
        election: str,
        *,
        again: Again = "epoch",
        on_error: OnError | None = None,
        **options: typing.Unpack[ElectionOptions],
    ) -> Callable[[H], H]:
        """Decorate a ``task(term)``, `def` or `async def`, that one worker of the fleet runs at a time.

        A task that raises is logged, its lease is freed, and this worker campaigns again after a growing pause.

        Args:
            election: The name of the election.
            again: What happens when the task has ended. "epoch" (default): its worker stays leader without work, so
                the task runs once in each epoch, and again only after a fail-over. "campaign": the lease is freed,
                and the next leader runs the task at once.
            on_error: Called as ``on_error(error, term)`` when the task raises. If it raises itself, the worker ends.
            **options: As for `Storage.election`.

        Returns:
            The decorator.

        Raises:
            ConfigurationError: The name or an option is out of bounds.

        Examples:
            >>> @worker.lead("month-end")
            ... async def close_the_books(term: Term) -> None: ...
        """

        def register(task: H) -> H:
            made = self.storage.election(election, identity=self.identity, **options)
            self._elections.append((made, partial(lead_on, made, task, again=again, on_error=on_error)))
            return task

        return register

    def every(
        self, schedule: str, *, lead: str, missed: Missed = "skip", name: str = "", late_seconds: float = 60.0
    ) -> Callable[[H], H]:
        """Decorate a ``task(run)`` that runs at set times, once in the whole fleet.

        Guarantees at most one run for each moment. Does not guarantee one: a run that crashes is not repeated.

        Args:
            schedule: ``"5m"`` and the like, or a cron expression of five fields, in UTC.
            lead: The election whose leader runs it.
            missed: What to do about moments at which nobody led: "skip" (default), or "once" for all of them.
            name: The name of the job (default: the function's). It must stay the same for the fleet to know what has
                run.
            late_seconds: How late a run may begin, in seconds (default 60).

        Returns:
            The decorator.

        Raises:
            ConfigurationError: The schedule is invalid, or the name is used twice.

        Examples:
            >>> @worker.every("0 6 * * *", lead="nightly")
            ... async def report(run: Run) -> None: ...
        """

        def register(task: H) -> H:
            job = Job(
                name or task.__name__, Schedule(schedule), task, missed=missed, late_seconds=late_seconds
            )
            self._jobs.setdefault(lead, []).append(job)
            return task

        return register

    # --- running ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until stopped by `stop()`, SIGTERM or SIGINT; then return what is held, within `stop_seconds`.

        Raises:
            KennelError: A part cannot recover, for example because the credential is wrong. The other parts have
                stopped.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with suppress(ValueError, RuntimeError):
                loop.add_signal_handler(number, self.stop)
        log.info("Worker %s started", self.identity, extra={"action": "start", "worker": self.identity})
        try:
            async with AsyncExitStack() as gates:
                for gate in self._gates.values():
                    await gates.enter_async_context(gate.watch())
                await self._work()
        finally:
            await self.storage.aclose()
            await asyncio.to_thread(self.storage.close)
            log.info("Worker %s stopped", self.identity, extra={"action": "stop", **self._account()})

    async def _work(self) -> None:
        leaders: list[asyncio.Task[Any]] = [
            asyncio.create_task(lead(clock=self.storage.clock), name=f"lead:{election.name}")
            for election, lead in self._elections
        ]
        for name, jobs in self._jobs.items():
            election = self.storage.election(name, identity=self.identity)
            self._scheduling.append(election)
            work = run_every(election, jobs, self.storage.run_log(name), clock=self.storage.clock)
            leaders.append(asyncio.create_task(work, name=f"every:{name}"))
        if self._hub:
            for election in self._campaigns():
                election.on_status = self._hub.refresh_soon
        running: list[asyncio.Task[Any]] = [
            asyncio.create_task(self._stop.wait(), name="stop"),
            *leaders,
            *(asyncio.create_task(part.run(), name=f"listen:{part.name}") for part in self._listeners),
        ]
        if self._hub:
            running.append(asyncio.create_task(self._hub.run(), name="hub"))
        if self._pool:
            self._reporter = PoolReporter(
                self._reports, partial(save_report, self.storage, self._pool), clock=self.storage.clock
            )
            running.append(asyncio.create_task(self._reporter.run(), name="reports"))
        self.mode = "running"
        try:
            while not self._stop.is_set() and not any(task.done() and task.exception() for task in running):
                await asyncio.wait(
                    [task for task in running if not task.done()], return_when=asyncio.FIRST_COMPLETED
                )
        finally:
            self.mode = "stopping"
            await self._shutdown(leaders)
            for task in running:
                task.cancel()
            results = await asyncio.gather(*running, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    def stop(self) -> None:
        """Ask `run()` to end; harmless when repeated."""
        self._stop.set()

    def drain(self) -> None:
        """Finish what is in flight and take nothing new, until `resume()`."""
        self.mode = "draining"
        for listener in self._listeners:
            listener.pause()

    def resume(self) -> None:
        """Take messages again after `drain()`."""
        self.mode = "running"
        for listener in self._listeners:
            listener.resume()

    async def _shutdown(self, leaders: list[asyncio.Task[Any]]) -> None:
        if self._hub:
            self._hub.refresh()
        for leader in leaders:
            leader.cancel()  # ends the leader's work, then gives the lease back
        await asyncio.gather(
            *leaders, *(part.stop(self.stop_seconds) for part in self._listeners), return_exceptions=True
        )
        if self._reporter:
            await self._reporter.step(leaving=True)
        for sequence in self._sequences.values():
            try:
                await asyncio.to_thread(sequence.close)
            except Exception as error:
                log.warning("Sequence %s: unused numbers were not returned: %s", sequence.name, error)
        if self._hub:
            await self._hub.flush()

    # --- what it tells ------------------------------------------------------------------------------------------

    def state(self) -> protocol.WorkerState:
        """Everything that the dashboard shows of this worker; no I/O."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return protocol.WorkerState(
            mode=self.mode,
            gates=tuple(gate.status() for gate in self._gates.values()),
            listeners=bounded(tuple(listener.status() for listener in self._listeners)),
            elections=tuple(election.status() for election in self._campaigns()),
            sequences=tuple(sequence.status() for sequence in self._sequences.values()),
            requests=self.storage.meter.by_operation(),
            queue_requests=self.storage.meter.by_queue(),
            queue_traffic=self.storage.meter.traffic(),
            cpu_seconds=usage.ru_utime + usage.ru_stime,
            memory_bytes=usage.ru_maxrss * 1024,
        )

    def _reports(self) -> list[WorkerReport]:
        """What the pool's scaling agent is to know, for each queue."""
        now, used = time.monotonic(), time.process_time()
        cpu = None
        if self._cpu_at is not None and now > self._cpu_at[0]:
            cpu = (used - self._cpu_at[1]) / (now - self._cpu_at[0])
        self._cpu_at = (now, used)
        return [
            WorkerReport(
                worker=self.identity,
                queue=listener.name,
                at=self.storage.clock.time(),
                started_at=self._started_at,
                done=status.done,
                items=listener.throughput.items,
                in_flight=status.in_hand,
                slots=listener.most_handlers,
                item_seconds=listener.throughput.service_seconds,
                longest_seconds=status.oldest_seconds,
                cpu=cpu,
                leaving=self.mode in ("draining", "stopping"),
            )
            for listener in self._listeners
            for status in (listener.status(),)
        ]

    def _campaigns(self) -> list[Election]:
        return [*(election for election, _ in self._elections), *self._scheduling]

    def _hello(self) -> protocol.Hello:
        pid, instance, secret = self._own_process()
        return protocol.Hello(
            version=protocol.VERSION,
            oldest=protocol.OLDEST,
            worker=self.identity,
            instance=instance,
            host=one_line(self.host),
            pid=pid,
            secret=secret,
            started_at=self._started_at,
            software=one_line(_software()),
            prefix=self.storage.config.prefix,
            state=self.state(),
        )

    def _passed(self, gate: str, release: Release) -> None:
        now = time.time()
        fields: dict[str, object] = {"action": "pass", "resource": gate, "epoch": release.epoch}
        fields |= {"source": release.source, "at": now}
        if release.request_id:
            fields["request_id"] = release.request_id
        log.info("Passed gate %s", gate, extra=fields)
        if self._hub:
            self._hub.receipt(
                protocol.Receipt(
                    gate=gate,
                    epoch=release.epoch,
                    source=release.source,
                    delay_seconds=release.delay_seconds,
                    passed_at=now,
                )
            )

    def _account(self) -> dict[str, Any]:
        sequences = [sequence.status() for sequence in self._sequences.values()]
        return {
            "requests": self.storage.meter.by_operation(),
            "conflicts": sum(status.conflicts for status in sequences),
            "done": sum(listener.status().done for listener in self._listeners),
        }

    def _on_command(self, command: protocol.Command) -> None:
        log.info(
            "Command %s by %s",
            command.verb,
            command.by or "an operator",
            extra={"action": command.verb, "request_id": command.id},
        )
        match command.verb:
            case "stop":
                self.stop()
            case "drain":
                self.drain()
            case "resume":
                self.resume()
            case "step_down":
                for election in self._campaigns():
                    if command.target in ("", election.name):
                        election.step_down(f"asked by {command.by or 'an operator'}")
        if self._hub:
            self._hub.refresh()


def _stop_seconds(env: Mapping[str, str]) -> float:
    text = env.get("KENNEL_STOP_SECONDS", "")
    try:
        seconds = float(text or STOP_SECONDS)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= MAX_STOP_SECONDS:
        raise ConfigurationError(
            f"KENNEL_STOP_SECONDS {text!r}: use seconds above 0, {MAX_STOP_SECONDS:g} at most"
        )
    return seconds


def _software() -> str:
    try:
        return f"kennel {version('kennel-coordinator')}"
    except PackageNotFoundError:
        return "kennel (source)"
