"""Reads of the Queues pages: stored rules, and messages at the front. Blocking functions for threads."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import NamedTuple

from coordinator.bounds import is_moment
from coordinator.config import check_name
from coordinator.errors import KennelError, MessageUndecodable, NotFound
from coordinator.queues import envelope as wire
from coordinator.queues.azure import BlobRules
from coordinator.queues.envelope import poison_name
from coordinator.queues.protocols import ReceivedMessage
from coordinator.queues.queue import Queue
from coordinator.queues.rules import ScalingRule, Steps
from dashboard.hub.runtime import look, storage
from dashboard.queues.poison import contents, record_of

log = logging.getLogger(__name__)
MOST_MESSAGES = 16
MOST_CHARACTERS = 4_000


@dataclass(frozen=True)
class MessageView:
    """One message. `body` is at most `MOST_CHARACTERS` long, `length` what it has; `problem` says why it is in poison."""

    id: str
    body: str
    length: int
    attempts: int
    put_at: float | None
    by: str = ""
    items: int | None = None
    note: str = ""
    problem: str = ""

    @property
    def is_cut(self) -> bool:
        return self.length > len(self.body)


@dataclass(frozen=True)
class PeekResult:
    """What was seen at the front of a queue; `problem` says why nothing could be."""

    messages: tuple[MessageView, ...] = ()
    problem: str = ""


def peek(queue: str, *, poison: bool = False) -> PeekResult:
    """The first visible messages of a queue or of its poison queue. One request; payloads in blobs are not fetched."""
    try:
        check_name("queue", queue)
        source: Queue[object] = storage().queue(poison_name(queue) if poison else queue)
        # Of messages nothing is kept: they may hold what must not stay.
        seen = look("", source.transport.peek, MOST_MESSAGES)
    except NotFound:
        return PeekResult()
    except KennelError as error:
        return PeekResult(problem=str(error))
    return PeekResult(tuple(_row(message) for message in seen.value or ()), seen.problem)


def _row(message: ReceivedMessage) -> MessageView:
    """What cannot be shown costs its own row, which says so."""
    try:
        return _shown(message)
    except Exception as error:
        log.exception("A message of a queue could not be shown")
        text = message.text
        return MessageView(
            message.id,
            text[:MOST_CHARACTERS],
            len(text),
            message.dequeue_count,
            None,
            problem=f"unreadable: {type(error).__name__}",
        )


def _shown(message: ReceivedMessage) -> MessageView:
    text, attempts, at, problem = message.text, message.dequeue_count, message.inserted_at, ""
    record = record_of(text)
    if record is not None:
        text, attempts, at, problem = record.text, record.attempts, record.first_at, record.reason
    by, items, note = "", None, ""
    try:
        envelope = wire.decode(text)
    except MessageUndecodable as error:
        problem = problem or str(error)
    else:
        by, at = envelope.by, envelope.at or at
        if envelope.kennel:
            text, items, note = contents(envelope, lambda item: item.decode("utf-8", "replace"))
    return MessageView(
        message.id,
        text[:MOST_CHARACTERS],
        len(text),
        attempts,
        at if at and is_moment(at) else None,
        by,
        items,
        note,
        problem,
    )


class StoredRule(NamedTuple):
    """The rule stored for a queue, None if its workers use their default rule.

    `problem` says why it is not known, or, if it `is_known`, from before.
    """

    rule: ScalingRule | None = None
    problem: str = ""
    is_known: bool = True

    @property
    def kind(self) -> str:
        """ "steps", "target", "own" or "unknown"."""
        if not self.is_known:
            return "unknown"
        if self.rule is None:
            return "own"
        return "steps" if isinstance(self.rule, Steps) else "target"


def stored(queue: str) -> StoredRule:
    """What is stored now; one request."""
    try:
        check_name("queue", queue)
        seen = look(_key(queue), _read, queue)
    except KennelError as error:
        return StoredRule(problem=str(error), is_known=False)
    if seen.value is None:
        return StoredRule(problem=seen.problem, is_known=False)
    return StoredRule(seen.value[0], seen.problem)


async def _read(queue: str) -> tuple[ScalingRule | None]:
    found = await BlobRules(storage()).read(queue, "")
    return (found[0] if found is not None else None,)


def _key(queue: str) -> str:
    return f"rule {queue}"
