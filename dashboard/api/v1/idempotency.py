"""Idempotency-Key: a write that is sent twice is done once, and answered twice.

Guarantees for a day: a second request with the same key, caller and content is answered with what the first one was
answered, and not carried out; the same key with other content is refused (422); while the first is under way, 409. An
answer 503 (storage does not answer, so nothing changed) is not stored, so that trying again tries again. If the
process died on the way, nobody knows what became of it: 409 with outcome "unknown" until the day is over.
Does not keep the answer that shows a new token: repeating that one is refused.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.db import IntegrityError, transaction
from django.http import HttpRequest, HttpResponse

from dashboard.api.v1 import problems
from dashboard.api.v1.problems import Refusal
from dashboard.models import ApiAnswer

KEPT_SECONDS = 24 * 3600.0
PRUNED_AT_ONCE = 200
UNDER_WAY_SECONDS = 60.0
HEADER = "Idempotency-Key"
PATTERN = r"^[\x21-\x7e]{1,255}$"
_KEY = re.compile(PATTERN)
SECRET = "kennel_secret_answer"  # noqa: S105
"""Name of the attribute of a view whose answers must not be kept."""


def once(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Decorate what an operation does, after everything about the request was found valid."""

    @wraps(view)
    def answered(request: HttpRequest, **values: Any) -> HttpResponse:
        if request.method in ("GET", "HEAD"):
            return view(request, **values)
        key = request.headers.get(HEADER)
        if key is None:
            return view(request, **values)
        if not _KEY.fullmatch(key):
            raise Refusal(400, f"{HEADER}: use 1-255 visible ASCII characters, such as a UUID")
        return _once(request, key, lambda: view(request, **values), secret=hasattr(view, SECRET))

    return answered


def _once(request: HttpRequest, key: str, act: Callable[[], HttpResponse], *, secret: bool) -> HttpResponse:
    # Not by name: two services may have the same, and a person's session is not their token.
    owned = _digest(getattr(request, "kennel_caller", ""), key)
    content = _digest(str(request.method), request.get_full_path(), request.headers.get("If-Match", ""))
    content = _digest(content, hashlib.sha256(request.body).hexdigest())
    if (known := _begin(owned, content)) is not None:
        return _replayed(known, content)
    try:
        response = act()
    except Exception as error:
        response = problems.of(request, error)
    if response.status_code in (403, 429, 503):
        ApiAnswer.objects.filter(key=owned).delete()
    else:
        shown = b"" if secret and response.status_code < 400 else response.content
        ApiAnswer.objects.filter(key=owned).update(
            status=response.status_code,
            kind=response["Content-Type"],
            etag=response.get("ETag", ""),
            body=shown.decode(),
            at=time.time(),
        )
    return response


def _begin(owned: str, content: str) -> ApiAnswer | None:
    """Write down that this begins; what is known of it if it began before."""
    now = time.time()
    old = ApiAnswer.objects.filter(at__lt=now - KEPT_SECONDS).values_list("pk", flat=True)[:PRUNED_AT_ONCE]
    ApiAnswer.objects.filter(pk__in=list(old)).delete()
    try:
        with transaction.atomic():
            ApiAnswer.objects.create(key=owned, content=content, at=now)
    except IntegrityError:
        return ApiAnswer.objects.filter(key=owned).first()
    return None


def _replayed(known: ApiAnswer, content: str) -> HttpResponse:
    if known.content != content:
        raise Refusal(422, f"this {HEADER} was used for another request; use a new one for each act")
    if known.status == 0:
        if time.time() - known.at < UNDER_WAY_SECONDS:
            raise Refusal(
                409,
                f"the request with this {HEADER} is under way; ask again in a moment",
                {"Retry-After": "1"},
            )
        return problems.answered(
            409,
            "a request with this key began and never ended: look in the audit what became of it, then use a new key",
            outcome="unknown",
        )
    if not known.body:
        raise Refusal(409, "this was done; its answer held a secret that is shown once and not kept")
    response = HttpResponse(known.body, content_type=known.kind, status=known.status)
    response["Cache-Control"] = "no-store"
    response["Idempotency-Replayed"] = "true"
    if known.etag:
        response["ETag"] = known.etag
    return response


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
