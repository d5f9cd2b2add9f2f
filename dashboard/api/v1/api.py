"""The API put together: what the URLconf mounts, and its schema (OpenAPI 3.1)."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import msgspec
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from ninja import NinjaAPI
from ninja.parser import Parser

from dashboard.api.v1 import access as keys
from dashboard.api.v1 import alerts, gates, problems, queues
from dashboard.api.v1 import batches as work
from dashboard.api.v1 import idempotency as replays
from dashboard.api.v1 import reads as records
from dashboard.api.v1 import scaling as pools
from dashboard.api.v1 import throughput as handlers
from dashboard.api.v1 import workers as machines
from dashboard.api.v1.method_support import spoken
from dashboard.api.v1.operations import problem_responses
from dashboard.api.v1.schema import described

VERSION = "1.0.0"
ABOUT = """All that the dashboard's pages show and do. Moments are seconds since 1970 (UTC); null means unknown.

Every act is decided and recorded as on the pages. Errors are `application/problem+json` (RFC 9457). Send an
`Idempotency-Key` with writes to make repeating them harmless, and your own `X-Request-ID` to find an act in the audit."""


class _Strict(Parser):
    """JSON as RFC 8259 has it: no NaN, no lone surrogates."""

    def parse_body(self, request: HttpRequest) -> Any:
        return msgspec.json.decode(request.body)


class KennelAPI(NinjaAPI):
    """Errors as problems, and a schema that says so."""

    def on_exception(self, request: HttpRequest, exc: Any) -> HttpResponse:
        return problems.of(request, exc)

    @property
    def urls(self) -> Any:
        patterns, app, namespace = super().urls
        return spoken(patterns), app, namespace

    def get_openapi_schema(self, **options: Any) -> Any:
        schema = super().get_openapi_schema(**options)
        problem = described(problems.Problem).model_json_schema(
            ref_template="#/components/schemas/{model}", mode="serialization"
        )
        schema["components"]["schemas"] |= problem.pop("$defs", {}) | {"Problem": problem}
        schema["components"]["responses"] = problem_responses()
        _mend(schema)
        return schema


def _mend(part: Any) -> None:
    """Tuples as JSON Schema 2020-12, and so OpenAPI 3.1, has them; django-ninja writes the older form."""
    for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        _mend(each)
    if isinstance(part, dict) and isinstance(part.get("items"), list):
        part["prefixItems"] = part.pop("items")


def _enveloped(run: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Around everything: the bound of bodies before, what is left of the caller's quota after."""

    @wraps(run)
    def answered(request: HttpRequest, **values: Any) -> HttpResponse:
        response = _too_large(request) or run(request, **values)
        quota = getattr(request, "kennel_quota", None)
        if quota is not None:
            for name, value in quota.headers().items():
                response.headers.setdefault(name, value)
        return response

    return answered


def _too_large(request: HttpRequest) -> HttpResponse | None:
    length = request.headers.get("Content-Length", "")
    most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    if length.isascii() and length.isdigit() and int(length) > most:
        return problems.answered(413, f"the body has {length} bytes; at most {most} are read")
    return None


def unknown(request: HttpRequest, **_: Any) -> HttpResponse:
    """Every address below ``/api/`` that is none."""
    return problems.answered(404, "there is no such address; the schema is at /api/v1/openapi.json")


def _api() -> NinjaAPI:
    api = KennelAPI(
        title="Kennel",
        version=VERSION,
        description=ABOUT,
        docs_url=None,
        urls_namespace="api",
        parser=_Strict(),
        servers=[],
    )
    api.add_decorator(_enveloped, mode="view")
    api.add_decorator(replays.once, mode="operation")
    for room in (records, gates, queues, machines, work, handlers, pools, alerts, keys):
        api.add_router("", room.router)
    return api


api = _api()
