"""What runs in the background: started and stopped by the ASGI lifespan; the jobs besides watching: housekeeping, sweeping
payloads, sending webhooks, alerts."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar, TypeVarTuple

from channels.db import database_sync_to_async
from django.conf import settings
from django.contrib.auth import get_user_model
from django.urls import reverse

from coordinator.errors import KennelError
from coordinator.queues.azure import old_claims
from coordinator.queues.sweeping import sweep_round
from coordinator.realtime import protocol
from coordinator.storage import Storage
from dashboard.accounts import kiosks, sessions
from dashboard.core import alert_channels as channels
from dashboard.core import audit, audit_heads, tokens
from dashboard.core import prices as pricing
from dashboard.core.checks import refuse_unsafe
from dashboard.core.permissions import Actor, Role, role_of, teams_of
from dashboard.core.retention import DAY_SECONDS, prune_audit, remove_expired
from dashboard.core.webhooks import send_due
from dashboard.hub import addresses
from dashboard.hub.runtime import Runtime, current
from dashboard.live import alerting, fleet_memory, tallies
from dashboard.live.releases import ReleaseNews, load_peaks, save_peaks, source_of
from dashboard.models import AlertDelivery, AuditRow

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
log = logging.getLogger(__name__)
HOUSEKEEPING_SECONDS = 2.0
WEBHOOKS_SECONDS = 0.5
MEMORY_SECONDS = 1.0
ALERTS_SECONDS = 1.0
TALLY_SECONDS = 2.0
DELIVERIES_SECONDS = 0.5
STILL_THERE_SECONDS = 60.0
RECONCILE_TURNS = 15
FIRST_SWEEP_SECONDS = 300.0


Job = Callable[[Runtime], Awaitable[None]]


def start(runtime: Runtime, also: Mapping[str, Job] = MappingProxyType({})) -> None:
    """Start the jobs of a runtime that has started, and `also` those of its pages; its `stop` ends them."""
    for name, job in also.items():
        runtime.loops.start(name, partial(job, runtime))
    runtime.loops.start("peaks", partial(_keep_peaks, runtime))
    runtime.loops.start("memory", partial(_remember_fleet, runtime))
    runtime.loops.start("housekeeping", partial(_housekeeping, runtime))
    if settings.SWEEP_SECONDS > 0:
        runtime.loops.start("claims", partial(_sweep_claims, runtime))
    if settings.WEBHOOKS:
        runtime.loops.start("webhooks", partial(_webhooks, runtime))
    runtime.loops.start("tallies", partial(_tally, runtime))
    runtime.loops.start("alerts", partial(_alerts, runtime))
    runtime.loops.start("deliveries", partial(_deliveries, runtime))


async def _keep_peaks(runtime: Runtime) -> None:
    """The highest epochs of gates: read at the start, kept whenever one rises."""
    gates, source = runtime.gates, source_of(runtime.storage)
    gates.remember(await database_sync_to_async(load_peaks, thread_sensitive=False)(source))
    while True:
        runtime.loops.resting("peaks")
        await gates.peaks_due.wait()
        runtime.loops.alive("peaks")
        unsaved = gates.take_unsaved()
        try:
            await database_sync_to_async(save_peaks, thread_sensitive=False)(source, unsaved)
        except BaseException:
            gates.put_back(unsaved)
            raise


async def _remember_fleet(runtime: Runtime) -> None:
    """Workers and releases: read at the start, kept as they change."""
    presence, releases = runtime.presence, runtime.releases
    source = runtime.source = source_of(runtime.storage)
    presence.expect(await _in_thread(fleet_memory.expected, source))
    releases.merge(await _in_thread(fleet_memory.releases, source))
    kept: dict[str, ReleaseNews] = {}
    version, noted_at = -1, runtime.clock.monotonic()
    while True:
        runtime.loops.alive("memory")
        fates = presence.take_fates()
        try:
            if fates:
                await _in_thread(fleet_memory.save_workers, source, fates)
                fates = {}
            if runtime.clock.monotonic() - noted_at > STILL_THERE_SECONDS:
                noted_at = runtime.clock.monotonic()
                here = presence.local()
                await _in_thread(fleet_memory.still_there, source, here, runtime.clock.time())
            if releases.version != version:
                version = releases.version
                news = {each.gate: each for each in releases.news()}
                fresh = [each for gate, each in news.items() if kept.get(gate) != each]
                await _in_thread(fleet_memory.save_releases, source, fresh)
                kept = news
        except Exception as error:
            # The database may be away for a while; what could not be kept is kept at the next turn.
            presence.put_back(fates)
            version = -1
            log.exception("Workers and releases were not kept; trying again")
            runtime.loops.failed("memory", error)
        await runtime.clock.sleep(MEMORY_SECONDS)


async def _in_thread(function: Callable[[*Ts], T], *args: *Ts) -> T:
    result: T = await database_sync_to_async(function, thread_sensitive=False)(*args)
    return result


async def _sweep_claims(runtime: Runtime) -> None:
    """Once an hour, in one process of all: payloads that no message needs, a bounded number at a time."""
    following = ""
    await runtime.clock.sleep(min(FIRST_SWEEP_SECONDS, settings.SWEEP_SECONDS))
    while True:
        runtime.loops.alive("claims")
        try:
            if runtime.sampler is not None and runtime.sampler.is_leading:
                following = await sweep_some(runtime.storage, following)
        except Exception as error:
            runtime.loops.failed("claims", error)
            log.exception("Claims were not swept; trying again in %g s", settings.SWEEP_SECONDS)
        runtime.loops.resting("claims")
        await runtime.clock.sleep(settings.SWEEP_SECONDS)


async def _webhooks(runtime: Runtime) -> None:
    while True:
        runtime.loops.alive("webhooks")
        try:
            if runtime.sampler is not None and runtime.sampler.is_leading:
                # In a thread of its own: a slow receiver must not hold up what needs the database.
                await database_sync_to_async(send_due, thread_sensitive=False)()
        except Exception as error:
            log.exception("Sending webhooks failed; trying again")
            runtime.loops.failed("webhooks", error)
        await runtime.clock.sleep(WEBHOOKS_SECONDS)


async def _tally(runtime: Runtime) -> None:
    """What handlers did, as the workers of this process reported it; once more when it ends."""
    source = runtime.source = source_of(runtime.storage)

    async def save() -> None:
        reports = runtime.reported.due()
        try:
            if reports:
                await _in_thread(tallies.save, source, reports, runtime.clock.time())
        except BaseException:
            runtime.reported.put_back(reports)
            raise

    try:
        while True:
            runtime.loops.alive("tallies")
            try:
                await save()
            except Exception as error:
                log.exception("What handlers did was not saved; trying again")
                runtime.loops.failed("tallies", error)
            await runtime.clock.sleep(TALLY_SECONDS)
    finally:
        with contextlib.suppress(Exception):
            await asyncio.shield(save())


async def _alerts(runtime: Runtime) -> None:
    """Each process shows the alerts; the one that samples, or each where none does, finds them."""
    began = runtime.clock.monotonic()
    wanted = False
    if runtime.sampler is not None:
        runtime.sampler.alerts = lambda: wanted
    while True:
        runtime.loops.alive("alerts")
        try:
            # What nobody has sampled yet is not known to be well.
            if runtime.sampler is not None and runtime.sampler.judges and runtime.fleet_state.sample.at:
                is_old = runtime.clock.monotonic() - began > alerting.YOUNG_SECONDS
                await _in_thread(_evaluate, runtime, is_old)
            wanted = await _in_thread(alerting.quick_look_wanted)
            runtime.fleet_state.show_alerts(await _in_thread(alerting.firing))
        except Exception as error:
            log.exception("Alerts were not looked at; trying again")
            runtime.loops.failed("alerts", error)
        await runtime.clock.sleep(ALERTS_SECONDS)


def _evaluate(runtime: Runtime, is_old: bool) -> None:
    alerting.evaluate(runtime.fleet_state.fleet(), may_resolve=is_old)


async def _deliveries(runtime: Runtime) -> None:
    """Send what is due, in any process: the rows say whose it is. One slow receiver holds up no other."""
    under_way: set[asyncio.Task[None]] = set()
    try:
        while True:
            runtime.loops.alive("deliveries")
            try:
                room = channels.AT_ONCE - len(under_way)
                claimed = await _in_thread(channels.claim, runtime.clock.time(), room) if room else []
                for row, message in claimed:
                    task = asyncio.create_task(_deliver(runtime, row, message))
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
            except Exception as error:
                log.exception("Alerts were not sent; trying again")
                runtime.loops.failed("deliveries", error)
            await runtime.clock.sleep(DELIVERIES_SECONDS)
    finally:
        # What is cut off here is claimed by another process when the claim expires.
        for task in under_way:
            task.cancel()


async def _deliver(runtime: Runtime, row: AlertDelivery, message: channels.AlertMessage) -> None:
    try:
        problem = await channels.send(row.channel, message)
        await _in_thread(channels.settle, row, problem, runtime.clock.time())
        if problem:
            log.warning(
                "An alert was not sent to %s: %s", row.channel.name, problem, extra={"action": "alert_unsent"}
            )
    except Exception as error:
        log.exception("What became of %s was not noted", row.key)
        runtime.loops.failed("deliveries", error)


async def _housekeeping(runtime: Runtime) -> None:
    turn = 0
    while True:
        runtime.loops.alive("housekeeping")
        try:
            if turn % RECONCILE_TURNS == 0:
                await database_sync_to_async(reconcile_and_prune)()
                await database_sync_to_async(remove_expired)()
                await database_sync_to_async(fleet_memory.forget_old)()
                await database_sync_to_async(tallies.forget_old)()
                await database_sync_to_async(tallies.roll_up)(runtime.clock.time())
                await keep_audit_head(runtime)
            await sweep(runtime)
        except Exception as error:
            # The database may be away for a while; sockets are looked at again at the next turn.
            log.exception("Housekeeping failed; trying again")
            runtime.loops.failed("housekeeping", error)
        turn += 1
        await runtime.clock.sleep(HOUSEKEEPING_SECONDS)


async def sweep(runtime: Runtime) -> None:
    """One look at everything; closes the sockets that may no longer be open."""
    runtime.presence.admit_missing()
    runtime.presence.forget()
    if runtime.presence.set_pace():
        runtime.sockets.send_pace(runtime.presence.pace)
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
        permissions = await database_sync_to_async(current_permissions)(viewers)
        closing += [
            viewer.go_away(protocol.CLOSE_FORBIDDEN, "signed out, or the role changed; reload the page")
            for viewer, permission in zip(viewers, permissions, strict=True)
            if permission != (viewer.view.role, viewer.view.teams)
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


def reconcile_and_prune() -> None:
    """Close what a crash left open; once a day remove what is older than the settings keep, in one process of all."""
    audit.reconcile()
    days = settings.AUDIT_DAYS
    if not days:
        return
    oldest = AuditRow.objects.order_by("pk").values_list("at", flat=True).first()
    # A day's rows at a time: each removal is an act with two rows of its own.
    if oldest is not None and oldest < time.time() - (days + 1) * DAY_SECONDS:
        prune_audit(Actor("Kennel retention", "admin"), days)


def current_permissions(viewers: Sequence[Any]) -> list[tuple[Role, frozenset[str]]]:
    """The role and the teams that each socket's user has now; "" and none if the session has ended.

    A session ends with the password that it was opened with, too. A screen is a viewer of the wallboard as long as its token is valid.
    """
    users = {
        user.pk: user
        for user in get_user_model()
        .objects.filter(pk__in={viewer.user.pk for viewer in viewers})
        .prefetch_related("groups")
    }
    alive = sessions.alive({viewer.scope["session"].session_key for viewer in viewers})
    screens = {key: token for key, held in alive.items() if (token := kiosks.token_of(held)) is not None}
    valid_screens = kiosks.still_valid(screens.values())
    permissions: list[tuple[Role, frozenset[str]]] = []
    for viewer in viewers:
        key = viewer.scope["session"].session_key
        if screens.get(key) in valid_screens:
            permissions.append(("viewer", frozenset()))
            continue
        user = users.get(viewer.user.pk)
        present = sessions.is_of(alive.get(key), user)
        permissions.append((role_of(user), teams_of(user)) if present else ("", frozenset()))
    return permissions


GRACE_SECONDS = 86_400.0


async def sweep_some(storage: Storage, start: str) -> str:
    """Look at up to 50,000 claims from `start` on, remove those that are old and needed by no message; where to go on.

    One request for 5,000 claims, and what `sweep_round` says: nothing besides where nothing is old.
    """
    old, following = await old_claims(storage, before=storage.clock.time() - GRACE_SECONDS, start=start)
    if old:
        swept = await sweep_round(old, storage.queue)
        log.info("Swept claims: %d removed, %d stay as they cannot be judged", swept.removed, swept.unknown)
    return following


YOUNG_OBJECTS, ROUNDS = 10_000, 5
SWITCH_SECONDS = 0.0005


def _spare_pauses() -> None:
    """Look for garbage less often, and not among what was there at the start: with a thousand sockets a full look stops
    the loop, and with it a release, for 0.15 s. It came every nine seconds.

    Threads take shorter turns: the loop waits for one that draws a page each time that it has looked for news, and a page
    for the loop after each query. With Python's 5 ms a press, which needs some dozens of both, waited most of the time.

    Nothing is collected first: of 187,000 objects a start left none as garbage, and the look took 0.13 s of it.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, ROUNDS, ROUNDS)


_ARENAS, _MAPPED = (-8, 2), (-3, 128 * 1024)
"""Options of the C library's `mallopt` and their values: M_ARENA_MAX, M_MMAP_THRESHOLD (bytes)."""


def _return_memory() -> None:
    """Let large answers go back to the system when they are sent, and threads share what is free (glibc only).

    Else each thread keeps free memory of its own, in pieces: while pages of thousands of rows were read, the process grew
    by 6 % in two minutes, and nothing of that was in use.
    """
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for option, value in (_ARENAS, _MAPPED):
            library.mallopt(option, value)


async def lifespan(
    scope: dict[str, Any], receive: Any, send: Any, *, also: Mapping[str, Job] = MappingProxyType({})
) -> None:
    """The ASGI lifespan, with jobs of the pages: unsafe settings or a start that fails end the server with the reason."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            try:
                refuse_unsafe()
                await current().start()
                start(current(), also)
                # All addresses, and with them the API, are imported now: at the first request that would stop the loop.
                reverse("overview")
                _spare_pauses()
                _return_memory()
                addresses.from_transports()
            except Exception as error:
                log.exception("The dashboard does not start")
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                return
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            try:
                await current().stop()
            finally:
                await send({"type": "lifespan.shutdown.complete"})
            return
