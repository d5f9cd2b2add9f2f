"""What is kept of a message that nobody could process."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from coordinator.bounds import Count, Moment
from coordinator.queues.envelope import Failure, Indexes, Tag, Text

SUFFIX = "-poison"


class PoisonRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message that went to poison, whole.

    `text` is the message as it lay in the queue; `left` the items of it still undone (None = all); `failures` why, newest
    last, earlier stays in poison first; `first_at` and `last_at` are when it was put and when it was given up (seconds
    since 1970).
    """

    queue: Tag
    message_id: Tag
    text: Text
    reason: Text
    failures: Annotated[list[Failure], Meta(max_length=1_000_000)]
    first_at: Moment
    last_at: Moment
    attempts: Count
    left: Indexes | None = None


def poison_name(queue: str) -> str:
    """The poison queue's name; a queue name holds at most 63 characters, so long ones lose their end."""
    return queue[: 63 - len(SUFFIX)].rstrip("-") + SUFFIX
