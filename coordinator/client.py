"""A typed client of the dashboard's API, for programs and the command line. Blocking.

Its acts are decided and recorded as if the owner of the token did them on the dashboard's pages. Workers don't
need it: they reach storage themselves.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Annotated, Any, Self, TypeVar
from urllib.parse import quote, urlsplit

import msgspec
import requests
from msgspec import Meta

from coordinator.backoff import Backoff, retry_blocking
from coordinator.bounds import Figure, KeyText, Number, Remark
from coordinator.errors import ApiError, ApiUnavailable, ConfigurationError
from coordinator.queues.requeue import Moved

__all__ = [
    "Act",
    "Audited",
    "Client",
    "GateRecord",
    "GrantRecord",
    "LeaderRecord",
    "PoisonActRecord",
    "PoisonKind",
    "QueueRecord",
    "SequenceRecord",
    "WorkerRecord",
]

T = TypeVar("T")

BACKOFF = Backoff(base_seconds=0.2, cap_seconds=5.0, deadline_seconds=30.0)
PAGE = 500


# More than any answer has, and few enough to hold in memory.
_MANY = 1_000_000


class GateRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A gate. `waiting` names the workers held at it; after an act it is empty: look again."""

    name: KeyText
    state: KeyText
    epoch: Number
    by: KeyText = ""
    reason: Remark = ""
    not_before: Figure | None = None
    until: Figure | None = None
    share: Figure = 1.0
    waiting: Annotated[tuple[KeyText, ...], Meta(max_length=_MANY)] = ()


class QueueRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A queue. None means unknown."""

    name: KeyText
    depth: Number | None = None
    poison: Number | None = None
    in_per_second: Figure | None = None
    out_per_second: Figure | None = None
    oldest_seconds: Figure | None = None
    workers: Number = 0
    as_of: Figure | None = None


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A worker process. `presence` is "ok", "late" or "lost"."""

    name: KeyText
    instance: KeyText
    host: KeyText
    pid: Number
    presence: KeyText
    last_seen: Figure


class LeaderRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An election. `holder` is "" while there is no leader."""

    name: KeyText
    holder: KeyText
    epoch: Number
    standbys: Annotated[tuple[KeyText, ...], Meta(max_length=_MANY)] = ()


class SequenceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A sequence. `problem` quotes what is wrong with its counter, if anything."""

    name: KeyText
    next_number: Number | None = None
    per_second: Figure | None = None
    runway_seconds: Figure | None = None
    problem: Remark = ""


class GrantRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A range of numbers and whose it is."""

    first: Number
    last: Number
    owner: KeyText
    state: KeyText
    granted_at: Figure | None = None


class Audited(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the audit."""

    id: Number
    at: Figure
    actor: KeyText
    action: KeyText
    target: KeyText
    outcome: KeyText
    before: Remark = ""
    after: Remark = ""
    reason: Remark = ""
    request_id: KeyText = ""


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """What was done; the audit knows it by this request id."""

    done: KeyText
    target: KeyText
    request_id: KeyText


class PoisonKind(msgspec.Struct, frozen=True, kw_only=True):
    """Poison messages that failed alike: the error's text is without what differs."""

    kind: KeyText
    error: Remark
    reason: Remark
    handler: Remark
    messages: Number
    first_at: Figure
    last_at: Figure


class PoisonActRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An act on many poison messages. `outcome` is running, done, aborted, interrupted or failed."""

    id: Number
    verb: KeyText
    messages: Remark
    outcome: KeyText
    done: Number
    left: Number
    total: Number | None = None
    problem: Remark = ""


class _PoisonKinds(msgspec.Struct):
    kinds: Annotated[list[PoisonKind], Meta(max_length=_MANY)]


class _PoisonActs(msgspec.Struct):
    acts: Annotated[list[PoisonActRecord], Meta(max_length=_MANY)]


class _Requeued(msgspec.Struct):
    moved: Number
    left: Number = 0
    in_doubt: Number = 0


class _InvalidField(msgspec.Struct):
    where: KeyText
    what: Remark


class _Problem(msgspec.Struct):
    title: Remark = ""
    detail: Remark = ""
    outcome: KeyText = ""
    request_id: KeyText = ""
    errors: Annotated[tuple[_InvalidField, ...], Meta(max_length=_MANY)] = ()


class Client:
    """The dashboard's API, for programs. Blocking. The dashboard decides and records each act as done by the owner of
    the token.

    Guarantees that an act is done at most once however often it is sent: each carries a key of its own, by which the
    dashboard recognises a repetition for a day. Retries while there is no answer, storage is unreachable (503) or the
    limit is reached (429, after the time that the dashboard names), until `backoff` ends. Does not follow redirects,
    so the token goes nowhere else.

    Does not guarantee that an act was not done if a method raises: see `maybe_done`. Not for several threads at the
    same time.

    Args:
        url: The dashboard, such as ``https://kennel.example.org``.
        token: A token of the Access page.
        timeout_seconds: Bound of one attempt in seconds (default 30).
        backoff: Delays between attempts, and `deadline_seconds` for the whole (default 30).

    Raises:
        ConfigurationError: The address or the token is invalid.
        ApiError: The dashboard refused; the message says why. Also raised by each method.
        ApiUnavailable: No attempt until the deadline got an answer. With `maybe_done` an act may have been carried
            out.

    Examples:
        >>> with Client("https://kennel.example.org", token) as kennel:
        ...     kennel.open_gate("start-order-processing", reason="tickets on sale")
    """

    def __init__(
        self, url: str, token: str, *, timeout_seconds: float = 30.0, backoff: Backoff = BACKOFF
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.username:
            raise ConfigurationError(
                f"the API's address {url!r}: use https://HOST, without a name or a query"
            )
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise ConfigurationError("the API's token is empty or invalid; create one on the Access page")
        self.url = url.rstrip("/").removesuffix("/api/v1")
        self._timeout = timeout_seconds
        self._backoff = backoff
        self._http = requests.Session()
        self._http.trust_env = False  # no .netrc: it would replace the token
        self._http.headers["Authorization"] = f"Bearer {token}"

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # --- gates ----------------------------------------------------------------------------------------------------

    def gates(self) -> Iterator[GateRecord]:
        """All gates by name."""
        return self._pages("/gates", GateRecord)

    def gate(self, name: str) -> GateRecord:
        """One gate.

        Args:
            name: The gate.

        Returns:
            Its state and the workers that wait at it.
        """
        return self._get(f"/gates/{_part(name)}", GateRecord)

    def create_gate(self, name: str, *, reason: str = "") -> GateRecord:
        """Create a gate, closed.

        Args:
            name: The gate.
            reason: For the audit log (default "").

        Returns:
            The gate.
        """
        return self._act("POST", "/gates", GateRecord, {"name": name, "reason": reason})

    def open_gate(
        self,
        name: str,
        *,
        reason: str = "",
        at: float | None = None,
        share: float = 1.0,
        until: float | None = None,
        epoch: int | None = None,
    ) -> GateRecord:
        """Open a gate (unleash).

        Args:
            name: The gate.
            reason: For the audit log (default "").
            at: A time to come, in seconds since 1970 (default: now).
            share: Share of the workers, above 0 to 1 (default 1).
            until: When it closes by itself, in seconds since 1970 (default: never).
            epoch: Only if the gate has this epoch (default: any).

        Returns:
            The gate.
        """
        body = {"reason": reason, "at": at, "share": share, "until": until}
        return self._act("POST", f"/gates/{_part(name)}/open", GateRecord, body, epoch=epoch)

    def close_gate(self, name: str, *, reason: str, epoch: int | None = None) -> GateRecord:
        """Close a gate (leash).

        Args:
            name: The gate.
            reason: For the audit log.
            epoch: Only if the gate has this epoch (default: any).

        Returns:
            The gate.
        """
        return self._act("POST", f"/gates/{_part(name)}/close", GateRecord, {"reason": reason}, epoch=epoch)

    # --- queues ---------------------------------------------------------------------------------------------------

    def queues(self) -> Iterator[QueueRecord]:
        """All queues by name."""
        return self._pages("/queues", QueueRecord)

    def queue(self, name: str) -> QueueRecord:
        """One queue.

        Args:
            name: The queue.

        Returns:
            Its figures.
        """
        return self._get(f"/queues/{_part(name)}", QueueRecord)

    def create_queue(self, name: str, *, reason: str = "") -> Act:
        """Create a queue; harmless if it exists.

        Args:
            name: The queue.
            reason: For the audit log (default "").

        Returns:
            What was done.
        """
        return self._act("POST", "/queues", Act, {"name": name, "reason": reason})

    def delete_queue(self, name: str, *, reason: str = "") -> Act:
        """Delete a queue with all its messages.

        Args:
            name: The queue.
            reason: For the audit log (default "").

        Returns:
            What was done.
        """
        return self._act("DELETE", f"/queues/{_part(name)}", Act, params={"reason": reason})

    def clear_queue(self, name: str, *, reason: str = "") -> Act:
        """Delete all messages of a queue.

        Args:
            name: The queue.
            reason: For the audit log (default "").

        Returns:
            What was done.
        """
        return self._act("POST", f"/queues/{_part(name)}/clear", Act, {"reason": reason})

    def put(self, name: str, item: Any, *, reason: str = "") -> Act:
        """Send one item.

        Args:
            name: The queue.
            item: Anything that msgspec can encode as JSON, 64 KiB at most.
            reason: For the audit log (default "").

        Returns:
            What was done.
        """
        return self._act("POST", f"/queues/{_part(name)}/messages", Act, {"item": item, "reason": reason})

    def requeue_poison(self, name: str, *, reason: str = "") -> Moved:
        """Requeue the messages of the poison queue.

        Args:
            name: The queue.
            reason: For the audit log (default "").

        Returns:
            How many were moved, and how many are left or in doubt.
        """
        answer = self._act("POST", f"/queues/{_part(name)}/requeue", _Requeued, {"reason": reason})
        return Moved(answer.moved, left=answer.left, in_doubt=answer.in_doubt)

    def poison(self, name: str) -> list[PoisonKind]:
        """The poison messages by kind of failure: those that were read within the hour, otherwise the first 32.

        Args:
            name: The queue.

        Returns:
            The kinds, the most messages first.
        """
        return self._get(f"/queues/{_part(name)}/poison", _PoisonKinds).kinds

    def read_poison(self, name: str) -> PoisonActRecord:
        """Have all poison messages read, in the background; each is hidden for a second.

        Args:
            name: The queue.

        Returns:
            The act, as far as it has come.
        """
        return self._act("POST", f"/queues/{_part(name)}/poison/read", PoisonActRecord, {})

    def retry_poison(self, name: str, *, reason: str = "", **fitting: str) -> PoisonActRecord:
        """Put all poison messages that fit back to where they failed, in the background. They must have been read.

        Args:
            name: The queue.
            reason: For the audit log (default "").
            **fitting: `kind`, `error`, `handler`, `q` (part of a text), `since` and `until` (times in ISO 8601); none for all.

        Returns:
            The act, as far as it has come.
        """
        return self._act(
            "POST", f"/queues/{_part(name)}/poison/retry", PoisonActRecord, {**fitting, "reason": reason}
        )

    def delete_poison(self, name: str, *, reason: str = "", **fitting: str) -> PoisonActRecord:
        """Delete all poison messages that fit, in the background. This cannot be undone.

        Args:
            name: The queue.
            reason: For the audit log (default "").
            **fitting: As for `retry_poison`.

        Returns:
            The act, as far as it has come.
        """
        return self._act(
            "POST", f"/queues/{_part(name)}/poison/delete", PoisonActRecord, {**fitting, "reason": reason}
        )

    def poison_acts(self, name: str) -> list[PoisonActRecord]:
        """The newest acts on many poison messages, the newest first.

        Args:
            name: The queue.

        Returns:
            The acts, as far as they have come.
        """
        return self._get(f"/queues/{_part(name)}/poison/acts", _PoisonActs).acts

    def abort_poison_act(self, name: str, number: int) -> Act:
        """Have an act stop after the messages it is at.

        Args:
            name: The queue.
            number: The act's `id`.

        Returns:
            What was done.
        """
        return self._act("POST", f"/queues/{_part(name)}/poison/acts/{number}/abort", Act, {})

    # --- workers and leaders --------------------------------------------------------------------------------------

    def workers(self) -> Iterator[WorkerRecord]:
        """All workers by instance."""
        return self._pages("/workers", WorkerRecord)

    def drain_worker(self, instance: str, *, reason: str = "") -> Act:
        """Have a worker finish what is in flight and take nothing new.

        Args:
            instance: The worker's `instance`.
            reason: For the audit log (default "").

        Returns:
            What was done.
        """
        return self._command(instance, "drain", reason)

    def resume_worker(self, instance: str, *, reason: str = "") -> Act:
        """Have a drained worker take messages again.

        Args:
            instance: The worker's `instance`.
            reason: For the audit log (default "").

        Returns:
            What was done.
        """
        return self._command(instance, "resume", reason)

    def stop_worker(self, instance: str, *, reason: str = "") -> Act:
        """Have a worker end its process.

        Args:
            instance: The worker's `instance`.
            reason: For the audit log (default "").

        Returns:
            What was done.
        """
        return self._command(instance, "stop", reason)

    def leaders(self) -> Iterator[LeaderRecord]:
        """All elections by name."""
        return self._pages("/leaders", LeaderRecord)

    def step_down(self, election: str, *, reason: str = "") -> Act:
        """Have the leader step down (graceful).

        Args:
            election: The election.
            reason: For the audit log (default "").

        Returns:
            What was done.
        """
        return self._act("POST", f"/leaders/{_part(election)}/step-down", Act, {"reason": reason})

    def break_lease(self, election: str, *, reason: str = "") -> Act:
        """Force-release the lease of a leader; the epoch rises.

        Args:
            election: The election.
            reason: For the audit log (default "").

        Returns:
            What was done.
        """
        return self._act("POST", f"/leaders/{_part(election)}/break", Act, {"reason": reason})

    # --- records --------------------------------------------------------------------------------------------------

    def sequences(self) -> Iterator[SequenceRecord]:
        """All sequences by name."""
        return self._pages("/sequences", SequenceRecord)

    def ledger(self, sequence: str, *, number: int | None = None, owner: str = "") -> Iterator[GrantRecord]:
        """Who was granted which numbers, newest first.

        Args:
            sequence: The sequence.
            number: Only the grant that holds this number (default: all).
            owner: Only grants of this owner (default: all).

        Yields:
            Each grant.
        """
        return self._pages(f"/sequences/{_part(sequence)}/ledger", GrantRecord, number=number, owner=owner)

    def audit(self, q: str = "") -> Iterator[Audited]:
        """The audit log, newest first.

        Args:
            q: A search, as on the page (default: all).

        Yields:
            Each entry.
        """
        return self._pages("/audit", Audited, q=q)

    # --- how ------------------------------------------------------------------------------------------------------

    def _command(self, instance: str, verb: str, reason: str) -> Act:
        return self._act("POST", f"/workers/{_part(instance)}/{verb}", Act, {"reason": reason})

    def _get(self, path: str, kind: type[T], **params: Any) -> T:
        return self._tried("GET", path, kind, params=params)

    def _pages(self, path: str, kind: type[T], **params: Any) -> Iterator[T]:
        cursor = ""
        while True:
            page = self._get(path, dict[str, Any], **params, cursor=cursor, limit=PAGE)
            yield from msgspec.convert(page["items"], list[kind])  # type: ignore[valid-type]
            if not page["next"]:
                return
            cursor = page["next"]

    def _act(
        self, method: str, path: str, kind: type[T], body: Any = None, *, epoch: int | None = None, params: Any = None
    ) -> T:  # fmt: skip
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        if epoch is not None:
            headers["If-Match"] = f'"e{epoch}"'
        content = None
        if body is not None:
            content, headers["Content-Type"] = msgspec.json.encode(body), "application/json"
        return self._tried(method, path, kind, params=params, data=content, headers=headers)

    def _tried(self, method: str, path: str, kind: type[T], **request: Any) -> T:
        return retry_blocking(
            lambda: self._once(method, path, kind, **request), backoff=self._backoff, on=(ApiUnavailable,)
        )

    def _once(self, method: str, path: str, kind: type[T], **request: Any) -> T:
        try:
            answer = self._http.request(
                method, f"{self.url}/api/v1{path}", timeout=self._timeout, allow_redirects=False, **request
            )
        except requests.RequestException as error:
            raise ApiUnavailable(
                f"the API at {self.url} did not answer: {type(error).__name__}", maybe_done=method != "GET"
            ) from error
        if answer.ok and not answer.is_redirect:
            try:
                return msgspec.json.decode(answer.content, type=kind)
            except msgspec.DecodeError as error:
                raise ApiError(
                    f"the API at {self.url} sent an invalid answer: {error}",
                    status=answer.status_code,
                ) from error
        raise _error(self.url, answer)


def _part(name: str) -> str:
    return quote(name, safe="")


def _error(url: str, answer: requests.Response) -> ApiError:
    """What a problem says, as an error."""
    try:
        problem = msgspec.json.decode(answer.content, type=_Problem)
    except msgspec.DecodeError:
        problem = _Problem(detail=f"{url} answered {answer.status_code}; is that the dashboard's address?")
    detail = problem.detail or problem.title or f"the API answered {answer.status_code}"
    faults = "; ".join(f"{fault.where}: {fault.what}" for fault in problem.errors)
    values: dict[str, Any] = {
        "status": answer.status_code,
        "request_id": problem.request_id,
        "maybe_done": problem.outcome == "unknown",
    }
    again = answer.headers.get("Retry-After", "")
    if answer.status_code in (429, 502, 503, 504) or again:
        after = float(again) if again.isdigit() else 0.0
        return ApiUnavailable(faults or detail, **values, retry_after_seconds=after)
    return ApiError(faults or detail, **values)
