"""How a batch goes: progress, rate, what is left, and whether it will be in time. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coordinator.pipelines.messages import BatchState, Counted, Head, Sent

Risk = Literal["none", "on track", "at risk", "missed"]
_MEMORY_SECONDS = 30.0
# Nothing sent or counted for so long: a minute at most until a page says so.
STALLED_SECONDS = 45.0
# A rate holds for so long without news, and is 0 once the batch is stalled.
_FRESH_SECONDS = 20.0


@dataclass(frozen=True)
class BatchStatus:
    """A batch for people. `items_total` and `eta_seconds` are None while unknown; `age_seconds` is since the last count.

    `sla_risk`: "none" without an SLA, "at risk" if it would be missed at this rate (or nothing has been counted
    though half of the time is gone, or nothing moves), "missed" if it was. `is_stalled` if it runs and nothing was sent or counted
    for 45 s; `progressed_at` is when something was, latest. The rate, and with it the time left, fades without news. `cause` is why
    the batch failed, or what its initiator or controller last stumbled over.
    """

    pipeline: str
    batch: str
    state: BatchState
    source: str
    by: str
    started_at: float
    finished_at: float
    items_total: int | None
    items_sent: int
    items_counted: int
    items_failed: int
    per_second: float
    eta_seconds: float | None
    sla_seconds: float
    sla_risk: Risk
    age_seconds: float | None
    round: int
    report: str
    progressed_at: float = 0.0
    is_stalled: bool = False
    cause: str = ""


def batch_status(
    pipeline: str, batch: str, head: Head, sent: Sent, counted: Counted, *, now: float
) -> BatchStatus:
    """All of it from the three rows, at a moment in seconds since 1970."""
    total = sent.items if sent.is_finished or sent.round else head.expected_items or None
    done = counted.items + counted.failed
    is_running = head.state == "running"
    progressed_at = max(head.started_at, head.resumed_at, sent.changed_at, counted.changed_at)
    is_stalled = is_running and now - progressed_at > STALLED_SECONDS
    per_second = faded(counted, now) if is_running else 0.0
    eta = None
    if total is not None and per_second > 0:
        eta = max(0.0, (total - done) / per_second)
    return BatchStatus(
        pipeline=pipeline,
        batch=batch,
        state=head.state,
        source=head.source,
        by=head.by,
        started_at=head.started_at,
        finished_at=head.finished_at,
        items_total=total,
        items_sent=sent.items,
        items_counted=counted.items,
        items_failed=counted.failed,
        per_second=per_second,
        eta_seconds=eta,
        sla_seconds=head.sla_seconds,
        sla_risk=_risk(head, eta, done, is_stalled, now),
        age_seconds=now - counted.changed_at if counted.changed_at else None,
        round=head.round,
        report=head.report,
        progressed_at=progressed_at,
        is_stalled=is_stalled,
        cause=head.cause,
    )


def faded(counted: Counted, now: float) -> float:
    """The rate as it is worth now: what was counted long ago says nothing about the time left."""
    still = now - counted.changed_at - _FRESH_SECONDS
    return counted.per_second * min(1.0, max(0.0, 1 - still / (STALLED_SECONDS - _FRESH_SECONDS)))


def _risk(head: Head, eta: float | None, done: int, is_stalled: bool, now: float) -> Risk:
    if not head.sla_seconds:
        return "none"
    due = head.started_at + head.sla_seconds
    ended_at = 0.0 if head.state == "failed" else head.finished_at
    if (ended_at or now) > due:
        return "missed"
    if head.state == "failed":
        return "at risk"
    if head.finished_at:
        return "on track"
    if is_stalled:
        return "at risk"
    if eta is None:
        return "at risk" if not done and now > head.started_at + head.sla_seconds / 2 else "on track"
    return "at risk" if now + eta > due else "on track"


def rate(counted: Counted, items: int, now: float) -> float:
    """Items per second after `items` more at `now`: a mean that forgets over about half a minute."""
    if not counted.first_at:
        return 0.0
    elapsed = max(1e-3, now - counted.changed_at)
    weight = min(1.0, elapsed / min(_MEMORY_SECONDS, max(elapsed, now - counted.first_at)))
    return (1 - weight) * counted.per_second + weight * items / elapsed
