"""The Queues pages as the registry knows them: what their templates read, their table, what operators may do."""

from __future__ import annotations

from collections.abc import Iterable

from django.http import QueryDict

from dashboard.core.csv import moment
from dashboard.core.pages import Badge, Page, Table, with_reason
from dashboard.live.fleet import Fleet, QueueView
from dashboard.queues import actions
from dashboard.queues.reasons import why


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


PAGES = (
    Page(
        "queues",
        ("queues",),
        "Queues",
        "q",
        (Badge("poison", "poison", "red"),),
        context={"queues": sorted_queues},
        graphs=sorted_queues,
        tables={
            "queues": Table(
                sorted_queues,
                {
                    "queue": lambda each: each.name,
                    "depth": lambda each: each.depth,
                    "oldest_seconds": lambda each: each.oldest_seconds,
                    "active_tasks": lambda each: each.active_tasks,
                    "total_tasks": lambda each: each.total_tasks,
                    "in_per_second": lambda each: each.in_per_second,
                    "out_per_second": lambda each: each.out_per_second,
                    "in_hand": lambda each: each.in_hand,
                    "poison": lambda each: each.poison,
                    "workers": lambda each: each.workers,
                    "as_of": lambda each: moment(each.as_of),
                },
            )
        },
        acts={
            "queue.create": with_reason(actions.create_queue),
            "queue.clear": with_reason(actions.clear_queue),
            "queue.delete": with_reason(actions.delete_queue),
            "queue.requeue": with_reason(actions.requeue_poison),
            "queue.put": lambda actor, queue, given: actions.put_message(
                actor, queue, str(given.get("body", "")), reason=str(given.get("reason", ""))
            ),
        },
    ),
    Page(
        "queue",
        ("queue",),
        part_of="queues",
        context={
            "queue": lambda fleet, query: named(fleet.queues, query.get("name", "")),
            "why": lambda fleet, query: why(fleet, named(fleet.queues, query.get("name", ""))),
        },
        graphs=lambda fleet, query: [queue for queue in fleet.queues if queue.name == query.get("name")],
    ),
)
