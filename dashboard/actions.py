"""Every write that people make through the dashboard. Each is one call: permission, audit intent, act, audit outcome.

Blocking functions for threads; storage is reached through the process's one event loop. Each raises `ActionFailed`
with what to tell the person, `Denied` if they may not (the attempt is in the audit).
"""

from __future__ import annotations

import datetime
import json
import logging
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from django.http import HttpRequest
from django.utils import timezone

from coordinator import protocol
from coordinator.config import check_name
from coordinator.errors import AlreadyExists, KennelError, NotFound, PreconditionFailed
from coordinator.gates.state import GateState, phase
from coordinator.queues.requeue import requeue_poison as move_back
from dashboard import audit
from dashboard.hub import tokens
from dashboard.middleware import request_id_var
from dashboard.models import Outcome, Scope, WorkerToken
from dashboard.permissions import ACTIONS, role_may, role_of
from dashboard.runtime import current
from dashboard.storage import call, storage

log = logging.getLogger(__name__)

MAX_REASON = 500
MAX_BODY = 64 * 1024
REQUEUE_AT_MOST = 10_000


class ActionFailed(Exception):
    """The act was not done, or it is not known whether it was; the text says which and what to do."""


class Denied(ActionFailed):
    """The actor may not do this."""


@dataclass(frozen=True)
class Actor:
    """Who does something, and from where."""

    name: str
    role: str
    address: str = ""
    request_id: str = ""

    @classmethod
    def from_request(cls, request: HttpRequest) -> Actor:
        return cls.of(
            request.user, address=request.META.get("REMOTE_ADDR") or "", request_id=request_id_var.get()
        )

    @classmethod
    def of(cls, user: Any, *, address: str = "", request_id: str = "") -> Actor:
        """The user as the database knows them now; None and anonymous may do nothing."""
        name = user.get_username() if user is not None else ""
        return cls(name or "anonymous", role_of(user) if user is not None else "", address, request_id)


class _Act:
    """What an action tells the audit."""

    before = ""
    after = ""


@contextmanager
def _audited(actor: Actor, action: str, target: str, reason: str = "") -> Iterator[_Act]:
    """Permission and intent before the block, outcome after it."""
    if len(reason) > MAX_REASON:
        raise ActionFailed(f"The reason has {len(reason)} characters; at most {MAX_REASON} are kept.")
    if not role_may(actor.role, action, target):
        audit.denied(actor, action, target, reason=reason)
        needed = ACTIONS.get(action, "nobody")
        raise Denied(f"{actor.name} may not do this: {action} needs the role {needed}.")
    row = audit.intent(actor, action, target, reason=reason)
    act = _Act()
    try:
        yield act
    except ActionFailed as error:
        audit.outcome(row, Outcome.FAILED, before=act.before, after=str(error))
        raise
    except KennelError as error:
        maybe = bool(getattr(error, "maybe_done", False))
        result = Outcome.UNKNOWN if maybe else Outcome.FAILED
        audit.outcome(row, result, before=act.before, after=str(error))
        hint = " It may have been carried out all the same: look again before you repeat it." if maybe else ""
        raise ActionFailed(f"{_sentence(str(error))}{hint}") from error
    except Exception as error:
        audit.outcome(row, Outcome.UNKNOWN, before=act.before, after=type(error).__name__)
        log.exception("%s of %s failed", action, target)
        raise ActionFailed("Something went wrong inside the dashboard; see its log.") from error
    audit.outcome(row, Outcome.DONE, before=act.before, after=act.after)


# --- gates ----------------------------------------------------------------------------------------------------------


def unleash(
    actor: Actor, gate: str, *, reason: str = "", at: float | None = None, share: float = 1.0
) -> GateState:
    """Open a gate: now, at a moment (seconds since 1970), or for a share of the fleet. Opening what is open is harmless."""
    with _audited(actor, "gate.open", gate, reason) as act:
        check_name("gate", gate)
        act.before = _known(gate)
        state = call(_open, gate, actor.name, reason, at, share)
        act.after = _told(state)
    return state


def leash(actor: Actor, gate: str, *, reason: str = "") -> GateState:
    """Close a gate. Workers inside finish the message in hand and take no new one."""
    with _audited(actor, "gate.close", gate, reason) as act:
        check_name("gate", gate)
        act.before = _known(gate)
        state = call(_close, gate, actor.name, reason)
        act.after = _told(state)
    return state


def create_gate(actor: Actor, gate: str, *, reason: str = "") -> GateState:
    """Make a gate, closed, so that it can be opened before a worker ever waited at it."""
    with _audited(actor, "gate.create", gate, reason) as act:
        check_name("gate", gate)
        state = call(_create, gate, actor.name, reason)
        act.after = _told(state)
    return state


