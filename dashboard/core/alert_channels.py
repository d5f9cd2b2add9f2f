"""Sends alerts: by e-mail, to a signed webhook, or in the form that Slack, Teams or PagerDuty take.

1. A process claims a delivery by one conditional update, for `CLAIM_SECONDS`. Of several processes one gets it.
2. It sends, for `DEADLINE_SECONDS` at most, with the delivery's key as the message's id.
3. It notes "sent", or when to try again, `TRIES` times in all; then "failed", with the reason, which the Alerts page shows.

Guarantees at least one try, and one delivery as long as no process ends between 2 and 3: then the claim expires, and another
process sends the same once more, with the same id. A channel gets at most `PER_MINUTE` messages; others wait. Messages about
one alert are sent in order. The numbers are repeated at the lines that do it.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import json
import secrets
import smtplib
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import DefaultResolver
from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.mail import EmailMessage, get_connection
from django.core.validators import validate_email
from django.db.models import Exists, F, OuterRef, Q

from coordinator.backoff import Backoff
from coordinator.errors import ConfigurationError
from dashboard.core.sealing import Unreadable, seal, unseal
from dashboard.models import Alert, AlertChannel, AlertDelivery

TRIES = 6
PER_MINUTE = 30
AT_ONCE = 10
CLAIM_SECONDS = 60.0
DEADLINE_SECONDS = 8.0
BACKOFF = Backoff(base_seconds=1.0, cap_seconds=60.0)
PURPOSE = "alert channel"
PAGERDUTY = "https://events.pagerduty.com/v2/enqueue"
MOST_ADDRESSES = 20


class AlertMessage(NamedTuple):
    """What is sent. `key` is equal for all tries, `alert` for all messages about one alert."""

    key: str
    event: str
    alert: str
    rule: str
    subject: str
    what: str
    level: str
    since: float
    at: float
    url: str = ""

    @property
    def title(self) -> str:
        """One line."""
        begun = {"fired": self.level.upper(), "resolved": "RESOLVED", "test": "TEST"}[self.event]
        return f"[{begun}] {self.what}"


class Channel(NamedTuple):
    """Where it is sent, opened."""

    kind: str
    address: str
    secret: str


class Refused(ConfigurationError):
    """An address that is none, or that nothing is sent to."""


# --- what a channel is -----------------------------------------------------------------------------------------------


def checked(kind: str, address: str) -> str:
    """The address as it is kept; raises `Refused` with what is wrong."""
    if kind not in KINDS:
        raise Refused(f"A channel is one of {', '.join(KINDS)}, not {kind[:20]!r}.")
    if kind == "email":
        given = [part.strip() for part in address.split(",") if part.strip()]
        if not 1 <= len(given) <= MOST_ADDRESSES:
            raise Refused(f"Give 1-{MOST_ADDRESSES} e-mail addresses, separated by commas.")
        for each in given:
            try:
                validate_email(each)
            except ValidationError as error:
                raise Refused(f"{each[:80]!r} is no e-mail address.") from error
        return ", ".join(given)
    if kind == "pagerduty":
        if not (address.isalnum() and 10 <= len(address) <= 64):
            raise Refused("Give the integration key of the PagerDuty service.")
        return address
    try:
        parts = urlsplit(address)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or len(address) > 1000:
        raise Refused("Give an address such as https://HOST/PATH.")
    if is_metadata(parts.hostname or ""):
        raise Refused("Nothing is sent to link-local addresses: they answer for the machine itself.")
    return address


def shown(kind: str, address: str) -> str:
    """What of an address may be seen: paths and keys may be secrets."""
    if kind == "email":
        return address[:200]
    if kind == "pagerduty":
        return "events.pagerduty.com"
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"[:200]


def new_secret() -> str:
    """A secret to sign with, as the Standard Webhooks libraries take it."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


def sealed(text: str) -> str:
    """As the database keeps it."""
    return seal(PURPOSE, text) if text else ""


def opened(channel: AlertChannel) -> Channel:
    """The channel with its secrets; raises `Unreadable`."""
    secret = unseal(PURPOSE, channel.secret) if channel.secret else ""
    return Channel(channel.kind, unseal(PURPOSE, channel.address), secret)


# --- claiming --------------------------------------------------------------------------------------------------------


