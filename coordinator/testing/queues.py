"""A queue and a claim store in memory, for users' unit tests; they pass the same contract suite as Azure's."""

from __future__ import annotations

import heapq
import math
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any

from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.errors import InvalidRequest, NotFound, PreconditionFailed, ReceiptStale
from coordinator.queues.envelope import MAX_MESSAGE_BYTES, Schema, wire_bytes
from coordinator.queues.large_payloads import LargePayloads, check_length
from coordinator.queues.protocols import (
    MAX_BATCH,
    MAX_VISIBILITY_SECONDS,
    NEVER,
    ReceivedMessage,
    SendReceipt,
    ShardLayout,
)
from coordinator.queues.queue import Queue, QueueConfig
from coordinator.queues.rules import ScalingRule
from coordinator.realtime.bus import Bus, LocalBus, Notification


class _Message:
    __slots__ = ("dequeue_count", "expires_at", "id", "inserted_at", "receipt", "text", "visible_at")

    def __init__(self, text: str, now: float, delay: float, ttl: float) -> None:
        self.id = str(uuid.uuid4())
        self.receipt = uuid.uuid4().hex
        self.text = text
        self.inserted_at = now
        self.visible_at = now + delay
        self.expires_at = math.inf if ttl == NEVER else now + ttl
        self.dequeue_count = 0


