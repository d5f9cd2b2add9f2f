"""OpenTelemetry for queues (extra ``otel``): spans linked through ``traceparent``, metrics by the messaging conventions.

    await otel.put(queue, order)
    listener = queue.listener(handler, middleware=[otel.middleware()])

Needs the extra ``otel`` (the package ``opentelemetry-api``); what is exported, and where to, is the program's own set-up.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypedDict, Unpack

from coordinator.errors import ConfigurationError
from coordinator.queues.handlers import MessageContext, Middleware
from coordinator.queues.queue import PutOptions, Queue, SentMessage

_SCOPE = "kennel.queues"
_SYSTEM = "azure_queue_storage"


def _api(module: str) -> Any:
    try:
        return importlib.import_module(f"opentelemetry.{module}")
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "OpenTelemetry is not installed: pip install 'kennel-coordinator[otel]'"
        ) from error


class Carrier(TypedDict, total=False):
    """What `Queue.put` takes along of a trace."""

    traceparent: str
    tracestate: str


def carrier() -> Carrier:
    """The current span as options for `Queue.put`: ``traceparent`` and, if there is one, ``tracestate``."""
    found: dict[str, str] = {}
    _api("propagate").inject(found)
    carried: Carrier = {}
    if "traceparent" in found:
        carried["traceparent"] = found["traceparent"]
    if "tracestate" in found:
        carried["tracestate"] = found["tracestate"]
    return carried


async def put(queue: Queue[Any], *items: Any, **options: Unpack[PutOptions]) -> list[SentMessage]:
    """`Queue.put` within a producer span that the messages carry along, counted and timed; options as there."""
    trace, meter = _api("trace"), _meter()
    attributes = _attributes(queue.name, "send")
    sent = meter.create_counter("messaging.client.sent.messages", unit="{message}")
    duration = meter.create_histogram("messaging.client.operation.duration", unit="s")
    started, stored = time.perf_counter(), list[SentMessage]()
    try:
        with trace.get_tracer(_SCOPE).start_as_current_span(
            f"send {queue.name}", kind=trace.SpanKind.PRODUCER, attributes=attributes
        ) as span:
            traced: PutOptions = {**carrier(), **options}
            stored = await queue.put(*items, **traced)
            span.set_attribute("messaging.batch.message_count", len(stored))
    except Exception as error:
        attributes["error.type"] = type(error).__name__
        raise
    finally:
        duration.record(time.perf_counter() - started, attributes)
        sent.add(len(stored) or 1, attributes)
    return stored


def middleware() -> Middleware:
    """A span for each item, linked to the one that put it, and how long items waited and took."""
    trace, propagate, meter = _api("trace"), _api("propagate"), _meter()
    tracer = trace.get_tracer(_SCOPE)
    process = meter.create_histogram("messaging.process.duration", unit="s")
    waited = meter.create_histogram("kennel.queue.wait.duration", unit="s")
    consumed = meter.create_counter("messaging.client.consumed.messages", unit="{message}")

    @asynccontextmanager
    async def around(context: MessageContext) -> AsyncIterator[None]:
        attributes = _attributes(context.queue, "process")
        envelope, links = context.envelope, []
        if envelope.traceparent:
            remote = propagate.extract(
                {"traceparent": envelope.traceparent, "tracestate": envelope.tracestate}
            )
            links = [trace.Link(trace.get_current_span(remote).get_span_context())]
        details = {**attributes, "messaging.message.id": context.id, "kennel.attempt": context.attempt}
        started = time.perf_counter()
        waited.record(context.waited_seconds, attributes)
        consumed.add(1, attributes)
        try:
            with tracer.start_as_current_span(
                f"process {context.queue}", kind=trace.SpanKind.CONSUMER, links=links, attributes=details
            ):
                yield
        except Exception as error:
            attributes["error.type"] = type(error).__name__
            raise
        finally:
            process.record(time.perf_counter() - started, attributes)

    return around


def _meter() -> Any:
    return _api("metrics").get_meter(_SCOPE)


def _attributes(queue: str, operation: str) -> dict[str, str]:
    return {
        "messaging.system": _SYSTEM,
        "messaging.operation.type": operation,
        "messaging.operation.name": operation,
        "messaging.destination.name": queue,
    }
