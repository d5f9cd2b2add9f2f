"""What happens to a message when all its items have an outcome: deleted, tried again, or moved to poison."""

from __future__ import annotations

import logging
import math
import random
import traceback
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from coordinator.backoff import TRANSIENT, Backoff, retry
from coordinator.errors import ConfigurationError, MessageUndecodable, NotFound, ReceiptStale, StorageError
from coordinator.queues import envelope as wire
from coordinator.queues.delivery import Delivery, HandlerEnded, ProcessKilled, Reject, Retry
from coordinator.queues.envelope import (
    MAX_TAG_CHARACTERS,
    SUFFIX,
    Envelope,
    Failure,
    MessageTooNew,
    PoisonRecord,
)
from coordinator.queues.leases import End, LeaseManager
from coordinator.queues.protocols import ListenedQueue

_log = logging.getLogger("coordinator.queues")
_REMEMBERED = 10_000


@dataclass(frozen=True)
class RetryPolicy:
    """When a failed message is tried again: jitter below base × 2^(attempt - 1), at most the cap.

    Attributes:
        attempts: Attempts before the message goes to poison (default 5). Few give up during a short outage; many keep a hopeless
            message busy.
        base_seconds: Ceiling of the first pause (default 1).
        cap_seconds: Largest ceiling (default 300, at most 7 days).
    """

    attempts: int = 5
    base_seconds: float = 1.0
    cap_seconds: float = 300.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ConfigurationError(f"attempts must be at least 1, got {self.attempts}")
        if not 0 <= self.base_seconds <= self.cap_seconds <= 7 * 24 * 3600:
            raise ConfigurationError("retries need 0 <= base_seconds <= cap_seconds <= 604,800 (7 days)")

    def delay(self, attempt: int, rng: random.Random) -> float:
        """The pause after a failed attempt.

        Args:
            attempt: The attempt, from 1.
            rng: The source of jitter.

        Returns:
            Seconds.
        """
        ceiling = min(self.cap_seconds, self.base_seconds * 2.0 ** min(attempt - 1, 40))
        return rng.uniform(ceiling / 2, ceiling)


@dataclass
class Counts:
    """What a listener did so far. `done`, `failed`, `retried`, `poisoned` count items; `abandoned` counts messages."""

    done: int = 0
    failed: int = 0
    retried: int = 0
    poisoned: int = 0
    abandoned: int = 0
    repeats_avoided: int = 0


@dataclass(frozen=True)
class TryFailed:
    """An item's handler failed. `attempt` counts from 1; `again_seconds` is the pause before the next try, None if it was the last.

    `id` is equal for all deliveries of this item, see `MessageContext`.
    """

    queue: str
    id: str
    attempt: int
    attempts: int
    error: Exception
    again_seconds: float | None


def ignore(failed: TryFailed) -> None:
    """What a listener does about failed tries beside logging them."""


