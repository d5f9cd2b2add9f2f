"""The planner: what it says suffices by the published limits, and one fewer of anything does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator import __main__ as shell
from coordinator.errors import ConfigurationError
from coordinator.planning import Layout, Limits, Load, plan, simulate

ALL = Limits(share=1.0)
HUNDRED_MILLION = Load(100e6, item_bytes=2000, workers=2000, latency_seconds=30)


def even(per_second: float, **options: Any) -> Load:
    """The same at every hour."""
    return Load(
        per_second * 86_400, **{"peak": 1.0, "rows": 0.0, "handler_seconds": 0.01, "slots": 100, **options}
    )


@pytest.mark.parametrize("limit", ["queue", "account", "partition"])
def test_a_limit_is_reached_by_as_many_requests_as_it_allows_and_by_no_fewer(limit: str) -> None:
    """A put, a delete and a thirty-second of a receive for each message, and one row for each item."""
    much = Layout(accounts=1000, queues=1000, partitions=1000, instances=1000)
    layout, load = replace(much, **{f"{limit}s": 1}), even(100, rows=1.0)
    each = {"queue": 2 + 1 / 32, "partition": 1.0, "account": 3 + 1 / 32}[limit]
    other = 1 * (2 / 12 + 1 / 60 + 1 / 10) if limit == "account" else 0.0  # what a worker asks besides
    most = (getattr(ALL, limit) - other) / each
    for factor, is_within in ((0.999, True), (1.001, False)):
        course = simulate(replace(load, orders_per_day=factor * most * 86_400), layout, ALL)
        assert (getattr(course, limit) <= 1.0) is is_within
        assert (course.longest_seconds < 1.0) is is_within, "what a limit refuses does not wait"


def test_handlers_that_are_too_few_let_messages_wait() -> None:
    load = even(100, handler_seconds=1.0, slots=10)
    assert simulate(load, Layout(instances=10), ALL).longest_seconds == pytest.approx(1.0)
    assert simulate(load, Layout(instances=9), ALL).longest_seconds > 3600


@pytest.mark.parametrize("peak", [1.0, 1.3, 1.58, 2.5, 20.0])
def test_a_day_has_as_many_items_as_asked_for_and_the_peak_asked_for(peak: float) -> None:
    load = Load(86_400, peak=peak)
    rates = [load.per_second(second) for second in range(0, 86_400, 5)]
    assert sum(rates) * 5 == pytest.approx(86_400, rel=0.001)
    assert max(rates) == pytest.approx(peak, rel=0.001)
    assert min(rates) >= 0


def test_a_hundred_million_orders_a_day() -> None:
    made = plan(HUNDRED_MILLION)
    assert made.layout == Layout(accounts=1, queues=5, partitions=3, instances=29)
    assert made.peak_per_second == pytest.approx(2894, abs=1)
    assert sum(made.requests.values()) == pytest.approx(3.24e8, rel=0.02)
    assert made.course.longest_seconds <= 30
    assert "use storage.sharded_queue(name, shards=5)" in made.notes


@settings(max_examples=15, deadline=None)
@given(
    st.floats(1e3, 1e9),
    st.integers(100, 100_000),
    st.floats(0.01, 20.0),
    st.floats(1.0, 6.0),
    st.integers(1, 5000),
)
def test_a_plan_is_within_all_limits_and_one_fewer_is_not(
    orders: float, size: int, handler: float, peak: float, workers: int
) -> None:
    load = Load(orders, item_bytes=size, handler_seconds=handler, peak=peak, workers=workers)
    made = plan(load)
    course = simulate(load, made.layout)
    assert max(course.account, course.queue, course.partition) <= 1 + 1e-9
    assert course.longest_seconds <= load.latency_seconds
    for name in ("accounts", "queues", "partitions", "instances"):
        fewer = getattr(made.layout, name) - 1
        if fewer < 1 or (name in ("queues", "partitions") and fewer < made.layout.accounts):
            continue  # each account has a queue and a partition
        course = simulate(load, replace(made.layout, **{name: fewer}))
        most = max(course.account, course.queue, course.partition)
        assert most > 1 or course.longest_seconds > load.latency_seconds, f"fewer {name} are enough"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"orders_per_day": 0}, "orders_per_day must be above 0"),
        ({"workers": 0}, "workers must be at least 1"),
        ({"peak": 0.5}, "a peak of 1 to 100"),
        ({"handler_seconds": 90}, "nothing can be done within 60 s if a handler takes 90 s"),
        ({"orders_per_day": float("nan")}, "orders_per_day must be above 0"),
    ],
)
def test_a_load_that_cannot_be_meant_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Load(**{"orders_per_day": 1000, **options})


def test_the_command_says_what_is_needed_why_and_by_which_limits() -> None:
    words = [
        "plan",
        "--orders-per-day",
        "100M",
        "--bytes",
        "2000",
        "--workers",
        "2000",
        "--latency",
        "30",
        "--instance-hour",
        "0.1",
    ]
    result = CliRunner().invoke(shell.main, words)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == "100,000,000 items a day: 1,157/s, 2,894/s at the peak"
    found = {line.split()[0]: line.split()[1] for line in lines}
    assert (found["accounts"], found["queues"], found["partitions"], found["instances"]) == (
        "1",
        "5",
        "3",
        "29",
    )
    assert "$27.78 a day" in result.output
    assert "learn.microsoft.com" in lines[-1] and "as of 2026-11" in lines[-1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--orders-per-day", "many"], "'many' is not a number such as 2500, 20k or 100M"),
        (["--orders-per-day", "100M", "--latency", "0"], "latency_seconds must be above 0"),
        (["--orders-per-day", "20k", "--workers", "1", "--handler-seconds", "50"], "1 workers are too few"),
    ],
)
def test_the_command_refuses_or_notes_what_cannot_be(words: list[str], said: str) -> None:
    assert said in CliRunner().invoke(shell.main, ["plan", *words]).output


@pytest.mark.parametrize(("workers", "processes"), [(5_000, 0), (5_001, 2), (10_000, 2), (10_001, 3)])
def test_a_fleet_that_one_hub_does_not_hold_gets_the_number_of_processes(
    workers: int, processes: int
) -> None:
    notes = plan(replace(HUNDRED_MILLION, workers=workers)).notes
    found = [note for note in notes if "dashboard processes" in note]
    assert len(found) == bool(processes)
    assert not processes or found[0].startswith(f"run {processes} dashboard processes over Redis")
