from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.unit.leadership.hall import Hall


@pytest.fixture
async def hall() -> AsyncIterator[Hall]:
    hall = Hall()
    yield hall
    for run in hall.runs.values():
        run.cancel()
    ending = asyncio.gather(*hall.runs.values(), return_exceptions=True)
    while not ending.done():
        await hall.clock.advance(60)
