"""The tables of the pages as files: CSV for spreadsheets, JSON for programs; filtered and sorted as the page is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.utils.timezone import now
from django.views.decorators.http import require_safe

from coordinator.config import check_name
from coordinator.errors import ConfigurationError
from dashboard.core.csv import lines, moment
from dashboard.leaders import queries as terms
from dashboard.live import spending as cost
from dashboard.live import view_models as readings
from dashboard.live.fleet import Fleet
from dashboard.pages import queries as selectors
from dashboard.pages.views import requires

log = logging.getLogger(__name__)

Row = dict[str, object]


class Unread(Exception):
    """Storage did not say what is in the file: no file is better than one without its rows."""


ALL = 100_000


@require_safe
@requires("page.view")
def table(request: HttpRequest, name: str, form: str) -> HttpResponse:
    """All rows that the page of that query would show, on however many pages. None is unknown, in CSV an empty cell."""
    make = TABLES.get(name)
    if make is None:
        raise Http404(f"no table {name}; there are {', '.join(sorted(TABLES))}")
    try:
        rows = list(make(selectors.fleet(), request.GET))
    except Unread as error:
        return HttpResponse(f"{error}\n", status=503, content_type="text/plain; charset=utf-8")
    file = f"{name}-{now():%Y%m%dT%H%M%SZ}.{form}"
    if form == "csv":
        answer = HttpResponse(_as_csv(rows, HEADS[name]), content_type="text/csv; charset=utf-8")
    else:
        answer = HttpResponse(msgspec.json.encode(rows), content_type="application/json")
    answer["Content-Disposition"] = f'attachment; filename="{file}"'
    return answer


def _gates(fleet: Fleet, query: QueryDict) -> Iterable[Row]:
    def row(each: Any) -> Row:
        release = each.release
        return {
            "gate": each.name, "state": each.state, "epoch": each.epoch, "by": each.by, "reason": each.reason,
            "since": moment(each.since), "opens_at": moment(each.not_before), "closes_at": moment(each.until),
            "share": each.share,
            "waiting": len(each.waiting), "workers": each.workers,
            "released": release.passed if release else None, "expected": release.expected if release else None,
            "p50_ms": release.p50_ms if release else None, "p99_ms": release.p99_ms if release else None,
            "problem": each.problem,
        }  # fmt: skip

    return _rows(readings.pressing_gates(fleet), row)


def _queues(fleet: Fleet, query: QueryDict) -> Iterable[Row]:
    def row(each: Any) -> Row:
        return {
            "queue": each.name, "depth": each.depth, "oldest_seconds": each.oldest_seconds,
            "active_tasks": each.active_tasks, "total_tasks": each.total_tasks,
            "in_per_second": each.in_per_second, "out_per_second": each.out_per_second, "in_hand": each.in_hand,
            "poison": each.poison, "workers": each.workers, "as_of": moment(each.as_of),
        }  # fmt: skip

    return _rows(readings.sorted_queues(fleet, query), row)


def _workers(fleet: Fleet, query: QueryDict) -> Iterable[Row]:
    def row(each: Any) -> Row:
        state = each.state
        return {
            "worker": each.name, "instance": each.instance, "host": each.host, "pid": each.pid,
            "software": each.software, "presence": each.presence, "last_seen": moment(each.last_seen),
            "started_at": moment(each.started_at), "mode": state.mode, "memory_bytes": state.memory_bytes or None,
            "gates": _several(f"{gate.name}:{'waiting' if gate.waiting else gate.state}" for gate in state.gates),
            "queues": _several(listener.queue for listener in state.listeners),
            "active_tasks": sum(listener.active_tasks for listener in state.listeners),
            "in_hand": sum(listener.in_hand for listener in state.listeners),
            "leads": _several(each.name for each in state.elections if each.role == "leader"),
        }  # fmt: skip

    return _rows(readings.sorted_workers(fleet, query, ALL).rows, row)


def _leaders(fleet: Fleet, query: QueryDict) -> Iterable[Row]:
    def row(each: Any) -> Row:
        return {
            "election": each.name, "holder": each.holder, "epoch": each.epoch, "lease": each.lease,
            "since": moment(each.since), "standing_by": _several(each.standbys), "as_of": moment(each.as_of),
            "problem": each.problem,
        }  # fmt: skip

    return _rows(readings.pressing_leaders(fleet), row)


def _terms(fleet: Fleet, query: QueryDict) -> Iterable[Row]:
    def row(each: Any) -> Row:
        return {
            "epoch": each.epoch, "leader": each.holder, "from": moment(each.since), "to": moment(each.ended),
            "how": each.how,
        }  # fmt: skip

    election = query.get("election", "")[:63]
    try:
        check_name("election", election)
    except ConfigurationError as error:
        raise Http404(str(error)) from error
    found = terms.newest(election)
    if found.problem:
        raise Unread(found.problem)
    return _rows(found.rows, row)


def _sequences(fleet: Fleet, query: QueryDict) -> Iterable[Row]:
    def row(each: Any) -> Row:
        return {
            "sequence": each.name, "next_number": each.next_number, "per_second": each.per_second,
            "runway_seconds": each.runway_seconds, "owners": each.owners, "problem": each.problem,
            "as_of": moment(each.as_of),
        }  # fmt: skip

    return _rows(readings.pressing_sequences(fleet), row)


def _batches(fleet: Fleet, query: QueryDict) -> Iterable[Row]:
    def row(each: Any) -> Row:
        return {
            "pipeline": each.pipeline, "batch": each.batch, "state": each.state, "by": each.by,
            "started_at": moment(each.started_at), "finished_at": moment(each.finished_at or None),
            "items_total": each.items_total, "items_sent": each.items_sent, "items_counted": each.items_counted,
            "items_failed": each.items_failed, "per_second": each.per_second, "eta_seconds": each.eta_seconds,
            "sla_seconds": each.sla_seconds or None, "sla_risk": each.sla_risk,
            "stalled": each.is_stalled, "progressed_at": moment(each.progressed_at or None), "cause": each.cause,
        }  # fmt: skip

    return _rows(readings.sorted_batches(fleet, query), row)


def _sagas(fleet: Fleet, query: QueryDict) -> Iterable[Row]:
    def row(each: Any) -> Row:
        return {
            "saga": each.saga, "key": each.key, "state": each.state, "runners": each.epoch,
            "changed_at": moment(each.changed_at),
        }  # fmt: skip

    return _rows(fleet.work.sagas, row)


def _pools(fleet: Fleet, query: QueryDict) -> Iterable[Row]:
    def row(each: Any) -> Row:
        told = each.latest
        return {
            "pool": told.pool, "wanted": told.wanted, "actual": told.actual, "reason": told.reason, "agent": told.by,
            "epoch": told.epoch, "decided_at": moment(told.at),
        }  # fmt: skip

    return _rows(fleet.work.pools, row)


def _cost(fleet: Fleet, query: QueryDict) -> Iterable[Row]:
    bill = cost.current(fleet)
    for by, rows in (("operation", bill.lines), ("queue", bill.queues), ("worker", bill.workers)):
        for line in rows:
            yield {
                "by": by, "name": line.operation, "requests": line.requests, "share": round(line.share, 6),
                "dollars": round(line.dollars, 8),
            }  # fmt: skip


def _rows(items: Iterable[Any], row: Callable[[Any], Row]) -> Iterable[Row]:
    """A row for each; what cannot be written costs its own row, which says so."""
    for each in items:
        try:
            made = row(each)
            msgspec.json.encode(made)
            yield made
        except Exception as error:
            log.exception("A row of a file could not be written")
            named = (
                str(getattr(each, "name", "") or getattr(each, "key", "")).encode(errors="replace").decode()
            )
            yield {"problem": f"unreadable: {type(error).__name__} {named[:200]}".rstrip()}


def _as_csv(rows: list[Row], head: list[str]) -> str:
    # A row that could not be read has a column of its own.
    columns = list(dict.fromkeys((*head, *(name for row in rows for name in row))))
    return lines([columns, *([row.get(name) for name in columns] for row in rows)])


def _several(names: Iterable[Any]) -> str:
    return " ".join(str(name) for name in names)


_HEADS = {
    "gates": "gate state epoch by reason since opens_at closes_at share waiting workers released expected p50_ms p99_ms problem",
    "queues": "queue depth oldest_seconds active_tasks total_tasks in_per_second out_per_second in_hand poison workers as_of",
    "workers": "worker instance host pid software presence last_seen started_at mode memory_bytes gates queues active_tasks in_hand leads",
    "leaders": "election holder epoch lease since standing_by as_of problem",
    "terms": "epoch leader from to how",
    "sequences": "sequence next_number per_second runway_seconds owners problem as_of",
    "batches": "pipeline batch state by started_at finished_at items_total items_sent items_counted items_failed per_second eta_seconds sla_seconds sla_risk stalled progressed_at cause",
    "sagas": "saga key state runners changed_at",
    "pools": "pool wanted actual reason agent epoch decided_at",
    "cost": "by name requests share dollars",
}
HEADS = {name: columns.split() for name, columns in _HEADS.items()}
"""The columns of each file, also of one without rows."""

TABLES: dict[str, Callable[[Fleet, QueryDict], Iterable[Row]]] = {
    "gates": _gates,
    "queues": _queues,
    "workers": _workers,
    "leaders": _leaders,
    "terms": _terms,
    "sequences": _sequences,
    "batches": _batches,
    "sagas": _sagas,
    "pools": _pools,
    "cost": _cost,
}
