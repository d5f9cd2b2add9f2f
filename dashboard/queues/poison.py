"""The messages of a poison queue as the pages show them: read, grouped by what they failed of, filtered, opened.

Azure peeks at the first 32 messages of a queue alone. Beyond those, somebody has them read: each is received, hidden for
a second, and kept here for an hour with the receipt by which it can be retried or deleted later without touching others.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec
from django.core.paginator import Page, Paginator
from django.db import transaction
from django.db.models import Count, Max, Min, Q, QuerySet

from coordinator.bounds import is_moment
from coordinator.config import check_name
from coordinator.errors import KennelError, MessageUndecodable, NotFound
from coordinator.queues import envelope as wire
from coordinator.queues.envelope import Envelope, Failure, PoisonRecord, poison_name
from coordinator.queues.protocols import MAX_BATCH, ReceivedMessage
from coordinator.queues.queue import Queue
from dashboard.core.retention import POISON_SECONDS
from dashboard.hub.runtime import look, storage
from dashboard.live.releases import source_of
from dashboard.models import PoisonMessage
from dashboard.pages.views import query_of

MOST_READ = 20_000
MOST_KINDS = 100
A_PAGE = 25
MOST_CHARACTERS = 20_000
MOST_PACKED_BYTES = 256 * 1024
_UUID = r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_VARIES = re.compile(rf"{_UUID}|0x[0-9a-fA-F]+|\b[0-9a-fA-F]{{12,}}\b|\S+@\S+|\d+([.,:_/-]?\d+)*")
NO_RECORD = "Not a poison record: put here by hand, or by another program"


@dataclass(frozen=True)
class Filter:
    """Which messages: all that each given field fits. `since` and `until` are times of the last failure (UTC)."""

    kind: str = ""
    q: str = ""
    error: str = ""
    handler: str = ""
    since: str = ""
    until: str = ""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Filter:
        """The filter that a page's or program's query describes. Raises `ValueError` for a time that is none."""
        wanted = cls(**{each.name: str(given.get(each.name) or "").strip()[:200] for each in fields(cls)})
        _moment(wanted.since), _moment(wanted.until)
        return wanted

    @property
    def query(self) -> str:
        """As a query string."""
        return query_of(**{each.name: getattr(self, each.name) for each in fields(self)})

    def __str__(self) -> str:
        said = [
            f"{each.name} {getattr(self, each.name)}" for each in fields(self) if getattr(self, each.name)
        ]
        return ", ".join(said) or "all"

    def rows(self, queue: str) -> QuerySet[PoisonMessage]:
        """The messages, the newest failure first."""
        found = kept(queue)
        for name in ("kind", "error", "handler"):
            if value := getattr(self, name):
                found = found.filter(**{name: value})
        if (at := _moment(self.since)) is not None:
            found = found.filter(last_at__gte=at)
        if (at := _moment(self.until)) is not None:
            found = found.filter(last_at__lte=at)
        if self.q:
            texts = ("reason", "error", "handler", "worker", "message_id", "text")
            among = Q()
            for name in texts:
                among |= Q(**{f"{name}__icontains": self.q})
            found = found.filter(among)
        return found.order_by("-last_at", "pk")


def _moment(text: str) -> float | None:
    if not text:
        return None
    at = datetime.fromisoformat(text)
    return (at.replace(tzinfo=UTC) if at.tzinfo is None else at).timestamp()


class Kind(NamedTuple):
    """Messages that failed alike. Times in seconds since 1970, of the first and last failure."""

    kind: str
    error: str
    reason: str
    handler: str
    messages: int
    first_at: float
    last_at: float


class PoisonSearch(NamedTuple):
    """What is known of a poison queue: `problem` says why nothing is, or not all."""

    kinds: tuple[Kind, ...]
    read: int
    read_at: float | None
    is_peek: bool
    problem: str = ""


def kept(queue: str) -> QuerySet[PoisonMessage]:
    """What was read of this poison queue within the hour."""
    return PoisonMessage.objects.filter(
        source=source_of(storage()), queue=queue, read_at__gte=time.time() - POISON_SECONDS
    )


def found(queue: str, only: Filter | None = None) -> PoisonSearch:
    """The messages by kind, the most first. If nobody had all read within the hour, the first 32 are peeked at now."""
    problem = ""
    if not kept(queue).exclude(receipt="").exists():
        problem = _peek(queue)
    rows = kept(queue)
    summary = rows.aggregate(read=Count("pk"), read_at=Min("read_at"), receipt=Max("receipt"))
    groups = (
        (only.rows(queue) if only is not None else rows)
        .order_by()
        .values("kind", "error", "reason", "handler")
        .annotate(count=Count("pk"), first=Min("last_at"), last=Max("last_at"))
        .order_by("-count", "kind")
    )
    kinds = tuple(
        Kind(
            row["kind"], row["error"], row["reason"], row["handler"], row["count"], row["first"], row["last"]
        )
        for row in groups[:MOST_KINDS]
    )
    return PoisonSearch(kinds, summary["read"], summary["read_at"], not summary["receipt"], problem)


def page(queue: str, only: Filter, number: str) -> Page[PoisonMessage]:
    """One page of the messages, without their texts."""
    return Paginator(only.rows(queue).defer("text"), A_PAGE).get_page(number)


def _peek(queue: str) -> str:
    try:
        check_name("queue", queue)
        poison: Queue[object] = storage().queue(poison_name(queue))
        seen = look("", poison.transport.peek, MAX_BATCH)
    except NotFound:
        keep(queue, (), are_peeked=True)
        return ""
    except KennelError as error:
        return str(error)
    if seen.value is None:
        return seen.problem
    keep(queue, seen.value, are_peeked=True)
    return seen.problem


def keep(queue: str, read: Iterable[ReceivedMessage], *, are_peeked: bool = False) -> None:
    """These are the messages of the poison queue now. Peeked ones never replace what was read within the hour."""
    now, source = time.time(), source_of(storage())
    rows = [_row(source, queue, message, now) for message in read]
    with transaction.atomic():
        before = PoisonMessage.objects.filter(source=source, queue=queue)
        # Somebody's reading may have ended while this page peeked.
        (
            before.filter(Q(receipt="") | Q(read_at__lt=now - POISON_SECONDS)) if are_peeked else before
        ).delete()
        PoisonMessage.objects.bulk_create(rows, batch_size=500, ignore_conflicts=True)


def _row(source: str, queue: str, message: ReceivedMessage, now: float) -> PoisonMessage:
    record = record_of(message.text)
    failure = record.failures[-1] if record is not None and record.failures else Failure(reason="")
    error, handler, reason, worker = failure.error, failure.handler, NO_RECORD, failure.worker
    first_at, last_at, attempts = message.inserted_at, message.inserted_at, message.dequeue_count
    if record is not None:
        reason = normalised(record.reason)
        first_at, last_at, attempts = record.first_at, record.last_at, record.attempts
    alike = hashlib.sha256(json.dumps([error, reason, handler]).encode()).hexdigest()
    return PoisonMessage(
        source=source,
        queue=queue,
        message_id=message.id[:100],
        receipt=message.receipt[:200],
        kind=alike[:12],
        error=_stored(error),
        reason=_stored(reason),
        handler=_stored(handler),
        worker=_stored(worker),
        attempts=min(attempts, 2**31 - 1),
        size=len(message.text.encode(errors="replace")),
        first_at=first_at if is_moment(first_at) else 0.0,
        last_at=last_at if is_moment(last_at) else 0.0,
        read_at=now,
        text=message.text.replace("\x00", "\N{REPLACEMENT CHARACTER}"),
    )


def _stored(text: str) -> str:
    return text.replace("\x00", " ").encode(errors="replace").decode()[:200]


def normalised(reason: str) -> str:
    """An error's text without what differs from message to message: numbers, ids, addresses."""
    lines = reason.strip().splitlines() or [""]
    return _VARIES.sub("…", lines[0][:1000])[:200]