def claim(now: float, most: int = AT_ONCE) -> list[tuple[AlertDelivery, AlertMessage]]:
    """The deliveries that are due and now this process's to send (1). Blocking."""
    due = Q(state="waiting", next_at__lte=now) | Q(state="sending", claimed_until__lt=now)
    # Twice a second nothing is due: to put together the whole question took more than all else in the background.
    if not AlertDelivery.objects.filter(due).exists():
        return []
    # What is about the same alert waits for what was before it.
    earlier = AlertDelivery.objects.filter(
        alert=OuterRef("alert"),
        channel=OuterRef("channel"),
        pk__lt=OuterRef("pk"),
        state__in=("waiting", "sending"),
    )
    rows = (
        AlertDelivery.objects.filter(due)
        .exclude(Exists(earlier))
        .order_by("pk")
        .select_related("alert", "channel")
    )
    claimed: list[tuple[AlertDelivery, AlertMessage]] = []
    for row in rows[: most * 2]:
        if len(claimed) >= most:
            break
        lately = AlertDelivery.objects.filter(
            channel_id=row.channel_id, claimed_until__gt=now - 60 + CLAIM_SECONDS
        )
        if lately.count() >= PER_MINUTE:
            continue
        mine = AlertDelivery.objects.filter(pk=row.pk, state=row.state, claimed_until=row.claimed_until)
        if row.tries >= TRIES:
            mine.update(state="failed", problem="the process that sent it ended each time")
            continue
        if not mine.update(state="sending", claimed_until=now + CLAIM_SECONDS, tries=F("tries") + 1):
            continue
        row.tries += 1
        claimed.append((row, message_of(row)))
    return claimed


def message_of(row: AlertDelivery) -> AlertMessage:
    """What is sent for it."""
    alert = row.alert
    if alert is None:
        return AlertMessage(
            row.key, "test", row.key, "test", "", "This is a test of this channel", "warning", row.at, row.at
        )
    at = alert.resolved_at if row.event == "resolved" else alert.fired_at
    return AlertMessage(
        key=row.key,
        event=row.event,
        alert=f"alert-{alert.pk}",
        rule=alert.rule_name,
        subject=alert.subject,
        what=alert.what,
        level=alert.level,
        since=alert.since,
        at=at or alert.since,
        url=link(alert),
    )


def link(alert: Alert) -> str:
    """Where to look, if the dashboard knows its own address."""
    origins = settings.CSRF_TRUSTED_ORIGINS
    return f"{origins[0].rstrip('/')}{alert.url or '/alerts/'}" if origins else ""


def settle(row: AlertDelivery, problem: str, now: float) -> None:
    """Note how it went (3). Blocking."""
    mine = AlertDelivery.objects.filter(pk=row.pk, state="sending", tries=row.tries)
    if not problem:
        mine.update(state="sent", problem="")
    elif row.tries < TRIES:
        mine.update(state="waiting", next_at=now + BACKOFF.delay(row.tries), problem=problem[:200])
    else:
        mine.update(state="failed", problem=problem[:200])


# --- sending ---------------------------------------------------------------------------------------------------------


async def send(channel: AlertChannel, message: AlertMessage) -> str:
    """Send it (2); "" if it was taken, else what was wrong, without address or secret."""
    try:
        to = opened(channel)
        async with asyncio.timeout(DEADLINE_SECONDS):
            if to.kind == "email":
                return await asyncio.to_thread(_mail, to, message)
            return await _post(to, message)
    except Unreadable:
        return "KENNEL_SECRET_KEY was changed: save the channel again"
    except TimeoutError:
        return f"no answer within {DEADLINE_SECONDS:g} s"
    except Refused as error:
        return str(error)
    except (aiohttp.ClientConnectionError, ConnectionError):
        return "no connection"
    except (aiohttp.ClientError, smtplib.SMTPException, OSError, ValueError) as error:
        # Its text has the address, and that may hold a secret.
        return type(error).__name__


