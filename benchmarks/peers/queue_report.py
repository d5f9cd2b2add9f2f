"""What the queue benchmark prints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def check(results: dict[str, dict[str, Any]]) -> dict[str, float]:
    """The ratios that are promised; absent where a figure is."""
    ours, control = results.get("kennel", {}), results.get("rest", {})
    peers = [results[name] for name in ("celery", "dramatiq") if name in results]
    ratios: dict[str, float] = {}

    def ratio(
        name: str, key: str, others: list[dict[str, Any]], best: Callable[[list[float]], float]
    ) -> None:
        figures = [other[key] for other in others if key in other]
        if figures and key in ours:
            ratios[name] = ours[key] / best(figures)

    ratio("enqueue ÷ control (≥ 0.65)", "enqueue_per_second", [control], max)
    ratio("enqueue ÷ better peer (≥ 2.5)", "enqueue_per_second", peers, max)
    for depth in (32, 100, 512, 2000):
        ratio(f"drain at {depth} ÷ control (≥ 0.8)", f"drain_{depth}_per_second", [control], max)
    ratio("drain at 2000 ÷ better peer (≥ 2.5)", "drain_2000_per_second", peers, max)
    ratio("drain on O(1) ÷ better peer (≥ 8)", "fast_drain_per_second", peers, max)
    ratio("drain on O(1) ÷ control (≥ 0.8)", "fast_drain_per_second", [control], max)
    ratio("CPU a task ÷ better peer (≤ 0.2)", "fast_cpu_ms", peers, min)
    return ratios


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


def table(results: dict[str, dict[str, Any]], ratios: dict[str, float]) -> str:
    """The figures by product, then the ratios."""
    names = list(results)
    lines = [f"{'':46}" + "".join(f"{name:>10}" for name in names)]
    for key, title, digits in ROWS:
        if any(key in results[name] for name in names):
            cells = [f"{results[name][key]:,.{digits}f}" if key in results[name] else "–" for name in names]
            lines.append(f"{title:46}" + "".join(f"{cell:>10}" for cell in cells))
    lines += ["", *(f"{title:46}{value:10.2f}" for title, value in ratios.items())]
    lines += [f"{name}: {error}" for name in names for error in results[name].get("errors", [])]
    return "\n".join(lines)
