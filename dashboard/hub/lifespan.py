"""Starts and stops what runs in the background, at the server's word."""

from __future__ import annotations

import gc
import logging
from typing import Any

from django.urls import reverse

from dashboard.core.checks import refuse_unsafe
from dashboard.hub import background
from dashboard.hub.runtime import current

log = logging.getLogger(__name__)

YOUNG_OBJECTS, ROUNDS = 10_000, 5


def _spare_pauses() -> None:
    """Look for garbage less often, and not among what was there at the start: with a thousand sockets a full look stops
    the loop, and with it a release, for 0.15 s. It came every nine seconds."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, ROUNDS, ROUNDS)


async def lifespan(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """The ASGI lifespan: unsafe settings or a start that fails end the server with the reason."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            try:
                refuse_unsafe()
                await current().start()
                background.start(current())
                # All addresses, and with them the API, are imported now: at the first request that would stop the loop.
                reverse("overview")
                _spare_pauses()
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
