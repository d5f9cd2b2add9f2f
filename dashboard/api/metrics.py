"""The fleet for Prometheus. Labels are names of queues, gates, sequences and elections: as many as there are of those."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from django.http import HttpRequest, HttpResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dashboard.api.access import reads
from dashboard.live.fleet import Fleet
from dashboard.pages import queries as selectors

log = logging.getLogger(__name__)


@reads
def metrics(request: HttpRequest) -> HttpResponse:
    """``/metrics``. Unknown values are left out, never reported as 0."""
    registry = CollectorRegistry()
    registry.register(FleetCollector(selectors.glance()))
    return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)


class FleetCollector(Collector):
    """One fleet as metrics."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def collect(self) -> Iterator[Metric]:
        fleet = self.fleet
        yield from self._storage()
        counted = [
            (presence, sum(w.presence == presence for w in fleet.workers))
            for presence in ("ok", "late", "lost")
        ]
        yield gauge("kennel_workers", "Workers by presence.", "presence", counted)
        queues = fleet.queues
        for name, help_text, values in (
            (
                "kennel_queue_depth",
                "Messages in the queue, those in hand included.",
                ((q.name, q.depth) for q in queues),
            ),
            ("kennel_queue_poison", "Messages in its poison queue.", ((q.name, q.poison) for q in queues)),
            (
                "kennel_queue_active_tasks",
                "Active dequeue tasks.",
                ((q.name, q.active_tasks) for q in queues),
            ),
            (
                "kennel_queue_out_per_second",
                "Messages done per second.",
                ((q.name, q.out_per_second) for q in queues),
            ),
            (
                "kennel_queue_sampled_timestamp_seconds",
                "When the depth was read.",
                ((q.name, q.as_of) for q in queues),
            ),
        ):
            yield gauge(name, help_text, "queue", values)
        gates = [gate for gate in fleet.gates if gate.state != "unknown"]
        yield gauge(
            "kennel_gate_open", "1 if the gate is open.", "gate", ((g.name, g.state == "open") for g in gates)
        )
        yield gauge(
            "kennel_gate_waiting", "Workers held at it.", "gate", ((g.name, len(g.waiting)) for g in gates)
        )
        yield gauge(
            "kennel_leader_present",
            "1 if somebody leads.",
            "election",
            ((x.name, bool(x.holder)) for x in fleet.leaders),
        )
        yield gauge(
            "kennel_leader_epoch",
            "The fencing token.",
            "election",
            ((x.name, x.epoch) for x in fleet.leaders),
        )
        yield gauge(
            "kennel_sequence_next",
            "The next free number.",
            "sequence",
            ((s.name, s.next_number) for s in fleet.sequences),
        )
        yield gauge(
            "kennel_sequence_runway_seconds",
            "How long the numbers in hand last.",
            "sequence",
            ((s.name, s.runway_seconds) for s in fleet.sequences),
        )
        requests = CounterMetricFamily("kennel_storage_requests", "Billed requests.", labels=["operation"])
        _add(requests, fleet.requests.items())
        yield requests
        levels = [
            (level, sum(a.level == level for a in fleet.attention)) for level in ("critical", "warning")
        ]
        yield gauge("kennel_attention", "Conditions that need attention now.", "level", levels)

    def _storage(self) -> Iterator[Metric]:
        storage = self.fleet.storage
        if storage.as_of is not None:
            yield GaugeMetricFamily(
                "kennel_sampled_timestamp_seconds", "The last good sample.", value=storage.as_of
            )
        yield GaugeMetricFamily(
            "kennel_storage_up",
            "1 if the storage account answers.",
            value=float(storage.as_of is not None and storage.unreachable_since is None),
        )


def gauge(name: str, text: str, label: str, values: Iterable[tuple[str, float | None]]) -> GaugeMetricFamily:
    """A gauge with one label; unknown values are left out."""
    family = GaugeMetricFamily(name, text, labels=[label])
    _add(family, values)
    return family


def _add(family: GaugeMetricFamily | CounterMetricFamily, values: Iterable[tuple[str, float | None]]) -> None:
    """Each value by itself: what is no number, or has a name that cannot be written, is left out."""
    for key, value in values:
        if value is None:
            continue
        try:
            key.encode()
            family.add_metric([key], float(value))
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            log.warning("%s of %.80r is left out: %s", family.name, key, type(error).__name__)
