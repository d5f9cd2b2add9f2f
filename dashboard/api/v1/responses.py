"""Answers: JSON of what selectors and actions return, with an ETag where it says a state, page by page where it is a list."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from django.http import HttpRequest, HttpResponse
from django.http.request import HttpHeaders

from dashboard.api.access import ANSWER_TYPE, encode
from dashboard.api.v1.problems import Refusal

T = TypeVar("T")

# When a figure was read is no part of the state: a look that found the same is no news. A quote within a JSON text is
# escaped, so this matches names of fields alone.
_MOMENTS = re.compile(rb'"(?:as_of|taken_at)":[0-9.e+-]+,?')
_EPOCH = re.compile(r'^"e(\d{1,18})(?:-[0-9a-f]*)?"$')


def answer(value: Any, *, status: int = 200, etag: str = "") -> HttpResponse:
    """JSON, not to be kept by caches without asking."""
    response = HttpResponse(encode(value), content_type=ANSWER_TYPE, status=status)
    response["Cache-Control"] = "no-store"
    if etag:
        response["ETag"] = etag
    return response


def state(request: HttpRequest, value: Any, *, epoch: int | None = None) -> HttpResponse:
    """The same with an ETag over everything but the moments of reading; 304 if the caller has it already.

    With an `epoch` the tag names it, so that it can be sent back in If-Match.
    """
    body = encode(value)
    digest = hashlib.sha256(_MOMENTS.sub(b"", body)).hexdigest()[:20]
    etag = f'W/"{digest}"' if epoch is None else f'"e{epoch}-{digest}"'
    known = {tag.strip().removeprefix("W/") for tag in request.headers.get("If-None-Match", "").split(",")}
    if etag.removeprefix("W/") in known or "*" in known:
        response = HttpResponse(status=304)
    else:
        response = HttpResponse(body, content_type=ANSWER_TYPE)
    response["ETag"] = etag
    response["Cache-Control"] = "private, no-cache"
    return response


def epoch_of(headers: HttpHeaders) -> int | None:
    """The epoch that If-Match asks for; None if it asks for none. Another kind of tag cannot match: 412."""
    given = headers.get("If-Match", "").strip()
    if given in ("", "*"):
        return None
    epochs = {int(found[1]) for tag in given.split(",") if (found := _EPOCH.match(tag.strip()))}
    if len(epochs) != 1:
        raise Refusal(412, 'If-Match must hold the ETag of this gate as GET reported it, such as "e7-…"')
    return epochs.pop()


def page(
    items: Iterable[T], key: Callable[[T], str], *, cursor: str, limit: int
) -> dict[str, list[T] | str | None]:
    """One page of what is in memory, in the order of its keys; the cursor is the last key of the page before."""
    rest = sorted((item for item in items if key(item) > cursor), key=key)
    more = len(rest) > limit
    return {"items": rest[:limit], "next": key(rest[limit - 1]) if more else None}


def found(items: Iterable[T], key: Callable[[T], str], name: str, what: str) -> T:
    """The one of that name; raises `Refusal` (404)."""
    for item in items:
        if key(item) == name:
            return item
    raise Refusal(404, f"there is no {what} {name}, or it has not been seen yet")
