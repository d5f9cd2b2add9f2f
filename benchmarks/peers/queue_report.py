"""What the queue benchmark prints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Results = dict[str, dict[str, Any]]
PEERS = ("celery", "dramatiq")


class Goal(NamedTuple):
    """A promise: our figure for `key` divided by the control's or the better peer's is at least (or at most) `limit`."""

    title: str
    key: str
    against: tuple[str, ...]
    limit: float
    at_most: bool = False

    @property
    def name(self) -> str:
        return f"{self.title} {'≤' if self.at_most else '≥'} {self.limit:g} ×"

    def figures(self, results: Results) -> tuple[float, float] | None:
        """Ours and the best of the others; None if one was not measured."""
        ours = results.get("kennel", {}).get(self.key)
        others = [results[name][self.key] for name in self.against if self.key in results.get(name, {})]
        best: Callable[[list[float]], float] = min if self.at_most else max
        return (ours, best(others)) if ours is not None and others else None


class Bound(NamedTuple):
    """A promise on our figure alone."""

    title: str
    key: str
    limit: float


CONTROL = ("rest",)
GOALS = (
    Goal("enqueue ÷ control", "enqueue_per_second", CONTROL, 0.65),
    Goal("enqueue ÷ better peer", "enqueue_per_second", PEERS, 2.5),
    Goal("drain 32 deep ÷ control", "drain_32_per_second", CONTROL, 0.8),
    Goal("drain 512 deep ÷ control", "drain_512_per_second", CONTROL, 0.8),
    Goal("drain 2,000 deep ÷ control", "drain_2000_per_second", CONTROL, 0.8),
    Goal("drain 2,000 deep ÷ better peer", "drain_2000_per_second", PEERS, 2.5),
    Goal("drain, O(1) service ÷ better peer", "fast_drain_per_second", PEERS, 8),
    Goal("CPU a task ÷ better peer", "fast_cpu_ms", PEERS, 0.2, at_most=True),
)
BOUNDS = (
    Bound("requests a task, one a message ≤ 2.05", "requests_per_task", 2.05),
    Bound("requests a task, 50 a message ≤ 0.1", "batched_requests_per_task", 0.1),
)


def ratios(results: Results) -> dict[str, float | None]:
    """Every goal with its ratio or figure; None where something was not measured."""
    found: dict[str, float | None] = {}
    for goal in GOALS:
        figures = goal.figures(results)
        found[goal.name] = None if figures is None else figures[0] / figures[1]
    return found | {each.title: results.get("kennel", {}).get(each.key) for each in BOUNDS}


ROWS = (
    ("enqueue_per_second", "enqueued/s, Azurite", 0),
    ("drain_32_per_second", "drained/s, depth 32, Azurite", 0),
    ("drain_100_per_second", "drained/s, depth 100, Azurite", 0),
    ("drain_512_per_second", "drained/s, depth 512, Azurite", 0),
    ("drain_2000_per_second", "drained/s, depth 2,000, Azurite", 0),
    ("fast_enqueue_per_second", "enqueued/s, O(1) service", 0),
    ("fast_drain_per_second", "drained/s, O(1) service", 0),
    ("fast_cpu_ms", "worker CPU ms a task, O(1) service", 2),
    ("requests_per_task", "requests a task, put included", 2),
    ("batched_requests_per_task", "requests a task, 50 a message", 3),
    ("batched_drain_per_second", "drained/s, 50 a message, O(1) service", 0),
    ("first_with_push_p50_ms", "first message after idle, push, p50 ms", 1),
    ("first_with_push_p99_ms", "… p99 ms", 1),
    ("first_without_push_p50_ms", "first message after idle, no push, p50 ms", 0),
    ("idle_requests_per_hour_without_push", "idle requests an hour, no push", 0),
    ("killed_lost_of_20", "kill -9: lost of 20", 0),
    ("killed_run_more_than_once", "kill -9: run more than once of 20", 0),
    ("long_job_starts", "starts of one job longer than the visibility", 0),
)


def table(results: Results, rounds: dict[str, int], *, judge: bool) -> str:
    """The figures by product, what went wrong, and the goals; `judge`: whether enough was measured to say if they are met."""
    names = list(results)
    lines = [f"{'':46}" + "".join(f"{name:>10}" for name in names) + f"{'rounds':>9}"]
    for key, title, digits in ROWS:
        if any(key in results[name] for name in names):
            cells = [f"{results[name][key]:,.{digits}f}" if key in results[name] else "–" for name in names]
            lines.append(
                f"{title:46}" + "".join(f"{cell:>10}" for cell in cells) + f"{rounds.get(key, 1):>9}"
            )
    wrong = [f"{name}: {error}" for name in names for error in results[name].get("errors", [])]
    return "\n".join([*lines, "", *wrong, *goals(results, judge)])


def goals(results: Results, judge: bool) -> list[str]:
    """Goal, measured, ratio."""
    lines = [f"{'goal':42}{'measured':>24}{'ratio':>8}"]

    def verdict(met: bool) -> str:
        return "" if not judge else "  met" if met else "  MISSED"

    for goal in GOALS:
        figures = goal.figures(results)
        if figures is None:
            lines.append(f"{goal.name:42}{'not measured':>24}{'–':>8}")
            continue
        ours, other = figures
        digits, ratio = 2 if goal.at_most else 0, ours / other
        met = ratio <= goal.limit if goal.at_most else ratio >= goal.limit
        measured = f"{ours:,.{digits}f} ÷ {other:,.{digits}f}"
        lines.append(f"{goal.name:42}{measured:>24}{ratio:>8.2f}{verdict(met)}")
    for bound in BOUNDS:
        figure = results.get("kennel", {}).get(bound.key)
        told = "not measured" if figure is None else f"{figure:.3f}"
        met = "" if figure is None else verdict(figure <= bound.limit)
        lines.append(f"{bound.title:42}{told:>24}{'–':>8}{met}")
    return (
        lines if judge else [*lines, "too few tasks to say whether the goals are met: run it without --quick"]
    )
