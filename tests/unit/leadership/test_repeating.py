"""What a worker's leader does when its task ends or fails."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import pairwise

import pytest

from coordinator.errors import ConfigurationError
from coordinator.leadership.repeating import lead_on
from coordinator.leadership.term import Term
from tests.unit.leadership.candidates import Candidates


async def test_a_task_that_ends_runs_once_in_each_epoch_however_many_workers_there_are(
    candidates: Candidates,
) -> None:
    runs: list[tuple[str, int]] = []

    async def close_the_books(term: Term) -> None:
        runs.append((term.holder, term.epoch))

    for name in ("a", "b", "c"):
        work = lead_on(candidates.election(name), close_the_books, again="epoch", clock=candidates.clock)
        candidates.runs[name] = asyncio.ensure_future(work)
    await candidates.clock.advance(600)
    assert runs == [("a", 1)]
    candidates.runs["a"].cancel()
    await candidates.clock.advance(60)
    assert [epoch for _, epoch in runs] == [1, 2]


async def test_a_task_may_ask_for_another_campaign_when_it_ends(candidates: Candidates) -> None:
    epochs: list[int] = []

    async def work(term: Term) -> None:
        epochs.append(term.epoch)
        await candidates.clock.sleep(10)

    candidates.runs["a"] = asyncio.ensure_future(
        lead_on(candidates.election("a"), work, again="campaign", clock=candidates.clock)
    )
    await candidates.clock.advance(35)
    assert epochs[:3] == [1, 2, 3]


async def test_a_task_that_fails_is_tried_again_with_growing_pauses_and_frees_the_lease(
    candidates: Candidates,
) -> None:
    failed: list[tuple[float, str]] = []

    async def fail(term: Term) -> None:
        assert candidates.store._is_leased
        raise RuntimeError(f"no books in epoch {term.epoch}")

    async def note(error: Exception, term: Term) -> None:
        failed.append((candidates.clock.monotonic(), str(error)))

    candidates.runs["a"] = asyncio.ensure_future(
        lead_on(candidates.election("a"), fail, on_error=note, clock=candidates.clock)
    )
    await candidates.clock.advance(0.5)
    assert not candidates.store._is_leased
    await candidates.clock.advance(300)
    pauses = [later - sooner for (sooner, _), (later, _) in pairwise(failed)]
    assert 5 <= len(failed) <= 15
    assert pauses[0] <= 3 < 20 < max(pauses) <= 62
    assert not candidates.runs["a"].done()


async def test_an_on_error_that_raises_ends_it(candidates: Candidates) -> None:
    def give_up(error: Exception, term: Term) -> None:
        raise error

    async def fail(term: Term) -> None:
        raise RuntimeError("no books")

    with pytest.raises(RuntimeError, match="no books"):
        await lead_on(candidates.election("a"), fail, on_error=give_up, clock=candidates.clock)
    assert not candidates.store._is_leased


async def test_an_unknown_word_for_again_is_refused(candidates: Candidates) -> None:
    with pytest.raises(ConfigurationError, match="again must be epoch or campaign"):
        await lead_on(candidates.election("a"), partial(print), again="always")  # type: ignore[arg-type]
