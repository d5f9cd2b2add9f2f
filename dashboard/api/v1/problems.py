"""What went wrong, as RFC 9457 has it: one place where errors become statuses."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from django.core.exceptions import RequestDataTooBig
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse
from ninja.errors import AuthenticationError, HttpError, ValidationError

from coordinator import errors
from dashboard.api.access import ANSWER_TYPE, PROBLEM_TYPE, encode
from dashboard.api.v1.bodies import FORMS
from dashboard.core.audit import ActionFailed, Denied
from dashboard.core.middleware import request_id_var

log = logging.getLogger(__name__)

TITLES = {
    304: "Not Modified",
    400: "Bad request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    412: "Precondition failed",
    413: "Too large",
    422: "Unprocessable",
    429: "Too many requests",
    500: "Internal error",
    503: "Storage unavailable",
}
HOW_TO_ENTER = (
    "sign in, or send a valid token of scope read: Authorization: Bearer TOKEN "
    "(manage.py worker_token create NAME --scope read)"
)


class InvalidField(msgspec.Struct, frozen=True):
    """One thing that is wrong with a request: where (such as body.share), and what."""

    where: str
    what: str


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was not answered as asked (RFC 9457). `detail` says what to do.

    `outcome` is "unknown" if an act may have been carried out all the same: look before you repeat it.
    """

    title: str
    status: int
    detail: str
    type: str = "about:blank"
    outcome: str = ""
    request_id: str = ""
    errors: tuple[InvalidField, ...] = ()


class Refusal(Exception):
    """A request is refused with this status and these headers."""

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, headers or {}


def answered(
    status: int,
    detail: str,
    headers: dict[str, str] | None = None,
    *,
    outcome: str = "",
    errors: tuple[InvalidField, ...] = (),
) -> HttpResponse:
    """A problem as an answer."""
    problem = Problem(
        title=TITLES.get(status, "Error"),
        status=status,
        detail=detail,
        outcome=outcome,
        request_id=request_id_var.get(),
        errors=errors,
    )
    response = HttpResponse(encode(problem), content_type=PROBLEM_TYPE, status=status)
    response["Cache-Control"] = "no-store"
    for name, value in (headers or {}).items():
        response[name] = value
    if status == 401:
        response["WWW-Authenticate"] = 'Bearer realm="kennel"'
    return response


def of(request: HttpRequest, error: Exception) -> HttpResponse:
    """The answer to an error that a view or a check raised."""
    if isinstance(error, Refusal):
        return answered(error.status, error.detail, error.headers)
    if isinstance(error, Denied):
        return answered(403, str(error))
    if isinstance(error, ActionFailed):
        status, outcome = _of_act(error.__cause__)
        return answered(status, str(error), outcome=outcome)
    if isinstance(error, AuthenticationError):
        return answered(401, HOW_TO_ENTER)
    if isinstance(error, ValidationError):
        faults = tuple(
            InvalidField(".".join(str(part) for part in each["loc"]), _plainly(each)) for each in error.errors
        )
        first = faults[0] if faults else InvalidField("the request", "is not valid")
        return answered(422, f"{first.where}: {first.what}", errors=faults)
    if isinstance(error, RequestDataTooBig):
        return answered(413, "the body is too large; at most 256 KiB are read")
    if isinstance(error, Http404):
        return answered(404, str(error) or "there is nothing of that name")
    if isinstance(error, HttpError):
        return answered(error.status_code, str(error))
    if isinstance(error, OperationalError | InterfaceError):
        return answered(
            503, "the dashboard's database is busy or away; try again in a few seconds", {"Retry-After": "5"}
        )
    if isinstance(error, errors.KennelError | TimeoutError):
        return answered(503, str(error) or "storage did not answer in time")
    log.exception("%s %s failed", request.method, request.path, exc_info=error)
    return answered(500, "something went wrong inside the dashboard; its log has the request id")


def _plainly(fault: dict[str, Any]) -> str:
    """In words: a pattern is for programs, which find it in the schema."""
    if fault["type"] == "string_pattern_mismatch":
        return FORMS[fault["ctx"]["pattern"]]
    return str(fault["msg"]).removeprefix("Value error, ")


def _of_act(cause: BaseException | None) -> tuple[int, str]:
    """The status for why an act failed, and "unknown" if it may have been done."""
    unknown = "unknown" if getattr(cause, "maybe_done", False) else ""
    for kinds, status in _CAUSES:
        if isinstance(cause, kinds):
            return status, unknown
    return 500, "unknown"


_CAUSES: tuple[tuple[Any, int], ...] = (
    (errors.GateMoved, 412),
    (errors.NotFound, 404),
    ((errors.AlreadyExists, errors.PreconditionFailed, errors.BeingDeleted, errors.LeaseHeld), 409),
    ((errors.ConfigurationError, errors.InvalidRequest), 422),
    (errors.StorageError, 503),
    ((OperationalError, InterfaceError), 503),
    ((errors.KennelError, type(None)), 409),
)

__all__ = ["ANSWER_TYPE", "PROBLEM_TYPE", "InvalidField", "Problem", "Refusal", "answered", "of"]
