"""Throughput: what handlers did."""

from __future__ import annotations

from typing import Annotated

import msgspec
from django.http import HttpRequest, HttpResponse
from ninja import Query, Router

from dashboard.api.v1 import responses as answering
from dashboard.api.v1.operations import reads
from dashboard.live.tallies import Throughput
from dashboard.throughput import queries

router = Router(tags=["throughput"])

Span = Annotated[float, Query(ge=60, le=30 * 86_400, allow_inf_nan=False)]


class Handlers(msgspec.Struct, frozen=True):
    """What the handlers of each queue did within the span, and how many processes that ended then never said all of it."""

    throughput: tuple[Throughput, ...]
    unreported: int


@router.get("/throughput", **reads(Handlers, "throughput"))
def throughput(request: HttpRequest, seconds: Span = 3600.0) -> HttpResponse:
    """Items done, failed and retried, and quantiles of the handler's time and of the wait, by queue and handler."""
    found = queries.throughput(seconds)
    return answering.answer(Handlers(found.rows, found.unreported))