async def _open(gate: str, by: str, reason: str, at: float | None, share: float) -> GateState:
    runtime = current()
    expected = runtime.presence.waiting_at(gate)
    if runtime.is_running:
        runtime.viewers.hold()
    state = await runtime.gate(gate).open(by=by, reason=reason, at=at, share=share)
    pushed_at = time.time()
    await runtime.opened(gate, state.epoch, written_at=state.opened_at, share=state.share, expected=expected)
    runtime.presence.pushed(gate, state.epoch, pushed_at)
    await runtime.board.gate_changed(state)
    return state


async def _close(gate: str, by: str, reason: str) -> GateState:
    runtime = current()
    state = await runtime.gate(gate).close(by=by, reason=reason)
    await runtime.board.gate_changed(state)
    return state


async def _create(gate: str, by: str, reason: str) -> GateState:
    from coordinator.gates.azure_store import BlobGateStore

    runtime = current()
    made = GateState(name=gate, epoch=1, changed_at=time.time(), by=by, reason=reason)
    try:
        await BlobGateStore(runtime.storage, gate).write(made, "")
    except (AlreadyExists, PreconditionFailed) as error:
        raise ActionFailed(f"There is a gate {gate} already.") from error
    await runtime.board.gate_changed(made)
    return made


def _known(gate: str) -> str:
    """The gate as last seen: reading it again would delay the release."""
    state = next((state for state in current().board.sample.gates if state.name == gate), None)
    return _told(state) if state is not None else ""


def _told(state: GateState) -> str:
    told: dict[str, Any] = {"state": phase(state, time.time()), "epoch": state.epoch}
    if state.not_before is not None:
        told["not_before"] = state.not_before
    if state.share < 1:
        told["share"] = state.share
    return json.dumps(told)


# --- workers and leaders --------------------------------------------------------------------------------------------


def worker_command(actor: Actor, instance: str, verb: str, *, reason: str = "") -> None:
    """Ask a worker to drain, resume or stop. Needs its socket: a worker that only polls cannot be asked."""
    if verb not in ("drain", "resume", "stop"):
        raise ActionFailed(f"A worker can be asked to drain, resume or stop, not to {verb[:40]!r}.")
    entry = current().presence.entries.get(instance)
    name = entry.hello.worker if entry is not None else instance
    with _audited(actor, f"worker.{verb}", name, reason) as act:
        command = protocol.Command(verb=cast(Any, verb), id=uuid.uuid4().hex, by=actor.name)
        if not call(current().command, instance, command):
            raise ActionFailed(f"Worker {name} is not connected; nothing was sent.")
        act.after = json.dumps({"sent": verb})


def step_down(actor: Actor, election: str, *, reason: str = "") -> None:
    """Ask the leader of an election to step down; a standby takes over."""
    with _audited(actor, "leader.step_down", election, reason) as act:
        holders = [
            instance
            for instance, entry in list(current().presence.entries.items())
            if entry.connected
            and any(e.name == election and e.role == "leader" for e in entry.state.elections)
        ]
        if not holders:
            raise ActionFailed(f"No connected worker leads {election}; break its lease instead.")
        for instance in holders:
            command = protocol.Command(verb="step_down", id=uuid.uuid4().hex, target=election, by=actor.name)
            call(current().command, instance, command)
        act.after = json.dumps({"asked": len(holders)})


def break_lease(actor: Actor, election: str, *, reason: str = "") -> None:
    """Take the lease from its holder by force. Its epoch is raised, so that fenced writes of the old leader fail."""
    with _audited(actor, "leader.break", election, reason) as act:
        check_name("election", election)
        call(_break, election, actor.name)
        act.after = json.dumps({"lease": "broken"})


async def _break(election: str, by: str) -> None:
    from coordinator.leadership.azure_store import break_lease as force

    await force(current().storage, election, by)
    current().look_again()


# --- queues ---------------------------------------------------------------------------------------------------------


def create_queue(actor: Actor, queue: str, *, reason: str = "") -> None:
    """Make a queue; harmless if it exists."""
    _queue(actor, "queue.create", queue, reason, lambda q: q.create(), "created")


def clear_queue(actor: Actor, queue: str, *, reason: str = "") -> None:
    """Delete all messages of a queue. They are gone."""
    _queue(actor, "queue.clear", queue, reason, lambda q: q.clear(), "cleared")


def delete_queue(actor: Actor, queue: str, *, reason: str = "") -> None:
    """Delete a queue with all its messages."""
    _queue(actor, "queue.delete", queue, reason, lambda q: q.delete(), "deleted")


def requeue_poison(actor: Actor, queue: str, *, reason: str = "", limit: int = REQUEUE_AT_MOST) -> int:
    """Put the messages of a poison queue back to where they failed; returns how many."""
    with _audited(actor, "queue.requeue", queue, reason) as act:
        check_name("queue", queue)

        async def requeue() -> int:
            return await move_back(storage().queue(queue), limit=limit)

        moved = call(requeue)
        act.after = json.dumps({"requeued": moved})
        current().look_again()
    return moved


