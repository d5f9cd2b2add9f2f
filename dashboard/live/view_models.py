"""Small pure readings of the fleet that several regions share."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Generic, NamedTuple, Protocol, TypeVar

from django.http import QueryDict

from coordinator.pipelines.status import BatchStatus
from coordinator.tables.azure import SagaHead
from dashboard.live.fleet import Fleet, GateView, LeaderView, QueueView, SequenceView, WorkerView
from dashboard.live.workloads import Pool

ANNOUNCED_STEPS = 4
ROWS = 50
CARDS = 24
"""Gates, elections or sequences shown at once: a card is some thirty times a row's work."""
MOST_SERIES = 6
OWN_ELECTION = "dashboard-sampler"


def oldest(moments: Iterable[float | None]) -> float | None:
    """The earliest known moment; None if there is none."""
    known = [moment for moment in moments if moment is not None]
    return min(known, default=None)


def pulse(fleet: Fleet, drawn: Iterable[QueueView]) -> str:
    """Ages and the newest figures of the queues that are drawn, as JSON.

    {"now": …, "marked": when a gate last changed, "as_of": {panel: …}, "points": {series: [at, value]}}

    The browser reckons ages from `now`, so a wrong clock there does no harm.
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
    queues = list(drawn)
    for queue in queues:
        if queue.as_of is not None:
            points[f"depth:{queue.name}"] = (queue.as_of, queue.depth)
            points[f"active:{queue.name}"] = (queue.as_of, queue.active_tasks)
            if len(queues) == 1:  # its own page
                points[f"in:{queue.name}"] = (queue.as_of, queue.in_per_second)
                points[f"out:{queue.name}"] = (queue.as_of, queue.out_per_second)
                points[f"oldest:{queue.name}"] = (queue.as_of, queue.oldest_seconds)
    marked = max((gate.since for gate in fleet.gates if gate.since is not None), default=None)
    said = {"now": fleet.taken_at, "marked": marked, "as_of": as_of, "points": points}
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
        "sequence_problems": sum(1 for sequence in fleet.sequences if sequence.problem),
    }


def running(fleet: Fleet) -> list[BatchStatus]:
    """The batches that are under way."""
    return [batch for batch in fleet.work.batches if batch.state == "running"]


def sorted_batches(fleet: Fleet, query: QueryDict) -> list[BatchStatus]:
    """The batches that the query asks for, the newest first: `q` is part of batch or pipeline, `state` one of theirs, or
    "stalled"."""
    wanted, state = query.get("q", "").strip().lower(), query.get("state", "")
    return [
        batch
        for batch in fleet.work.batches
        if (not state or shown_state(batch) == state or batch.state == state)
        and (wanted in batch.batch.lower() or wanted in batch.pipeline.lower())
    ]


def shown_state(batch: BatchStatus) -> str:
    """Its state; "stalled" for one that runs and does not move."""
    return "stalled" if batch.is_stalled else batch.state


def shown_batch(fleet: Fleet, query: QueryDict) -> BatchStatus | None:
    """The batch that the query names, if it is among those of the last 30 days."""
    asked = query.get("pipeline", ""), query.get("batch", "")
    return next((each for each in fleet.work.batches if (each.pipeline, each.batch) == asked), None)


def shown_saga(fleet: Fleet, query: QueryDict) -> SagaHead | None:
    """The saga that the query names, if it is among those of the last 30 days."""
    asked = query.get("saga", ""), query.get("key", "")
    return next((each for each in fleet.work.sagas if (each.saga, each.key) == asked), None)


def pool(fleet: Fleet, query: QueryDict) -> Pool | None:
    """The pool that the query asks for; the first without a name."""
    name = query.get("pool", "")
    return next((each for each in fleet.work.pools if not name or each.name == name), None)


def is_holding(gate: GateView) -> bool:
    """Workers wait at it and it does not let them through."""
    return gate.state != "open" and bool(gate.waiting)


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
            told = (
                "Gate {gate} opened: at least {passed} of {expected} workers released."
                if partly
                else "Gate {gate} opened: {passed} of {expected} workers released."
            )
            said.append(told.format(gate=gate.name, passed=passed, expected=release.expected))
        elif gate.state == "open":
            said.append(f"Gate {gate.name} is open.")
        elif gate.waiting:
            said.append(f"Gate {gate.name} is closed and holds workers.")
    return " ".join(said)


def sorted_queues(fleet: Fleet, query: QueryDict) -> list[QueueView]:
    """The queues that the page's query asks for: `q` is part of the name, `sort` one of name, depth, active, poison."""
    wanted = query.get("q", "").strip().lower()
    rows = [queue for queue in fleet.queues if wanted in queue.name.lower()]
    sort = query.get("sort", "name")
    if sort == "depth":
        rows.sort(key=lambda queue: -1 if queue.depth is None else queue.depth, reverse=True)
    elif sort == "active":
        rows.sort(key=lambda queue: -1 if queue.active_tasks is None else queue.active_tasks, reverse=True)
    elif sort == "poison":
        rows.sort(key=lambda queue: -1 if queue.poison is None else queue.poison, reverse=True)
    else:
        rows.sort(key=lambda queue: queue.name)
    return rows


