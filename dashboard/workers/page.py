"""The Workers page as the registry knows it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from itertools import groupby
from typing import NamedTuple

from django.http import QueryDict

from dashboard.core.csv import moment
from dashboard.core.pages import Badge, ExportTable, Page, attributes, joined, with_reason
from dashboard.live.fleet import Fleet, WorkerView
from dashboard.live.view_models import ROWS, matching
from dashboard.workers.actions import COMMANDS, worker_command

MOST_GROUPS = 12
MAP_COLUMNS, SQUARE = 100, 10
RANKS = {"lost": 0, "late": 1, "ok": 2}


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
    places = _by_name(fleet)[1]
    found = sorted(
        matching(fleet, query.get("q", ""), query.get("presence", "")),
        key=lambda worker: (RANKS[worker.presence], places[worker.instance]),
    )
    after = query.get("after", "")
    rows = [worker for worker in found if _key(worker) > after] if after else found
    shown = rows[:limit]
    first = {worker.name: worker.instance for worker in reversed(shown)}
    following = _key(rows[limit - 1]) if len(rows) > limit else ""
    return WorkerRows(shown, len(found), following, frozenset(first.values()))


class Group(NamedTuple):
    """Workers that have something in common, by presence."""

    name: str
    ok: int
    late: int
    lost: int


class Crowd(NamedTuple):
    """A fleet too large to be read row by row. `hidden_kinds` and `hidden_hosts` are how many groups are not shown.

    `squares` are the paths of the map by presence: a line for each run of equal workers, which is drawn dashed, a dash for each.
    """

    kinds: list[Group]
    hosts: list[Group]
    hidden_kinds: int
    hidden_hosts: int
    squares: list[tuple[str, str]]
    width: int
    height: int


def crowd(fleet: Fleet, query: QueryDict) -> Crowd | None:
    """The workers by kind and by host, those with the most trouble first, and the map; None for a fleet that fits on one page."""
    if len(fleet.workers) <= ROWS:
        return None
    kinds = _grouped((kind_of(worker), worker.presence) for worker in fleet.workers)
    hosts = _grouped((worker.host, worker.presence) for worker in fleet.workers)
    ordered = _by_name(fleet)[0]
    paths: dict[str, list[str]] = {"ok": [], "late": [], "lost": []}
    for start in range(0, len(ordered), MAP_COLUMNS):
        column, y = 0, start // MAP_COLUMNS * SQUARE + SQUARE // 2
        for presence, run in groupby(ordered[start : start + MAP_COLUMNS], lambda worker: worker.presence):
            length = sum(1 for _ in run)
            paths[presence].append(f"M{column * SQUARE} {y}h{length * SQUARE}")
            column += length
    rows = -(-len(ordered) // MAP_COLUMNS)
    return Crowd(
        kinds[:MOST_GROUPS],
        hosts[:MOST_GROUPS],
        max(0, len(kinds) - MOST_GROUPS),
        max(0, len(hosts) - MOST_GROUPS),
        [(presence, "".join(path)) for presence, path in paths.items() if path],
        MAP_COLUMNS * SQUARE,
        rows * SQUARE,
    )


def _grouped(members: Iterable[tuple[str, str]]) -> list[Group]:
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for (name, presence), number in Counter(members).items():
        counts[name][presence] = number
    groups = [Group(name, each["ok"], each["late"], each["lost"]) for name, each in counts.items()]
    return sorted(groups, key=lambda each: (-each.lost, -each.late, -each.ok, _padded(each.name)))


class _Order:
    """The order of the newest fleet that was asked for: of ten thousand workers it takes longer than a page should."""

    newest: tuple[Sequence[WorkerView], list[WorkerView], dict[str, int]] = ((), [], {})


def _by_name(fleet: Fleet) -> tuple[list[WorkerView], dict[str, int]]:
    """All workers by name, and the place of each by its instance."""
    workers, ordered, places = _Order.newest
    if workers is not fleet.workers:
        ordered = sorted(fleet.workers, key=lambda worker: (_padded(worker.name), worker.instance))
        places = {worker.instance: place for place, worker in enumerate(ordered)}
        _Order.newest = fleet.workers, ordered, places
    return ordered, places


def kind_of(worker: WorkerView) -> str:
    """What workers of one program have in common: the name without host, process id and number at its end."""
    return _kind(worker.name, worker.host, worker.pid)


@lru_cache(20_000)
def _kind(name: str, host: str, pid: int) -> str:
    return _without_number(name.removesuffix(f"-{host}-{pid}"))


def _key(worker: WorkerView) -> str:
    return f"{RANKS[worker.presence]}:{_padded(worker.name)}:{worker.instance}"


@lru_cache(maxsize=16_384)
def _without_number(name: str) -> str:
    return re.sub(r"[-_.:@]?\d+$", "", name) or name


@lru_cache(maxsize=16_384)
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
        context={"found": sorted_workers, "crowd": crowd, "worker_commands": lambda fleet, query: COMMANDS},
        tables={
            "workers": ExportTable(
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
