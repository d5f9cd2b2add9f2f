"""What must be looked at now and then: revoked tokens, roles taken away, sessions ended, workers long gone."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

from channels.db import database_sync_to_async
from django.conf import settings
from django.contrib.auth import get_user_model

from coordinator.errors import KennelError
from coordinator.realtime import protocol
from dashboard.access import tokens
from dashboard.accounts import sessions
from dashboard.audit import heads as audit_heads
from dashboard.audit import log as audit
from dashboard.audit.actions import DAY_SECONDS, prune_audit
from dashboard.core.actor import Actor
from dashboard.core.permissions import role_of, teams_of
from dashboard.core.runtime import Runtime
from dashboard.core.teams import Role
from dashboard.cost import prices as pricing
from dashboard.models import AuditRow

log = logging.getLogger(__name__)


async def sweep(runtime: Runtime) -> None:
    """One look at everything; closes the sockets that may no longer be open."""
    runtime.presence.forget()
    await database_sync_to_async(pricing.refresh)()
    closing: list[Any] = []
    workers = list(runtime.consumers)
    if workers:
        valid = await database_sync_to_async(tokens.valid_ids)()
        closing += [
            worker.go_away(protocol.CLOSE_UNAUTHORIZED, "the token was revoked or has expired")
            for worker in workers
            if worker.token_id not in valid
        ]
    viewers: list[Any] = list(runtime.viewers.sockets)
    if viewers:
        standings = await database_sync_to_async(standings_now)(viewers)
        closing += [
            viewer.go_away(protocol.CLOSE_FORBIDDEN, "signed out, or the role changed; reload the page")
            for viewer, standing in zip(viewers, standings, strict=True)
            if standing != (viewer.view.role, viewer.view.teams)
        ]
    await asyncio.gather(*closing, return_exceptions=True)


async def keep_audit_head(runtime: Runtime) -> None:
    """Keep the end of the audit in the account: in one process of all, and only what is new."""
    if runtime.sampler is None or not runtime.sampler.is_leading:
        return
    row, digest = await database_sync_to_async(audit.head)()
    if not row or row == runtime.kept_head:
        return
    try:
        await audit_heads.keep(runtime.storage, row, digest)
        runtime.kept_head = row
    except KennelError as error:
        log.warning("The end of the audit, #%d, is kept at the next turn: %s", row, error)


def tidy_audit() -> None:
    """Close what a crash left open; once a day remove what is older than the settings keep, in one process of all."""
    audit.reconcile()
    days = settings.AUDIT_DAYS
    if not days:
        return
    oldest = AuditRow.objects.order_by("pk").values_list("at", flat=True).first()
    # A day's rows at a time: each removal is an act with two rows of its own.
    if oldest is not None and oldest < time.time() - (days + 1) * DAY_SECONDS:
        prune_audit(Actor("Kennel retention", "admin"), days)


def standings_now(viewers: Sequence[Any]) -> list[tuple[Role, frozenset[str]]]:
    """The role and the teams that each socket's user has now; "" and none if the session has ended.

    A session ends with the password that it was opened with, too.
    """
    users = {
        user.pk: user
        for user in get_user_model()
        .objects.filter(pk__in={viewer.user.pk for viewer in viewers})
        .prefetch_related("groups")
    }
    alive = sessions.alive({viewer.scope["session"].session_key for viewer in viewers})
    standings: list[tuple[Role, frozenset[str]]] = []
    for viewer in viewers:
        user = users.get(viewer.user.pk)
        present = sessions.is_of(alive.get(viewer.scope["session"].session_key), user)
        standings.append((role_of(user), teams_of(user)) if present else ("", frozenset()))
    return standings
