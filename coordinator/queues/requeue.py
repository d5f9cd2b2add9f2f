"""Bringing messages back from poison, and moving them from queue to queue."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple, Self, TypeVar

import msgspec

from coordinator.backoff import TRANSIENT, Backoff, retry
from coordinator.clock import Clock
from coordinator.errors import (
    ConfigurationError,
    InvalidRequest,
    MessageUndecodable,
    MoveStopped,
    NotFound,
    ReceiptStale,
    StorageError,
)
from coordinator.queues import envelope as wire
from coordinator.queues.envelope import Envelope, PoisonRecord
from coordinator.queues.large_payloads import LargePayloads
from coordinator.queues.protocols import MAX_BATCH, NEVER, ReceivedMessage
from coordinator.queues.queue import Queue

_log = logging.getLogger("coordinator.queues")
_HOLD_SECONDS = 45.0
_BEGIN_WITHIN_SECONDS = (
    10.0  # of the hold: what begins later may still be at it when others see the message again
)
_READ_SECONDS = 1.0  # the shortest that the service knows
_LARGE_BYTES, _LARGE_HOLD_SECONDS = 4 * 1024 * 1024, 900.0
_NO_END_SECONDS = 10 * 365 * 24 * 3600.0
_MOST_REASONS = 10
_RECEIVED_SINCE = "somebody received or removed it since it was read"
T = TypeVar("T")


class Moved(int):
    """How many messages were moved, as a number.

    `left` were seen and stay where they were, visible; `reasons` says why, for the first ten, and `left_ids` which. `in_doubt` were put at their
    new place, and whether they are gone from the old one is not known: they may be handled twice. `repeated` were in poison
    twice, brought back once and removed.
    """

    left: int
    in_doubt: int
    repeated: int
    reasons: tuple[str, ...]
    left_ids: frozenset[str]

    def __new__(
        cls,
        moved: int,
        *,
        left: int = 0,
        in_doubt: int = 0,
        repeated: int = 0,
        reasons: Iterable[str] = (),
        left_ids: Iterable[str] = (),
    ) -> Self:
        made = super().__new__(cls, moved)
        made.left_ids = frozenset(left_ids)
        made.left, made.in_doubt, made.repeated, made.reasons = left, in_doubt, repeated, tuple(reasons)
        return made


class _Copied(NamedTuple):
    """A message is at its new place, and needs these claims of its old one no more."""

    claims: tuple[Envelope, ...]
    repeated: bool = False


async def requeue_poison(
    queue: Queue[Any],
    *,
    limit: int | None = None,
    ids: set[str] | None = None,
    known: Sequence[ReceivedMessage] | None = None,
    progress: Callable[[int], None] = lambda moved: None,
) -> Moved:
    """Requeue messages of the poison queue.

    Guarantees that each comes back whole (of its history, what has no room is left out, and says so), and that it is
    put back before it is removed from poison. A message that cannot come back stays in poison, visible, and delays no other
    message. With `ids` no other message is hidden for longer than a second; with `known` no other is touched.

    Does not guarantee that it comes back once only: a crash between the two leaves both, each with a payload of its
    own.

    Args:
        queue: The queue, not its poison queue.
        limit: Maximum number of messages (default: all).
        ids: Only the messages with these ids in the poison queue (default: all). They are searched for.
        known: Only these messages, as `read_poison` gave them. Those that somebody received since then stay.
        progress: Called with the number of messages moved so far.

    Returns:
        How many were moved; its attributes say how many are left, in doubt or repeated, and why.

    Raises:
        MoveStopped: Storage stayed unreachable or busy for the queue's `write_seconds`. It says what was done; call
            again.

    Examples:
        >>> moved = await requeue_poison(storage.queue("orders-in"), limit=100)
    """
    done: set[tuple[str, tuple[int, ...]]] = set()

    async def revive(message: ReceivedMessage) -> _Copied:
        poison = queue.poison
        ((_, record), *_) = (await _read(queue, lambda: poison.open(message.text)))[1]
        if not isinstance(record, PoisonRecord):
            raise MessageUndecodable("the message is not a poison record")
        key = (record.message_id, tuple(record.left or ()))
        if record.message_id and key in done:  # the answer of the record's put was lost
            return _Copied((), repeated=True)
        try:
            envelope = wire.decode(record.text)
        except MessageUndecodable:  # a newer program may read it as it is
            await queue.put_text(record.text)
            return _Copied(())
        again = msgspec.structs.replace(
            envelope,
            kennel=wire.VERSION,
            unstarted=0,
            reported=0,
            begun=None,
            kills={},
            left=record.left if record.left is not None else envelope.left,
            history=record.failures,
        )
        await queue.put_again(again, queue.payloads)
        done.add(key)
        # Records of single items may share their claim: then it is left to the sweep.
        return _Copied((envelope,) if record.left is None else ())

    moved = await _Move(queue.poison, revive, limit=limit, ids=ids, known=known, progress=progress).run()
    if moved:
        await queue.announce()
    return moved


async def delete_poison(
    queue: Queue[Any],
    ids: set[str] | None = None,
    *,
    known: Sequence[ReceivedMessage] | None = None,
    progress: Callable[[int], None] = lambda moved: None,
) -> Moved:
    """Delete messages of the poison queue.

    Guarantees that only these messages are deleted, and that all others stay: with `ids` none is hidden for longer than
    a second, with `known` none is touched. A message that is not in the poison queue any more is not counted.

    Args:
        queue: The queue, not its poison queue.
        ids: The messages' ids in the poison queue. They are searched for.
        known: The messages, as `read_poison` gave them. Those that somebody received since then stay.
        progress: Called with the number of messages deleted so far.

    Returns:
        How many were deleted.

    Raises:
        MoveStopped: Storage stayed unreachable or busy for the queue's `write_seconds`; call again.

    Examples:
        >>> await delete_poison(storage.queue("orders-in"), {message.id})
    """
    # A large payload may be that of another record, too: the sweep removes it.
    only = set() if ids is None and known is None else ids
    return await _Move(queue.poison, None, limit=None, ids=only, known=known, progress=progress).run()


async def read_poison(queue: Queue[Any]) -> AsyncIterator[list[ReceivedMessage]]:
    """Read all messages of the poison queue.

    Azure can peek at the first 32 alone, so this receives them. Guarantees that each is hidden for a second at most.
    Does not guarantee that all are found while others receive, too: compare with `queue.poison.depth()`.

    Each message's count of deliveries rises by one. Its receipt is good for `requeue_poison` and `delete_poison` until
    somebody receives it again.

    Args:
        queue: The queue, not its poison queue.

    Yields:
        Up to 32 messages. One may come twice: then its later receipt counts.

    Raises:
        StorageError: Storage stayed unreachable or busy for the queue's `write_seconds`.

    Examples:
        >>> messages = {each.id: each async for batch in read_poison(queue) for each in batch}
    """
    async for batch in _read_all(queue.poison):
        yield batch


async def move(
    source: Queue[Any],
    target: Queue[Any],
    *,
    limit: int | None = None,
    progress: Callable[[int], None] = lambda moved: None,
) -> Moved:
    """Move messages as they are, at most `limit`, with their payloads and what is left of their time to live.

    Each is put before it is removed; the rest is as for `requeue_poison`.
    """

    async def copy(message: ReceivedMessage) -> _Copied:
        lasts = message.expires_at - source.clock.time()
        ttl = NEVER if lasts > _NO_END_SECONDS else max(1.0, lasts)
        try:
            envelope = decoded = wire.decode(message.text)
            record = await _read(source, lambda: _record(source.payloads, decoded))
        except MessageUndecodable:
            envelope, record = Envelope(kennel=0), None
        if record is not None and (inner := _claiming(record.text)) is not None:
            large = inner
            owned = await _read(target, lambda: target.payloads.with_own_claim(large, source.payloads))
            raw = wire.encode_item(msgspec.structs.replace(record, text=wire.encode(owned)))
            carrier = msgspec.structs.replace(envelope, items=[raw], z="", claim=None, size=0)
            await target.put_again(carrier, source.payloads, ttl=ttl)
            return _Copied((inner,))
        if envelope.claim is not None:
            await target.put_again(envelope, source.payloads, ttl=ttl)
        else:
            await target.put_text(message.text, ttl=ttl)
        return _Copied(())

    moved = await _Move(source, copy, limit=limit, ids=None, known=None, progress=progress).run()
    if moved:
        await target.announce()
    return moved


async def _read(queue: Queue[Any], call: Callable[[], Awaitable[T]]) -> T:
    """What comes before a put: repeated, and if it fails nothing was put."""
    try:
        return await retry(
            call, backoff=Backoff(deadline_seconds=queue.config.write_seconds), clock=queue.clock
        )
    except StorageError as error:
        error.maybe_done = False
        raise


def _claiming(text: str) -> Envelope | None:
    """The envelope of a message if its payload is in a claim."""
    try:
        envelope = wire.decode(text)
    except MessageUndecodable:
        return None
    return envelope if envelope.claim is not None else None


async def _record(claims: LargePayloads, envelope: Envelope) -> PoisonRecord | None:
    """The poison record that a message is, if it is one: its own message may have a claim, too."""
    if not envelope.kennel or envelope.raw is not None or envelope.size > _LARGE_BYTES:
        return None
    raws = await claims.items(envelope) if envelope.z or envelope.claim else envelope.items
    try:
        (raw,) = raws
        return msgspec.json.decode(raw, type=PoisonRecord)
    except (ValueError, msgspec.DecodeError, RecursionError):
        return None


async def _read_all(queue: Queue[Any]) -> AsyncIterator[list[ReceivedMessage]]:
    seen, again = set[str](), 0
    backoff = Backoff(base_seconds=0.1, cap_seconds=2.0, deadline_seconds=queue.config.write_seconds)
    total = await retry(queue.depth, backoff=backoff, clock=queue.clock)  # never less than there are
    while len(seen) < total:
        batch = await retry(
            lambda: queue.take(MAX_BATCH, visibility_seconds=_READ_SECONDS),
            backoff=backoff,
            clock=queue.clock,
        )
        fresh = {message.id for message in batch} - seen
        seen |= fresh
        if batch:
            yield batch
        # Without fresh ones, what was read came round again, or others hide the rest for a moment.
        again = 0 if fresh else again + 1
        if again > 3 + len(seen) // MAX_BATCH:
            return
        if not batch:
            await queue.clock.sleep(_READ_SECONDS)


class _Move:
    """Takes messages and has each copied (None: not even that), then removes it. Messages that it does not remove become visible again.

    With `ids` it reads all that there are, and holds those alone; with `known` it reads none.
    """

    def __init__(
        self,
        source: Queue[Any],
        copy: Callable[[ReceivedMessage], Awaitable[_Copied]] | None,
        *,
        limit: int | None,
        ids: set[str] | None,
        known: Sequence[ReceivedMessage] | None,
        progress: Callable[[int], None],
    ) -> None:
        self._source, self._copy, self._limit, self._ids, self._known = source, copy, limit, ids, known
        self._progress = progress
        self._clock: Clock = source.clock
        self._backoff = Backoff(
            base_seconds=0.1, cap_seconds=2.0, deadline_seconds=source.config.write_seconds
        )
        self._held: dict[str, ReceivedMessage] = {}
        self._acted: set[str] = set()
        self._left: dict[str, str] = {}
        self._gone: set[str] = set()
        self._doubted: set[str] = set()
        self._moved = self._repeated = 0
        self._unheard_until = float("-inf")

    async def run(self) -> Moved:
        try:
            if self._known is not None:
                for message in self._known:
                    await self._alone(message)
            elif self._ids is not None:
                await self._search(self._ids)
            else:
                while self._wants_more() and await self._batch():
                    pass
        except StorageError as error:
            await self._show()
            report = self._report()
            raise MoveStopped(
                f"storage was unavailable while messages of {self._source.name} were moved ({error}): {report} moved, "
                f"{report.left} left, {report.in_doubt} in doubt (they may be in both queues); move again to continue",
                resource=self._source.name,
                moved=int(report),
                left=report.left,
                in_doubt=report.in_doubt,
                moved_ids=frozenset(self._gone),
                in_doubt_ids=frozenset(self._doubted),
            ) from error
        finally:
            await self._show()
        return self._report()

    def _report(self) -> Moved:
        reasons = list(dict.fromkeys(reason for reason in self._left.values() if reason))[:_MOST_REASONS]
        return Moved(
            self._moved,
            left=sum(1 for reason in self._left.values() if reason),
            in_doubt=len(self._doubted),
            repeated=self._repeated,
            reasons=reasons,
            left_ids=self._left,
        )

    def _wants_more(self) -> bool:
        return self._limit is None or self._moved < self._limit

    async def _search(self, ids: set[str]) -> None:
        async for batch in _read_all(self._source):
            for message in batch:
                if message.id in ids - self._acted and self._wants_more():
                    await self._alone(message)
            if ids <= self._acted or not self._wants_more():
                return

    async def _alone(self, message: ReceivedMessage) -> None:
        """Act on a message that is not held, only read."""
        if not self._wants_more():
            return
        if self._copy is not None:
            try:
                await self._hold(message, _HOLD_SECONDS)
            except ReceiptStale:
                self._left[message.id] = _RECEIVED_SINCE
                return
            except StorageError as error:
                error.maybe_done = False  # nothing was put
                raise
        await self._one(self._held.get(message.id, message))

    async def _batch(self) -> bool:
        """One get and what is done with it; False if there is nothing more."""
        room = MAX_BATCH if self._limit is None else self._limit - self._moved
        taken_at = self._clock.monotonic()
        messages = await self._take(min(MAX_BATCH, room))
        for message in messages:
            self._held[message.id] = message
        fresh = [message for message in messages if message.id not in self._acted | self._left.keys()]
        for message in fresh:
            if self._clock.monotonic() - taken_at > _BEGIN_WITHIN_SECONDS:
                await self._show([message.id])
            elif self._wants_more():
                await self._one(message)
        return bool(fresh) or await self._heard_again(len(messages))

    async def _take(self, count: int) -> list[ReceivedMessage]:
        async def attempt() -> list[ReceivedMessage]:
            try:
                return await self._source.take(count, visibility_seconds=_HOLD_SECONDS)
            except StorageError as error:
                if error.maybe_done:  # what was taken is hidden, and nobody knows its receipts
                    self._unheard_until = self._clock.monotonic() + _HOLD_SECONDS + 1
                raise

        return await retry(attempt, backoff=self._backoff, clock=self._clock)

    async def _heard_again(self, seen: int) -> bool:
        """At the end: wait for what a get took whose answer was lost. True if there may be something."""
        wait = self._unheard_until - self._clock.monotonic()
        if seen or wait <= 0:
            return False
        if await retry(self._source.depth, backoff=self._backoff, clock=self._clock) <= len(self._held):
            return False
        _log.info("Waiting %.1f s for messages of %s whose answer was lost", wait, self._source.name)
        await self._show()
        await self._clock.sleep(wait)
        return True

    async def _one(self, message: ReceivedMessage) -> None:
        self._acted.add(message.id)
        try:
            if self._copy is None:
                copied = _Copied(())
                self._held[message.id] = message
            else:
                own = _claiming(message.text)
                if own is not None and own.claim is not None and own.claim.bytes >= _LARGE_BYTES:
                    # It may take longer to copy than the message is held.
                    await self._hold(message, _LARGE_HOLD_SECONDS)
                copied = await self._copy(message)
        except (ReceiptStale, MessageUndecodable, ConfigurationError, InvalidRequest) as error:
            self._left[message.id] = str(error) or type(error).__name__
            return
        except StorageError as error:
            if error.maybe_done:
                self._doubted.add(message.id)
            else:
                self._left[message.id] = str(error)
            raise
        try:
            await self._delete(self._held[message.id])
        except (ReceiptStale, NotFound):
            del self._held[message.id]
            if self._copy is None:
                self._left[message.id] = _RECEIVED_SINCE
            else:
                self._doubted.add(message.id)
            return
        except StorageError:
            self._doubted.add(message.id)
            raise
        del self._held[message.id]
        self._gone.add(message.id)
        if copied.repeated:
            self._repeated += 1
        else:
            self._moved += 1
            self._progress(self._moved)
        own = _claiming(message.text)
        for envelope in (*copied.claims, *([own] if own is not None and not own.claim_kept else [])):
            try:
                await self._source.payloads.discard(envelope)
            except StorageError as error:
                _log.info("The sweep will remove a claim of %s: %s", self._source.name, error)

    async def _hold(self, message: ReceivedMessage, seconds: float) -> None:
        receipt = await self._source.transport.update(message.id, message.receipt, visibility_seconds=seconds)
        self._held[message.id] = message._replace(receipt=receipt)

    async def _delete(self, message: ReceivedMessage) -> None:
        repeated = False

        async def attempt() -> None:
            nonlocal repeated
            try:
                await self._source.transport.delete(message.id, message.receipt)
            except ReceiptStale as error:
                # After a try whose answer was lost, "not there" is the answer that was waited for.
                if not (repeated and error.status == 404):
                    raise
            except TRANSIENT as error:
                repeated = repeated or error.maybe_done
                raise

        await retry(attempt, backoff=self._backoff, clock=self._clock)

    async def _show(self, ids: Iterable[str] | None = None) -> None:
        """Make what was not moved visible again; what cannot be shown now appears by itself when its hold ends."""
        for id in list(self._held if ids is None else ids):
            message = self._held.pop(id)
            try:
                await self._source.transport.update(message.id, message.receipt, visibility_seconds=0)
            except (ReceiptStale, NotFound):
                continue
            except StorageError:
                self._held.clear()
                return
