"""Batches, sagas and pools on their way from storage to the pages."""

from __future__ import annotations

import msgspec
from django.http import QueryDict

from coordinator.tables.azure import SagaHead
from dashboard.batches.page import sorted_batches
from dashboard.live.conditions import conditions_of
from dashboard.live.fleet import Sample, StorageView
from dashboard.live.workloads import Work, sagas
from tests.unit.pages.fleets import NOW, batch, full, work


def test_what_one_process_sampled_is_the_same_in_another() -> None:
    sample = Sample(at=NOW, storage=StorageView(as_of=NOW), work=work(NOW))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sample), type=Sample) == sample


def test_an_operator_is_told_of_late_failed_and_stuck_work_and_of_nothing_else() -> None:
    calm = Work(batches=(batch("a", "running"), batch("b", "complete", sla_risk="missed")), as_of=NOW)
    fleet = msgspec.structs.replace(full(), work=calm)
    before = len(conditions_of(fleet, 1.0))
    pressing = Work(
        batches=(
            batch("slow", "running", sla_risk="at risk"),
            batch("late", "running", sla_risk="missed"),
            batch("odd", "partial", items_failed=3),
            batch("broken", "failed", cause="the initiator: ValueError: x"),
            batch("still", "running", is_stalled=True),
        ),
        sagas=(SagaHead("trip", "t-1", "stuck", 4, NOW),),
        as_of=NOW,
    )
    told = conditions_of(msgspec.structs.replace(full(), work=pressing), 1.0)
    assert len(told) == before + 6
    said = {(each.level, each.what.rpartition(": ")[2], each.url) for each in told}
    assert {
        ("warning", "slow", "/batches/?state=running"),
        ("critical", "late", "/batches/?state=running"),
        ("warning", "odd", "/batches/?state=partial"),
        ("critical", "broken", "/batches/?state=failed"),
        ("warning", "still", "/batches/?state=stalled"),
        ("critical", "t-1", "/batches/#sagas-title"),
    } <= said


def test_batches_are_found_by_name_pipeline_and_state() -> None:
    def names(query: str) -> list[str]:
        return [each.batch for each in sorted_batches(full(), QueryDict(query))]

    assert names("") == ["night", "late", "odd", "old", "broken", "still", "given-up"]
    assert names("q=OLD") == ["old"]
    assert names("q=bill") == names("")
    assert names("state=running") == ["night", "late", "still"]
    assert names("state=stalled") == ["still"]
    assert names("state=failed") == ["broken"]
    assert names("state=running&q=odd") == []


def test_stuck_sagas_come_first_and_open_ones_are_there_however_many_have_ended() -> None:
    recent = [SagaHead("trip", f"t-{n}", "done", 1, NOW - n) for n in range(1000)]
    still_open = [
        SagaHead("trip", "z-1", "stuck", 4, NOW - 1e7),
        SagaHead("trip", "z-2", "running", 1, NOW - 1e6),
    ]
    shown = sagas(recent, still_open)
    assert (shown[0].key, shown[-1].key, len(shown)) == ("z-1", "z-2", 1002)
    fresh = sagas([SagaHead("trip", "z-2", "running", 9, NOW)], still_open)
    assert [(head.key, head.epoch) for head in fresh] == [("z-1", 4), ("z-2", 9)]