def record_of(text: str) -> PoisonRecord | None:
    """The record, if this is one that is stored in its message; a large one in a blob is not read."""
    try:
        envelope = wire.decode(text)
        if not envelope.kennel or envelope.claim or envelope.size > MOST_PACKED_BYTES:
            return None
        (item,) = wire.inline_items(envelope)
        decoded = wire.ItemDecoder(wire.Schema(type=PoisonRecord))(item, envelope.schema)
    except (MessageUndecodable, ValueError):
        return None
    return decoded if isinstance(decoded, PoisonRecord) else None


class OpenedMessage(NamedTuple):
    """One poison message. `body` is indented JSON, cut to `MOST_CHARACTERS`; `editable` is it whole, "" if it cannot be edited here."""

    row: PoisonMessage
    body: str
    length: int
    note: str
    by: str
    trace_id: str
    items: int | None
    failures: tuple[Failure, ...]
    reason: str
    editable: str


def opened(queue: str, message_id: str) -> OpenedMessage | None:
    """The message, its attempts newest first; None if it is not among those that were read."""
    row = kept(queue).filter(message_id=message_id).first()
    if row is None:
        return None
    record = record_of(row.text)
    text = record.text if record is not None else row.text
    body, by, trace_id, note, editable = text, "", "", "", ""
    items: int | None = None
    try:
        envelope = wire.decode(text)
    except MessageUndecodable as error:
        note = str(error)
    else:
        by, trace_id = envelope.by, _trace_id(envelope.traceparent)
        if envelope.kennel:
            body, items, note = contents(envelope)
            if record is not None and items == 1:
                editable = body
    return OpenedMessage(
        row,
        body[:MOST_CHARACTERS],
        len(body),
        note,
        by,
        trace_id,
        items,
        tuple(reversed(record.failures)) if record is not None else (),
        record.reason if record is not None else NO_RECORD,
        editable if len(editable) <= MOST_CHARACTERS else "",
    )


