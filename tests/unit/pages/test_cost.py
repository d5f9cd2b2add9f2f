"""Money: what requests cost, and what polling would have cost."""

from __future__ import annotations

import msgspec
import pytest

from dashboard.cost import Prices, bill
from tests.unit.pages.fleets import full, nothing


def test_each_operation_is_billed_by_its_class() -> None:
    lines = {
        line.operation: line for line in bill(full(), Prices(queue=1.0, blob_write=10.0, blob_read=2.0)).lines
    }
    assert lines["queue.GetMessages"].dollars == pytest.approx(0.09)
    assert lines["blob.PutBlob"].dollars == pytest.approx(0.09)
    assert lines["blob.GetBlob"].dollars == pytest.approx(0.002)


def test_the_shares_add_up_and_the_largest_comes_first() -> None:
    made = bill(full())
    assert sum(line.share for line in made.lines) == pytest.approx(1)
    assert [line.requests for line in made.lines] == [900, 90, 10]


def test_fixed_polling_asks_once_a_second_for_each_task_that_may_run() -> None:
    made = bill(full(), Prices(queue=0.004))
    assert made.polling_tasks == 10
    assert made.polling_requests_a_day == 864_000
    assert made.polling_dollars_a_day == pytest.approx(0.3456)


def test_what_is_not_known_stays_unknown() -> None:
    made = bill(nothing())
    assert (made.requests_a_day, made.dollars_a_day, made.polling_dollars_a_day) == (None, None, None)
    assert bill(msgspec.structs.replace(nothing(), requests_per_minute=0.0)).dollars_a_day is None
