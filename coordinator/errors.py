"""Every error Kennel raises, in one tree.

`StorageError` and below describe what the storage service said (or that it said nothing); they are made in
`service_errors`, and by `absent`. The rest are Kennel's own verdicts. The underlying cause is always kept as `__cause__`.
"""

from __future__ import annotations


class KennelError(Exception):
    """Base of all errors raised by Kennel."""


class ConfigurationError(KennelError, ValueError):
    """A setting is missing or out of bounds; the message names it and the bounds."""


class StorageError(KennelError):
    """The storage service refused a request or could not be reached.

    `status` is the HTTP status (None without an answer), `code` the service's own error code, `resource` what the
    request was about. `maybe_done` is True if the request may have been carried out all the same.
    `retry_after_seconds` is how long the service asked to wait (its Retry-After; 0 if it did not ask).
    """

    def __init__(
        self,
        message: str,
        *,
        resource: str = "",
        status: int | None = None,
        code: str = "",
        maybe_done: bool = False,
        retry_after_seconds: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.resource = resource
        self.status = status
        self.code = code
        self.maybe_done = maybe_done
        self.retry_after_seconds = retry_after_seconds


class StorageUnreachable(StorageError):
    """No answer came: connection refused, cut, or timed out."""


class StorageBusy(StorageError):
    """The service is overloaded or failed inside (429, 500, 503): try again later."""


class AccessDenied(StorageError):
    """The credential is wrong, expired or lacks the role that this operation needs."""


class NotFound(StorageError):
    """The container, blob, queue, message, table or entity does not exist."""


def absent(kind: str, name: str) -> NotFound:
    """For an operator's act on a name that nothing has."""
    return NotFound(
        f"{kind} {name} does not exist; nothing changed: check the name and the prefix",
        resource=name,
        status=404,
    )


class AlreadyExists(StorageError):
    """Something of that name exists already."""


class BeingDeleted(StorageError):
    """A container, queue or table of that name is still being deleted; it can be made again after a while."""


class PreconditionFailed(StorageError):
    """The ETag, tag or existence condition of a write did not hold: somebody else wrote first."""


class LeaseHeld(StorageError):
    """Another holder has the lease."""


class LeaseNotHeld(StorageError):
    """The lease id given is not (or no longer) the one that holds the lease."""


class ReceiptStale(StorageError):
    """The pop receipt is no longer valid: the message became visible again, was taken by another, or is gone."""


class InvalidRequest(StorageError):
    """The service calls the request malformed or out of bounds."""


class MoveStopped(StorageError):
    """Storage stayed away while messages were moved from queue to queue. None is lost, and none stays hidden for long.

    `moved` are at their new place. `left` were seen and are where they were, as is what was not seen; `in_doubt` may be at
    both places. `moved_ids` and `in_doubt_ids` say which, by their ids at the old place. Move again to go on.
    """

    def __init__(
        self,
        message: str,
        *,
        resource: str,
        moved: int,
        left: int,
        in_doubt: int,
        moved_ids: frozenset[str] = frozenset(),
        in_doubt_ids: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(message, resource=resource, maybe_done=in_doubt > 0)
        self.moved = moved
        self.left = left
        self.in_doubt = in_doubt
        self.moved_ids = moved_ids
        self.in_doubt_ids = in_doubt_ids


class SequenceError(KennelError):
    """Base of the errors of order numbers; `sequence` names the sequence."""

    def __init__(self, message: str, *, sequence: str) -> None:
        super().__init__(message)
        self.sequence = sequence


class SequenceContended(SequenceError):
    """Others won every try to reserve a range, up to `max_retries`."""

    def __init__(self, message: str, *, sequence: str, tries: int, elapsed_seconds: float) -> None:
        super().__init__(message, sequence=sequence)
        self.tries = tries
        self.elapsed_seconds = elapsed_seconds


class SequenceCorrupt(SequenceError):
    """The counter holds something that is not a number; `found` quotes it."""

    def __init__(self, message: str, *, sequence: str, found: str) -> None:
        super().__init__(message, sequence=sequence)
        self.found = found


class SequenceMissing(SequenceError):
    """The counter is gone although the ledger knows grants: numbering must not restart by itself."""


class SequenceLowered(SequenceError):
    """The counter is lower than the ledger says it must be: issuing would repeat numbers."""


class SequenceOverwritten(SequenceLowered):
    """Another program wrote the counter without regard to its ETag, or removed its metadata."""


class SequenceExhausted(SequenceError):
    """The sequence reached its upper bound."""


class SequenceClosed(SequenceError):
    """The generator was closed; no number is issued after its tail was returned."""


class LeadershipLost(KennelError):
    """The term is over: the leader must not do what it was about to do."""


class LockTimeout(KennelError, TimeoutError):
    """A mutex or semaphore was not free within the time given."""


class GateCorrupt(KennelError):
    """The blob of a gate holds something that is not a gate. Nobody passes; `close` repairs it.

    `gate` names it, `etag` is the version of that blob, `epoch` what could still be read of its epoch (0: nothing).
    """

    def __init__(self, message: str, *, gate: str, etag: str = "", epoch: int = 0) -> None:
        super().__init__(message)
        self.gate = gate
        self.etag = etag
        self.epoch = epoch


class LeaseCorrupt(KennelError):
    """The record of a lease is damaged and its epoch is known nowhere else; nobody can lead. `name` names the lease."""

    def __init__(self, message: str, *, name: str) -> None:
        super().__init__(message)
        self.name = name


class GateContended(KennelError):
    """Others won every try to change a gate."""


class GateMoved(KennelError):
    """A change was for an epoch that the gate no longer has; nothing changed. `epoch` is the one it has."""

    def __init__(self, message: str, *, gate: str, epoch: int) -> None:
        super().__init__(message)
        self.gate = gate
        self.epoch = epoch


class GateTimeout(KennelError, TimeoutError):
    """The gate did not open within the time given. Wait again, or give up."""


class MessageUndecodable(KennelError):
    """A message could not be decoded as the declared type; the message names the path of the fault."""


class ApiError(KennelError):
    """The dashboard's API refused a request; the message says why and what to do.

    `status` is the HTTP status (None without an answer), `request_id` what the dashboard's log and audit know it by.
    `maybe_done` is True if an act may have been carried out all the same.
    """

    def __init__(
        self, message: str, *, status: int | None = None, request_id: str = "", maybe_done: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.request_id = request_id
        self.maybe_done = maybe_done


class ApiUnavailable(ApiError):
    """No answer came, storage is away, or the limit is reached: try again, after `retry_after_seconds` at the earliest."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        request_id: str = "",
        maybe_done: bool = False,
        retry_after_seconds: float = 0.0,
    ) -> None:
        super().__init__(message, status=status, request_id=request_id, maybe_done=maybe_done)
        self.retry_after_seconds = retry_after_seconds


class ProtocolViolation(KennelError):
    """A socket message was malformed, too large, too frequent or of an unknown version."""
