"""Thirty-two writers of one row at once."""

from __future__ import annotations

from benchmarks.tables import measure, naive, optimistic


async def test_32_concurrent_updates_are_all_applied_with_few_conflicts_where_naive_writers_lose_most() -> (
    None
):
    ours = await measure("optimistic_update", optimistic, writers=32, rounds=2)
    theirs = await measure("naive", naive, writers=32, rounds=1)
    assert (ours["applied"], ours["lost"]) == (64, 0)
    assert ours["conflicts_per_success"] <= 1.5, ours
    assert theirs["lost"] > 16, theirs
