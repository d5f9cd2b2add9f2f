"""Starts and stops what runs in the background, at the server's word."""

from __future__ import annotations

import logging
from typing import Any

from dashboard.checks import refuse_unsafe
from dashboard.runtime import current

log = logging.getLogger(__name__)


async def lifespan(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """The ASGI lifespan: unsafe settings or a start that fails end the server with the reason."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            try:
                refuse_unsafe()
                await current().start()
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