def _mail(to: Channel, message: AlertMessage) -> str:
    if not settings.EMAIL_HOST:
        return "no mail server: set KENNEL_EMAIL_URL"
    connection = get_connection(timeout=DEADLINE_SECONDS)
    domain = settings.DEFAULT_FROM_EMAIL.rpartition("@")[2].strip("> ") or "kennel.invalid"
    headers = {"Message-ID": f"<{message.key}@{domain}>", "X-Kennel-Alert": message.key}
    if message.event == "resolved":
        headers["In-Reply-To"] = f"<{message.key.replace('-resolved-', '-fired-')}@{domain}>"
    addresses = [part.strip() for part in to.address.split(",")]
    subject = " ".join(message.title.split())[:200]
    EmailMessage(subject, text(message), to=addresses, headers=headers, connection=connection).send()
    return ""


def text(message: AlertMessage) -> str:
    """The message as lines of text."""
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(message.since))
    lines = [
        message.title,
        "",
        f"Rule: {message.rule}",
        f"Subject: {message.subject or '-'}",
        f"Since: {since}",
    ]
    return "\n".join([*lines, *([message.url] if message.url else [])])


async def _post(to: Channel, message: AlertMessage) -> str:
    url = PAGERDUTY if to.kind == "pagerduty" else to.address
    if is_metadata(urlsplit(url).hostname or ""):
        raise Refused("link-local address")
    body = json.dumps(KINDS[to.kind](to, message), separators=(",", ":")).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "kennel"}
    if to.secret:
        headers |= signature(to.secret, message.key, body, int(time.time()))
    connector = aiohttp.TCPConnector(resolver=_Resolver())
    timeout = aiohttp.ClientTimeout(total=DEADLINE_SECONDS)
    async with (
        aiohttp.ClientSession(timeout=timeout, connector=connector) as http,
        http.post(url, data=body, headers=headers, allow_redirects=False) as answer,
    ):
        return "" if 200 <= answer.status < 300 else f"answered {answer.status}"


def signature(secret: str, key: str, body: bytes, at: int) -> dict[str, str]:
    """The headers of Standard Webhooks: HMAC-SHA256 over id, moment and body, with dots between."""
    mac = base64.b64decode(secret.removeprefix("whsec_"))
    digest = hmac.new(mac, f"{key}.{at}.".encode() + body, hashlib.sha256).digest()
    return {
        "webhook-id": key,
        "webhook-timestamp": str(at),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


def is_metadata(host: str) -> bool:
    """Whether it is a link-local address, where clouds answer machines with their credentials."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_link_local or address in _ALSO


_ALSO = frozenset({ipaddress.ip_address("fd00:ec2::254"), ipaddress.ip_address("168.63.129.16")})


class _Resolver(AbstractResolver):
    """The usual one, without link-local answers: a name may be pointed there after it was checked."""

    def __init__(self) -> None:
        self._usual = DefaultResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._usual.resolve(host, port, family)
        if any(is_metadata(each["host"]) for each in found):
            raise Refused("link-local address")
        return found

    async def close(self) -> None:
        await self._usual.close()


# --- the forms -------------------------------------------------------------------------------------------------------


def _webhook(to: Channel, message: AlertMessage) -> dict[str, Any]:
    data = message._asdict()
    return {"type": f"alert.{message.event}", "timestamp": message.at, "data": data}


def _slack(to: Channel, message: AlertMessage) -> dict[str, Any]:
    return {"text": text(message)}


def _teams(to: Channel, message: AlertMessage) -> dict[str, Any]:
    blocks = [
        {"type": "TextBlock", "text": line, "wrap": True} for line in text(message).splitlines() if line
    ]
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": blocks,
    }
    kind = "application/vnd.microsoft.card.adaptive"
    return {"type": "message", "attachments": [{"contentType": kind, "contentUrl": None, "content": card}]}


def _pagerduty(to: Channel, message: AlertMessage) -> dict[str, Any]:
    return {
        "routing_key": to.address,
        "event_action": "resolve" if message.event == "resolved" else "trigger",
        "dedup_key": message.alert,
        "payload": {"summary": message.title[:1024], "source": "kennel", "severity": message.level},
        **({"links": [{"href": message.url, "text": "Dashboard"}]} if message.url else {}),
    }


KINDS: dict[str, Callable[[Channel, AlertMessage], dict[str, Any]]] = {
    "email": _webhook,
    "webhook": _webhook,
    "slack": _slack,
    "teams": _teams,
    "pagerduty": _pagerduty,
}
