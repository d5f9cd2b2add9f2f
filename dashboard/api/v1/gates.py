"""Gates: what they hold; make, open, close."""

from __future__ import annotations

import msgspec
from django.http import HttpRequest, HttpResponse
from ninja import Router

from coordinator.errors import ConfigurationError
from coordinator.gates.state import GateState
from dashboard.api.v1 import responses as answering
from dashboard.api.v1.bodies import Closing, Cursor, Limit, Name, NewGate, Opening
from dashboard.api.v1.operations import actor_of, acts, reads
from dashboard.api.v1.problems import Refusal
from dashboard.api.v1.schema import page_of
from dashboard.core.audit import ActionFailed
from dashboard.gates import actions
from dashboard.live.fleet import GateView
from dashboard.pages import queries as selectors

router = Router(tags=["gates"])


class GateChanged(msgspec.Struct, frozen=True, kw_only=True):
    """A gate as storage has it after the act. Moments are seconds since 1970."""

    name: str
    epoch: int
    state: str
    changed_at: float
    not_before: float | None
    until: float | None
    share: float
    by: str
    reason: str


@router.get("/gates", **reads(page_of(GateView), "gates", tagged=True))
def gates(request: HttpRequest, cursor: Cursor = "", limit: Limit = 100) -> HttpResponse:
    """All gates by name, with who waits there and how the last opening goes."""
    return answering.state(
        request, answering.page(selectors.fleet().gates, lambda gate: gate.name, cursor=cursor, limit=limit)
    )


@router.get("/gates/{name}", **reads(GateView, "gate", missing=True, tagged=True))
def gate(request: HttpRequest, name: Name) -> HttpResponse:
    """One gate. Its ETag can be sent back in If-Match."""
    view = answering.found(selectors.fleet().gates, lambda gate: gate.name, name, "gate")
    return answering.state(request, view, epoch=view.epoch)


@router.post("/gates", **acts(GateChanged, "create_gate", action="gate.create", status=201))
def create_gate(request: HttpRequest, body: NewGate) -> HttpResponse:
    """Make a gate, closed, before a worker ever waited at it."""
    return _changed(actions.create_gate(actor_of(request), body.name, reason=body.reason), status=201)


@router.post("/gates/{name}/open", **acts(GateChanged, "open_gate", action="gate.open", if_match=True))
def open_gate(request: HttpRequest, name: Name, body: Opening) -> HttpResponse:
    """Open a gate (unleash): now or at a moment to come, until a moment, for all or a share. Opening what is open changes nothing."""
    epoch = answering.epoch_of(request.headers)
    try:
        state = actions.unleash(
            actor_of(request),
            name,
            reason=body.reason,
            at=body.at,
            share=body.share,
            until=body.until,
            epoch=epoch,
        )
    except ActionFailed as error:
        if isinstance(error.__cause__, ConfigurationError):  # the gate's state does not allow this change
            raise Refusal(409, str(error)) from error
        raise
    return _changed(state)


@router.post("/gates/{name}/close", **acts(GateChanged, "close_gate", action="gate.close", if_match=True))
def close_gate(request: HttpRequest, name: Name, body: Closing) -> HttpResponse:
    """Close a gate (leash): workers inside finish their messages in flight and take no new ones."""
    epoch = answering.epoch_of(request.headers)
    return _changed(actions.leash(actor_of(request), name, reason=body.reason, epoch=epoch))


def _changed(state: GateState, *, status: int = 200) -> HttpResponse:
    values = {name: getattr(state, name) for name in GateChanged.__struct_fields__}
    return answering.answer(GateChanged(**values), status=status, etag=f'"e{state.epoch}"')