class Settler:
    """Ends deliveries. A message is deleted only after all its items are done or stored in the poison queue.

    1. Count the outcomes. A message that is done but no longer held is remembered: when it comes again, it is only deleted.
    2. Decide for each failed item: another attempt, or give up (rejected, undecodable, its process was killed too often, or
       no attempt is left). In a poison queue nothing is given up.
    3. Store what is given up in the poison queue, and keep its large payload. A crash from here on leaves both messages.
    4. If items have another attempt, show the message again after the shortest delay, with only these items left.
    5. Otherwise delete the message with its newest receipt; a lock keeps renewals apart. "Not found" after a lost answer
       means deleted.
    6. Remove its large payload, unless the poison record needs it.
    7. If storage fails until the message becomes visible again, it is delivered again.

    The numbers are repeated at the lines that do it.
    """

    def __init__(
        self,
        queue: ListenedQueue[Any],
        leases: LeaseManager,
        policy: RetryPolicy,
        rng: random.Random,
        failed: Callable[[TryFailed], Any] = ignore,
        handler: str = "",
    ) -> None:
        self._queue = queue
        self._leases = leases
        self.policy = policy
        self._rng = rng
        self._failed = failed
        self._handler = handler[:MAX_TAG_CHARACTERS]
        self._foreign: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._done_undeleted: OrderedDict[str, None] = OrderedDict()
        self.counts = Counts()
        self.expect: Callable[[float], None] = lambda seconds: None
        """Called with the seconds after which a message that is tried again will be visible."""

    def is_done_already(self, delivery: Delivery) -> bool:
        """True for a message that was processed here, whose deletion failed: it only has to be deleted."""
        return delivery.key in self._done_undeleted

    def remembered(self, delivery: Delivery, envelope: Envelope) -> Envelope:
        """With what this process knows of a foreign message, on which nothing can be noted."""
        if not envelope.kennel and delivery.key in self._foreign:
            unstarted, reported = self._foreign[delivery.key]
            return msgspec.structs.replace(envelope, unstarted=unstarted, reported=reported)
        return envelope

    async def settle(self, delivery: Delivery) -> None:
        """Act on the outcomes of all items; never raises for storage."""
        failures = delivery.failures
        self.counts.done += len(delivery.outcomes) - len(failures)  # 1
        if not delivery.held and not failures:
            self._remember(delivery)
            return
        try:
            if failures:
                await self._settle_failures(delivery, failures)
            else:
                await self.delete(delivery)
        except StorageError as error:  # 7
            _log.warning(
                "A message of %s could not be settled and will be delivered again: %s",
                self._queue.name,
                error,
            )
            self._leases.drop(delivery, End.ABANDONED)

    async def delete(self, delivery: Delivery) -> None:
        """Delete the message with its newest receipt, then its claim."""
        async with delivery.lock:
            try:
                try:
                    await self._delete_once(delivery)  # 5
                except TRANSIENT as error:
                    await self._delete_again(delivery, error)
            except (ReceiptStale, NotFound) as error:
                if delivery.held:
                    self._leases.went_stale(delivery, error)
                self._remember(delivery)
                return
            except TRANSIENT:
                self._remember(delivery)
                raise
            self._leases.drop(delivery, End.SETTLED)
        if delivery.key in self._done_undeleted:
            del self._done_undeleted[delivery.key]
            self.counts.repeats_avoided += 1
        await self._discard_claim(delivery)  # 6

    async def _delete_once(self, delivery: Delivery) -> None:
        if not delivery.held:
            raise ReceiptStale("the message is no longer held", resource=self._queue.name)
        await delivery.transport.delete(delivery.message.id, delivery.receipt)

    async def _delete_again(self, delivery: Delivery, first: StorageError) -> None:
        """Try until the message becomes visible again, after a first try that raised `first`."""
        latest: StorageError | None = first
        repeated = first.maybe_done

        async def attempt() -> None:
            nonlocal latest, repeated
            if latest is not None:
                error, latest = latest, None
                raise error
            try:
                await self._delete_once(delivery)
            except (ReceiptStale, NotFound) as error:
                # After a try whose answer was lost, "not there" is the answer we waited for.
                if not (repeated and getattr(error, "status", None) == 404):
                    raise
            except TRANSIENT as error:
                repeated = repeated or error.maybe_done
                raise

        left = max(1.0, delivery.until - self._queue.clock.monotonic())
        await retry(attempt, backoff=Backoff(cap_seconds=2.0, deadline_seconds=left), clock=self._queue.clock)

    def _remember(self, delivery: Delivery) -> None:
        self._done_undeleted[delivery.key] = None
        if len(self._done_undeleted) > _REMEMBERED:
            self._done_undeleted.popitem(last=False)

    async def _discard_claim(self, delivery: Delivery) -> None:
        if delivery.envelope.claim_kept:
            return
        try:
            await self._queue.payloads.discard(delivery.envelope)
        except StorageError as error:
            _log.info("The sweep will remove a claim of %s: %s", self._queue.name, error)

    async def _settle_failures(self, delivery: Delivery, failures: dict[int, Exception]) -> None:
        again: dict[int, float] = {}
        given_up: dict[int, Exception] = {}
        last_stop = self._queue.name.endswith(SUFFIX)  # nothing comes after poison: there it stays
        for index, error in failures.items():
            if self._is_hopeless(delivery, error):  # 2
                if last_stop:
                    again[index] = self.policy.cap_seconds
                else:
                    given_up[index] = error
            else:
                asked = error.after if isinstance(error, Retry) else None
                again[index] = self.policy.delay(delivery.attempt, self._rng) if asked is None else asked
            self._report(delivery, index, error, again.get(index))
        self.counts.failed += sum(not isinstance(error, Retry) for error in failures.values())
        if not delivery.held:
            return
        if given_up:
            await self._to_poison(delivery, given_up)  # 3
            self.counts.poisoned += len(given_up)
        if again:
            self.counts.retried += len(again)
            await self._show_again(delivery, sorted(again), min(again.values()))  # 4
        else:
            await self.delete(delivery)

    def _is_hopeless(self, delivery: Delivery, error: Exception) -> bool:
        return (
            isinstance(error, Reject | ProcessKilled)
            or (isinstance(error, MessageUndecodable) and not isinstance(error, MessageTooNew))
            or delivery.attempt >= self.policy.attempts
        )

    def _report(self, delivery: Delivery, index: int, error: Exception, again: float | None) -> None:
        """Say that a try failed; the last one is in the poison record, too."""
        item = f"{delivery.envelope.id or delivery.message.id}/{index}"
        name, attempt = self._queue.name, delivery.attempt
        if again is not None:
            _log.log(
                logging.INFO if isinstance(error, Retry) else logging.WARNING,
                "Attempt %d of %d of an item of %s failed: %s; next attempt in %.0f s",
                attempt,
                self.policy.attempts,
                name,
                summary(error),
                again,
                extra={"action": "retry", "resource": name, "item": item, "attempt": attempt},
            )
        try:
            self._failed(TryFailed(name, item, attempt, self.policy.attempts, error, again))
        except Exception:
            _log.exception("The try_failed handler of %s failed", name)

    async def _show_again(self, delivery: Delivery, left: list[int], delay_seconds: float) -> None:
        """Make the message visible after a delay, with only the items that are left."""
        envelope = delivery.envelope
        changed = msgspec.structs.replace(
            envelope,
            reported=envelope.reported + 1,
            begun=None,
            left=left if delivery.is_partly_done else envelope.left,
        )
        within = max(5.0, delivery.until - self._queue.clock.monotonic())
        await self._update(delivery, delay_seconds, self._noted(delivery, changed), within_seconds=within)

    async def abandon(self, delivery: Delivery, *, after_seconds: float = 0) -> None:
        """Let others have an unfinished message; items already done are not done again."""
        if not delivery.held:
            return
        envelope = delivery.envelope
        changed = msgspec.structs.replace(
            envelope,
            unstarted=envelope.unstarted + (not delivery.started),
            reported=envelope.reported + delivery.started,
            begun=None,
            left=delivery.left if delivery.is_partly_done else envelope.left,
        )
        try:
            await self._update(delivery, after_seconds, self._noted(delivery, changed), within_seconds=5.0)
            self.counts.abandoned += 1
        except StorageError as error:
            _log.info(
                "A message of %s could not be abandoned; it reappears when its visibility ends: %s",
                self._queue.name,
                error,
            )

    def _noted(self, delivery: Delivery, changed: Envelope) -> str | None:
        """The text of a message that goes back; None leaves it as it is."""
        if changed.kennel:
            text = wire.encode(changed)
            return text if wire.fits(text) else None
        self._foreign[delivery.key] = (changed.unstarted, changed.reported)
        if len(self._foreign) > _REMEMBERED:
            self._foreign.popitem(last=False)
        return None

    async def _update(
        self, delivery: Delivery, visibility_seconds: float, text: str | None, *, within_seconds: float
    ) -> None:
        async with delivery.lock:
            if not delivery.held:
                return
            self._leases.drop(delivery, End.ABANDONED)
            try:
                await retry(
                    lambda: delivery.transport.update(
                        delivery.message.id,
                        delivery.receipt,
                        visibility_seconds=visibility_seconds,
                        text=text,
                    ),
                    backoff=Backoff(deadline_seconds=within_seconds),
                    clock=self._queue.clock,
                )
                if visibility_seconds:
                    self.expect(math.ceil(visibility_seconds))
            except (ReceiptStale, NotFound) as error:
                self._leases.went_stale(delivery, error)

    async def _to_poison(self, delivery: Delivery, errors: dict[int, Exception]) -> None:
        """Write the poison record. Only afterwards may the message be deleted: a crash between leaves both, never none."""
        now = self._queue.clock.time()
        notes = [
            describe(
                error,
                worker=self._queue.identity(),
                attempts=delivery.attempt,
                at=now,
                item=index,
                handler=self._handler,
            )
            for index, error in errors.items()
        ]
        whole = set(errors) == set(delivery.indexes)
        record = PoisonRecord(
            queue=self._queue.name,
            message_id=delivery.message.id,
            text=delivery.message.text if delivery.envelope.raw is None else delivery.envelope.raw,
            reason=notes[-1].reason,
            failures=[*delivery.envelope.history, *notes],
            first_at=delivery.envelope.at or delivery.message.inserted_at,
            last_at=now,
            attempts=delivery.attempt,
            left=None if whole and delivery.envelope.left is None else sorted(errors),
        )
        if delivery.envelope.claim is not None:
            # The record will refer to the claim: neither a sweep nor the delete that follows may take it.
            with suppress(NotFound):
                await retry(
                    lambda: self._queue.payloads.keep(delivery.envelope),
                    backoff=Backoff(),
                    clock=self._queue.clock,
                )
            delivery.envelope = msgspec.structs.replace(delivery.envelope, claim_kept=True)
        await self._queue.poison.put(record)
        _log.warning(
            "A message of %s was moved to the poison queue: %s",
            self._queue.name,
            record.reason,
            extra={"action": "poison", "resource": self._queue.name},
        )


def summary(error: Exception) -> str:
    """An error in one line that can be encoded, whatever it holds."""
    try:
        said = str(error).strip()
    except Exception:
        said = "(its text cannot be shown)"
    said = said.encode(errors="replace").decode()[:500]
    if isinstance(error, Reject | Retry | HandlerEnded | ProcessKilled | MessageUndecodable):
        return said
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def describe(
    error: Exception, *, worker: str, attempts: int, at: float, item: int, handler: str = ""
) -> Failure:
    """A failure as kept: the reason, and for a handler's error its type and the end of its trace."""
    said = isinstance(error, Reject | Retry | MessageUndecodable | ProcessKilled)
    try:
        reason = str(error)
        trace = "" if said else "".join(traceback.format_exception(error))
    except Exception as broken:  # an error whose own text fails
        reason, trace = "", f"the error cannot be shown: {type(broken).__name__}"
    return Failure(
        reason=reason.encode(errors="replace").decode()[:2000] or type(error).__name__,
        error="" if isinstance(error, Reject | Retry | ProcessKilled) else type(error).__name__,
        trace=trace.encode(errors="replace").decode()[-4000:],
        worker=worker,
        attempts=attempts,
        at=at,
        item=item,
        handler=handler,
    )
