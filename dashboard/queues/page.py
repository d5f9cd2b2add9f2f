"""The Queues pages as the registry knows them: what their templates read, their table, what operators may do."""

from __future__ import annotations

from collections.abc import Iterable

from django.http import QueryDict

from dashboard.core.csv import moment
from dashboard.core.pages import Badge, ExportTable, Page, attributes, with_reason
from dashboard.live.fleet import Fleet, QueueView
from dashboard.queues import actions
from dashboard.queues.reasons import why

SORTED_BY = attributes("depth poison") | {"active": lambda queue: queue.active_tasks}


def sorted_queues(fleet: Fleet, query: QueryDict) -> list[QueueView]:
    """The queues that the page's query asks for: `q` is part of the name, `sort` one of name, depth, active, poison."""
    wanted = query.get("q", "").strip().lower()
    rows = [queue for queue in fleet.queues if wanted in queue.name.lower()]
    figure = SORTED_BY.get(query.get("sort", ""))
    if figure is None:
        rows.sort(key=lambda queue: queue.name)
    else:
        rows.sort(key=lambda queue: -1 if (value := figure(queue)) is None else value, reverse=True)
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
            "queues": ExportTable(
                sorted_queues,
                {
                    "queue": lambda each: each.name,
                    **attributes(
                        "depth oldest_seconds active_tasks total_tasks in_per_second out_per_second"
                    ),
                    "in_hand": lambda each: each.in_flight,
                    **attributes("poison workers"),
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
