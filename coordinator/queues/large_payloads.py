"""Fitting any payload into a message, and getting it out again: inline, else compressed, else in a blob."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar

import msgspec

from coordinator.backoff import Backoff, retry
from coordinator.clock import Clock
from coordinator.errors import MessageUndecodable, NotFound
from coordinator.queues import envelope as wire
from coordinator.queues.envelope import MAX_MESSAGE_BYTES, Claim, Envelope
from coordinator.queues.protocols import ClaimStore

_OFF_LOOP_BYTES = 256 * 1024
_NAME = re.compile("[0-9a-f]{32}")
P = ParamSpec("P")
R = TypeVar("R")


class Fitted(NamedTuple):
    """An envelope and its text; `packed` is the content of the claim that it needs, None if it needs none."""

    envelope: Envelope
    text: str
    packed: bytes | None = None


class LargePayloads:
    """Payloads of one queue that may be too large for a message.

    A claim is written before its message and deleted after it, so a message never refers to what was never written;
    a crash between leaves an orphan, which `sweep` removes once its message must be gone. A claim has one message: a
    put that is repeated after a lost answer, a requeue and a move write one of their own, because the first copy that is
    done deletes its claim. Large payloads are unpacked one at a time, so memory holds at most one in the making.
    """

    def __init__(self, store: ClaimStore, *, clock: Clock, max_payload_bytes: int) -> None:
        self._store = store
        self._clock = clock
        self._max_payload_bytes = max_payload_bytes
        self._one_large = asyncio.Semaphore(1)

    async def fit(self, head: Envelope) -> Fitted:
        """The envelope that fits a message, and its text. A payload that fits in no message is left for `write` to put in a claim."""
        text = (
            wire.encode(head)
            if sum(len(bytes(item)) for item in head.items) <= 2 * MAX_MESSAGE_BYTES
            else None
        )
        if text is not None and wire.fits(text):
            return Fitted(head, text)
        size, packed = await _off_loop(text is None, wire.pack, head.items)
        if len(packed) * 4 // 3 < MAX_MESSAGE_BYTES and size <= wire.MAX_INLINE_UNPACKED_BYTES:
            envelope = wire.with_packed(head, size, packed)
            text = wire.encode(envelope)
            if wire.fits(text):
                return Fitted(envelope, text)
        return _claimed(head, size, packed)

    async def refit(self, message: Envelope, source: LargePayloads) -> Fitted:
        """What was a message already, for a message of its own: the payload whole, of the history as much as has room.

        `source` has its claim if there is one. Raises `MessageUndecodable` if the payload cannot be had.
        """
        if message.claim is None:
            if (shortened := wire.with_short_history(message)) is not None:
                return Fitted(shortened, wire.encode(shortened))
            if message.raw is not None:
                return Fitted(message, message.raw)  # as it came: a foreign message needs no envelope
            size, packed = await _off_loop(True, wire.pack, await source.items(message))
            if len(packed) * 4 // 3 < MAX_MESSAGE_BYTES and size <= wire.MAX_INLINE_UNPACKED_BYTES:
                shortened = wire.with_short_history(wire.with_packed(message, size, packed))
                if shortened is not None:
                    return Fitted(shortened, wire.encode(shortened))
        else:
            claim, size = message.claim, message.size
            packed = await retry(lambda: source.content(claim), backoff=Backoff(), clock=self._clock)
        fitted = _claimed(message, size, packed)
        envelope = wire.with_short_history(fitted.envelope)
        if envelope is None:
            raise MessageUndecodable("the envelope does not fit a message, even without its payload")
        return fitted._replace(envelope=envelope, text=wire.encode(envelope))

    async def write(self, fitted: Fitted, *, expires_at: float) -> Fitted:
        """A claim of its own for a message that is about to be put, if it needs one."""
        if fitted.packed is None:
            return fitted
        packed, name = fitted.packed, uuid.uuid4().hex
        await retry(
            lambda: self._store.put(name, packed, expires_at=expires_at), backoff=Backoff(), clock=self._clock
        )
        envelope = wire.with_claim(fitted.envelope, fitted.envelope.size, packed, name)
        return Fitted(envelope, wire.encode(envelope), packed)

    async def with_own_claim(self, message: Envelope, source: LargePayloads) -> Envelope:
        """The envelope with a copy of its claim, which is `source`'s."""
        assert message.claim is not None
        packed = await source.content(message.claim)
        fitted = await self.write(Fitted(message, "", packed), expires_at=0.0)
        return msgspec.structs.replace(fitted.envelope, claim_kept=False)

    async def items(self, envelope: Envelope) -> list[msgspec.Raw]:
        """All items of a packed or claimed envelope. A claim that vanished is `MessageUndecodable`."""
        if envelope.claim is None:
            if len(envelope.z) < 1024:
                return wire.inline_items(envelope)
            async with self._one_large:
                return await asyncio.to_thread(wire.inline_items, envelope)
        async with self._one_large:
            packed = await self.content(envelope.claim, size=envelope.size)
            return await _off_loop(
                len(packed) > _OFF_LOOP_BYTES, wire.unpack, packed, envelope.size, self._max_payload_bytes
            )

    async def content(self, claim: Claim, *, size: int = 0) -> bytes:
        """A claim as it is stored, of what unpacks to `size` bytes. One that vanished is `MessageUndecodable`."""
        if not _NAME.fullmatch(claim.name):
            raise MessageUndecodable("the envelope names an invalid claim")
        if (largest := max(size, claim.bytes)) > self._max_payload_bytes:
            raise MessageUndecodable(
                f"the payload unpacks to {largest} bytes; at most {self._max_payload_bytes} are allowed"
            )
        try:
            return await self._store.get(claim.name, at_most=claim.bytes)
        except NotFound as error:
            raise MessageUndecodable(f"the payload is gone: claim {claim.name!r} no longer exists") from error

    async def discard(self, envelope: Envelope) -> None:
        """Remove the claim of a message that is gone; raises `StorageError` if that must be left to a sweep."""
        if envelope.claim is not None and _NAME.fullmatch(envelope.claim.name):
            await self._store.delete(envelope.claim.name)

    async def keep(self, envelope: Envelope) -> None:
        """The message moved to where nothing expires: so must its claim."""
        if envelope.claim is not None and _NAME.fullmatch(envelope.claim.name):
            await self._store.keep(envelope.claim.name)

    async def sweep(self, *, grace_seconds: float = 24 * 3600.0) -> int:
        """Remove the claims whose messages expired at least `grace_seconds` ago; how many there were."""
        names = await self._store.expired(self._clock.time() - grace_seconds)
        for name in names:
            await self._store.delete(name)
        return len(names)

    async def lasting(self, *, grace_seconds: float) -> list[str]:
        """The claims that never expire, those written in the last `grace_seconds` excepted."""
        return await self._store.lasting(self._clock.time() - grace_seconds)

    async def remove(self, name: str) -> None:
        """Remove a claim that no message needs."""
        await self._store.delete(name)


def check_length(name: str, length: int, at_most: int) -> None:
    """Raise `MessageUndecodable` if a claim is longer than its message says: it would be read before it is judged."""
    if length > at_most:
        raise MessageUndecodable(
            f"the payload is damaged: claim {name!r} has {length} bytes, more than {at_most}"
        )


def _claimed(head: Envelope, size: int, packed: bytes) -> Fitted:
    """With a claim that has no name yet."""
    bare = msgspec.structs.replace(head, z="", raw=None, claim_kept=False)
    return Fitted(wire.with_claim(bare, size, packed, ""), "", packed)


async def _off_loop(large: bool, function: Callable[P, R], *arguments: P.args, **options: P.kwargs) -> R:
    if large:
        return await asyncio.to_thread(function, *arguments, **options)
    return function(*arguments, **options)
