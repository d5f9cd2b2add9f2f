"""The jobs of a dashboard process besides watching: housekeeping, sweeping payloads, sending webhooks."""

from __future__ import annotations

import logging
from functools import partial

from channels.db import database_sync_to_async
from django.conf import settings

from dashboard.core.retention import tidy
from dashboard.core.runtime import Runtime
from dashboard.core.webhooks import send_due
from dashboard.gates import peaks
from dashboard.hub.housekeeping import keep_audit_head, sweep, tidy_audit
from dashboard.queues.large_payloads import sweep_some

log = logging.getLogger(__name__)

HOUSEKEEPING_SECONDS = 2.0
WEBHOOKS_SECONDS = 0.5
RECONCILE_TURNS = 15
FIRST_SWEEP_SECONDS = 300.0


def start(runtime: Runtime) -> None:
    """Start the jobs of a runtime that has started; its `stop` ends them."""
    runtime.loops.start("peaks", partial(_keep_peaks, runtime))
    runtime.loops.start("housekeeping", partial(_housekeeping, runtime))
    if settings.SWEEP_SECONDS > 0:
        runtime.loops.start("claims", partial(_sweep_claims, runtime))
    if settings.WEBHOOKS:
        runtime.loops.start("webhooks", partial(_webhooks, runtime))


async def _keep_peaks(runtime: Runtime) -> None:
    """The highest epochs of gates: read at the start, kept whenever one rises."""
    gates, source = runtime.gates, peaks.source_of(runtime.storage)
    gates.remember(await database_sync_to_async(peaks.load, thread_sensitive=False)(source))
    while True:
        runtime.loops.resting("peaks")
        await gates.peaks_due.wait()
        runtime.loops.alive("peaks")
        unsaved = gates.take_unsaved()
        try:
            await database_sync_to_async(peaks.save, thread_sensitive=False)(source, unsaved)
        except BaseException:
            gates.put_back(unsaved)
            raise


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


async def _housekeeping(runtime: Runtime) -> None:
    turn = 0
    while True:
        runtime.loops.alive("housekeeping")
        try:
            if turn % RECONCILE_TURNS == 0:
                await database_sync_to_async(tidy_audit)()
                await database_sync_to_async(tidy)()
                await keep_audit_head(runtime)
            await sweep(runtime)
        except Exception as error:
            # The database may be away for a while; sockets are looked at again at the next turn.
            log.exception("Housekeeping failed; trying again")
            runtime.loops.failed("housekeeping", error)
        turn += 1
        await runtime.clock.sleep(HOUSEKEEPING_SECONDS)
