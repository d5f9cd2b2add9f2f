"""What all operations have in common, for django-ninja: authentication, statuses in the schema, names."""

from __future__ import annotations

from typing import Any

import msgspec
from django.http import HttpRequest, HttpResponse

from dashboard.api.v1 import auth, problems, responses
from dashboard.api.v1 import idempotency as replays
from dashboard.api.v1.schema import described
from dashboard.core.middleware import request_id_var
from dashboard.core.permissions import ACTIONS, Actor

READ_STATUSES = (400, 401, 403, 422, 429)
WRITE_STATUSES = (400, 401, 403, 404, 409, 413, 422, 429, 503)


class ActDone(msgspec.Struct, frozen=True):
    """The act was carried out and is in the audit under this request id. A worker that was asked acts on it by itself."""

    done: str
    target: str
    request_id: str


def done(action: str, target: str, *, status: int = 200) -> HttpResponse:
    """The answer to an act that has nothing else to report."""
    return responses.answer(ActDone(action, target, request_id_var.get()), status=status)


def actor_of(request: HttpRequest) -> Actor:
    """Who acts by this request, as its token or session showed."""
    actor: Actor = request.auth  # type: ignore[attr-defined]
    return actor


def reads(
    answer: Any, name: str, *, action: str = "page.view", missing: bool = False, tagged: bool = False, storage: bool = False
) -> dict[str, Any]:  # fmt: skip
    """Keywords of a read. `answer` is a struct or a model; `missing` if 404 can come; `storage` if it asks the account."""
    statuses = READ_STATUSES + (404,) * missing + (503,) * storage
    responses: dict[int, Any] = {status: _problem(status) for status in statuses}
    parameters = []
    if tagged:
        responses[304] = {"description": "What If-None-Match names is still so."}
        parameters.append(_header("If-None-Match", "The ETag of what the caller has."))
    return _keywords(answer, 200, name, action, responses, parameters)


def acts(
    answer: Any, name: str, *, action: str, status: int = 200, statuses: tuple[int, ...] = (), if_match: bool = False
) -> dict[str, Any]:  # fmt: skip
    """Keywords of a write. `name` is unique; addresses that several methods share have one name in the URLconf."""
    responses: dict[int, Any] = {each: _problem(each) for each in WRITE_STATUSES + statuses}
    parameters = [
        _header(
            replays.HEADER,
            "Makes repeating harmless: a second request with this key is answered as the first was.",
            pattern=replays.PATTERN,
        )
    ]
    if if_match:
        responses[412] = _problem(412)
        parameters.append(_header("If-Match", "Only if the gate is still as this ETag says."))
    return _keywords(answer, status, name, action, responses, parameters)


def _keywords(
    answer: Any,
    status: int,
    name: str,
    action: str,
    responses: dict[int, Any],
    parameters: list[dict[str, Any]],
) -> dict[str, Any]:
    return {
        "auth": auth.authentication(action),
        "response": {status: _model(answer)},
        "operation_id": name,
        "url_name": name.replace("_", "-"),
        "openapi_extra": {
            "responses": responses,
            "parameters": parameters,
            "x-kennel-action": action,
            "x-kennel-role": ACTIONS[action],
        },
    }


def _model(answer: Any) -> Any:
    return described(answer) if issubclass(answer, msgspec.Struct) else answer


def _header(name: str, text: str, **schema: str) -> dict[str, Any]:
    kind = {"type": "string", **schema}
    return {"in": "header", "name": name, "required": False, "schema": kind, "description": text}


def _problem(status: int) -> dict[str, Any]:
    return {"$ref": f"#/components/responses/Problem{status}"}


def problem_responses() -> dict[str, Any]:
    """What these refer to."""
    content = {problems.PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        f"Problem{status}": {"description": problems.TITLES[status], "content": content}
        for status in sorted({*READ_STATUSES, *WRITE_STATUSES, 404, 412, 503})
    }
