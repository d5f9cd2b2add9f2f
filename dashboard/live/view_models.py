"""Small pure readings of the fleet that several regions share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, NamedTuple, Protocol, TypeVar

from django.conf import settings
from django.http import QueryDict

from coordinator.pipelines.status import BatchStatus
from dashboard.live.fleet import Fleet, GateView, QueueView, WorkerView

ANNOUNCED_STEPS = 4
ROWS = 50
CARDS = 24
"""Gates, elections or sequences shown at once: a card is some thirty times a row's work."""
MOST_CHOICES = 24
"""Queues whose newest figures a page gets, to draw: the first of each ranking."""


def oldest(moments: Iterable[float | None]) -> float | None:
    """The earliest known moment; None if there is none."""
    known = [moment for moment in moments if moment is not None]
    return min(known, default=None)


def _own_prefix() -> str:
    """How the names of queues begin that Kennel itself made, for a pipeline; people ask for theirs."""
    prefix: str = settings.STORAGE_ENV.get("KENNEL_PREFIX", "kennel-")
    return prefix


def busiest(queues: Iterable[QueueView], figure: str = "depth") -> list[QueueView]:
    """The queues by a figure ("depth" or "active"), the highest first; of equals those with more traffic, Kennel's own last."""

    own = _own_prefix()

    def place(queue: QueueView) -> tuple[bool, float, float, str]:
        value = queue.active_tasks if figure == "active" else queue.depth
        traffic = (queue.in_per_second or 0.0) + (queue.out_per_second or 0.0)
        return queue.name.startswith(own), -1.0 if value is None else -1.0 - value, -traffic, queue.name

    return sorted(queues, key=place)


def summary_queues(fleet: Fleet, most: int) -> list[QueueView]:
    """The busiest queues, by name: so that rows do not change places with each message."""
    return sorted(busiest(fleet.queues)[:most], key=lambda queue: queue.name)


def matching(fleet: Fleet, wanted: str, presence: str) -> Iterator[WorkerView]:
    """The workers of that presence ("": any) with that text in their name or host, or in a queue that they listen to."""
    wanted = wanted.strip().lower()
    for worker in fleet.workers:
        if (not presence or worker.presence == presence) and (
            not wanted
            or wanted in worker.name.lower()
            or wanted in worker.host.lower()
            or any(wanted in listener.queue for listener in worker.state.listeners)
        ):
            yield worker


def pulse(fleet: Fleet, drawn: Iterable[QueueView]) -> str:
    """Ages and the newest figures of the busiest of the queues that a graph may draw, as JSON.

    {"now": …, "marked": when a gate last changed, "as_of": {panel: …}, "unreachable": whether storage is,
    "points": {series: [at, value]},
    "order": {"depth": [names, the busiest first], "active": …, "own": [those of Kennel's own], "total": how many there are}}

    The browser calculates ages from `now`, so a wrong clock there does no harm.
    """
    as_of: dict[str, float | None] = {
        "storage": fleet.storage.as_of,
        "gates": fleet.read_at.get("gates", oldest(gate.as_of for gate in fleet.gates)),
        "queues": fleet.read_at.get("queues", oldest(queue.as_of for queue in fleet.queues)),
        "leaders": fleet.read_at.get("leaders", oldest(leader.as_of for leader in fleet.leaders)),
        "sequences": fleet.read_at.get("sequences", oldest(sequence.as_of for sequence in fleet.sequences)),
        "workers": fleet.taken_at,
        "work": fleet.work.as_of,
    }
    points: dict[str, tuple[float, float | None]] = {}
    queues, own = list(drawn), _own_prefix()
    order = {figure: busiest(queues, figure)[:MOST_CHOICES] for figure in ("depth", "active")}
    for queue in dict.fromkeys((*order["depth"], *order["active"])):
        if queue.as_of is not None:
            points[f"depth:{queue.name}"] = (queue.as_of, queue.depth)
            points[f"active:{queue.name}"] = (queue.as_of, queue.active_tasks)
            if len(queues) == 1:  # its own page
                points[f"in:{queue.name}"] = (queue.as_of, queue.in_per_second)
                points[f"out:{queue.name}"] = (queue.as_of, queue.out_per_second)
                points[f"oldest:{queue.name}"] = (queue.as_of, queue.waits_seconds)
    marked = max((gate.since for gate in fleet.gates if gate.since is not None), default=None)
    said = {
        "now": fleet.taken_at,
        "marked": marked,
        "as_of": as_of,
        "unreachable": fleet.storage.unreachable_since is not None,
        "points": points,
        "alerts": counts(fleet)["alerts"],
        "order": {
            **{figure: [queue.name for queue in ranked] for figure, ranked in order.items()},
            "own": sorted({queue.name for queue in queues if queue.name.startswith(own)}),
            "total": len(queues),
        },
    }
    # Inside a script element only "<" could end it.
    return json.dumps(said, separators=(",", ":")).replace("<", "\\u003c")


