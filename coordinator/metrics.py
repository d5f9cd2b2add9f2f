"""Metrics of every primitive, for OpenTelemetry (extra ``otel``) and Prometheus (extra ``prometheus``).

    from coordinator import metrics

    metrics.observe(worker)                                  # OpenTelemetry: exported as the program has set up
    REGISTRY.register(metrics.PrometheusCollector(worker))   # prometheus_client: served as the program has set up

A part is a `Worker`, a `Storage`, or anything with a `status()`: a gate, a listener, an election, a sequence. Reading a
metric costs no request: it shows what the process knows. Queue spans and histograms are in `coordinator.queues.otel`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from coordinator.azure.metering import Meter
from coordinator.errors import ConfigurationError
from coordinator.realtime.protocol import (
    GateStatus,
    LeadershipStatus,
    ListenerStatus,
    SequenceStatus,
    WorkerState,
)

Status = GateStatus | ListenerStatus | LeadershipStatus | SequenceStatus
_SCOPE = "kennel"


@runtime_checkable
class HasStatus(Protocol):
    """A gate, a listener, an election or a sequence."""

    def status(self) -> Status: ...


@runtime_checkable
class HasState(Protocol):
    """A `Worker`: all its parts at once."""

    def state(self) -> WorkerState: ...


@runtime_checkable
class HasMeter(Protocol):
    """A `Storage`: the requests that it has sent."""

    meter: Meter


Part = HasStatus | HasState | HasMeter


@dataclass(frozen=True, slots=True)
class Metric:
    """`name` as OpenTelemetry writes it; `label` names what distinguishes its series. Counters only rise."""

    name: str
    description: str
    label: str
    kind: Literal["gauge", "counter"] = "gauge"
    unit: str = "1"

    @property
    def prometheus_name(self) -> str:
        unit = {"s": "_seconds"}.get(self.unit, "")
        name = self.name.replace(".", "_")
        return name if name.endswith(unit) else name + unit


class MetricValue(NamedTuple):
    """The value of one series of a metric; `of` is the value of its label."""

    metric: Metric
    of: str
    value: float


REQUESTS = Metric("kennel.storage.requests", "Billed storage requests, by operation.", "operation", "counter")


def _gauge(name: str, description: str, label: str, unit: str = "1") -> Metric:
    return Metric(f"kennel.{name}", description, label, unit=unit)


def _counter(name: str, description: str, label: str) -> Metric:
    return Metric(f"kennel.{name}", description, label, "counter")


_GATES: dict[Metric, Callable[[GateStatus], float | None]] = {
    _gauge("gate.open", "1 if the gate is open, 0 if not; absent while unknown.", "gate"): lambda gate: (
        None if gate.state == "unknown" else float(gate.state == "open")
    ),
    _gauge("gate.epoch", "Epoch of the newest known state.", "gate"): lambda gate: gate.epoch or None,
    _gauge("gate.waiting", "1 if this process waits at the gate.", "gate"): lambda gate: float(gate.waiting),
    _counter("gate.pushes.disproved", "Pushed states that storage did not confirm.", "gate"): (
        lambda gate: gate.disproved
    ),
    _gauge("gate.inside", "Pieces of work that are passing the gate.", "gate"): lambda gate: gate.inside,
}
_LISTENERS: dict[Metric, Callable[[ListenerStatus], float | None]] = {
    _gauge("listener.tasks.active", "Active dequeue tasks.", "queue"): lambda queue: queue.active_tasks,
    _gauge("listener.tasks.desired", "Desired dequeue tasks.", "queue"): lambda queue: queue.wanted_tasks,
    _gauge("listener.in_flight", "Messages in flight.", "queue"): lambda queue: queue.in_hand,
    _gauge("listener.oldest", "How long the longest-held message has been invisible.", "queue", "s"): (
        lambda queue: queue.oldest_seconds
    ),
    _counter("listener.done", "Items that were processed.", "queue"): lambda queue: queue.done,
    _counter("listener.failed", "Attempts that failed.", "queue"): lambda queue: queue.failed,
    _counter("listener.poisoned", "Items that were moved to the poison queue.", "queue"): (
        lambda queue: queue.poisoned
    ),
    _counter("listener.late_acknowledgements", "Messages whose receipt was no longer valid.", "queue"): (
        lambda queue: queue.stale_receipts
    ),
}
_ELECTIONS: dict[Metric, Callable[[LeadershipStatus], float | None]] = {
    _gauge("election.leading", "1 if this process leads.", "election"): lambda election: float(
        election.role == "leader"
    ),
    _gauge("election.epoch", "Epoch of this process's newest term.", "election"): lambda election: (
        election.epoch or None
    ),
    _gauge(
        "election.lease.remaining", "What is left of this leader's lease.", "election", "s"
    ): lambda election: election.remaining_seconds if election.role == "leader" else None,
}
_SEQUENCES: dict[Metric, Callable[[SequenceStatus], float | None]] = {
    _counter("sequence.issued", "Numbers that were issued.", "sequence"): lambda sequence: sequence.issued,
    _counter("sequence.grants", "Ranges that were granted.", "sequence"): lambda sequence: sequence.grants,
    _counter("sequence.conflicts", "Writes that another process won.", "sequence"): lambda sequence: (
        sequence.conflicts
    ),
    _gauge("sequence.runway", "How long the numbers in memory last.", "sequence", "s"): lambda sequence: (
        sequence.runway_seconds
    ),
}
METRICS: tuple[Metric, ...] = (REQUESTS, *_GATES, *_LISTENERS, *_ELECTIONS, *_SEQUENCES)
"""Every metric there is."""


def samples(parts: Iterable[Part]) -> Iterator[MetricValue]:
    """The current values of all parts. Unknown values are left out, never reported as 0.

    Parts of one name (two listeners on a queue) are added up for counters; of gauges the last part's value is used.
    """
    found: dict[tuple[Metric, str], float] = {}
    for part in parts:
        for sample in _of_part(part):
            key = (sample.metric, sample.of)
            before = found.get(key, 0.0) if sample.metric.kind == "counter" else 0.0
            found[key] = before + sample.value
    for (metric, of), value in found.items():
        yield MetricValue(metric, of, value)


def _of_part(part: Part) -> Iterator[MetricValue]:
    if isinstance(part, HasStatus):
        yield from _of_status(part.status())
    elif isinstance(part, HasMeter):
        yield from _of_requests(part.meter.by_operation())
    elif isinstance(part, HasState):
        whole = part.state()
        statuses: list[Status] = [*whole.gates, *whole.listeners, *whole.elections, *whole.sequences]
        for status in statuses:
            yield from _of_status(status)
        yield from _of_requests(whole.requests)
    else:
        raise ConfigurationError(
            f"{type(part).__name__} has no metrics: give a Worker, a Storage, or something with a status()"
        )


def _of_requests(counts: Mapping[str, int]) -> Iterator[MetricValue]:
    for operation, number in counts.items():
        yield MetricValue(REQUESTS, operation, number)


def _of_status(status: Status) -> Iterator[MetricValue]:
    table: dict[Metric, Callable[[Any], float | None]]
    match status:
        case GateStatus():
            table, of = _GATES, status.name
        case ListenerStatus():
            table, of = _LISTENERS, status.queue
        case LeadershipStatus():
            table, of = _ELECTIONS, status.name
        case SequenceStatus():
            table, of = _SEQUENCES, status.name
    for metric, value_of in table.items():
        if (value := value_of(status)) is not None:
            yield MetricValue(metric, of, float(value))


def observe(*parts: Part) -> None:
    """Register an OpenTelemetry instrument for each metric, read from `parts` whenever the program exports.

    Register each part once. Raises `ConfigurationError` if the extra ``otel`` is not installed, or a part has no metrics.
    """
    api = _package("opentelemetry.metrics", "opentelemetry-api", "otel")
    list(samples(parts))
    meter = api.get_meter(_SCOPE)

    def reader(metric: Metric) -> Callable[[Any], Sequence[Any]]:
        return lambda options: [
            api.Observation(sample.value, {f"kennel.{metric.label}": sample.of})
            for sample in samples(parts)
            if sample.metric is metric
        ]

    for metric in METRICS:
        create = (
            meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
        )
        create(metric.name, callbacks=[reader(metric)], unit=metric.unit, description=metric.description)


class PrometheusCollector:
    """The metrics of `parts` for a `prometheus_client` registry: ``registry.register(PrometheusCollector(worker))``.

    Names are those of OpenTelemetry with underscores, and a unit as suffix: ``kennel_sequence_runway_seconds``. Raises
    `ConfigurationError` if the extra ``prometheus`` is not installed, or a part has no metrics.
    """

    def __init__(self, *parts: Part) -> None:
        self._core = _package("prometheus_client.core", "prometheus-client", "prometheus")
        self._parts = parts
        list(samples(parts))

    def collect(self) -> Iterator[Any]:
        """One family for each metric that has a value."""
        families: dict[Metric, Any] = {}
        for metric, of, value in samples(self._parts):
            if metric not in families:
                counter = metric.kind == "counter"
                family = self._core.CounterMetricFamily if counter else self._core.GaugeMetricFamily
                families[metric] = family(metric.prometheus_name, metric.description, labels=[metric.label])
            families[metric].add_metric([of], value)
        yield from families.values()


def _package(module: str, package: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{package} is not installed: pip install 'kennel-coordinator[{extra}]'"
        ) from error
