"""Fitting any payload into a message, and getting it out again (S10): inline, else compressed, else in a blob."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import msgspec

from coordinator.backoff import Backoff, retry
from coordinator.clock import Clock
from coordinator.errors import ConfigurationError, MessageUndecodable, NotFound
from coordinator.queues import envelope as wire
from coordinator.queues.envelope import Envelope
from coordinator.queues.transport import MAX_MESSAGE_BYTES, ClaimStore

_OFF_LOOP_BYTES = 256 * 1024
_NAME = re.compile("[0-9a-f]{32}")
P = ParamSpec("P")
R = TypeVar("R")


class Claims:
    """Payloads of one queue that may be too large for a message.

    A claim is written before its message and deleted after it, so a message never refers to what was never written;
    a crash between leaves an orphan, which `sweep` removes once its message must be gone. Large payloads are unpacked
    one at a time, so memory holds at most one in the making.
    """

    def __init__(self, store: ClaimStore, *, clock: Clock, max_payload_bytes: int) -> None:
        self._store = store
        self._clock = clock
        self._max_payload_bytes = max_payload_bytes
        self._one_large = asyncio.Semaphore(1)

    async def fit(self, head: Envelope, *, expires_at: float) -> tuple[Envelope, str]:
        """The envelope that fits a message, and its text; writes a claim if nothing else helps."""
        text = (
            wire.encode(head)
            if sum(len(bytes(item)) for item in head.items) <= 2 * MAX_MESSAGE_BYTES
            else None
        )
        if text is not None and wire.fits(text):
            return head, text
        size, packed = await _off_loop(text is None, wire.pack, head.items)
        if len(packed) * 4 // 3 < MAX_MESSAGE_BYTES and size <= wire.MAX_INLINE_UNPACKED_BYTES:
            envelope = wire.with_packed(head, size, packed)
            text = wire.encode(envelope)
            if wire.fits(text):
                return envelope, text
        name = uuid.uuid4().hex
        await retry(
            lambda: self._store.put(name, packed, expires_at=expires_at), backoff=Backoff(), clock=self._clock
        )
        envelope = wire.with_claim(head, size, packed, name)
        return envelope, wire.encode(envelope)

    async def _fit_again(self, head: Envelope, expires_at: float) -> tuple[Envelope, str]:
        """An envelope that was a message before: as it is, else without the traces of its history, else repacked."""
        for candidate in (
            head,
            _without_traces(head),
            msgspec.structs.replace(head, history=head.history[-1:]),
        ):
            text = wire.encode(candidate)
            if wire.fits(text):
                return candidate, text
        if head.raw is not None:
            raise ConfigurationError(
                "a foreign message that fills its 64 KiB has no room for a history; move it by hand"
            )
        items = await self.items(head)
        return await self.fit(
            msgspec.structs.replace(_without_traces(head), z="", claim=None, size=0, items=items),
            expires_at=expires_at,
        )

    async def items(self, envelope: Envelope) -> list[msgspec.Raw]:
        """All items of a packed or claimed envelope. A claim that vanished is `MessageUndecodable`."""
        if envelope.claim is None:
            if len(envelope.z) < 1024:
                return wire.inline_items(envelope)
            async with self._one_large:
                return await asyncio.to_thread(wire.inline_items, envelope)
        claim = envelope.claim
        if not _NAME.fullmatch(claim.name):
            raise MessageUndecodable("the envelope names a claim that cannot be one of ours")
        if max(envelope.size, claim.bytes) > self._max_payload_bytes:
            raise MessageUndecodable(
                f"the payload unpacks to {envelope.size} bytes; at most {self._max_payload_bytes} are allowed"
            )
        async with self._one_large:
            try:
                packed = await self._store.get(claim.name)
            except NotFound as error:
                raise MessageUndecodable(
                    f"the payload is gone: there is no claim {claim.name!r} any more"
                ) from error
            return await _off_loop(
                len(packed) > _OFF_LOOP_BYTES, wire.unpack, packed, envelope.size, self._max_payload_bytes
            )

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


def _without_traces(envelope: Envelope) -> Envelope:
    history = [msgspec.structs.replace(failure, trace="") for failure in envelope.history]
    return msgspec.structs.replace(envelope, history=history)


async def _off_loop(large: bool, function: Callable[P, R], *arguments: P.args, **options: P.kwargs) -> R:
    if large:
        return await asyncio.to_thread(function, *arguments, **options)
    return function(*arguments, **options)
