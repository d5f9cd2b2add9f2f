"""A page of a thousand rows is handed out in steps, so decoding it does not stop the event loop."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from coordinator.tables.operations import Insert
from coordinator.tables.store import STEP_ROWS
from coordinator.tables.table import Table
from coordinator.testing.tables import MemoryTableStore

ROWS = 10 * STEP_ROWS


async def test_others_have_a_turn_while_a_page_is_scanned() -> None:
    store = MemoryTableStore()
    for number in range(ROWS):
        await store.write(Insert(("a", f"{number:04}"), {}))
    seen: list[str] = []
    turns: list[int] = []

    async def other() -> None:
        while True:
            turns.append(len(seen))
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    async for row in Table(store).scan():
        seen.append(row.key.row)
    beside.cancel()
    assert len(seen) == ROWS
    between = [later - before for before, later in pairwise(turns)]
    assert max(between) <= STEP_ROWS