def edited(text: str, body: str) -> str:
    """The poison message with another item. Raises `ValueError` if that is not JSON, or the message cannot be edited."""
    record = record_of(text)
    if record is None:
        raise ValueError("this message cannot be edited")
    try:
        item = msgspec.Raw(msgspec.json.encode(msgspec.json.decode(body)))
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise ValueError(f"the message is not JSON: {error}") from error
    original = wire.decode(record.text)
    if not original.kennel or original.claim is not None:
        raise ValueError("this message cannot be edited")
    changed = msgspec.structs.replace(original, items=[item], z="", size=0, left=None)
    again = msgspec.structs.replace(record, text=wire.encode(changed), left=None)
    outer = msgspec.structs.replace(wire.decode(text), items=[wire.encode_item(again)], z="", size=0)
    return wire.encode(outer)


def received(row: PoisonMessage, text: str = "") -> ReceivedMessage:
    """As the library knows it."""
    return ReceivedMessage(row.message_id, row.receipt, text or row.text, 1, row.first_at, 0.0)


def _pretty(item: bytes) -> str:
    try:
        return msgspec.json.format(item, indent=2).decode("utf-8", "replace")
    except (msgspec.DecodeError, RecursionError):
        return item.decode("utf-8", "replace")


def contents(envelope: Envelope, as_text: Callable[[bytes], str] = _pretty) -> tuple[str, int | None, str]:
    """The items as text, how many there are, and a word about where they are."""
    if envelope.claim is not None:
        return "", None, f"{envelope.size:,} bytes, in a blob"
    if envelope.size > MOST_PACKED_BYTES:
        return "", None, f"{envelope.size:,} bytes, packed"
    try:
        items = wire.inline_items(envelope)
    except MessageUndecodable as error:
        return envelope.z, None, str(error)
    return "\n".join(as_text(bytes(item)) for item in items), len(items), ""


def _trace_id(traceparent: str) -> str:
    parts = traceparent.split("-")
    return parts[1] if len(parts) == 4 and len(parts[1]) == 32 else ""
