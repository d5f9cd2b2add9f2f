"""The Batches page as the registry knows it."""

from __future__ import annotations

from django.http import QueryDict

from coordinator.pipelines.status import BatchStatus
from coordinator.tables.azure import SagaHead
from dashboard.batches import actions
from dashboard.core.csv import moment
from dashboard.core.pages import Badge, ExportTable, Page, attributes, with_reason
from dashboard.live.fleet import Fleet
from dashboard.live.view_models import shown_state


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


def shown_batch(fleet: Fleet, query: QueryDict) -> BatchStatus | None:
    """The batch that the query names, if it is among those of the last 30 days."""
    asked = query.get("pipeline", ""), query.get("batch", "")
    return next((each for each in fleet.work.batches if (each.pipeline, each.batch) == asked), None)


def shown_saga(fleet: Fleet, query: QueryDict) -> SagaHead | None:
    """The saga that the query names, if it is among those of the last 30 days."""
    asked = query.get("saga", ""), query.get("key", "")
    return next((each for each in fleet.work.sagas if (each.saga, each.key) == asked), None)


PAGES = (
    Page(
        "batches",
        ("batches", "sagas", "batch", "saga"),
        "Batches",
        "b",
        (
            Badge("failed_batches", "failed", "red"),
            Badge("partial_batches", "partial", "amber"),
            Badge("late_batches", "late", "amber"),
        ),
        context={"batches": sorted_batches, "shown_batch": shown_batch, "shown_saga": shown_saga},
        tables={
            "batches": ExportTable(
                sorted_batches,
                {
                    **attributes("pipeline batch state by"),
                    "started_at": lambda each: moment(each.started_at),
                    "finished_at": lambda each: moment(each.finished_at or None),
                    **attributes("items_total items_sent items_counted items_failed per_second eta_seconds"),
                    "sla_seconds": lambda each: each.sla_seconds or None,
                    **attributes("sla_risk"),
                    "stalled": lambda each: each.is_stalled,
                    "progressed_at": lambda each: moment(each.progressed_at or None),
                    **attributes("cause"),
                },
            ),
            "sagas": ExportTable(
                lambda fleet, query: fleet.work.sagas,
                {
                    **attributes("saga key state"),
                    "runners": lambda each: each.epoch,
                    "changed_at": lambda each: moment(each.changed_at),
                },
            ),
        },
        acts={
            "batch.cancel": with_reason(actions.cancel_batch),
            "batch.retry": with_reason(actions.retry_batch),
            "saga.retry": with_reason(actions.free_saga),
            "saga.repair": lambda actor, target, given: actions.repair_saga(
                actor, target, str(given.get("step", "")), reason=str(given.get("reason", ""))
            ),
        },
    ),
)