def named(queues: Iterable[QueueView], name: str) -> QueueView | None:
    """The queue of that name, if there is one."""
    return next((queue for queue in queues if queue.name == name), None)


class WorkerRows(NamedTuple):
    """What the workers' page shows of them: those in trouble first. `next` continues (as `after`), "" at the end.

    `first_of_name`: the instances of the first row of each name, which a link to the name leads to.
    """

    rows: list[WorkerView]
    found: int
    next: str
    first_of_name: frozenset[str] = frozenset()


def sorted_workers(fleet: Fleet, query: QueryDict, limit: int = ROWS) -> WorkerRows:
    """The workers that the query asks for: `q` is part of name, host or queue, `presence` ok, late or lost."""
    wanted, presence = query.get("q", "").strip().lower(), query.get("presence", "")
    found = sorted(
        (
            worker
            for worker in fleet.workers
            if (not presence or worker.presence == presence)
            and (
                not wanted
                or wanted in worker.name.lower()
                or wanted in worker.host.lower()
                or any(wanted in listener.queue for listener in worker.state.listeners)
            )
        ),
        key=_key,
    )
    after = query.get("after", "")
    rows = [worker for worker in found if _key(worker) > after] if after else found
    shown = rows[:limit]
    first = {worker.name: worker.instance for worker in reversed(shown)}
    following = _key(rows[limit - 1]) if len(rows) > limit else ""
    return WorkerRows(shown, len(found), following, frozenset(first.values()))


def _key(worker: WorkerView) -> str:
    rank = {"lost": 0, "late": 1}.get(worker.presence, 2)
    return f"{rank}:{_padded(worker.name)}:{worker.instance}"


@lru_cache(maxsize=8192)
def _padded(name: str) -> str:
    """Digits are padded so that worker-10 comes after worker-9."""
    return re.sub(r"\d+", lambda digits: digits[0].zfill(9), name)


def pressing_gates(fleet: Fleet) -> list[GateView]:
    """Gates by how urgently they need an operator: those that hold workers, armed, open, closed.

    Of the gates that hold workers, those in storage come first: any worker can claim to wait at a gate that nobody created.
    """
    return sorted(fleet.gates, key=_gate_place)


def _gate_place(gate: GateView) -> str:
    rank = {"armed": 2, "open": 3}.get(gate.state, 4)
    if is_holding(gate):
        rank = 0 if gate.epoch or gate.problem else 1
    return f"{rank}:{gate.name}"


def pressing_leaders(fleet: Fleet) -> list[LeaderView]:
    """Elections without a leader first, the dashboard's own last."""
    return sorted(fleet.leaders, key=_leader_place)


def _leader_place(leader: LeaderView) -> str:
    return f"{2 * bool(leader.holder) + (leader.name == OWN_ELECTION)}:{leader.name}"


def pressing_sequences(fleet: Fleet) -> list[SequenceView]:
    """Sequences in trouble first."""
    return sorted(fleet.sequences, key=_sequence_place)


def _sequence_place(sequence: SequenceView) -> str:
    return f"{int(not sequence.problem)}:{sequence.name}"


class Named(Protocol):
    @property
    def name(self) -> str: ...


Thing = TypeVar("Thing", bound=Named)


class Cards(NamedTuple, Generic[Thing]):
    """What a page of cards shows. `next` continues (as `after`); "" at the end."""

    rows: list[Thing]
    found: int
    next: str


def found_gates(fleet: Fleet, query: QueryDict, limit: int = CARDS) -> Cards[GateView]:
    """The gates that the query asks for, the most urgent first."""
    return _cards(pressing_gates(fleet), _gate_place, query, limit)


def found_leaders(fleet: Fleet, query: QueryDict, limit: int = CARDS) -> Cards[LeaderView]:
    """The elections that the query asks for, the most urgent first."""
    return _cards(pressing_leaders(fleet), _leader_place, query, limit)


def found_sequences(fleet: Fleet, query: QueryDict, limit: int = CARDS) -> Cards[SequenceView]:
    """The sequences that the query asks for, those in trouble first."""
    return _cards(pressing_sequences(fleet), _sequence_place, query, limit)


def _cards(
    things: Iterable[Thing], place: Callable[[Thing], str], query: QueryDict, limit: int
) -> Cards[Thing]:
    """Those whose name has `q` in it, from the place `after` on; the things come in the order of their places."""
    part, after = query.get("q", "").strip().lower(), query.get("after", "")
    found = [thing for thing in things if part in thing.name.lower()]
    rows = [thing for thing in found if place(thing) > after] if after else found
    return Cards(rows[:limit], len(found), place(rows[limit - 1]) if len(rows) > limit else "")
