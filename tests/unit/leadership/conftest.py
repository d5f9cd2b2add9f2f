from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.unit.leadership.candidates import Candidates


@pytest.fixture
async def candidates() -> AsyncIterator[Candidates]:
    candidates = Candidates()
    yield candidates
    for run in candidates.runs.values():
        run.cancel()
    ending = asyncio.gather(*candidates.runs.values(), return_exceptions=True)
    while not ending.done():
        await candidates.clock.advance(60)