class MemoryQueueTransport:
    """`QueueTransport` in memory: visibility, receipts, time to live and the service's limits, by the clock given.

    No call takes longer the more messages there are (but for the logarithm of the hidden ones).
    """

    def __init__(self, name: str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.name = name
        self.requests = 0
        self._clock = clock
        self._messages: dict[str, _Message] | None = None
        # Entries are never removed when a message changes: one whose receipt is no longer the message's is skipped.
        self._ready: deque[tuple[str, str]] = deque()
        self._hidden: list[tuple[float, str, str]] = []
        self._ending: list[tuple[float, str]] = []

    @property
    def exists(self) -> bool:
        return self._messages is not None

    async def put(self, text: str, *, delay_seconds: float = 0, ttl_seconds: float = NEVER) -> SendReceipt:
        messages = self._alive()
        self._check(text, delay_seconds)
        message = _Message(text, self._clock.time(), math.ceil(delay_seconds), ttl_seconds)
        messages[message.id] = message
        self._enter(message)
        if message.expires_at != math.inf:
            heapq.heappush(self._ending, (message.expires_at, message.id))
        return SendReceipt(message.id, message.receipt)

    async def get(self, count: int, *, visibility_seconds: float) -> list[ReceivedMessage]:
        messages = self._alive()
        if not 1 <= count <= MAX_BATCH or not 1 <= math.ceil(visibility_seconds) <= MAX_VISIBILITY_SECONDS:
            raise InvalidRequest(
                f"get {self.name}: count or visibility out of bounds",
                resource=self.name,
                status=400,
                code="OutOfRangeQueryParameterValue",
            )
        self._reveal()
        found: list[ReceivedMessage] = []
        while self._ready and len(found) < count:
            id, receipt = self._ready.popleft()
            message = messages.get(id)
            if message is None or message.receipt != receipt:
                continue
            message.receipt = uuid.uuid4().hex
            message.visible_at = self._clock.time() + math.ceil(visibility_seconds)
            message.dequeue_count += 1
            self._enter(message)
            found.append(self._received(message, message.receipt))
        return found

    async def update(
        self, id: str, receipt: str, *, visibility_seconds: float, text: str | None = None
    ) -> str:
        message = self._held(id, receipt)
        self._check(message.text if text is None else text, visibility_seconds)
        if text is not None:
            message.text = text
        message.visible_at = self._clock.time() + math.ceil(visibility_seconds)
        message.receipt = uuid.uuid4().hex
        self._enter(message)
        return message.receipt

    async def delete(self, id: str, receipt: str) -> None:
        self._held(id, receipt)
        assert self._messages is not None
        del self._messages[id]

    async def peek(self, count: int) -> list[ReceivedMessage]:
        messages = self._alive()
        self._reveal()
        found: list[ReceivedMessage] = []
        for id, receipt in self._ready:
            message = messages.get(id)
            if message is not None and message.receipt == receipt:
                found.append(self._received(message, ""))
                if len(found) == count:
                    break
        return found

    async def count(self) -> int:
        return len(self._alive())

    async def clear(self) -> None:
        self._alive().clear()
        self._ready.clear()
        self._hidden.clear()

    async def create(self) -> bool:
        self.requests += 1
        if self._messages is not None:
            return False
        self._messages = {}
        return True

    async def delete_queue(self) -> None:
        await self.clear()
        self._messages = None

    def _enter(self, message: _Message) -> None:
        if message.visible_at <= self._clock.time():
            self._ready.append((message.id, message.receipt))
        else:
            heapq.heappush(self._hidden, (message.visible_at, message.id, message.receipt))

    def _reveal(self) -> None:
        now = self._clock.time()
        while self._hidden and self._hidden[0][0] <= now:
            _, id, receipt = heapq.heappop(self._hidden)
            self._ready.append((id, receipt))

    def _alive(self) -> dict[str, _Message]:
        self.requests += 1
        if self._messages is None:
            raise NotFound(
                f"there is no queue {self.name}", resource=self.name, status=404, code="QueueNotFound"
            )
        now = self._clock.time()
        while self._ending and self._ending[0][0] <= now:
            self._messages.pop(heapq.heappop(self._ending)[1], None)
        return self._messages

    def _held(self, id: str, receipt: str) -> _Message:
        message = self._alive().get(id)
        if message is None:
            raise ReceiptStale(f"no message {id}", resource=self.name, status=404, code="MessageNotFound")
        if message.receipt != receipt:
            raise ReceiptStale(
                f"message {id} was taken", resource=self.name, status=400, code="PopReceiptMismatch"
            )
        return message

    def _check(self, text: str, seconds: float) -> None:
        if wire_bytes(text) > MAX_MESSAGE_BYTES:
            raise InvalidRequest(
                "the message is too large", resource=self.name, status=413, code="RequestBodyTooLarge"
            )
        if not 0 <= seconds <= MAX_VISIBILITY_SECONDS:
            raise InvalidRequest(
                "visibility out of bounds",
                resource=self.name,
                status=400,
                code="OutOfRangeQueryParameterValue",
            )

    def _received(self, message: _Message, receipt: str) -> ReceivedMessage:
        return ReceivedMessage(
            message.id,
            receipt,
            message.text,
            message.dequeue_count,
            float(int(message.inserted_at)),
            message.expires_at,
        )


class MemoryClaimStore:
    """`ClaimStore` in memory."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.blobs: dict[str, tuple[bytes, float]] = {}
        self._written: dict[str, float] = {}
        self._clock = clock

    async def put(self, name: str, content: bytes, *, expires_at: float) -> None:
        self.blobs[name] = (content, expires_at)
        self._written[name] = self._clock.time()

    async def get(self, name: str, *, at_most: int) -> bytes:
        content = self._found(name)[0]
        check_length(name, len(content), at_most)
        return content

    async def keep(self, name: str) -> None:
        self.blobs[name] = (self._found(name)[0], 0.0)
        self._written[name] = self._clock.time()

    async def delete(self, name: str) -> None:
        self.blobs.pop(name, None)

    async def expired(self, before: float) -> list[str]:
        return [name for name, (_, expires_at) in self.blobs.items() if 0 < expires_at < before]

    async def lasting(self, before: float) -> list[str]:
        return [
            name
            for name, (_, expires_at) in self.blobs.items()
            if not expires_at and self._written[name] < before
        ]

    def _found(self, name: str) -> tuple[bytes, float]:
        if name not in self.blobs:
            raise NotFound(f"there is no claim {name}", resource=name, status=404, code="BlobNotFound")
        return self.blobs[name]


def memory_queue(
    name: str,
    *,
    type: Any = Any,
    clock: Clock = SYSTEM_CLOCK,
    bus: Callable[[], Bus] | None = None,
    config: QueueConfig | None = None,
    transports: dict[str, MemoryQueueTransport] | None = None,
    claims: MemoryClaimStore | None = None,
    rules: MemoryRules | None = None,
    **schema: Any,
) -> Queue[Any]:
    """A `Queue` in memory. Pass the same `transports` to see the poison queue or to share it between several."""
    known = {} if transports is None else transports
    own_bus = LocalBus()

    def transport(other: str) -> MemoryQueueTransport:
        return known.setdefault(other, MemoryQueueTransport(other, clock=clock))

    config = config or QueueConfig()
    return Queue(
        transport(name),
        LargePayloads(
            claims or MemoryClaimStore(clock), clock=clock, max_payload_bytes=config.max_payload_bytes
        ),
        schema=Schema(type=type, **schema),
        bus=bus or (lambda: own_bus),
        transport_of=transport,
        clock=clock,
        config=config,
        rules=rules,
    )


class MemoryShards:
    """`ShardStore` in memory."""

    def __init__(self) -> None:
        self._layouts: dict[str, tuple[ShardLayout, str]] = {}

    async def read(self, name: str) -> tuple[ShardLayout | None, str]:
        return self._layouts.get(name, (None, ""))

    async def write(self, name: str, layout: ShardLayout, etag: str) -> None:
        if etag != self._layouts.get(name, (None, ""))[1]:
            raise PreconditionFailed(
                f"the shards of {name} were changed", resource=name, status=412, code="ConditionNotMet"
            )
        self._layouts[name] = (layout, uuid.uuid4().hex)


class MemoryRules:
    """`RuleStore` in memory."""

    def __init__(self, bus: Callable[[], Bus] | None = None) -> None:
        self._rules: dict[str, tuple[ScalingRule, str]] = {}
        self._bus = bus

    async def read(self, queue: str, etag: str) -> tuple[ScalingRule | None, str] | None:
        rule, current = self._rules.get(queue, (None, ""))
        return None if current == etag else (rule, current)

    async def write(self, queue: str, rule: ScalingRule, *, by: str) -> None:
        self._rules[queue] = (rule, uuid.uuid4().hex)
        if self._bus is not None:
            await self._bus().publish(Notification(topic=f"rule:{queue}", origin=by))

    async def remove(self, queue: str) -> None:
        self._rules.pop(queue, None)
        if self._bus is not None:
            await self._bus().publish(Notification(topic=f"rule:{queue}"))
