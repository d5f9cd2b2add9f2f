"""Promises of the sums of what handlers did: nothing is counted twice, nothing that was reported is lost."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.queues.delivery import DONE, Reject, Retry
from coordinator.queues.figures import BUCKETS, HandlerCounts, bounded, bucket_of, quantile
from coordinator.realtime.protocol import (
    MAX_FRAME_BYTES,
    HandlerFigures,
    ListenerStatus,
    State,
    WorkerState,
    encode,
)
from dashboard.live import tallies
from dashboard.live.tallies import ListenerTally, Reported
from dashboard.models import Tally, TallyMark

NOW = 1_800_000_000.0
SOURCE = "account/prefix"


def figures(done: int, **more: Any) -> HandlerFigures:
    return HandlerFigures("process", done, durations={8: done}, waits={20: done}, **more)


def save(instance: str, now: HandlerFigures, *, at: float = NOW, queue: str = "orders-in") -> None:
    tallies.save(SOURCE, {(instance, queue, now.handler): ListenerTally(now, NOW - 60)}, at)


def total(word: str = "done", seconds: int = tallies.HOUR) -> int:
    return sum(Tally.objects.filter(seconds=seconds).values_list(word, flat=True))


@pytest.mark.django_db
def test_each_report_adds_what_is_new_in_it_whoever_saves_it_and_in_whatever_order() -> None:
    for count in (3, 3, 7, 5, 7):  # twice the same; an older one that came late
        save("i-1", figures(count, failed=count // 2))
    save("i-2", figures(4))
    assert (total(), total("failed"), total(seconds=tallies.MINUTE)) == (11, 3, 11)
    [row] = tallies.throughput(SOURCE, 3600, NOW + 1)
    assert (row.done, row.failed, row.queue, row.handler) == (11, 3, "orders-in", "process")
    assert row.failed_share == 3 / 14
    assert row.handler_p50 == pytest.approx(0.004)
    assert row.wait_p99 == pytest.approx(0.032)
    assert tallies.throughput("another/", 3600, NOW + 1) == ()


@pytest.mark.django_db
def test_more_than_a_process_can_have_done_is_not_counted_and_names_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save("i-1", figures(10**12))
    assert total() == 0
    monkeypatch.setattr(tallies, "MOST_LISTENERS", 3)
    for n in range(6):
        save("i-2", figures(1), queue=f"queue-{n}")
    names = set(Tally.objects.filter(seconds=tallies.HOUR).values_list("queue", flat=True))
    assert names == {"queue-0", "queue-1", "queue-2", "other"}
    assert total() == 6


@pytest.mark.django_db
def test_an_hour_has_its_part_of_the_two_hours_of_the_day_before() -> None:
    hour = NOW // 3600 * 3600
    save("i-1", figures(60), at=hour - 86_400 - 1)
    save("i-1", figures(160), at=hour - 86_400 + 1)
    save("i-1", figures(170), at=hour + 900)
    [row] = tallies.throughput(SOURCE, 3600, hour + 900, before=tallies.DAY)
    assert (row.done, row.done_before) == (10, 45 + 25)
    assert tallies.throughput(SOURCE, 3600, hour + 900)[0].done_before is None, "not known"


@pytest.mark.django_db
def test_the_minutes_of_the_last_hour_are_beside_the_mean_minute_of_that_hour_a_week_ago() -> None:
    minute = NOW // 60 * 60
    save("i-1", figures(600), at=minute - tallies.WEEK)
    save("i-1", figures(603), at=minute - 1)
    save("i-1", figures(605), at=minute + 30)
    found = tallies.minutes(SOURCE, int(minute) - 3600, int(minute))
    assert [each.done for each in found] == [0] * 59 + [3]
    before = tallies.a_minute_of(SOURCE, minute - tallies.WEEK)
    assert before is not None and 0 < before.done <= 10  # of the part of its hour
    assert tallies.a_minute_of(SOURCE, minute - 2 * tallies.WEEK) is None


@pytest.mark.django_db
def test_a_month_reads_the_days_that_are_over_as_one_row_each_and_says_the_same() -> None:
    midnight = NOW // 86_400 * 86_400
    for n in range(1, 200):  # every four hours, of two listeners, and now
        save(f"i-{n}", figures(n), at=midnight + 36_000 - n * 14_400, queue=f"queue-{n % 2}")
    spans = (86_400.0, 604_800.0, 30 * 86_400.0)
    at = midnight + 36_900

    def said() -> list[Any]:
        past, names = tallies.PastSums(), frozenset({("queue-0", "process"), ("queue-1", "process")})
        return [
            (
                tallies.listeners(SOURCE, span, at),
                tallies.throughput(SOURCE, span, at, before=before),
                tallies.throughput(SOURCE, span, at, before=before, only=names, past=past),
                tallies.throughput(SOURCE, span, at, before=before, only=names, past=past),
            )
            for span in spans
            for before in (tallies.DAY, tallies.WEEK)
        ]

    by_hours = said()
    assert sum(row.done for row in by_hours[-1][1]) == sum(range(1, 181))
    tallies.roll_up(midnight + 3599)
    newest = (
        Tally.objects.filter(seconds=tallies.WHOLE_DAY).order_by("-start").values_list("start", flat=True)[0]
    )
    assert newest == midnight - 2 * 86_400, "yesterday may still get a report that is late"
    assert said() == by_hours
    tallies.roll_up(midnight + 3600)
    tallies.roll_up(midnight + 3600)
    assert said() == by_hours
    assert total(seconds=tallies.WHOLE_DAY) == sum(range(3, 200)), "each hour of the days that are over, once"
    read = Tally.objects.filter(seconds=tallies.WHOLE_DAY, start__gte=midnight - 30 * 86_400).count()
    assert read <= 60


@pytest.mark.django_db
def test_one_page_of_many_listeners_has_those_alone() -> None:
    for n in range(6):
        save("i-1", figures(n + 1), queue=f"queue-{n}")
    names = tallies.listeners(SOURCE, 3600, NOW)
    assert names == [(f"queue-{n}", "process") for n in range(6)]
    found = tallies.throughput(SOURCE, 3600, NOW, only=set(names[2:4]))
    assert [(each.queue, each.done) for each in found] == [("queue-2", 3), ("queue-3", 4)]


@pytest.mark.django_db
def test_a_day_has_the_same_of_a_week_before_beside_it_and_old_sums_go() -> None:
    save("i-1", figures(5), at=NOW - 7 * 86_400 - 7200)
    save("i-1", figures(8))
    [row] = tallies.throughput(SOURCE, 86_400, NOW)
    assert (row.done, row.done_before) == (3, 5)
    [row] = tallies.throughput(SOURCE, 86_400, NOW, before=tallies.DAY)
    assert row.done_before == 0, "nothing ended then, and it is known"
    tallies.forget_old()  # by the real clock, which is before NOW
    assert TallyMark.objects.count() == 1


def test_a_report_is_kept_until_it_is_saved_and_its_figures_go_no_further() -> None:
    reported = Reported()
    state = WorkerState(listeners=(ListenerStatus("orders-in", 2, figures=figures(3)),))
    shown = reported.take("i-1", NOW, state, token="7", now=0.0)
    assert shown.listeners == (ListenerStatus("orders-in", 2),)
    due = reported.due()
    assert due == {("i-1", "orders-in", "process"): ListenerTally(figures(3), NOW)}
    reported.take("i-1", NOW, state, token="7", now=0.0)
    assert reported.due() == {}  # nothing new
    newer = WorkerState(listeners=(ListenerStatus("orders-in", 2, figures=figures(4)),))
    reported.take("i-1", NOW, newer, token="7", now=0.0)
    reported.put_back(due)
    assert reported.due() == {("i-1", "orders-in", "process"): ListenerTally(figures(4), NOW)}
    idle = WorkerState(listeners=(ListenerStatus("orders-in", 2),))
    assert reported.take("i-1", NOW, idle, token="7", now=0.0) is idle


def made_up(names: int, *, number: int) -> WorkerState:
    """A frame of so many handlers that nobody has named before."""
    return WorkerState(
        listeners=tuple(
            ListenerStatus("orders-in", figures=HandlerFigures(f"made-up-{number}-{n}", number + 1))
            for n in range(names)
        )
    )


def test_handlers_that_a_process_makes_up_are_counted_as_other_and_take_no_memory() -> None:
    reported = Reported()
    for number in range(50):
        reported.take("i-bad", NOW, made_up(100, number=number), token="7", now=float(number))
    found = reported.due()
    assert len(found) <= tallies.MOST_OF_A_PROCESS + 1
    assert found["i-bad", "other", ""].figures.done == 50 * 100, "each is counted, under one name"
    assert len(reported) <= tallies.MOST_OF_A_PROCESS + 1
    reported.forget("i-bad")
    assert len(reported) == 0


def test_the_processes_of_one_token_bring_so_many_names_and_those_of_another_are_not_pushed_out() -> None:
    reported = Reported()
    names = set()
    for number in range(20):
        reported.take(f"i-{number}", NOW, made_up(100, number=number), token="7", now=float(number * 3600))
        names |= {key[1:] for key in reported.due()}
    assert len(names) == tallies.MOST_OF_A_TOKEN + 1
    reported.take("i-good", NOW, made_up(1, number=99), token="8", now=80_000.0)
    assert list(reported.due()) == [("i-good", "orders-in", "made-up-99-0")]


def test_new_marks_of_one_token_wait_when_they_are_too_many_and_lose_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tallies, "MARKS_AN_HOUR", 500)
    reported = Reported()
    for number in range(10):
        reported.take(f"i-{number}", NOW, made_up(100, number=0), token="7", now=0.0)
    assert len(reported.due()) == 500
    reported.take("i-9", NOW, made_up(100, number=0), token="7", now=4000.0)
    assert len(reported.due()) == 100


def test_a_quantile_is_at_most_a_fifth_too_long() -> None:
    for seconds in (0.0, 0.0005, 0.001, 0.0123, 1.0, 59.9, 86_400.0):
        found = quantile({bucket_of(seconds): 1}, 0.5)
        assert found is not None
        assert max(seconds, 0.001) * 0.999 <= found <= max(seconds, 0.001) * 1.2
    assert bucket_of(1e12) == BUCKETS
    assert quantile({}, 0.5) is None
    assert quantile({0: 99, 40: 1}, 0.99) == pytest.approx(0.001)
    assert quantile({0: 98, 40: 2}, 0.99) == pytest.approx(1.024)


def test_an_item_counts_by_how_its_handler_ended() -> None:
    counts = HandlerCounts("process")
    counts.began([0.5, 0.5])
    counts.ended([DONE, Retry(), ValueError(), Reject("no")], 0.004)
    counts.ended([DONE], 0.001)
    said = counts.figures()
    assert (said.done, said.failed, said.retried) == (2, 2, 1)
    assert (sum(said.durations.values()), sum(said.waits.values())) == (5, 2)


def test_a_report_of_many_listeners_fits_in_a_frame() -> None:
    times = dict.fromkeys(range(100), 10**9)
    for number in (9, 200):
        said = HandlerFigures("a_handler_of_a_usual_name", 10**9, 10**9, 10**9, times, times)
        listeners = bounded(
            tuple(
                ListenerStatus(f"queue-of-usual-length-{n:03}", 50, 50, figures=said) for n in range(number)
            )
        )
        assert len(encode(State(WorkerState(listeners=listeners)))) < MAX_FRAME_BYTES
        assert bool(listeners[0].figures.durations) == (number == 9)
        assert listeners[0].figures.done == 10**9
