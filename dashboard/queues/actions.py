"""Making, emptying and filling queues."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from coordinator.config import check_name
from coordinator.errors import absent
from coordinator.queues.azure import BlobRules
from coordinator.queues.queue import existing_depth
from coordinator.queues.requeue import Moved, delete_poison
from coordinator.queues.requeue import requeue_poison as move_back
from coordinator.queues.rules import ScalingRule, decode_rule, encode_rule
from dashboard.core.audit import ActionFailed, audited
from dashboard.core.permissions import Actor
from dashboard.hub.runtime import call, current, keep, storage
from dashboard.queues import poison

MAX_BODY = 64 * 1024
REQUEUE_AT_MOST = 10_000


def create_queue(actor: Actor, queue: str, *, reason: str = "") -> None:
    """Make a queue; harmless if it exists."""
    _queue(actor, "queue.create", queue, reason, lambda q: q.create(), "created")


def clear_queue(actor: Actor, queue: str, *, reason: str = "") -> None:
    """Delete all messages of a queue. They are gone."""
    _queue(actor, "queue.clear", queue, reason, lambda q: _present(queue, q.clear()), "cleared")


def delete_queue(actor: Actor, queue: str, *, reason: str = "") -> None:
    """Delete a queue with all its messages."""
    _queue(actor, "queue.delete", queue, reason, lambda q: _present(queue, q.delete()), "deleted")


def requeue_poison(actor: Actor, queue: str, *, reason: str = "", limit: int = REQUEUE_AT_MOST) -> Moved:
    """Put the messages of a poison queue back to where they failed; how many, and what became of the others."""
    with audited(actor, "queue.requeue", queue, reason) as act:
        check_name("queue", queue)

        async def requeue() -> Moved:
            source = storage().queue(queue)
            moved = await move_back(source, limit=limit)
            if not moved and not moved.left:
                await existing_depth(source)
            return moved

        moved = call(requeue)
        others = {"left": moved.left, "in_doubt": moved.in_doubt, "reasons": moved.reasons}
        act.after = json.dumps({"requeued": moved} | {name: value for name, value in others.items() if value})
        current().look_again()
    return moved


def retry_messages(actor: Actor, queue: str, ids: list[str], *, reason: str = "", edited: str = "") -> Moved:
    """Put these messages of the poison queue back to where they failed; with `edited`, the one with this JSON as its item."""
    return _with_messages(actor, "queue.requeue", queue, ids, reason, move_back, edited)


def delete_messages(actor: Actor, queue: str, ids: list[str], *, reason: str = "") -> Moved:
    """Delete these messages of the poison queue. They are gone."""
    return _with_messages(actor, "queue.delete_messages", queue, ids, reason, delete_poison)


def _with_messages(
    actor: Actor,
    action: str,
    queue: str,
    ids: list[str],
    reason: str,
    do: Callable[..., Awaitable[Moved]],
    edited: str = "",
) -> Moved:
    with audited(actor, action, queue, reason) as act:
        check_name("queue", queue)
        # Never the body: it may hold what the audit's readers must not see.
        act.before = json.dumps({"messages": ids} | ({"edited": True} if edited else {}))
        source = storage().queue(queue)
        rows = poison.kept(queue).filter(message_id__in=ids).exclude(receipt="")
        try:
            known = [poison.received(row, poison.edited(row.text, edited) if edited else "") for row in rows]
        except ValueError as error:
            raise ActionFailed(f"Nothing changed: {error}.") from error
        if edited and not known:
            raise ActionFailed("Nothing changed: read the poison queue again, then edit the message.")
        # Those that somebody received since they were read are searched for; an edited one is not: it may have changed.
        done = call(partial(do, source, known=known))
        others = set(ids) - {message.id for message in known} | (set() if edited else set(done.left_ids))
        count, left, reasons = int(done), done.left_ids, done.reasons
        if others:
            done = call(partial(do, source, ids=others))
            count, left, reasons = count + done, done.left_ids, done.reasons
        poison.kept(queue).filter(message_id__in=set(ids) - left).delete()
        act.after = json.dumps({"done": count, "reasons": reasons})
        current().look_again()
        if count < len(ids):
            why = reasons[0] if reasons else "the others are not in the poison queue any more"
            raise ActionFailed(f"{count} of {len(ids)} messages: {why}.")
    return Moved(count, in_doubt=done.in_doubt)


def put_message(actor: Actor, queue: str, body: str, *, reason: str = "") -> None:
    """Put one message: a JSON text."""
    with audited(actor, "queue.put", queue, reason) as act:
        check_name("queue", queue)
        if len(body.encode()) > MAX_BODY:
            raise ActionFailed(
                f"The message has {len(body.encode())} bytes; at most {MAX_BODY} can be sent here."
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
    with audited(actor, action, queue, reason) as act:
        check_name("queue", queue)
        view = next((view for view in current().fleet_state.sample.queues if view.name == queue), None)
        act.before = json.dumps({"depth": view.depth}) if view is not None else ""

        async def run() -> None:
            await do(storage().queue(queue))

        call(run)
        act.after = json.dumps({"queue": word})
        current().look_again()


async def _present(queue: str, act: Awaitable[bool]) -> None:
    if not await act:
        raise absent("queue", queue)


def store_rule(actor: Actor, queue: str, rule: ScalingRule | None, *, reason: str = "") -> None:
    """Save a rule for every listener of the queue, None for their own again; they follow within seconds.

    Raises `ActionFailed`; audited as ``queue.rule`` with the rule before and after.
    """
    with audited(actor, "queue.rule", queue, reason) as act:
        check_name("queue", queue)
        rules = BlobRules(storage())
        before = call(rules.read, queue, "")
        act.before = _described(before[0] if before is not None else None)
        if rule is None:
            call(rules.remove, queue)
            keep(f"rule {queue}", (None,))
        else:
            checked = decode_rule(encode_rule(rule))

            async def write() -> None:
                await rules.write(queue, checked, by=actor.name)

            call(write)
            keep(f"rule {queue}", (checked,))
        act.after = _described(rule)


def _described(rule: ScalingRule | None) -> str:
    return encode_rule(rule).decode() if rule is not None else '{"rule": "the workers\' own"}'
