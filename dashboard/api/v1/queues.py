"""Queues: depths, rules; make, fill, empty, delete."""

from __future__ import annotations

import msgspec
from django.http import HttpRequest, HttpResponse
from ninja import Router

from coordinator.errors import ConfigurationError
from coordinator.queues.rules import Steps, TargetLatency, decode_rule
from dashboard.api.v1 import responses as answering
from dashboard.api.v1.bodies import (
    ActNumber,
    Chosen,
    Cursor,
    Fitting,
    Limit,
    Name,
    NewMessage,
    NewQueue,
    NewRule,
    QueueName,
    Text,
    Why,
)
from dashboard.api.v1.operations import ActDone, actor_of, acts, done, reads
from dashboard.api.v1.problems import Refusal
from dashboard.api.v1.schema import page_of
from dashboard.live.fleet import QueueView
from dashboard.models import BulkAct
from dashboard.pages import queries as selectors
from dashboard.queues import actions, bulk_acts, poison, queries
from dashboard.queues.poison import Filter, Kind

router = Router(tags=["queues"])


class Requeued(msgspec.Struct, frozen=True):
    """So many messages went back from the poison queue; `left` could not and stay there, `in_doubt` may be in both."""

    moved: int
    left: int = 0
    in_doubt: int = 0


class RuleInForce(msgspec.Struct, frozen=True):
    """The rule stored for a queue; null: its workers use their default rule."""

    rule: Steps | TargetLatency | None


@router.get("/queues", **reads(page_of(QueueView), "queues", tagged=True))
def queues(request: HttpRequest, cursor: Cursor = "", limit: Limit = 100) -> HttpResponse:
    """All queues by name, with depth, rates and listeners."""
    return answering.state(
        request, answering.page(selectors.fleet().queues, lambda each: each.name, cursor=cursor, limit=limit)
    )


@router.get("/queues/{name}", **reads(QueueView, "queue", missing=True, tagged=True))
def queue(request: HttpRequest, name: QueueName) -> HttpResponse:
    """One queue."""
    return answering.state(
        request, answering.found(selectors.fleet().queues, lambda each: each.name, name, "queue")
    )


@router.post("/queues", **acts(ActDone, "create_queue", action="queue.create", status=201))
def create_queue(request: HttpRequest, body: NewQueue) -> HttpResponse:
    """Make a queue; harmless if it exists."""
    actions.create_queue(actor_of(request), body.name, reason=body.reason)
    return done("queue.create", body.name, status=201)


@router.delete("/queues/{name}", **acts(ActDone, "delete_queue", action="queue.delete"))
def delete_queue(request: HttpRequest, name: Name, reason: Text = "") -> HttpResponse:
    """Delete a queue with all its messages. This cannot be undone."""
    actions.delete_queue(actor_of(request), name, reason=reason)
    return done("queue.delete", name)


@router.post("/queues/{name}/clear", **acts(ActDone, "clear_queue", action="queue.clear"))
def clear_queue(request: HttpRequest, name: Name, body: Why) -> HttpResponse:
    """Delete all messages of a queue. This cannot be undone."""
    actions.clear_queue(actor_of(request), name, reason=body.reason)
    return done("queue.clear", name)


@router.get("/queues/{name}/messages", **reads(queries.PeekResult, "peek", action="queue.peek", storage=True))
def peek(request: HttpRequest, name: Name, poison: bool = False) -> HttpResponse:
    """The first visible messages of a queue or of its poison queue, only peeked at; long ones are cut."""
    look = queries.peek(name, poison=poison)
    if look.problem:
        raise Refusal(503, look.problem)
    return answering.answer(look)


@router.post("/queues/{name}/messages", **acts(ActDone, "put_message", action="queue.put", status=201))
def put_message(request: HttpRequest, name: Name, body: NewMessage) -> HttpResponse:
    """Put one item into a queue. Without an Idempotency-Key, repeating it puts it twice."""
    text = msgspec.json.encode(body.item).decode()
    if len(text.encode()) > actions.MAX_BODY:
        raise Refusal(
            413, f"the item has {len(text.encode())} bytes; at most {actions.MAX_BODY} can be put here"
        )
    actions.put_message(actor_of(request), name, text, reason=body.reason)
    return done("queue.put", name, status=201)


@router.post("/queues/{name}/requeue", **acts(Requeued, "requeue_poison", action="queue.requeue"))
def requeue_poison(request: HttpRequest, name: Name, body: Why) -> HttpResponse:
    """Put the messages of the poison queue back to where they failed."""
    moved = actions.requeue_poison(actor_of(request), name, reason=body.reason)
    return answering.answer(Requeued(int(moved), moved.left, moved.in_doubt))


@router.post("/queues/{name}/messages/retry", **acts(Requeued, "retry_messages", action="queue.requeue"))
def retry_messages(request: HttpRequest, name: Name, body: Chosen) -> HttpResponse:
    """Put these messages of the poison queue back to where they failed; 409 if some are not there any more."""
    moved = actions.retry_messages(actor_of(request), name, body.ids, reason=body.reason)
    return answering.answer(Requeued(int(moved), moved.left, moved.in_doubt))


