"""The Workers page as the registry knows it."""

from __future__ import annotations

import re
from functools import lru_cache, partial
from typing import NamedTuple

from django.http import QueryDict

from dashboard.core.csv import moment
from dashboard.core.pages import Badge, Page, Table, attributes, joined, with_reason
from dashboard.live.fleet import Fleet, WorkerView
from dashboard.live.view_models import ROWS
from dashboard.workers.actions import COMMANDS, worker_command


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


ALL = 100_000


def _is_lost(worker: WorkerView) -> bool:
    """What it last reported is not the case any more."""
    return worker.presence == "lost"


PAGES = (
    Page(
        "workers",
        ("workers",),
        "Workers",
        "w",
        (Badge("lost", "lost", "red"), Badge("late", "late", "amber")),
        context={"found": sorted_workers, "worker_commands": lambda fleet, query: COMMANDS},
        tables={
            "workers": Table(
                lambda fleet, query: sorted_workers(fleet, query, ALL).rows,
                {
                    "worker": lambda each: each.name,
                    **attributes("instance host pid software presence"),
                    "last_seen": lambda each: moment(each.last_seen),
                    "started_at": lambda each: moment(each.started_at),
                    "mode": lambda each: "lost" if _is_lost(each) else each.state.mode,
                    "memory_bytes": lambda each: each.state.memory_bytes or None,
                    "gates": lambda each: joined(
                        f"{gate.name}:{('waiting' if gate.waiting else gate.state)}"
                        for gate in each.state.gates
                    ),
                    "queues": lambda each: joined(listener.queue for listener in each.state.listeners),
                    "active_tasks": lambda each: (
                        None
                        if _is_lost(each)
                        else sum(listener.active_tasks for listener in each.state.listeners)
                    ),
                    "in_hand": lambda each: (
                        None if _is_lost(each) else sum(listener.in_hand for listener in each.state.listeners)
                    ),
                    "leads": lambda each: joined(
                        election.name
                        for election in each.state.elections
                        if election.role == "leader" and not _is_lost(each)
                    ),
                },
            )
        },
        acts={f"worker.{verb}": with_reason(partial(worker_command, verb=verb)) for verb in COMMANDS},
    ),
)
