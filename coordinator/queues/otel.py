"""OpenTelemetry for queues (extra ``otel``): spans linked through ``traceparent``, metrics by the messaging conventions.

    listener = queue.listener(handler, middleware=[otel.middleware()])
    await queue.put(order, **otel.carrier())

Needs the package ``opentelemetry-api``; what is exported, and where to, is the program's own set-up.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from coordinator.errors import ConfigurationError
from coordinator.queues.running import MessageContext, Middleware

_SCOPE = "kennel.queues"


def _api(module: str) -> Any:
    try:
        return importlib.import_module(f"opentelemetry.{module}")
    except ModuleNotFoundError as error:
        raise ConfigurationError("OpenTelemetry is not installed: pip install opentelemetry-api") from error


def carrier() -> dict[str, str]:
    """The current span as options for `Queue.put`: ``traceparent`` and, if there is one, ``tracestate``."""
    found: dict[str, str] = {}
    _api("propagate").inject(found)
    return {name: value for name, value in found.items() if name in ("traceparent", "tracestate")}


def middleware() -> Middleware:
    """A span for each item, linked to the one that put it, and how long items waited and took."""
    trace, metrics, propagate = _api("trace"), _api("metrics"), _api("propagate")
    tracer, meter = trace.get_tracer(_SCOPE), metrics.get_meter(_SCOPE)
    process = meter.create_histogram("messaging.process.duration", unit="s")
    waited = meter.create_histogram("kennel.queue.wait.duration", unit="s")
    consumed = meter.create_counter("messaging.client.consumed.messages", unit="{message}")

    @asynccontextmanager
    async def around(context: MessageContext) -> AsyncIterator[None]:
        attributes = {
            "messaging.system": "azure_queue_storage",
            "messaging.operation.type": "process",
            "messaging.operation.name": "process",
            "messaging.destination.name": context.queue,
        }
        envelope, links = context.envelope, []
        if envelope.traceparent:
            remote = propagate.extract(
                {"traceparent": envelope.traceparent, "tracestate": envelope.tracestate}
            )
            links = [trace.Link(trace.get_current_span(remote).get_span_context())]
        details = {**attributes, "messaging.message.id": context.id, "kennel.attempt": context.attempt}
        started = time.perf_counter()
        waited.record(max(0.0, time.time() - context.inserted_at), attributes)
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