def put_message(actor: Actor, queue: str, body: str, *, reason: str = "") -> None:
    """Put one message: a JSON text."""
    with _audited(actor, "queue.put", queue, reason) as act:
        check_name("queue", queue)
        if len(body.encode()) > MAX_BODY:
            raise ActionFailed(
                f"The message has {len(body.encode())} bytes; at most {MAX_BODY} can be put here."
            )
        try:
            value = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ActionFailed(f"The message is not JSON: {error}.") from error

        async def put() -> None:
            await storage().queue(queue).put(value)

        call(put)
        # Never the body: it may hold what the audit's readers must not see.
        act.after = json.dumps({"bytes": len(body.encode())})
        current().look_again()


def _queue(actor: Actor, action: str, queue: str, reason: str, do: Callable[[Any], Any], word: str) -> None:
    with _audited(actor, action, queue, reason) as act:
        check_name("queue", queue)
        view = next((view for view in current().board.sample.queues if view.name == queue), None)
        act.before = json.dumps({"depth": view.depth}) if view is not None else ""

        async def run() -> None:
            await do(storage().queue(queue))

        try:
            call(run)
        except NotFound as error:
            raise ActionFailed(f"There is no queue {queue}.") from error
        act.after = json.dumps({"queue": word})
        current().look_again()


# --- tokens ---------------------------------------------------------------------------------------------------------


def create_token(
    actor: Actor, name: str, *, scope: str = Scope.WORKER, days: float | None = None, reason: str = ""
) -> str:
    """Make a token and return it: the only time that it can be seen."""
    name = name.strip()
    with _audited(actor, "token.create", name, reason) as act:
        if not 1 <= len(name) <= 100:
            raise ActionFailed("Say in 1-100 characters what the token is for.")
        if scope not in Scope.values:
            raise ActionFailed(f"A token is for {' or '.join(Scope.values)}, not for {scope[:40]!r}.")
        if days is not None and not 0 < days <= 3660:
            raise ActionFailed("A token may be valid for up to 3,660 days.")
        expires = timezone.now() + datetime.timedelta(days=days) if days is not None else None
        made = tokens.create(name, scope=scope, expires_at=expires)
        act.after = json.dumps({"token": made[: tokens.SHOWN] + "…", "scope": scope})
    return made


def revoke_token(actor: Actor, token_id: int, *, reason: str = "") -> None:
    """End a token; sockets that were opened with it are closed within seconds."""
    row = WorkerToken.objects.filter(pk=token_id).first()
    with _audited(actor, "token.revoke", str(row) if row is not None else f"#{token_id}", reason) as act:
        if row is None or row.revoked_at is not None:
            raise ActionFailed("There is no such valid token.")
        row.revoked_at = timezone.now()
        row.save(update_fields=["revoked_at"])
        act.after = json.dumps({"token": "revoked"})


# --- by name: sockets, API --------------------------------------------------------------------------------------------


def by_name(actor: Actor, action: str, target: str, options: dict[str, Any]) -> Any:
    """Do what a frame or request names. An unknown action is denied, and in the audit."""
    reason = str(options.get("reason", ""))
    simple: dict[str, Callable[..., Any]] = {
        "gate.close": leash,
        "gate.create": create_gate,
        "queue.create": create_queue,
        "queue.clear": clear_queue,
        "queue.delete": delete_queue,
        "queue.requeue": requeue_poison,
        "leader.step_down": step_down,
        "leader.break": break_lease,
    }
    alias = {"unleash": "gate.open", "leash": "gate.close"}
    name = alias.get(action, action)
    done: Any = None
    if name == "gate.open":
        at, share = _number(options, "at"), _number(options, "share")
        done = unleash(actor, target, reason=reason, at=at, share=1.0 if share is None else share)
    elif name in simple:
        done = simple[name](actor, target, reason=reason)
    elif name.startswith("worker."):
        worker_command(actor, target, name.removeprefix("worker."), reason=reason)
    elif name == "queue.put":
        put_message(actor, target, str(options.get("body", "")), reason=reason)
    else:
        audit.denied(actor, name, target, reason=reason)
        raise Denied(f"There is no action {name[:64]!r}.")
    return msgspec.to_builtins(done)


def _number(options: dict[str, Any], name: str) -> float | None:
    value = options.get(name)
    if value in (None, ""):
        return None
    try:
        return float(cast(Any, value))
    except (TypeError, ValueError) as error:
        raise ActionFailed(f"{name} must be a number, not {str(value)[:40]!r}.") from error


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


__all__ = [
    "ActionFailed", "Actor", "Denied", "break_lease", "by_name", "clear_queue", "create_gate", "create_queue",
    "create_token",
    "delete_queue", "leash", "put_message", "requeue_poison", "revoke_token", "step_down", "unleash", "worker_command",
]  # fmt: skip
