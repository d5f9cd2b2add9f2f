"""What counting a chunk makes of a batch's figures: the rules by themselves."""

import msgspec
import pytest

from coordinator.pipelines.aggregating import _ended, _item_seconds
from coordinator.pipelines.messages import ChunkResult, Counted, Head


def result(size, seconds):
    return ChunkResult("b1", 0, size, [], seconds=seconds)


@pytest.mark.parametrize(
    ("before", "results", "seconds"),
    [
        (0.0, [], 0.0),
        (2.0, [], 2.0),
        (2.0, [result(0, 5.0), result(5, 0.0)], 2.0),
        (0.0, [result(10, 20.0)], 2.0),
        (0.0, [result(10, 20.0), result(30, 20.0)], 1.0),
        (2.0, [result(10, 120.0)], 0.7 * 2.0 + 0.3 * 12.0),
        (2.0, [result(1, 0.5), result(0, 9.0)], 0.7 * 2.0 + 0.3 * 0.5),
    ],
)
def test_the_time_of_an_item_is_a_mean_that_forgets(before, results, seconds):
    counted = Counted(items=900, failed=100, item_seconds=before)
    assert _item_seconds(counted, results) == pytest.approx(seconds)


def test_the_first_few_items_do_not_outweigh_the_many_after_them():
    counted = Counted(items=4, item_seconds=0.01)
    assert _item_seconds(counted, [result(496, 0.05)]) == pytest.approx(0.01 * 0.008 + 0.992 * 0.05 / 496)


def test_a_batch_that_ends_keeps_what_was_counted():
    head = Head(source="s", state="running", chunk_items=5, started_at=1.0)
    counted = Counted(items=12, failed=2)
    assert _ended(head, "complete", counted, 9.0, report="b1.json") == msgspec.structs.replace(
        head, state="complete", finished_at=9.0, items=12, failed=2, report="b1.json"
    )
    assert _ended(head, "partial", counted, 9.0).report == ""


def test_items_that_failed_have_their_part_in_the_mean():
    counted = Counted(item_seconds=2.0, items=2, failed=2)
    assert _item_seconds(counted, [result(4, 40.0)]) == pytest.approx(0.5 * 2.0 + 0.5 * 10.0)
