"""Tokens: one's own for everybody with a role, all of them for administrators."""

from __future__ import annotations

from typing import Annotated

import msgspec
from django.contrib.auth import get_user_model
from django.http import HttpRequest, HttpResponse
from ninja import Path, Router

from dashboard.access import token_actions as actions
from dashboard.access.queries import TokenView
from dashboard.access.queries import tokens as every_token
from dashboard.api.v1 import idempotency as replays
from dashboard.api.v1 import responses as answering
from dashboard.api.v1.bodies import NewToken, Text
from dashboard.api.v1.operations import ActDone, actor_of, acts, done, reads
from dashboard.api.v1.problems import Refusal

router = Router(tags=["tokens"])

TokenId = Annotated[int, Path(ge=1, le=2**31 - 1)]


class Tokens(msgspec.Struct, frozen=True):
    """Tokens, never their secrets."""

    tokens: tuple[TokenView, ...]


class TokenMade(msgspec.Struct, frozen=True):
    """A new token. This is the only time that it is shown."""

    token: str


@router.get("/tokens", **reads(Tokens, "tokens"))
def tokens(request: HttpRequest) -> HttpResponse:
    """An administrator's are all tokens; everybody else's are their own."""
    actor = actor_of(request)
    return answering.answer(Tokens(every_token(None if actor.role == "admin" else actor.name)))


@router.post("/tokens", **acts(TokenMade, "create_token", action="token.create_own", status=201))
def create_token(request: HttpRequest, body: NewToken) -> HttpResponse:
    """Make a token: with `own` a personal one, which must expire; else a service's or a fleet's, by administrators.

    `allowance` is for a fleet's alone: what its workers may claim.
    """
    actor = actor_of(request)
    owner = get_user_model().objects.filter(username=actor.name).first() if body.own else None
    if body.own and owner is None:
        raise Refusal(409, "a service has no tokens of its own; make one without `own`")
    made = actions.create_token(
        actor,
        body.name,
        scope=body.scope,
        days=body.days,
        owner=owner,
        role=body.role,
        team=body.team,
        allowance=None if body.allowance is None else body.allowance.model_dump(),
        reason=body.reason,
    )
    return answering.answer(TokenMade(made), status=201)


setattr(create_token, replays.SECRET, True)


@router.delete("/tokens/{token_id}", **acts(ActDone, "revoke_token", action="token.revoke_own"))
def revoke_token(request: HttpRequest, token_id: TokenId, reason: Text = "") -> HttpResponse:
    """End a token; sockets that were opened with it are closed within seconds."""
    actions.revoke_token(actor_of(request), token_id, reason=reason)
    return done("token.revoke", str(token_id))
