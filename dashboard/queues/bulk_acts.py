"""Acts on many poison messages: run in the background, with progress, until they are done or somebody aborts them.

The progress of each is in the database, so every dashboard process shows it. An act waits for storage that is away. If the
process that runs it ends, another goes on with it (`go_on`), for as long as what was read is kept: an hour.

1. Each act has one process. Another that takes it over writes its own id into the row, if no other has.
2. A process notes its progress after each turn, if the row still has its id; if not, it stops there.
3. A message that two processes are at is moved once: the second one's receipt is no longer good.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, wait
from dataclasses import asdict
from functools import partial
from itertools import chain
from typing import Any

from channels.db import database_sync_to_async
from django.db import IntegrityError, connection, transaction
from django.db.models import QuerySet

from coordinator.config import check_name
from coordinator.errors import KennelError, MoveStopped
from coordinator.queues.protocols import ReceivedMessage
from coordinator.queues.queue import Queue
from coordinator.queues.requeue import delete_poison, read_poison, requeue_poison
from dashboard.core.audit import ActionFailed, audited, noted
from dashboard.core.permissions import Actor
from dashboard.core.retention import POISON_SECONDS
from dashboard.hub.runtime import Runtime, call, current, storage
from dashboard.live.releases import source_of
from dashboard.models import BulkAct, PoisonMessage
from dashboard.queues import poison
from dashboard.queues.poison import MOST_READ, Filter

log = logging.getLogger(__name__)
A_TURN = 32
MOST_CHARACTERS = 128 * 1024 * 1024
DEAD_SECONDS = 90.0
MOST_AT_ONCE = 4
SHOWN = 10
ANSWER_SECONDS, SAVE_SECONDS = 1.5, 0.5
# An act goes on by itself when storage comes back within this time.
PATIENCE_SECONDS, PAUSE_SECONDS = 300.0, 2.0
TAKE_OVER_SECONDS = 5.0
ANOTHER = "Another act on this poison queue is running: wait until it ends, or abort it."
WAITING = "The process that ran it ended: what it did is done. Another process goes on within two minutes."
INTERRUPTED = "The process that ran it ended: what it did is done. Start the same act again for the rest."
GONE = (
    "{} are not known any more, since all were read again or an hour ago: start the same act again for them."
)
UNSURE = "{} were done as the process ended, or received by somebody since: read all messages again."
VERBS = {"read": "queue.peek", "requeue": "queue.requeue", "delete": "queue.delete_messages"}


def read(actor: Actor, queue: str) -> BulkAct:
    """Have all messages of the poison queue read, each hidden for a second."""
    return _begin(actor, "read", queue, None)


def retry(actor: Actor, queue: str, only: Filter, *, reason: str = "") -> BulkAct:
    """Put all messages that fit back to where they failed."""
    return _begin(actor, "requeue", queue, only, reason)


def delete(actor: Actor, queue: str, only: Filter, *, reason: str = "") -> BulkAct:
    """Delete all messages that fit. They are gone."""
    return _begin(actor, "delete", queue, only, reason)


def abort(actor: Actor, queue: str, number: int) -> None:
    """Have an act stop after the messages it is at."""
    with audited(actor, "queue.abort", queue):
        changed = _acts(queue).filter(pk=number, outcome="running").update(abort=actor.name)
        if not changed:
            raise ActionFailed("This act is over.")


def shown(queue: str) -> list[BulkAct]:
    """The newest acts on a poison queue. One whose process ended waits for another, or is interrupted if it is too old."""
    acts, now = list(_acts(queue).order_by("-started_at")[:SHOWN]), time.time()
    for act in acts:
        if act.outcome == "running" and act.seen_at < now - DEAD_SECONDS:
            act.problem = WAITING
            if act.started_at < now - POISON_SECONDS:
                act.outcome, act.problem = "interrupted", INTERRUPTED
    return acts


async def go_on(runtime: Runtime) -> None:
    """For as long as the dashboard runs: take over acts whose process ended."""
    while True:
        runtime.loops.alive("bulk-acts")
        try:
            await database_sync_to_async(take_over, thread_sensitive=False)()
        except Exception as error:
            log.exception("Acts on poison queues were not taken over; trying again")
            runtime.loops.failed("bulk-acts", error)
        await runtime.clock.sleep(TAKE_OVER_SECONDS)


def take_over() -> list[Future[None]]:
    """Go on with the acts of processes that ended, each in one process of all; those too old for it are interrupted."""
    now = time.time()
    dead = _dead(BulkAct.objects.filter(source=source_of(storage())), now)
    _interrupt_old(dead, now)
    running = []
    for act in dead.order_by("started_at")[:MOST_AT_ONCE]:
        mine, was_handed_on = secrets.token_hex(8), not act.seen_at
        if dead.filter(pk=act.pk, runner=act.runner).update(runner=mine, seen_at=now):
            act.runner, act.seen_at, act.problem, act.left = mine, now, "", 0
            actor = Actor(act.actor, "")
            noted(actor, f"{VERBS[act.verb]}.resumed", act.queue, after=json.dumps({"resumed": act.pk}))
            running.append(_submit(actor, act, _rest(act), is_in_doubt=not was_handed_on))
    return running


def _dead(acts: QuerySet[BulkAct], now: float) -> QuerySet[BulkAct]:
    return acts.filter(outcome="running", seen_at__lt=now - DEAD_SECONDS)


def _interrupt_old(acts: QuerySet[BulkAct], now: float) -> None:
    """Nobody can go on with those whose messages are not kept any more."""
    old = _dead(acts, now).filter(started_at__lt=now - POISON_SECONDS)
    old.update(outcome="interrupted", problem=INTERRUPTED)


def _rest(act: BulkAct) -> list[int] | None:
    """What the act has not done yet, of what was there when it began; None if it reads."""
    if act.verb == "read":
        return None
    only = Filter(**json.loads(act.only))
    return list(only.rows(act.queue).filter(pk__lte=act.last_row).values_list("pk", flat=True))


def _acts(queue: str) -> QuerySet[BulkAct]:
    return BulkAct.objects.filter(source=source_of(storage()), queue=queue)


def _begin(actor: Actor, verb: str, queue: str, only: Filter | None, reason: str = "") -> BulkAct:
    rows: list[int] | None = None
    last_row = 0
    with audited(actor, VERBS[verb], queue, reason) as audit:
        check_name("queue", queue)
        if any(each.outcome == "running" for each in shown(queue)):
            raise ActionFailed(ANOTHER)
        if only is not None:
            rows = list(only.rows(queue).values_list("pk", flat=True))
            if not rows:
                raise ActionFailed("No matching messages. Nothing changed.")
            last_row = max(rows)
        now = time.time()
        if BulkAct.objects.filter(outcome="running", seen_at__gte=now - DEAD_SECONDS).count() >= MOST_AT_ONCE:
            raise ActionFailed(f"{MOST_AT_ONCE} acts on poison queues are running: wait until one ends.")
        _interrupt_old(_acts(queue), now)
        act = BulkAct(
            source=source_of(storage()),
            queue=queue,
            verb=verb,
            what=str(only or "all")[:300],
            only=json.dumps(asdict(only or Filter())),
            last_row=last_row,
            runner=secrets.token_hex(8),
            actor=actor.name,
            total=None if rows is None else len(rows),
            started_at=now,
            seen_at=now,
        )
        try:
            with transaction.atomic():
                act.save(force_insert=True)
        except IntegrityError as error:  # somebody pressed at the same moment
            raise ActionFailed(ANOTHER) from error
        audit.before = json.dumps({"messages": act.what, "count": act.total})
        audit.after = json.dumps({"started": act.pk})
    running = _submit(actor, act, rows)
    # Most are over by then, and the page that comes next shows what they did.
    wait([running], ANSWER_SECONDS)
    act.refresh_from_db()
    return act


def _submit(actor: Actor, act: BulkAct, rows: list[int] | None, *, is_in_doubt: bool = False) -> Future[None]:
    runtime = current()
    return runtime.act_threads.submit(_run, runtime, actor, act, rows, is_in_doubt)


class _TakenOver(Exception):
    """Another process runs this act."""


def _run(
    runtime: Runtime, actor: Actor, act: BulkAct, rows: list[int] | None, is_in_doubt: bool = False
) -> None:
    """Of an act that is `in_doubt`, some of the first turn may be done: its process died before it could note them."""
    was_running = runtime.is_running
    try:
        for _ in chain((None,), _read(act) if rows is None else _each(act, rows, is_in_doubt)):
            if runtime.is_running != was_running:
                break
            if _aborted(act):
                act.outcome = "aborted"
                break
        else:
            act.outcome = "done"
    except _TakenOver:
        return
    except KennelError as error:
        act.outcome, act.problem = "failed", str(error)
    except Exception as error:
        log.exception("The act #%d on the poison queue of %s failed", act.pk, act.queue)
        act.outcome, act.problem = "failed", f"{type(error).__name__}; see the dashboard's log"
    try:
        if runtime.is_running != was_running and act.outcome in {"running", "failed"}:
            _hand_on(act)
            return
        _save(act, "outcome", "problem")
        if act.verb != "read":
            ended = {"ended": act.pk, "outcome": act.outcome, "done": act.done, "left": act.left}
            noted(actor, f"{VERBS[act.verb]}.ended", act.queue, after=json.dumps(ended))
        if runtime.is_running:
            runtime.look_again()
    except _TakenOver:
        return
    finally:
        connection.close()


def _aborted(act: BulkAct) -> bool:
    return BulkAct.objects.filter(pk=act.pk).exclude(abort="").exists()


def _hand_on(act: BulkAct) -> None:
    """This process ends: the next one that looks goes on with the act at once."""
    BulkAct.objects.filter(pk=act.pk, runner=act.runner).update(done=act.done, seen_at=0.0)


def _save(act: BulkAct, *names: str) -> None:
    """Note how far the act has come. Raises `_TakenOver`."""
    act.seen_at = time.time()
    values = {name: getattr(act, name) for name in ("done", "left", "seen_at", *names)}
    if not BulkAct.objects.filter(pk=act.pk, runner=act.runner).update(**values):
        raise _TakenOver


def _read(act: BulkAct) -> Iterator[None]:
    queue = storage().queue(act.queue)
    act.total = call(queue.poison.depth)
    _save(act, "total")
    found: dict[str, ReceivedMessage] = {}
    size, saved = 0, time.monotonic()
    batches = read_poison(queue)
    while batch := call(_next, batches):
        size += sum(len(message.text) for message in batch if message.id not in found)
        found |= {message.id: message for message in batch}
        if len(found) >= MOST_READ or size >= MOST_CHARACTERS:
            act.problem = f"Only the first {len(found):,} messages were read: more are not kept at once."
            break
        if time.monotonic() - saved > SAVE_SECONDS:
            act.done, saved = len(found), time.monotonic()
            _save(act)
            yield
    poison.keep(act.queue, found.values())
    act.done = len(found)


async def _next(batches: AsyncIterator[list[ReceivedMessage]]) -> list[ReceivedMessage]:
    return await anext(batches, [])


def _each(act: BulkAct, rows: list[int], is_in_doubt: bool = False) -> Iterator[None]:
    queue = storage().queue(act.queue)
    before, missing = act.done, (act.total or 0) - act.done - len(rows)
    gone = [GONE.format(missing)] if missing > 0 else []
    problems = list(gone)
    act.left = max(0, missing)
    for start in range(0, len(rows), A_TURN):
        turn = {
            row.message_id: row for row in PoisonMessage.objects.filter(pk__in=rows[start : start + A_TURN])
        }
        doubted: frozenset[str] = frozenset()
        began, is_whole = time.monotonic(), False
        while not is_whole:
            try:
                _do(act, queue, turn, doubted, problems)
                is_whole = True
            except MoveStopped as error:
                doubted |= error.in_doubt_ids
                if time.monotonic() - began > PATIENCE_SECONDS:
                    raise
                act.problem = f"Storage is busy or unavailable; trying again: {error}"[:2000]
                _save(act, "problem")
                yield
                time.sleep(PAUSE_SECONDS)
        act.left = min(start + A_TURN, len(rows)) - (act.done - before) + max(0, missing)
        if is_in_doubt and start == 0 and (unsure := act.left - max(0, missing)):
            problems = [*gone, UNSURE.format(unsure)]
        act.problem = "; ".join(list(dict.fromkeys(problems))[:3])[:2000]
        _save(act, "problem")
        yield


def _do(
    act: BulkAct,
    queue: Queue[Any],
    turn: dict[str, PoisonMessage],
    doubted: frozenset[str],
    problems: list[str],
) -> None:
    """Do it to these messages; those that are gone are taken out of `turn` and of what was read. Raises `MoveStopped`.

    If it was stopped, call it again for the rest: of `doubted` it was not known whether they are gone.
    """
    do = delete_poison if act.verb == "delete" else requeue_poison
    known = [poison.received(row) for row in turn.values() if row.receipt]
    searched = {id for id, row in turn.items() if not row.receipt}
    for ids, how in (({each.id for each in known}, {"known": known}), (searched, {"ids": searched})):
        if not ids:
            continue
        gone: frozenset[str] = frozenset()
        try:
            moved = call(partial(do, queue, **how))
            # What is not there any more, and was asked to be deleted, was deleted by the attempt before.
            left = moved.left_ids - doubted if act.verb == "delete" else moved.left_ids
            gone = frozenset(ids - left)
            act.done += moved + len(moved.left_ids - left)
            problems += moved.reasons if left else ()
            for id in left:
                del turn[id]
        except MoveStopped as error:
            gone = error.moved_ids
            act.done += error.moved
            raise
        finally:
            with transaction.atomic():  # who goes on with the act counts on both
                PoisonMessage.objects.filter(pk__in=[turn.pop(id).pk for id in gone]).delete()
                _save(act)
