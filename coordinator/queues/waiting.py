"""Waiting for one thing or another."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def unless(event: asyncio.Event, waiting: Coroutine[Any, Any, Any]) -> None:
    """Await the coroutine, or return when the event is set; raises what the coroutine raised."""
    rivals = [asyncio.ensure_future(waiting), asyncio.ensure_future(event.wait())]
    try:
        await asyncio.wait(rivals, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for rival in rivals:
            rival.cancel()
        results = await asyncio.gather(*rivals, return_exceptions=True)
    if isinstance(results[0], Exception):
        raise results[0]
