"""Traces and metrics as the OpenTelemetry SDK exports them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv._incubating.metrics import messaging_metrics
from opentelemetry.trace import SpanKind

from coordinator.errors import ConfigurationError
from coordinator.queues import otel
from coordinator.queues.delivery import Reject
from tests.unit.queues.harness import ListenerHarness


class Telemetry(NamedTuple):
    spans: InMemorySpanExporter
    reader: InMemoryMetricReader

    def span(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans.get_finished_spans() if span.name == name]
        return found

    def points(self) -> dict[str, list[Any]]:
        """The data points of each metric."""
        data = self.reader.get_metrics_data()
        assert data is not None
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
        return {metric.name: list(metric.data.data_points) for scope in scopes for metric in scope.metrics}


@pytest.fixture
def telemetry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Telemetry]:
    """Providers of this test's own: the program's global ones can be set only once."""
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers, meters = TracerProvider(), MeterProvider([reader])
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", tracers.get_tracer)
    monkeypatch.setattr(metrics, "get_meter", meters.get_meter)
    yield Telemetry(exporter, reader)
    tracers.shutdown()
    meters.shutdown()


async def test_the_span_of_a_handler_is_linked_to_the_span_that_put_its_item(telemetry: Telemetry) -> None:
    harness = ListenerHarness()
    inside: list[trace.SpanContext] = []

    async def handler(item: int) -> None:
        inside.append(trace.get_current_span().get_span_context())

    async with harness.listening(handler, middleware=[otel.middleware()]):
        await otel.put(harness.queue, 1, 2)
        await harness.clock.advance(1)
    put = telemetry.span("send work")
    processed = [span for span in telemetry.spans.get_finished_spans() if span.name == "process work"]
    assert (put.kind, {span.kind for span in processed}) == (SpanKind.PRODUCER, {SpanKind.CONSUMER})
    assert put.context is not None
    assert [[link.context.span_id for link in span.links] for span in processed] == [
        [put.context.span_id]
    ] * 2
    assert {link.context.trace_id for span in processed for link in span.links} == {put.context.trace_id}
    # What the handler starts becomes a child of its own item's span.
    assert [context.span_id for context in inside] == [
        span.context.span_id for span in processed if span.context is not None
    ]


async def test_names_and_attributes_are_those_of_the_messaging_conventions(telemetry: Telemetry) -> None:
    harness = ListenerHarness()

    async def handler(item: int) -> None:
        if item == 2:
            raise Reject("not this one")

    async with harness.listening(handler, middleware=[otel.middleware()]):
        await otel.put(harness.queue, 1)
        await otel.put(harness.queue, 2)
        await harness.clock.advance(1)
    points = telemetry.points()
    assert points.keys() == {
        messaging_metrics.MESSAGING_CLIENT_OPERATION_DURATION,
        messaging_metrics.MESSAGING_CLIENT_SENT_MESSAGES,
        messaging_metrics.MESSAGING_CLIENT_CONSUMED_MESSAGES,
        messaging_metrics.MESSAGING_PROCESS_DURATION,
        "kennel.queue.wait.duration",
    }
    required = {
        messaging_attributes.MESSAGING_SYSTEM: "azure_queue_storage",
        messaging_attributes.MESSAGING_DESTINATION_NAME: "work",
    }
    for name, found in points.items():
        operation = "send" if name.startswith("messaging.client.") and "consumed" not in name else "process"
        for point in found:
            assert point.attributes.items() >= required.items()
            assert point.attributes[messaging_attributes.MESSAGING_OPERATION_NAME] == operation
            assert point.attributes[messaging_attributes.MESSAGING_OPERATION_TYPE] == operation
    (sent,) = points[messaging_metrics.MESSAGING_CLIENT_SENT_MESSAGES]
    (consumed,) = points[messaging_metrics.MESSAGING_CLIENT_CONSUMED_MESSAGES]
    assert (sent.value, consumed.value) == (2, 2)
    durations = {
        point.attributes.get("error.type"): point.count
        for point in points[messaging_metrics.MESSAGING_PROCESS_DURATION]
    }
    assert durations == {None: 1, "Reject": 1}
    failed = [span for span in telemetry.spans.get_finished_spans() if not span.status.is_ok]
    assert [span.name for span in failed if span.status.description] == ["process work"]


async def test_the_wait_in_the_queue_is_measured(telemetry: Telemetry) -> None:
    harness = ListenerHarness()
    await otel.put(harness.queue, 1)
    await harness.clock.advance(40)
    async with harness.listening(middleware=[otel.middleware()]):
        await harness.clock.advance(1)
    (waited,) = telemetry.points()["kennel.queue.wait.duration"]
    assert 40 <= waited.sum < 42
    assert telemetry.span("process work").attributes is not None


async def test_a_put_that_fails_is_told_as_such(telemetry: Telemetry) -> None:
    with pytest.raises(ConfigurationError):
        await otel.put(ListenerHarness().queue, asyncio.Event())
    (duration,) = telemetry.points()[messaging_metrics.MESSAGING_CLIENT_OPERATION_DURATION]
    assert duration.attributes["error.type"] == "ConfigurationError"
    assert not telemetry.span("send work").status.is_ok


async def test_an_item_put_outside_of_any_span_has_no_link(telemetry: Telemetry) -> None:
    harness = ListenerHarness()
    assert otel.carrier() == {}
    async with harness.listening(middleware=[otel.middleware()]):
        await harness.queue.put(1, **otel.carrier())
        await harness.clock.advance(1)
    assert telemetry.span("process work").links == ()
