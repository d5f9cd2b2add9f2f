"""Why a queue does not drain, in one sentence with a link. Pure."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple
from urllib.parse import quote

from coordinator.realtime.protocol import ListenerStatus
from dashboard.live.fleet import Fleet, GateView, QueueView, WorkerView

FAILING_SHARE, FAILING_LEAST = 0.5, 10
LONG_SECONDS = 60.0


class ConcurrencyReason(NamedTuple):
    """The sentence, and where to act on it."""

    text: str
    url: str = ""
    link: str = ""


def why(fleet: Fleet, queue: QueueView | None) -> ConcurrencyReason | None:
    """What keeps messages waiting, the most telling cause alone; None if nothing waits or nothing is known to be wrong."""
    if queue is None or not (queue.depth or 0):
        return None
    address = quote(queue.name, safe="")
    found = [
        (worker, listener)
        for worker in fleet.workers
        if worker.presence != "lost"
        for listener in worker.state.listeners
        if listener.queue == queue.name
    ]
    if not found:
        return ConcurrencyReason(
            "No consumers: no connected worker listens to this queue.", "/workers/", "Workers"
        )
    return (
        _held(fleet, found)
        or _draining(found)
        or _failing(found, address)
        or _idle(found)
        or _busy(queue, found)
    )


Found = list[tuple[WorkerView, ListenerStatus]]


def _held(fleet: Fleet, found: Found) -> ConcurrencyReason | None:
    waiting = Counter(
        gate.name
        for worker, _ in found
        for gate in worker.state.gates
        if gate.waiting and gate.state != "open"
    )
    if not waiting:
        return None
    (name, count), *_ = waiting.most_common(1)
    gate = next((each for each in fleet.gates if each.name == name), None)
    who = "All workers wait" if count == len(found) else f"{count} of {len(found)} workers wait"
    return ConcurrencyReason(
        f"{who} at gate {name}, which is {_state(gate, fleet)}.", f"/gates/?q={quote(name)}", "Open gate"
    )


def _state(gate: GateView | None, fleet: Fleet) -> str:
    if gate is None or gate.state not in ("closed", "armed", "open"):
        return "unknown"
    if gate.state == "open":
        return "open for a share of the workers" if gate.share < 1 else "open"
    if gate.since is None or not gate.by:
        return gate.state
    minutes = max(0, int((fleet.taken_at - gate.since) / 60))
    ago = f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"
    return f"{gate.state} ({gate.by}, {ago} ago)"


def _draining(found: Found) -> ConcurrencyReason | None:
    if all(worker.state.mode in ("draining", "stopping") for worker, _ in found):
        return ConcurrencyReason(
            "All workers of this queue are draining: they take no new messages.", "/workers/", "Workers"
        )
    return None


def _failing(found: Found, address: str) -> ConcurrencyReason | None:
    failed, done = sum(each.failed for _, each in found), sum(each.done for _, each in found)
    if failed < FAILING_LEAST or failed < FAILING_SHARE * (failed + done):
        return None
    share = 100 * failed // (failed + done)
    return ConcurrencyReason(
        f"The handler fails: {failed:,} failed attempts, {done:,} items done ({share} %) since these workers started.",
        f"/queues/{address}/poison",
        "Poison messages",
    )


def _idle(found: Found) -> ConcurrencyReason | None:
    if any(each.active_tasks or each.wanted_tasks for _, each in found):
        return None
    reasons = Counter(each.reason for _, each in found if each.reason)
    why = f": {reasons.most_common(1)[0][0]}" if reasons else ""
    return ConcurrencyReason(f"The workers' desired tasks are 0{why}.", "#rule", "Scaling rule")


def _busy(queue: QueueView, found: Found) -> ConcurrencyReason | None:
    active, total = sum(each.active_tasks for _, each in found), sum(each.total_tasks for _, each in found)
    # Workers of an older release report only how long they have held a message.
    longest = max(
        each.oldest_seconds if each.oldest_task_seconds is None else each.oldest_task_seconds
        for _, each in found
    )
    if not total or active < total or longest < LONG_SECONDS or (queue.depth or 0) <= (queue.in_flight or 0):
        return None
    return ConcurrencyReason(
        f"All {total} tasks are busy, the longest for {int(longest // 60)} min.", "#rule", "Scaling rule"
    )
