"""Promises of history that need no database."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.live.fleet import Fleet, Headline, Point, QueueView, StorageView
from dashboard.live.fleet_state import series_of
from dashboard.live.history import (
    LEVELS,
    MOST_POINTS,
    Recorder,
    level_for,
    pack,
    read,
    step_for,
    unpack,
    with_gaps,
)
from dashboard.models import Chunk, Series


@given(st.lists(st.floats(allow_nan=False), max_size=100))
def test_packed_values_come_back_unchanged(values: list[float]) -> None:
    assert list(unpack(pack(values))) == values


def test_a_span_is_answered_by_the_finest_level_that_reaches_back_that_far() -> None:
    assert [level_for(span)[0] for span in (60, 3600, 3601, 86400, 86401, 10**9)] == [1, 1, 10, 10, 60, 60]


def test_a_long_span_becomes_no_more_points_than_a_graph_can_show() -> None:
    for span in (60, 3600, 86400, 7 * 86400, 31 * 86400, 10**9):
        seconds, size, kept = level_for(span)
        step = step_for(span)
        assert size % step == 0
        assert min(span, kept) / seconds / step <= MOST_POINTS


def test_missing_samples_are_drawn_as_one_gap() -> None:
    points = [Point(float(at), 1.0) for at in (0, 1, 2, 40, 41)]
    marked = with_gaps(points, 1)
    assert [point.at for point in marked if point.value is None] == [3.0]
    assert [point for point in marked if point.value is not None] == points


def test_eight_seconds_of_nothing_amid_a_sample_a_second_are_a_gap() -> None:
    points = [Point(float(at), 1.0) for at in (0, 1, 2, 10, 11, 12)]
    assert [point.at for point in with_gaps(points, 1) if point.value is None] == [3.0]


def test_when_somebody_begins_or_ceases_to_look_no_gap_appears() -> None:
    points = [Point(float(at), 1.0) for at in (0, 1, 2, 7, 12, 17, 18, 19)]
    assert with_gaps(points, 1) == points


def test_slow_sampling_is_not_a_gap() -> None:
    points = [Point(float(at), 1.0) for at in (0, 5, 10, 15)]
    assert with_gaps(points, 1) == points


def test_levels_hold_the_average_of_their_slot_and_unknown_where_nothing_was_sampled() -> None:
    recorder = Recorder()
    for at, value in ((1000.2, 4.0), (1000.9, 8.0), (1003.0, 1.0)):
        recorder.add(at, {"depth:orders-in": value})
    seconds = unpack(recorder._open[("depth:orders-in", 1)].packed())
    assert seconds[0] == 6.0
    assert math.isnan(seconds[1])
    assert seconds[3] == 1.0
    tens = unpack(recorder._open[("depth:orders-in", 10)].packed())
    assert math.isclose(tens[0], 13.0 / 3)


def test_each_level_takes_one_row_for_many_values() -> None:
    recorder = Recorder()
    for at in range(6000, 6000 + 3600):
        recorder.add(float(at), {"a": 1.0})
    rows = len(recorder._full)
    assert rows == 3600 // 60 - 1 + 3600 // 900 - 1
    assert all(size <= 90 for _, size, _ in LEVELS)


@pytest.mark.django_db
@pytest.mark.parametrize(("span", "height"), [(7 * 86_400, 1060.0), (31 * 86_400, 1060.0), (7200, 1060.0)])
def test_the_peak_of_a_moment_survives_the_mean_of_its_minute(span: float, height: float) -> None:
    recorder, start = Recorder(), 1_800_000_000
    for second in range(60):
        recorder.add(start + second, {"depth:orders-in": height if second == 30 else 190.0})
    recorder._write([chunk.row(name, seconds) for (name, seconds), chunk in recorder._open.items()])
    points = read("depth:orders-in", start + 60 - span, start + 60)
    assert max(point.high or 0.0 for point in points) == height
    assert min(point.low or height for point in points) == 190.0
    assert max(point.value or 0.0 for point in points) < height, "the mean is less"


@pytest.mark.django_db
def test_seconds_are_samples_and_have_no_band() -> None:
    recorder, start = Recorder(), 1_800_000_000
    recorder.add(start, {"depth:orders-in": 5.0})
    recorder._write([chunk.row(name, seconds) for (name, seconds), chunk in recorder._open.items()])
    assert read("depth:orders-in", start - 900, start + 1) == [Point(float(start), 5.0)]


@pytest.mark.django_db
def test_chunks_of_former_releases_have_the_band_of_their_means() -> None:
    series = Series.objects.create(name="depth:orders-in")
    start = 1_800_000_000
    Chunk.objects.create(
        series=series, resolution=60, start=start, values=pack([1.0, 3.0] + [float("nan")] * 58)
    )
    week, month = (read("depth:orders-in", start + 3600 - days * 86_400, start + 3600) for days in (2, 31))
    assert [(point.value, point.low, point.high) for point in week] == [(1.0, 1.0, 1.0), (3.0, 3.0, 3.0)]
    assert [(point.value, point.low, point.high) for point in month] == [(2.0, 1.0, 3.0)]


def test_an_empty_queue_is_no_gap_and_an_unknown_one_is() -> None:
    empty = QueueView("a", depth=0, as_of=1.0)
    unknown = QueueView("b", depth=3, as_of=1.0)
    fleet = Fleet(
        taken_at=1.0, headline=Headline("idle", ""), storage=StorageView(as_of=1.0), queues=(empty, unknown)
    )
    values = series_of(fleet)
    assert values["oldest:a"] == 0.0 and "oldest:b" not in values
