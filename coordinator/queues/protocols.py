"""What the room needs of a queue service and of places to store things (adapters and twins implement these), and what a
listener needs of a queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import Meta

from coordinator.clock import Clock
from coordinator.queues.envelope import Envelope, PoisonRecord
from coordinator.queues.rules import ScalingRule
from coordinator.realtime.bus import Bus

T_co = TypeVar("T_co", covariant=True)

MAX_BATCH = 32
MAX_VISIBILITY_SECONDS = 7 * 24 * 3600
MAX_TTL_SECONDS = 2**31 - 1
NEVER = -1
MAX_SHARDS = 64


class ReceivedMessage(NamedTuple):
    """A message as the service gave it. `receipt` is "" when it was only peeked at; times are seconds since 1970."""

    id: str
    receipt: str
    text: str
    dequeue_count: int
    inserted_at: float
    expires_at: float


class SendReceipt(NamedTuple):
    """What a put gives back: with `receipt` the putter may process, update or delete the message itself."""

    id: str
    receipt: str


class QueueTransport(Protocol):
    """One queue of a queue service: at least once, in no promised order.

    Every call is one request and raises Kennel's storage errors: `NotFound` if the queue does not exist,
    `ReceiptStale` if a receipt is no longer valid, `StorageUnreachable.maybe_done` if the answer was lost. Nothing is
    retried here. Seconds are rounded up to whole ones by services that know no others.
    """

    name: str

    async def put(self, text: str, *, delay_seconds: float = 0, ttl_seconds: float = NEVER) -> SendReceipt:
        """Add a message of at most 64 KiB of UTF-8, invisible for `delay_seconds`, gone after `ttl_seconds`."""

    async def get(self, count: int, *, visibility_seconds: float) -> list[ReceivedMessage]:
        """Take up to `count` (1-32) messages, invisible to others for that long."""

    async def update(
        self, id: str, receipt: str, *, visibility_seconds: float, text: str | None = None
    ) -> str:
        """Set the remaining invisibility (0 shows the message at once), and the text unless None; the new receipt."""

    async def delete(self, id: str, receipt: str) -> None:
        """Remove a message that this receipt holds."""

    async def peek(self, count: int) -> list[ReceivedMessage]:
        """Look at up to `count` (1-32) visible messages; they stay visible."""

    async def count(self) -> int:
        """About how many messages there are, invisible ones included."""

    async def clear(self) -> None:
        """Remove all messages; may have to be repeated by the caller on `StorageBusy`."""

    async def create(self) -> bool:
        """Make the queue; False if it was there already."""

    async def delete_queue(self) -> None:
        """Remove the queue with all messages."""


class ClaimStore(Protocol):
    """Keeps payloads too large for a message, by name."""

    async def put(self, name: str, content: bytes, *, expires_at: float) -> None:
        """Store; `expires_at` (seconds since 1970, 0 = never) is when the message that refers to it is gone at the latest."""

    async def get(self, name: str, *, at_most: int) -> bytes:
        """The content; `NotFound` if it is gone, `MessageUndecodable` (and not read) if it is longer than `at_most` bytes."""

    async def keep(self, name: str) -> None:
        """Never expire from now on."""

    async def delete(self, name: str) -> None:
        """Remove; harmless if it is gone."""

    async def expired(self, before: float) -> list[str]:
        """The names of what expired before that moment."""

    async def lasting(self, before: float) -> list[str]:
        """The names of what never expires and was last written before that moment."""


class RuleStore(Protocol):
    """Scaling rules by queue, where operators change them."""

    async def read(self, queue: str, etag: str) -> tuple[ScalingRule | None, str] | None:
        """The rule of a queue (None: none is stored) and its ETag; None if it is still the one of `etag`."""

    async def write(self, queue: str, rule: ScalingRule, *, by: str) -> None:
        """Store."""

    async def remove(self, queue: str) -> None:
        """Fall back to the listeners' own rules; harmless if none is stored."""


class ShardLayout(msgspec.Struct, frozen=True):
    """`shards` are filled; `most` is the highest number there ever was: so many may still hold messages."""

    shards: Annotated[int, Meta(ge=1, le=MAX_SHARDS)]
    most: Annotated[int, Meta(ge=1, le=MAX_SHARDS)]


class ShardStore(Protocol):
    """Where the number of shards is kept, for all processes."""

    async def read(self, name: str) -> tuple[ShardLayout | None, str]:
        """The layout and its ETag; None and "" if none is stored."""

    async def write(self, name: str, layout: ShardLayout, etag: str) -> None:
        """Store, if it is still the one of `etag` ("" = none yet); else `PreconditionFailed` or `AlreadyExists`."""


class Payloads(Protocol):
    """The payloads of one queue that are kept outside its messages, for whoever ends a message."""

    async def discard(self, envelope: Envelope) -> None:
        """Remove the claim of a message that is gone."""

    async def keep(self, envelope: Envelope) -> None:
        """Keep the claim for good."""


class PoisonQueue(Protocol):
    """Where messages go that could not be processed."""

    async def put(self, *items: PoisonRecord) -> Any:
        """Store the records."""


class ListenedQueue(Protocol[T_co]):
    """What a listener needs of a queue; `Queue` is one."""

    @property
    def name(self) -> str: ...

    @property
    def transport(self) -> QueueTransport: ...

    @property
    def payloads(self) -> Payloads: ...

    @property
    def rules(self) -> RuleStore | None: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def poison(self) -> PoisonQueue: ...

    def bus(self) -> Bus: ...

    def identity(self) -> str: ...

    async def create(self) -> bool: ...

    async def depth(self) -> int: ...

    def decode(self, text: str) -> Envelope: ...

    async def items(self, envelope: Envelope) -> Sequence[tuple[int, T_co | Exception]]: ...
