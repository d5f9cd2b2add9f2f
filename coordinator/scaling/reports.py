"""What the workers of a pool report of themselves, and what the agent takes from it. No I/O, no clock."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from coordinator.bounds import Count, Duration, Figure, Label, Moment, Text

FRESH_SECONDS, IDLE_FRESH_SECONDS = 45.0, 900.0
FORGET_SECONDS = 2 * IDLE_FRESH_SECONDS
_LONGEST_GUESS_SECONDS = 15.0


class WorkerReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """One worker on one queue. Totals count from `started_at`, so that no report is needed twice.

    `slots`: handlers that it can run at a time; `item_seconds`: how long one item took recently; `longest_seconds`: how
    long the longest job that runs has been running; `cpu`: share of one processor since the report before.
    """

    worker: Label
    queue: Text
    at: Moment
    started_at: Moment
    done: Count = 0
    items: Count = 0
    in_flight: Count = 0
    slots: Count = 1
    item_seconds: Duration | None = None
    longest_seconds: Duration = 0.0
    cpu: Figure | None = None
    leaving: bool = False

    def is_fresh(self, now: float) -> bool:
        """Whether that worker takes messages, as far as it said: one without jobs reports seldom."""
        return not self.leaving and now - self.at <= (FRESH_SECONDS if self.in_flight else IDLE_FRESH_SECONDS)


@dataclass(frozen=True)
class ReportedPool:
    """A pool as its workers report it. `done` is the total of items up to now, since the first look; `spans` is what each
    new report adds to the one before it: (from, until, items).

    `possible_per_second` is what an instance could do by its handlers' time alone.
    """

    ready: int
    done: float
    spans: tuple[tuple[float, float, int], ...]
    in_flight: int
    slots: int
    possible_per_second: float | None = None
    item_seconds: float | None = None
    longest_seconds: float = 0.0
    cpu: float | None = None
    items_per_message: float | None = None


@dataclass(frozen=True)
class _Known:
    report: WorkerReport
    per_second: float


class Completions:
    """Adds up what was done from reports that come at different moments, and go when their workers do.

    Between two reports of a worker its last rate is assumed, for at most 15 s; the next report corrects it.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._total = 0.0
        self._since: float | None = None
        self._spans: list[tuple[float, float, int]] = []

    def measure(self, reports: Iterable[WorkerReport], now: float) -> ReportedPool:
        """The pool as of now."""
        fresh, self._spans = [], []
        first_look, self._since = self._since is None, now if self._since is None else self._since
        for report in reports:
            self._take(report, first_look)
            if report.is_fresh(now):
                fresh.append(report)
        for worker in [name for name, known in self._known.items() if now - known.report.at > FORGET_SECONDS]:
            del self._known[worker]
        assumed = sum(
            known.per_second * min(_LONGEST_GUESS_SECONDS, max(0.0, now - known.report.at))
            for known in self._known.values()
            if not known.report.leaving
        )
        return _summed(fresh, self._total + assumed, tuple(self._spans))

    def _take(self, report: WorkerReport, first_look: bool) -> None:
        known = self._known.get(report.worker)
        before = known.report if known else None
        if before is not None and before.started_at == report.started_at:
            if report.at <= before.at:
                return
            done = max(0, report.items - before.items)
            self._total += done
            rate = done / (report.at - before.at)
            if (
                before.items
            ):  # a time that began with none done says how long the first took, not how fast it is
                self._spans.append((before.at, report.at, done))
        else:
            # A worker that was there before us has done its work before us, too.
            is_new = not first_look and report.started_at >= (self._since or 0.0) - FRESH_SECONDS
            self._total += report.items if is_new else 0
            rate = report.items / max(1.0, report.at - report.started_at) if is_new else 0.0
        self._known[report.worker] = _Known(report, rate)


def _summed(
    fresh: list[WorkerReport], done: float, spans: tuple[tuple[float, float, int], ...]
) -> ReportedPool:
    ready = len(fresh)
    timed = [each for each in fresh if each.item_seconds]
    weights = [max(1, each.items) for each in timed]
    seconds = (
        sum((each.item_seconds or 0.0) * weight for each, weight in zip(timed, weights, strict=True))
        / sum(weights)
        if timed
        else None
    )
    slots = sum(each.slots for each in fresh)
    cpus = [each.cpu for each in fresh if each.cpu is not None]
    messages = sum(each.done for each in fresh)
    return ReportedPool(
        ready=ready,
        done=done,
        spans=spans,
        in_flight=sum(each.in_flight for each in fresh),
        slots=math.ceil(slots / ready) if ready else 0,
        possible_per_second=slots / ready / seconds if seconds and ready else None,
        item_seconds=seconds,
        longest_seconds=max((each.longest_seconds for each in fresh), default=0.0),
        cpu=sum(cpus) / len(cpus) if cpus else None,
        items_per_message=sum(each.items for each in fresh) / messages if messages >= 20 else None,
    )