def counts(fleet: Fleet) -> dict[str, int]:
    """Figures for navigation and summaries."""
    presence = [worker.presence for worker in fleet.workers]
    return {
        "gates": len(fleet.gates),
        "held": sum(1 for gate in fleet.gates if is_holding(gate)),
        "queues": len(fleet.queues),
        "poison": sum(queue.poison or 0 for queue in fleet.queues),
        "workers": len(presence),
        "ok": presence.count("ok"),
        "late": presence.count("late"),
        "lost": presence.count("lost"),
        "leaders": len(fleet.leaders),
        "leaderless": sum(1 for leader in fleet.leaders if not leader.holder and leader.lease != "unknown"),
        "sequences": len(fleet.sequences),
        "late_batches": sum(batch.sla_risk == "at risk" for batch in running(fleet)),
        "failed_batches": sum(batch.state == "failed" for batch in fleet.work.batches),
        "partial_batches": sum(batch.state == "partial" for batch in fleet.work.batches),
        "alerts": sum(1 for alert in fleet.alerts if alert.acknowledged_at is None),
        "sequence_problems": sum(1 for sequence in fleet.sequences if sequence.problem),
    }


def running(fleet: Fleet) -> list[BatchStatus]:
    """The batches that are under way."""
    return [batch for batch in fleet.work.batches if batch.state == "running"]


def shown_state(batch: BatchStatus) -> str:
    """Its state; "stalled" for one that runs and does not move."""
    return "stalled" if batch.is_stalled else batch.state


def is_holding(gate: GateView) -> bool:
    """Workers wait at it and it does not let them through."""
    return gate.state != "open" and bool(gate.waiting)


def is_unreadable(gate: GateView) -> bool:
    """What is stored is no gate: closing repairs it, and it cannot be opened before."""
    return gate.state == "unknown" and bool(gate.problem)


def announcement(fleet: Fleet) -> str:
    """For screen readers: where each release stands, in steps coarse enough not to chatter."""
    said = []
    for gate in fleet.gates:
        release = gate.release
        if gate.state == "open" and release is not None and release.epoch == gate.epoch and release.expected:
            step = release.passed * ANNOUNCED_STEPS // release.expected
            passed = (
                release.expected if step >= ANNOUNCED_STEPS else release.expected * step // ANNOUNCED_STEPS
            )
            partly = 0 < step < ANNOUNCED_STEPS
            sentence = (
                "Gate {gate} opened: at least {passed} of {expected} workers released."
                if partly
                else "Gate {gate} opened: {passed} of {expected} workers released."
            )
            said.append(sentence.format(gate=gate.name, passed=passed, expected=release.expected))
        elif gate.state == "open":
            said.append(f"Gate {gate.name} is open.")
        elif gate.waiting:
            said.append(f"Gate {gate.name} is closed and holds workers.")
    return " ".join(said)


class Named(Protocol):
    @property
    def name(self) -> str: ...


Thing = TypeVar("Thing", bound=Named)


class Cards(NamedTuple, Generic[Thing]):
    """What a page of cards shows. `next` continues (as `after`); "" at the end."""

    rows: list[Thing]
    found: int
    next: str


def cards(
    things: Iterable[Thing], place: Callable[[Thing], str], query: QueryDict, limit: int
) -> Cards[Thing]:
    """Those whose name has `q` in it, from the place `after` on; the things come in the order of their places."""
    part, after = query.get("q", "").strip().lower(), query.get("after", "")
    found = [thing for thing in things if part in thing.name.lower()]
    rows = [thing for thing in found if place(thing) > after] if after else found
    return Cards(rows[:limit], len(found), place(rows[limit - 1]) if len(rows) > limit else "")
