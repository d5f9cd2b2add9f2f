"""Workers and leaders: who is there and what each does; drain, resume, stop, step down, break."""

from __future__ import annotations

import msgspec
from django.http import HttpRequest, HttpResponse
from ninja import Router

from dashboard.api.v1 import responses as answering
from dashboard.api.v1.bodies import Cursor, Instance, Limit, Name, Presence, Search, Why
from dashboard.api.v1.operations import ActDone, actor_of, acts, done, reads
from dashboard.api.v1.problems import Refusal
from dashboard.api.v1.schema import page_of
from dashboard.leaders import actions as leader_actions
from dashboard.leaders import queries as terms
from dashboard.live.fleet import LeaderView, WorkerView
from dashboard.live.view_models import matching
from dashboard.pages import queries as selectors
from dashboard.workers import actions

router = Router(tags=["workers and leaders"])


class TermView(msgspec.Struct, frozen=True, kw_only=True):
    """One term. `ended` null: it has not ended, or its leader died and nobody has succeeded it; `how` says how it ended."""

    epoch: int
    holder: str
    since: float
    ended: float | None
    how: str


class Terms(msgspec.Struct, frozen=True):
    """The newest terms of an election, newest first."""

    election: str
    terms: tuple[TermView, ...]


@router.get("/workers", **reads(page_of(WorkerView), "workers", tagged=True))
def workers(
    request: HttpRequest, q: Search = "", presence: Presence = "", cursor: Cursor = "", limit: Limit = 100
) -> HttpResponse:
    """Workers by instance, with all that each reports; `q` is part of name, host or queue."""
    found = matching(selectors.fleet(), q, presence)
    return answering.state(
        request, answering.page(found, lambda each: each.instance, cursor=cursor, limit=limit)
    )


@router.get("/workers/{instance}", **reads(WorkerView, "worker", missing=True, tagged=True))
def worker(request: HttpRequest, instance: Instance) -> HttpResponse:
    """One worker process."""
    found = answering.found(selectors.fleet().workers, lambda each: each.instance, instance, "worker")
    return answering.state(request, found)


@router.post("/workers/{instance}/drain", **acts(ActDone, "drain_worker", action="worker.drain", status=202))
def drain_worker(request: HttpRequest, instance: Instance, body: Why) -> HttpResponse:
    """Ask a worker to finish its messages in flight and take no new ones."""
    return _command(request, instance, "drain", body)


@router.post(
    "/workers/{instance}/resume", **acts(ActDone, "resume_worker", action="worker.resume", status=202)
)
def resume_worker(request: HttpRequest, instance: Instance, body: Why) -> HttpResponse:
    """Ask a drained worker to work again."""
    return _command(request, instance, "resume", body)


@router.post("/workers/{instance}/stop", **acts(ActDone, "stop_worker", action="worker.stop", status=202))
def stop_worker(request: HttpRequest, instance: Instance, body: Why) -> HttpResponse:
    """Ask a worker to end its process. Nothing here can start it again."""
    return _command(request, instance, "stop", body)


@router.get("/leaders", **reads(page_of(LeaderView), "leaders", tagged=True))
def leaders(request: HttpRequest, cursor: Cursor = "", limit: Limit = 100) -> HttpResponse:
    """All elections by name: the leader and the standbys."""
    return answering.state(
        request, answering.page(selectors.fleet().leaders, lambda each: each.name, cursor=cursor, limit=limit)
    )


@router.get("/leaders/{name}", **reads(LeaderView, "leader", missing=True, tagged=True))
def leader(request: HttpRequest, name: Name) -> HttpResponse:
    """One election."""
    found = answering.found(selectors.fleet().leaders, lambda each: each.name, name, "election")
    return answering.state(request, found)


@router.get("/leaders/{name}/terms", **reads(Terms, "terms", storage=True))
def leader_terms(request: HttpRequest, name: Name, limit: Limit = 50) -> HttpResponse:
    """The newest terms of an election, read from storage."""
    newest = terms.newest(name, limit)
    if newest.problem:
        raise Refusal(503, newest.problem)
    rows = tuple(
        TermView(epoch=row.epoch, holder=row.holder, since=row.since, ended=row.ended, how=row.how)
        for row in newest.rows
    )
    return answering.answer(Terms(name, rows))


@router.post("/leaders/{name}/step-down", **acts(ActDone, "step_down", action="leader.step_down", status=202))
def step_down(request: HttpRequest, name: Name, body: Why) -> HttpResponse:
    """Ask the leader to step down; a standby takes over."""
    leader_actions.step_down(actor_of(request), name, reason=body.reason)
    return done("leader.step_down", name, status=202)


@router.post("/leaders/{name}/break", **acts(ActDone, "break_lease", action="leader.break"))
def break_lease(request: HttpRequest, name: Name, body: Why) -> HttpResponse:
    """Take the lease from its holder by force; the epoch rises, so that fenced writes of the old leader fail."""
    leader_actions.break_lease(actor_of(request), name, reason=body.reason)
    return done("leader.break", name)


def _command(request: HttpRequest, instance: str, verb: str, body: Why) -> HttpResponse:
    actions.worker_command(actor_of(request), instance, verb, reason=body.reason)
    return done(f"worker.{verb}", instance, status=202)
