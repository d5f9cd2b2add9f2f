"""Numbers in memory: each is taken once, however it is taken."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator.sequences.grants import Grant, Owner
from coordinator.sequences.range_buffer import Block, RangeBuffer

ANN = Owner("ann")


def grant(first: int, last: int, step: int = 1) -> Grant:
    return Grant(first, last, ANN, f"n{first}", 0.0, step)


def drained(buffer: RangeBuffer) -> list[int]:
    numbers = []
    while True:
        try:
            numbers.append(buffer.take())
        except StopIteration:
            if not buffer.open_next():
                return numbers


def test_an_empty_buffer_gives_nothing() -> None:
    assert drained(RangeBuffer()) == []
    assert RangeBuffer().take_block(1) is None
    assert RangeBuffer().left == 0


def test_grants_are_given_out_in_order_and_told_when_finished() -> None:
    buffer = RangeBuffer()
    buffer.add(grant(1, 100))
    buffer.add(grant(201, 230))
    assert drained(buffer) == [*range(1, 101), *range(201, 231)]
    assert [each.first for each in buffer.finished] == [1, 201]
    assert (buffer.issued, buffer.last_issued, buffer.left) == (130, 230, 0)


def test_a_block_comes_from_one_grant_if_one_has_it_all() -> None:
    buffer = RangeBuffer()
    buffer.add(grant(1, 5))
    buffer.add(grant(101, 150))
    block = buffer.take_block(10)
    assert block is not None
    assert (list(block), block.is_contiguous) == (list(range(101, 111)), True)


def test_a_block_that_fits_nowhere_is_pieced_together_and_says_so() -> None:
    buffer = RangeBuffer()
    buffer.add(grant(1, 5))
    buffer.add(grant(101, 105))
    block = buffer.take_block(8)
    assert block is not None
    assert (list(block), block.is_contiguous) == ([1, 2, 3, 4, 5, 101, 102, 103], False)


def test_neighbouring_grants_are_one_run() -> None:
    buffer = RangeBuffer()
    buffer.add(grant(1, 5))
    buffer.add(grant(6, 10))
    block = buffer.take_block(8)
    assert block is not None
    assert block.ranges == (range(1, 9),)


def test_a_block_is_a_sequence() -> None:
    block = Block((range(1, 4), range(10, 12)))
    assert (len(block), block[0], block[3], block[-1], block[1:4]) == (5, 1, 10, 11, [2, 3, 10])
    assert 11 in block


def test_what_is_given_up_begins_after_the_last_number_issued() -> None:
    buffer = RangeBuffer()
    buffer.add(grant(1, 100, step=10))
    buffer.add(grant(101, 110))
    buffer.open_next()
    taken = [buffer.take(), buffer.take()]
    assert taken == [1, 11]
    rest = buffer.empty_out()
    assert [(each.first, through) for each, through in rest] == [(1, 20), (101, 100)]
    assert drained(buffer) == []


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    steps=st.lists(
        st.tuples(st.sampled_from(["one", "block", "count", "status"]), st.integers(1, 80)), max_size=60
    ),
)
def test_every_number_is_issued_or_given_up_exactly_once(
    sizes: list[int], steps: list[tuple[str, int]]
) -> None:
    buffer, first, everything = RangeBuffer(), 1, set[int]()
    for size in sizes:
        buffer.add(grant(first, first + size - 1))
        everything |= set(range(first, first + size))
        first += size + 3
    issued: list[int] = []
    for step, count in steps:
        before = buffer.left
        if step == "one":
            try:
                issued.append(buffer.take())
            except StopIteration:
                buffer.open_next()
        elif step == "block":
            block = buffer.take_block(count)
            assert (block is None) == (before < count)
            issued.extend(block or [])
        else:
            buffer.count()
        assert buffer.left == len(everything) - len(issued)
    buffer.count()
    assert buffer.issued == len(issued)
    assert buffer.last_issued == (issued[-1] if issued else 0)
    given_up = [n for each, through in buffer.empty_out() for n in range(through + 1, each.last + 1)]
    assert len(issued) == len(set(issued))
    assert sorted(issued + given_up) == sorted(everything)