@router.post(
    "/queues/{name}/messages/delete", **acts(ActDone, "delete_messages", action="queue.delete_messages")
)
def delete_messages(request: HttpRequest, name: Name, body: Chosen) -> HttpResponse:
    """Delete these messages of the poison queue. This cannot be undone."""
    actions.delete_messages(actor_of(request), name, body.ids, reason=body.reason)
    return done("queue.delete_messages", name)


class PoisonKinds(msgspec.Struct, frozen=True):
    """The messages of a poison queue that were read, by kind; `is_peek`: the first 32 alone."""

    kinds: tuple[Kind, ...]
    read: int
    read_at: float | None
    is_peek: bool


class PoisonAct(msgspec.Struct, frozen=True):
    """An act on many poison messages: running, done, aborted, interrupted or failed."""

    id: int
    verb: str
    messages: str
    by: str
    outcome: str
    total: int | None
    done: int
    left: int
    problem: str
    started_at: float


class PoisonActs(msgspec.Struct, frozen=True):
    """The newest first."""

    acts: list[PoisonAct]


@router.get("/queues/{name}/poison", **reads(PoisonKinds, "poison_kinds", action="queue.peek", storage=True))
def poison_kinds(request: HttpRequest, name: Name) -> HttpResponse:
    """The poison messages by kind of failure: those that were read within the hour, otherwise the first 32."""
    found = poison.found(name)
    if found.problem and not found.kinds:
        raise Refusal(503, found.problem)
    return answering.answer(PoisonKinds(found.kinds, found.read, found.read_at, found.is_peek))


@router.post("/queues/{name}/poison/read", **acts(PoisonAct, "read_poison", action="queue.peek"))
def read_poison(request: HttpRequest, name: Name, body: Why) -> HttpResponse:
    """Have all poison messages read, in the background; each is hidden for a second."""
    return answering.answer(_act(bulk_acts.read(actor_of(request), name)))


@router.post("/queues/{name}/poison/retry", **acts(PoisonAct, "retry_poison", action="queue.requeue"))
def retry_poison(request: HttpRequest, name: Name, body: Fitting) -> HttpResponse:
    """Put all poison messages that fit back to where they failed, in the background."""
    return answering.answer(_act(bulk_acts.retry(actor_of(request), name, _filter(body), reason=body.reason)))


@router.post(
    "/queues/{name}/poison/delete", **acts(PoisonAct, "delete_poison", action="queue.delete_messages")
)
def delete_poison(request: HttpRequest, name: Name, body: Fitting) -> HttpResponse:
    """Delete all poison messages that fit, in the background. This cannot be undone."""
    return answering.answer(
        _act(bulk_acts.delete(actor_of(request), name, _filter(body), reason=body.reason))
    )


@router.get("/queues/{name}/poison/acts", **reads(PoisonActs, "poison_acts", action="queue.peek"))
def poison_acts(request: HttpRequest, name: Name) -> HttpResponse:
    """The newest acts on many poison messages, and how far they have come."""
    return answering.answer(PoisonActs([_act(each) for each in bulk_acts.shown(name)]))


@router.post(
    "/queues/{name}/poison/acts/{number}/abort", **acts(ActDone, "abort_poison_act", action="queue.abort")
)
def abort_poison_act(request: HttpRequest, name: Name, number: ActNumber, body: Why) -> HttpResponse:
    """Have an act stop after the messages it is at; 409 if it is over."""
    bulk_acts.abort(actor_of(request), name, number)
    return done("queue.abort", name)


def _act(act: BulkAct) -> PoisonAct:
    return PoisonAct(
        act.pk,
        act.verb,
        act.what,
        act.actor,
        act.outcome,
        act.total,
        act.done,
        act.left,
        act.problem,
        act.started_at,
    )


def _filter(body: Fitting) -> Filter:
    try:
        return Filter.of(body.model_dump())
    except ValueError as error:
        raise Refusal(422, str(error)) from error


@router.get("/queues/{name}/rule", **reads(RuleInForce, "queue_rule", storage=True))
def queue_rule(request: HttpRequest, name: Name) -> HttpResponse:
    """The current scaling rule, read from storage."""
    stored = queries.stored(name)
    if stored.problem:
        raise Refusal(503, stored.problem)
    return answering.answer(RuleInForce(stored.rule))


@router.put("/queues/{name}/rule", **acts(RuleInForce, "set_queue_rule", action="queue.rule"))
def set_queue_rule(request: HttpRequest, name: Name, body: NewRule) -> HttpResponse:
    """Save a rule for every listener of the queue; they follow within seconds."""
    try:
        rule = decode_rule(body.rule.model_dump_json(exclude_unset=True).encode())
    except ConfigurationError as error:
        raise Refusal(422, str(error)) from error
    actions.store_rule(actor_of(request), name, rule, reason=body.reason)
    return answering.answer(RuleInForce(rule))


@router.delete("/queues/{name}/rule", **acts(RuleInForce, "remove_queue_rule", action="queue.rule"))
def remove_queue_rule(request: HttpRequest, name: Name, reason: Text = "") -> HttpResponse:
    """Have the workers of the queue use their own rules again."""
    actions.store_rule(actor_of(request), name, None, reason=reason)
    return answering.answer(RuleInForce(None))
