"""A typed queue: puts that batch, compress and claim-check; depth, peek, clear, create, delete."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import typing
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypedDict, TypeVar, Unpack

import msgspec

from coordinator.backoff import Backoff, retry
from coordinator.blocking import Portal, call_blocking
from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.errors import (
    ConfigurationError,
    MessageUndecodable,
    NotFound,
    ReceiptStale,
    StorageError,
    absent,
)
from coordinator.queues import envelope as wire
from coordinator.queues.envelope import MAX_MESSAGE_BYTES, SUFFIX, Envelope, PoisonRecord, Schema, poison_name
from coordinator.queues.handlers import Handler
from coordinator.queues.large_payloads import Fitted, LargePayloads
from coordinator.queues.listener import ListenerOptions, QueueListener
from coordinator.queues.notifications import NotificationThrottle
from coordinator.queues.protocols import (
    MAX_BATCH,
    MAX_TTL_SECONDS,
    MAX_VISIBILITY_SECONDS,
    NEVER,
    QueueTransport,
    ReceivedMessage,
    RuleStore,
    SendReceipt,
)
from coordinator.realtime.bus import Bus

T = TypeVar("T")


@dataclass(frozen=True)
class QueueConfig:
    """Limits of a queue.

    Attributes:
        items_per_message: Maximum items of one `put` that share a message, 1 to 1,000 (default 50). More is cheaper and coarser.
        write_seconds: How long a put goes on trying, in seconds (default 30).
        max_payload_bytes: Maximum size of an unpacked message (default 256 MiB). Larger messages go to poison unread.
    """

    items_per_message: int = 50
    write_seconds: float = 30.0
    max_payload_bytes: int = 256 * 1024 * 1024

    def __post_init__(self) -> None:
        if not 1 <= self.items_per_message <= 1000:
            raise ConfigurationError(f"items_per_message must be 1-1000, got {self.items_per_message}")
        if self.write_seconds <= 0:
            raise ConfigurationError(f"write_seconds must be positive, got {self.write_seconds}")
        if self.max_payload_bytes < MAX_MESSAGE_BYTES:
            raise ConfigurationError(f"max_payload_bytes must be at least {MAX_MESSAGE_BYTES}")


class PutOptions(TypedDict, total=False):
    """The options of `Queue.put`, for those who pass them on."""

    delay: float
    ttl: float
    visibility: float
    traceparent: str
    tracestate: str


@dataclass(frozen=True)
class SentMessage:
    """A message that was put. With its receipt the putter may act on it without a get."""

    id: str
    receipt: str
    envelope: Envelope
    text: str


@dataclass(frozen=True)
class PeekedMessage(Generic[T]):
    """A message looked at: its items decoded, or `problem` saying why they could not be."""

    id: str
    text: str
    items: tuple[T, ...]
    dequeue_count: int
    inserted_at: float
    expires_at: float
    problem: str = ""


class Queue(Generic[T]):
    """A queue of items of one type.

    Guarantees that every item is stored when `put` returns, and never half an item. Any size goes through: what does
    not fit a message is compressed, then stored in a blob. Delivery is at least once. The queue is created on first
    use.

    Does not guarantee an order, nor that an item is delivered once only: a put whose answer was lost is repeated, and
    both messages have the same envelope id. If `put` raises, items may be stored all the same.

    Args:
        transport: The calls of the queue service; `Storage.queue` gives one to the account, `coordinator.testing` one
            in memory.
        payloads: Where large payloads are stored.
        schema: The type of the items.
        bus: Notifies listeners.
        transport_of: The transport of another queue, such as the poison queue.
        identity: What this process is called in records.
        clock: The clock, for tests.
        config: Limits, see `QueueConfig`.
        rules: Where scaling rules are stored (default: nowhere).
        portal: For `put_blocking`.

    Raises:
        StorageError: Storage refused, or stayed unreachable for `write_seconds`; also raised by each method.

    Examples:
        >>> queue = storage.queue("orders-in", type=Order)
        >>> await queue.put(Order("ticket", 4200))
    """

    def __init__(
        self,
        transport: QueueTransport,
        payloads: LargePayloads,
        *,
        schema: Schema,
        bus: Callable[[], Bus],
        transport_of: Callable[[str], QueueTransport],
        identity: Callable[[], str] = lambda: "",
        clock: Clock = SYSTEM_CLOCK,
        config: QueueConfig | None = None,
        rules: RuleStore | None = None,
        portal: Portal | None = None,
    ) -> None:
        self.name = transport.name
        self.transport = transport
        self.payloads = payloads
        self.schema = schema
        self.config = config or QueueConfig()
        self.clock = clock
        self.bus = bus
        self.identity = identity
        self.rules = rules
        self._transport_of = transport_of
        self._portal = portal
        self._thread_queue: Queue[T] | None = None
        self._throttle = NotificationThrottle(self.name, bus, identity, clock)
        self._decode = wire.ItemDecoder(schema)

    # --- putting ------------------------------------------------------------------------------------------------

    async def put(
        self,
        *items: T,
        delay: float = 0,
        ttl: float = NEVER,
        visibility: float = 0,
        traceparent: str = "",
        tracestate: str = "",
    ) -> list[SentMessage]:
        """Store items, many to a message, and notify listeners.

        Guarantees that every item is stored when it returns. If it raises, items may be stored all the same.

        Args:
            *items: The items to send; anything that msgspec can encode as JSON.
            delay: Seconds until listeners see the items (default 0, at most 7 days).
            ttl: Seconds until the items expire (default -1: never).
            visibility: Seconds for which the messages stay hidden for the caller, who processes and deletes them by the receipts
                returned. If the caller dies, they appear by themselves. See `process_inline`.
            traceparent: W3C trace context that travels with the messages; left out without an envelope.
            tracestate: Its vendor part.

        Returns:
            One `SentMessage` for each message stored.

        Raises:
            ConfigurationError: An item is not JSON, or an option is out of bounds.
            StorageError: Storage was unavailable for `write_seconds`.

        Examples:
            >>> await queue.put(Order("ticket", 4200), Order("poster", 900), delay=60)
        """
        _check_times(delay, visibility, ttl)
        if max(len(traceparent), len(tracestate)) > wire.MAX_TAG_CHARACTERS:
            raise ConfigurationError(
                f"traceparent and tracestate may have {wire.MAX_TAG_CHARACTERS} characters each, got {len(traceparent)} and "
                f"{len(tracestate)}"
            )
        sent, hidden = [], max(delay, visibility)
        if not self.schema.envelope:
            for text in [wire.encode_bare(item, self.schema) for item in items]:
                bare = Fitted(Envelope(kennel=0, raw=text), text)
                sent.append(await self._put_fitted(bare, hidden, ttl))
        else:
            for group in self._grouped([wire.encode_item(item) for item in items]):
                head = Envelope(
                    kennel=wire.VERSION,
                    id=uuid.uuid4().hex,
                    at=self.clock.time(),
                    by=self.identity()[: wire.MAX_TAG_CHARACTERS],
                    schema=self.schema.version,
                    traceparent=traceparent,
                    tracestate=tracestate,
                    items=group,
                )
                sent.append(await self._put_fitted(await self.payloads.fit(head), hidden, ttl))
        if items and not visibility:
            size, due = sum(len(each.text) for each in sent), self._due(delay)
            await self._throttle.announce(size, due=due)
        return sent

    def put_blocking(self, *items: T, **options: Unpack[PutOptions]) -> list[SentMessage]:
        """`put` for threads: scripts, Django, Flask, Celery. All threads share one event loop and its connections.

        Args:
            *items: As for `put`.
            **options: As for `put`.

        Returns:
            As for `put`.

        Raises:
            KennelError: The thread runs an event loop; use `await queue.put(…)`.
            ConfigurationError: As for `put`.
            StorageError: As for `put`.
        """
        if self._thread_queue is None:
            # Announcements belong to one event loop, so the loop of the threads has a queue object of its own.
            self._thread_queue = self._like(self.transport, self.schema, rules=self.rules)
        call = functools.partial(self._thread_queue.put, *items, **options)
        return call_blocking(self._portal, f"queue {self.name}: put_blocking", "await queue.put()", call)

    def _grouped(self, items: list[msgspec.Raw]) -> Iterator[list[msgspec.Raw]]:
        """As many items a message as fit uncompressed, up to `items_per_message`."""
        group: list[msgspec.Raw] = []
        size, room = 0, MAX_MESSAGE_BYTES - 1024
        for item in items:
            length = len(bytes(item)) + 1
            if group and (size + length > room or len(group) == self.config.items_per_message):
                yield group
                group, size = [], 0
            group.append(item)
            size += length
        if group:
            yield group

    async def _put_fitted(self, fitted: Fitted, delay: float, ttl: float) -> SentMessage:
        """Repeats what failed, after a lost answer with a claim of its own: the first copy that is done deletes its claim."""
        expires_at = 0.0 if ttl == NEVER else self.clock.time() + ttl
        written, in_doubt, claim_in_doubt = fitted, False, False

        async def attempt() -> SendReceipt:
            nonlocal written, in_doubt, claim_in_doubt
            if claim_in_doubt and written.packed is not None:
                written = await self.payloads.write(fitted, expires_at=expires_at)
                claim_in_doubt = False
            try:
                return await self.transport.put(written.text, delay_seconds=delay, ttl_seconds=ttl)
            except StorageError as error:
                in_doubt = in_doubt or error.maybe_done
                claim_in_doubt = claim_in_doubt or error.maybe_done
                raise

        try:
            written = await self.payloads.write(fitted, expires_at=expires_at)
            stored = await self._write(attempt, is_large=written.packed is not None)
        except StorageError as error:
            error.maybe_done = in_doubt
            if not claim_in_doubt:
                with suppress(StorageError):
                    await self.payloads.discard(written.envelope)
            raise
        return SentMessage(stored.id, stored.receipt, written.envelope, written.text)

    async def put_again(
        self, message: Envelope, source: LargePayloads, *, delay: float = 0, ttl: float = NEVER
    ) -> SentMessage:
        """Store what was a message before, with what it carries and a payload of its own. Listeners are not notified.

        Args:
            message: The envelope.
            source: Where its large payload is.
            delay: Seconds until listeners see it (default 0).
            ttl: Seconds until it expires (default -1: never).

        Returns:
            The message stored.

        Raises:
            MessageUndecodable: The payload is missing or damaged.
        """
        try:
            fitted = await self.payloads.refit(message, source)
        except StorageError as error:
            error.maybe_done = False  # nothing was put
            raise
        return await self._put_fitted(fitted, delay, ttl)

    async def announce(self) -> None:
        """Notify listeners that there is work."""
        await self._throttle.announce(0)

    async def take(self, count: int, *, visibility_seconds: float) -> list[ReceivedMessage]:
        """Receive raw messages, for tools. The caller must delete them; they reappear otherwise.

        Args:
            count: How many, 1 to 32.
            visibility_seconds: Seconds for which they stay hidden.

        Returns:
            At most `count` messages; none if the queue does not exist.
        """
        try:
            return await self.transport.get(count, visibility_seconds=visibility_seconds)
        except NotFound:
            return []

    async def put_text(self, text: str, *, delay: float = 0, ttl: float = NEVER) -> None:
        """Store a message as it is, without an envelope, for readers that know none.

        Args:
            text: The message, at most 64 KiB.
            delay: Seconds until listeners see it (default 0).
            ttl: Seconds until it expires (default -1: never).
        """
        _check_times(delay, 0, ttl)
        if not wire.fits(text):
            raise ConfigurationError(
                f"a bare text of {wire.wire_bytes(text)} bytes does not fit a message; use put()"
            )
        await self._write(lambda: self.transport.put(text, delay_seconds=delay, ttl_seconds=ttl))
        await self._throttle.announce(len(text), due=self._due(delay))

    def _due(self, delay: float) -> float:
        return self.clock.time() + delay if delay else 0.0

    async def _write(self, call: Callable[[], Any], *, is_large: bool = False) -> Any:
        backoff = Backoff(deadline_seconds=self.config.write_seconds)
        if is_large:  # a repetition may write a blob
            backoff = Backoff(0.2, 5.0, deadline_seconds=self.config.write_seconds)
        try:
            return await retry(call, backoff=backoff, clock=self.clock)
        except NotFound:
            await self.create()
            return await retry(call, backoff=backoff, clock=self.clock)

    # --- looking ------------------------------------------------------------------------------------------------

    async def depth(self) -> int:
        """About how many messages there are, invisible ones included; 0 if the queue does not exist. One request."""
        try:
            return await self.transport.count()
        except NotFound:
            return 0

    async def peek(self, count: int = MAX_BATCH) -> list[PeekedMessage[T]]:
        """Return visible messages without receiving them. Attempts are unaffected.

        One request, and one for each large payload.

        Args:
            count: Maximum number of messages, 1 to 32 (default 32).

        Returns:
            The messages; an item that cannot be decoded is its error.

        Raises:
            ConfigurationError: `count` is out of bounds.
        """
        if not 1 <= count <= MAX_BATCH:
            raise ConfigurationError(f"count must be 1 to {MAX_BATCH}, got {count}")
        try:
            found = await self.transport.peek(count)
        except NotFound:
            return []
        return [await self._peeked(message) for message in found]

    async def _peeked(self, message: ReceivedMessage) -> PeekedMessage[T]:
        items: tuple[T, ...] = ()
        problem = ""
        try:
            _, decoded = await self.open(message.text)
            items = tuple(value for _, value in decoded if not isinstance(value, Exception))
            problem = next((str(value) for _, value in decoded if isinstance(value, Exception)), "")
        except Exception as error:
            problem = str(error)
        return PeekedMessage(
            message.id,
            message.text,
            items,
            message.dequeue_count,
            message.inserted_at,
            message.expires_at,
            problem,
        )

    async def open(self, text: str) -> tuple[Envelope, list[tuple[int, T | Exception]]]:
        """Read a message, and its large payload if it has one.

        Args:
            text: The message as stored.

        Returns:
            The envelope, and the items still to do with their index; an item that cannot be decoded is its error.

        Raises:
            MessageUndecodable: The message as a whole cannot be read.
            StorageError: Its payload cannot be read.
        """
        envelope = wire.decode(text)
        return envelope, await self.items(envelope)

    def decode(self, text: str) -> Envelope:
        """Read the envelope of a message; no I/O.

        Args:
            text: The message as stored.

        Returns:
            The envelope.

        Raises:
            MessageUndecodable: The message cannot be read.
        """
        return wire.decode(text)

    async def items(self, envelope: Envelope) -> list[tuple[int, T | Exception]]:
        """Read the items of an envelope; no I/O.

        Args:
            envelope: The envelope.

        Returns:
            The items still to do with their index; an item that cannot be decoded is its error.
        """
        if envelope.raw is not None:
            return [(0, self._decode.foreign(envelope.raw))]
        raws = envelope.items if not (envelope.z or envelope.claim) else await self.payloads.items(envelope)
        chosen = range(len(raws)) if envelope.left is None else envelope.left
        items: list[tuple[int, T | Exception]] = []
        for index in chosen:
            if not 0 <= index < len(raws):
                continue
            try:
                items.append((index, self._decode(raws[index], envelope.schema)))
            except Exception as error:
                items.append((index, error))
        if not items:
            raise MessageUndecodable("the envelope holds no pending item")
        return items

    # --- keeping ------------------------------------------------------------------------------------------------

    async def clear(self) -> bool:
        """Delete all messages; repeated until the service has done it, for at most `write_seconds`. False if there is no such queue."""
        backoff = Backoff(base_seconds=0.2, cap_seconds=2.0, deadline_seconds=self.config.write_seconds)
        try:
            await retry(self.transport.clear, backoff=backoff, clock=self.clock)
        except NotFound:
            return False
        return True

    async def create(self) -> bool:
        """Create the queue; False if it existed."""
        return await retry(self.transport.create, backoff=Backoff(), clock=self.clock)

    async def delete(self) -> bool:
        """Delete the queue and its messages; False, and harmless, if it did not exist. Large payloads are swept later."""
        in_doubt = False

        async def attempt() -> None:
            nonlocal in_doubt
            try:
                await self.transport.delete_queue()
            except StorageError as error:
                in_doubt = in_doubt or error.maybe_done
                raise

        try:
            await retry(attempt, backoff=Backoff(), clock=self.clock)
        except NotFound:
            return (
                in_doubt  # after a try whose answer was lost, "not there" is the answer that was waited for
            )
        return True

    @property
    def poison(self) -> Queue[PoisonRecord]:
        """The queue of messages that could not be processed; see `requeue_poison`."""
        if self.name.endswith(SUFFIX):
            raise ConfigurationError(f"{self.name} is a poison queue itself")
        return self._like(self._transport_of(poison_name(self.name)), Schema(type=PoisonRecord), rules=None)

    def _like(self, transport: QueueTransport, schema: Schema, *, rules: RuleStore | None) -> Queue[Any]:
        return Queue(
            transport,
            self.payloads,
            schema=schema,
            bus=self.bus,
            transport_of=self._transport_of,
            identity=self.identity,
            clock=self.clock,
            config=self.config,
            rules=rules,
            portal=self._portal,
        )

    def listener(self, handler: Handler, **options: Unpack[ListenerOptions]) -> QueueListener[T]:
        """A listener that calls `handler` with this queue's items.

        Args:
            handler: `async def` or `def`. With `batch`, a queue declared as ``list[Order]`` (the annotation of the
                handler's parameter) is one of orders.
            **options: As for `QueueListener`.

        Returns:
            The listener; call its `run`.

        Raises:
            ConfigurationError: The handler or an option is invalid.
        """
        queue: Queue[Any] = self
        if options.get("batch") and typing.get_origin(self.schema.type) is list:
            schema = dataclasses.replace(self.schema, type=typing.get_args(self.schema.type)[0])
            queue = self._like(self.transport, schema, rules=self.rules)
        return QueueListener(queue, handler, **options)


def _check_times(delay: float, visibility: float, ttl: float) -> None:
    if not 0 <= delay <= MAX_VISIBILITY_SECONDS or not 0 <= visibility <= MAX_VISIBILITY_SECONDS:
        raise ConfigurationError(
            f"delay and visibility must be 0 to 604,800 seconds (7 days), got {delay:g} and {visibility:g}"
        )
    if ttl != NEVER and not max(delay, visibility) < ttl <= MAX_TTL_SECONDS:
        raise ConfigurationError(
            f"ttl {ttl:g} s must be longer than the delay and at most {MAX_TTL_SECONDS:,}, or -1 for a message that never "
            "expires"
        )


async def existing_depth(queue: Queue[Any]) -> int:
    """As `Queue.depth`, but raises `NotFound` if there is no such queue: to operators an act on a mistyped name must fail."""
    try:
        return await queue.transport.count()
    except NotFound as error:
        raise absent("queue", queue.name) from error


@asynccontextmanager
async def process_inline(queue: Queue[T], item: T, *, seconds: float = 60.0) -> AsyncIterator[T]:
    """Store an item hidden, process it inside the block, and delete it when the block ends without an error.

    Guarantees that the item is stored before the block begins, and that listeners get it if the block raises (at
    once) or the process dies (when `seconds` are over). The item stays hidden while the block runs. Saves the get:
    one put and one delete.

    Does not guarantee that the item is processed once: if the delete gets no answer, a listener may get it again.

    Args:
        queue: Where the item is stored.
        item: The item.
        seconds: How soon listeners get the item of a dead process, 2 to 604,800 (default 60).

    Yields:
        The item.

    Raises:
        ConfigurationError: `seconds` is out of bounds.
        StorageError: The item could not be stored or deleted.

    Examples:
        >>> async with process_inline(queue, order):
        ...     await ship(order)
    """
    if not 2 <= seconds <= 7 * 24 * 3600:
        raise ConfigurationError(f"seconds must be 2 to 604,800, got {seconds}")
    (sent,) = await queue.put(item, visibility=seconds)
    holder = _Holder(queue, sent, seconds)
    renewing = asyncio.create_task(holder.renew(), name=f"hold {queue.name}")
    try:
        yield item
    except BaseException:
        await _end(renewing)
        await holder.show()
        raise
    await _end(renewing)
    await holder.delete()


keeping = process_inline  # its earlier name


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


class _Holder:
    def __init__(self, queue: Queue[T], sent: SentMessage, seconds: float) -> None:
        self._queue, self._sent, self._seconds = queue, sent, seconds
        self._receipt = sent.receipt

    async def renew(self) -> None:
        while True:
            await self._queue.clock.sleep(self._seconds / 2)
            try:
                self._receipt = await self._queue.transport.update(
                    self._sent.id, self._receipt, visibility_seconds=self._seconds
                )
            except ReceiptStale:
                return
            except StorageError:
                continue

    async def show(self) -> None:
        try:
            await self._queue.transport.update(self._sent.id, self._receipt, visibility_seconds=0)
        except StorageError:
            return  # it appears by itself
        await self._queue.announce()

    async def delete(self) -> None:
        try:
            await retry(
                lambda: self._queue.transport.delete(self._sent.id, self._receipt),
                backoff=Backoff(),
                clock=self._queue.clock,
            )
        except ReceiptStale:
            return
        with suppress(StorageError):  # the work is done; what stays is swept
            await self._queue.payloads.discard(self._sent.envelope)
