"""A request id for every request: in the answer, in the audit, in the log; and no page in a cache."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable
from contextvars import ContextVar
from http import HTTPStatus

from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.middleware.gzip import GZipMiddleware
from django.template.loader import render_to_string
from django.utils.deprecation import MiddlewareMixin

log = logging.getLogger(__name__)

request_id_var: ContextVar[str] = ContextVar("kennel_request_id", default="")
_SAFE = re.compile(r"[A-Za-z0-9._-]{8,64}")


class WithRequestId(logging.Filter):
    """Gives every line that belongs to a request its `request_id`."""

    def filter(self, record: logging.LogRecord) -> bool:
        # What the line itself reports counts: a worker logs the id of the press that let it go.
        if not hasattr(record, "request_id") and (number := request_id_var.get()):
            record.request_id = number
        return True


class WithoutSockets(logging.Filter):
    """Drops the lines of uvicorn and websockets for each socket that opens or closes: a fleet that comes back is thousands, and
    writing them was a third of what a new socket costs. Workers are shown and counted."""

    def filter(self, record: logging.LogRecord) -> bool:
        said = str(record.msg)
        return not (said.endswith("[accepted]") or said in {"connection open", "connection closed"})


def new_request_id() -> str:
    return uuid.uuid4().hex[:16]


def _enter(request: HttpRequest) -> str:
    given = request.headers.get("X-Request-Id", "")
    number = given if _SAFE.fullmatch(given) else new_request_id()
    request_id_var.set(number)
    return number


def _refusal(request: HttpRequest) -> HttpResponse | None:
    """An address with NUL: PostgreSQL keeps no such text, and nothing here is called so."""
    if "\0" not in request.path_info and "%00" not in request.META.get("QUERY_STRING", ""):
        return None
    detail = "the address contains NUL"
    if request.path_info.startswith("/api/"):
        problem = {"type": "about:blank", "title": "Bad request", "status": 400, "detail": detail}
        return JsonResponse(problem, status=400, content_type="application/problem+json")
    return HttpResponse(render_to_string("400.html", {"detail": detail}), status=400)


class Compressed(GZipMiddleware):
    """Compresses what is text. Each answer gets a random length of its own, and CSRF tokens are masked differently in each, so that
    lengths tell nothing of what is secret in a page (BREACH).

    An answer of the API with a strong ETag stays as it is: its tag is sent back to change what it names. A static file that
    `collectstatic` has not compressed loses its tag: browsers ask by its time of change then, and get 304.
    """

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        kind = response.headers.get("Content-Type", "")
        if response.status_code == HTTPStatus.PARTIAL_CONTENT or not kind.startswith(
            ("text/", "application/json", "image/svg")
        ):
            return response
        if response.has_header("ETag"):
            is_api = request.path_info.startswith("/api/")
            if response.has_header("Content-Encoding") or (is_api and not response["ETag"].startswith("W/")):
                return response
            if not is_api:
                del response["ETag"]
        return super().process_response(request, response)


def request_id(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Take the caller's ``X-Request-Id`` if it is harmless, else make one; answer with it."""

    def answer(request: HttpRequest) -> HttpResponse:
        number = _enter(request)
        response: HttpResponse = _refusal(request) or get_response(request)
        response["X-Request-Id"] = number
        return response

    return answer


def no_store(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """What says nothing else about caches is kept by none: pages show what only those who signed in may see."""

    def answer(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response.headers.setdefault("Cache-Control", "private, no-store")
        return response

    return answer


class DatabaseTrouble(MiddlewareMixin):
    """A database that is locked or away is reported as that, at once and with 503: not as an error of ours."""

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if not isinstance(exception, OperationalError | InterfaceError):
            return None
        log.warning("The database does not answer: %s", type(exception).__name__)
        # Without the request: what pages show of its user would ask the database again.
        answer = HttpResponse(render_to_string("503.html"), status=503)
        answer["Retry-After"] = "5"
        return answer
