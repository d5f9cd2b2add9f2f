"""Reports other services of releases: an HTTP POST for each gate that was opened or closed through the dashboard.

The audit is the outbox: what is in it as done will be sent, by the one process that samples for all, in the order of the audit.
Guarantees at least one try for each address, and that each is retried with back-off until it is answered with 2xx or
`TRIES` are spent; what became of it is in the audit. Does not guarantee exactly one delivery: the `id` distinguishes repetitions
apart. Events of a time in which the dashboard was away for more than `LATE_SECONDS` are not sent. Gates that
are changed on storage itself are in no audit, and not reported.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import time
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from django.conf import settings

from coordinator.backoff import Backoff
from dashboard.core import audit
from dashboard.core.permissions import Actor
from dashboard.models import AuditOutcome, AuditRow, WebhookMark

log = logging.getLogger(__name__)

EVENTS = ("gate.open", "gate.close")
TRIES = 6
LATE_SECONDS = 3600.0
DEADLINE_SECONDS = 8.0
TOO_LATE = "more than an hour late; not sent"
AT_ONCE = 10
BACKOFF = Backoff(base_seconds=1.0, cap_seconds=60.0)
SIGNATURE = "Kennel-Signature"
_SENDER = "dashboard webhook"


def sign(secret: str, body: bytes, at: int) -> str:
    """The signature header: the moment, and HMAC-SHA256 over it, a dot and the body."""
    digest = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"


def send_due() -> int:
    """Send what is due to every address; returns how many were answered well. Blocking; at most `AT_ONCE` an address.

    All addresses are asked at the same time, and each has `DEADLINE_SECONDS` for its whole answer, however it comes: one
    that is slow delays the others for at most that long, once.
    """
    sent = 0
    waiting = list(settings.WEBHOOKS)
    for _ in range(AT_ONCE):
        due = [each for each in map(_due, waiting) if each is not None]
        if not due:
            break
        answers = asyncio.run(_post_all([(url, row) for url, _mark, row in due]))
        waiting = []
        for (url, mark, row), wrong in zip(due, answers, strict=True):
            if _settled(url, mark, row, wrong):
                waiting.append(url)
                sent += not wrong
    return sent


def _due(url: str) -> tuple[str, WebhookMark, AuditRow] | None:
    """What is to be sent to this address next, if anything."""
    mark = _mark(url)
    if mark.next_at > time.time():
        return None
    rows = AuditRow.objects.filter(pk__gt=mark.last_id, action__in=EVENTS, outcome=AuditOutcome.DONE)
    row = rows.order_by("pk").first()
    return None if row is None else (url, mark, row)


def _settled(url: str, mark: WebhookMark, row: AuditRow, wrong: str) -> bool:
    """Write down how it went; False if it is to be tried again later."""
    late = wrong == TOO_LATE
    if wrong and not late and mark.tries + 1 < TRIES:
        mark.tries += 1
        mark.next_at = time.time() + BACKOFF.delay(mark.tries)
        mark.save()
        return False
    _record(url, row, wrong, tries=mark.tries + (not late))
    mark.last_id, mark.tries, mark.next_at = row.pk, 0, 0.0
    mark.save()
    return True


def _mark(url: str) -> WebhookMark:
    """How far this address has been notified; a new one begins now."""
    digest = hashlib.sha256(url.encode()).hexdigest()
    mark, _ = WebhookMark.objects.get_or_create(address=digest, defaults={"last_id": audit.head()[0]})
    return mark


async def _post_all(due: list[tuple[str, AuditRow]]) -> list[str]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=DEADLINE_SECONDS)) as http:
        return await asyncio.gather(*(_post(http, url, row) for url, row in due))


async def _post(http: aiohttp.ClientSession, url: str, row: AuditRow) -> str:
    """Send one; "" if it was answered with 2xx, else what was wrong, without the address."""
    if time.time() - row.at > LATE_SECONDS:
        return TOO_LATE
    body = json.dumps(payload(row), separators=(",", ":")).encode()
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "kennel",
        "X-Request-ID": row.request_id,
        SIGNATURE: sign(settings.WEBHOOK_SECRET, body, int(time.time())),
    }
    try:
        async with http.post(url, data=body, headers=headers, allow_redirects=False) as answer:
            return "" if 200 <= answer.status < 300 else f"answered {answer.status}"
    except TimeoutError:
        return f"no answer within {DEADLINE_SECONDS:g} s"
    except aiohttp.ClientConnectionError:
        return "ConnectionError"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        # Its text has the address, and that may hold a secret.
        return type(error).__name__


def payload(row: AuditRow) -> dict[str, Any]:
    """What is sent about one row of the audit."""
    return {
        "id": row.pk,
        "event": row.action,
        "gate": row.target,
        "at": row.at,
        "by": row.actor,
        "reason": row.reason,
        "request_id": row.request_id,
        "gate_after": json.loads(row.after) if row.after else {},
    }


def _record(url: str, row: AuditRow, wrong: str, *, tries: int) -> None:
    parts = urlsplit(url)
    target = f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"
    actor = Actor(_SENDER, "", "", row.request_id)
    intent = audit.intent(actor, "webhook.send", target, reason=f"{row.action} of {row.target}, #{row.pk}")
    after = json.dumps({"tries": tries, **({"problem": wrong} if wrong else {})})
    audit.outcome(intent, AuditOutcome.FAILED if wrong else AuditOutcome.DONE, after=after)
    if wrong:
        log.warning("A webhook to %s was given up: %s", target, wrong, extra={"resource": row.target})
