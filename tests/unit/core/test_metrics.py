"""Metrics of the library: the same values through OpenTelemetry and Prometheus; unknown is absent, never 0."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import metrics as otel_api
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest

from coordinator import Storage, Worker, metrics
from coordinator.azure.metering import Request
from coordinator.errors import ConfigurationError
from coordinator.realtime.protocol import (
    GateStatus,
    LeadershipStatus,
    ListenerStatus,
    SequenceStatus,
    WorkerState,
)

STATE = WorkerState(
    gates=(GateStatus("sale", state="open", epoch=3, inside=2), GateStatus("unread", waiting=True)),
    listeners=(
        ListenerStatus(
            "orders", active_tasks=4, wanted_tasks=5, in_hand=7, done=10, failed=1, oldest_seconds=2.5
        ),
        ListenerStatus("orders", active_tasks=1, done=5),
    ),
    elections=(
        LeadershipStatus("books", role="leader", epoch=2, remaining_seconds=9.5),
        LeadershipStatus("stock"),
    ),
    sequences=(SequenceStatus("numbers", issued=12, grants=1, conflicts=3, runway_seconds=None),),
    requests={"queue.GetMessages": 8},
)


class OneWorker:
    def state(self) -> WorkerState:
        return STATE


class OneGate:
    def status(self) -> GateStatus:
        return STATE.gates[0]


def values(*parts: Any) -> dict[tuple[str, str], float]:
    return {(sample.metric.name, sample.of): sample.value for sample in metrics.samples(parts)}


def test_a_worker_reports_all_its_parts():
    found = values(OneWorker())
    assert found[("kennel.gate.open", "sale")] == 1
    assert found[("kennel.gate.inside", "sale")] == 2
    assert found[("kennel.gate.waiting", "unread")] == 1
    assert found[("kennel.listener.in_flight", "orders")] == 0, "of gauges the last part's value is used"
    assert found[("kennel.listener.done", "orders")] == 15, "counters of one name are added up"
    assert found[("kennel.election.leading", "books")] == 1
    assert found[("kennel.election.leading", "stock")] == 0
    assert found[("kennel.election.lease.remaining", "books")] == 9.5
    assert found[("kennel.sequence.conflicts", "numbers")] == 3
    assert found[("kennel.storage.requests", "queue.GetMessages")] == 8


def test_what_is_unknown_is_absent():
    found = values(OneWorker())
    assert ("kennel.gate.open", "unread") not in found
    assert ("kennel.sequence.runway", "numbers") not in found
    assert ("kennel.election.lease.remaining", "stock") not in found


def test_a_storage_reports_its_requests():
    storage = Storage.from_connection_string("UseDevelopmentStorage=true")
    storage.meter.count(Request("blob", "GetBlob", "x"))
    assert values(storage) == {("kennel.storage.requests", "blob.GetBlob"): 1}


async def test_real_parts_have_metrics():
    storage = Storage.from_connection_string("UseDevelopmentStorage=true")
    worker = Worker("billing", storage=storage, environ={})
    gate, orders = worker.gate("start"), worker.sequence("orders")

    @worker.listen("orders-in", gate=gate)
    async def process(order: Any) -> None: ...

    found = values(worker, storage.election("books"))
    assert found[("kennel.gate.waiting", "start")] == 0
    assert found[("kennel.sequence.issued", "orders")] == 0
    assert found[("kennel.listener.done", "orders-in")] == 0
    assert found[("kennel.election.leading", "books")] == 0
    await storage.aclose()
    await asyncio.to_thread(orders.close)


def test_something_without_a_status_is_refused_by_name():
    with pytest.raises(ConfigurationError, match="str has no metrics"):
        values("orders")
    with pytest.raises(ConfigurationError, match="int has no metrics"):
        metrics.PrometheusCollector(3)  # type: ignore[arg-type] # refused


def test_prometheus_serves_every_metric_by_its_own_name():
    registry = CollectorRegistry()
    registry.register(metrics.PrometheusCollector(OneWorker()))
    text = generate_latest(registry).decode()
    assert 'kennel_listener_done_total{queue="orders"} 15.0' in text
    assert 'kennel_listener_oldest_seconds{queue="orders"}' in text
    assert 'kennel_storage_requests_total{operation="queue.GetMessages"} 8.0' in text
    assert len({metric.prometheus_name for metric in metrics.METRICS}) == len(metrics.METRICS)


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemoryMetricReader]:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    monkeypatch.setattr(otel_api, "get_meter", provider.get_meter)
    yield reader
    provider.shutdown()


def test_opentelemetry_reads_the_same_values(exported: InMemoryMetricReader):
    metrics.observe(OneWorker(), OneGate())
    data = exported.get_metrics_data()
    assert data is not None
    found = {
        (metric.name, next(iter(dict(point.attributes or {}).values()))): point.value
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }
    assert found == values(OneWorker(), OneGate())


@pytest.mark.parametrize(
    ("module", "use"),
    [
        ("opentelemetry.metrics", lambda: metrics.observe(OneGate())),
        ("prometheus_client.core", lambda: metrics.PrometheusCollector(OneGate())),
    ],
)
def test_a_missing_extra_is_named(module: str, use: Any, monkeypatch: pytest.MonkeyPatch):
    def absent(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr("coordinator.metrics.importlib.import_module", absent)
    with pytest.raises(ConfigurationError, match="pip install 'kennel-coordinator"):
        use()


def test_the_documentation_lists_every_metric():
    text = (Path(__file__).parents[3] / "docs" / "telemetry.md").read_text()
    missing = [metric.name for metric in metrics.METRICS if f"| `{metric.name}` |" not in text]
    assert not missing
