"""Promises of the sampler's budget."""

from __future__ import annotations

from dashboard.live.fleet import Depth
from dashboard.live.reading import choose


def test_every_queue_is_read_at_every_look_while_the_budget_allows() -> None:
    assert choose({"b", "a"}, {}, (), 2) == ["a", "b"]


def test_beyond_the_budget_each_queue_gets_its_turn_and_busy_ones_more_often() -> None:
    names = {f"q-{number:03}" for number in range(300)}
    busy = {"q-007", "q-123"}
    known: dict[str, Depth] = {}
    reads: dict[str, int] = dict.fromkeys(names, 0)
    for look in range(1, 31):
        chosen = choose(names, known, busy, 24)
        assert len(chosen) == len(set(chosen)) == 24
        for name in chosen:
            reads[name] += 1
            known[name] = Depth(name, 1, 0, float(look))
    assert min(reads.values()) >= 2
    assert all(reads[name] == 30 for name in busy)
