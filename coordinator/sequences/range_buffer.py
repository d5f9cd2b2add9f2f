"""The numbers a process holds: cut into segments that iterators of the interpreter hand out without a lock. Pure.

One segment is open at a time. `next` on its iterator is a single step of the interpreter (CPython with its global lock),
so any number of threads may call it at once and none gets a number twice. A caller that finds it empty opens the next one,
under the generator's lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import length_hint
from typing import overload

from coordinator.sequences.grants import Grant

LARGEST_SEGMENT = 4096


@dataclass(frozen=True)
class Block(Sequence[int]):
    """Numbers taken together, as few ranges as possible. `is_contiguous` says whether it is a single one."""

    ranges: tuple[range, ...]

    @property
    def is_contiguous(self) -> bool:
        return len(self.ranges) == 1

    def __len__(self) -> int:
        return sum(map(len, self.ranges))

    def __iter__(self) -> Iterator[int]:
        for numbers in self.ranges:
            yield from numbers

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        for numbers in self.ranges:
            if 0 <= place < len(numbers):
                return numbers[place]
            place -= len(numbers)
        raise IndexError(f"block of {len(self)} numbers has no index {index}")


class _Held:
    """A grant and the place of its next number that is in no segment yet."""

    __slots__ = ("grant", "numbers", "place")

    def __init__(self, grant: Grant) -> None:
        self.grant, self.numbers, self.place = grant, grant.numbers, 0

    @property
    def left(self) -> int:
        return len(self.numbers) - self.place

    def cut(self, count: int) -> range:
        numbers = self.numbers[self.place : self.place + count]
        self.place += count
        return numbers


class RangeBuffer:
    """All grants held, the open segment first. Not thread-safe, except `take`, which is read without a lock."""

    def __init__(self) -> None:
        self._held: deque[_Held] = deque()
        self._segment: range = range(0)
        self._iterator: Iterator[int] = iter(self._segment)
        self.take: Callable[[], int] = self._iterator.__next__
        self._uncut = 0
        self._counted = 0
        self.issued = 0
        self.last_issued = 0
        self.finished: list[Grant] = []

    def add(self, grant: Grant) -> None:
        held = _Held(grant)
        self._held.append(held)
        self._uncut += held.left

    @property
    def left(self) -> int:
        """Numbers not issued yet."""
        return self._uncut + length_hint(self._iterator)

    @property
    def current(self) -> Grant | None:
        """The grant being issued."""
        return self._held[0].grant if self._held else None

    def count(self) -> int:
        """How many numbers were issued since the last count."""
        gone = len(self._segment) - length_hint(self._iterator)
        new = gone - self._counted
        if new:
            self._counted = gone
            self.issued += new
            self.last_issued = self._segment[gone - 1]
        return new

    def open_next(self, keep: int = 0) -> bool:
        """Open the next segment once the open one is empty; False if nothing is left. It ends where `keep` numbers are left, if
        that is within it: nobody looks what is left while a segment is open."""
        self._close_segment()
        if not self._held:
            return False
        held = self._held[0]
        size = min(held.left, LARGEST_SEGMENT, max(16, len(held.numbers) // 16))
        spare = self._uncut - keep
        self._open(held.cut(min(size, spare) if spare > 0 else size))
        return True

    def take_block(self, count: int) -> Block | None:
        """`count` numbers, from one grant if one has them all; None if there are not that many."""
        self._take_in()
        if count > self._uncut:
            return None
        whole = next((held for held in self._held if held.left >= count), None)
        pieces: list[range] = []
        missing = count
        for held in [whole] if whole else list(self._held):
            numbers = held.cut(min(missing, held.left))
            missing -= len(numbers)
            if (
                pieces
                and len(numbers)
                and pieces[-1].stop == numbers.start
                and pieces[-1].step == numbers.step
            ):
                pieces[-1] = range(pieces[-1].start, numbers.stop, numbers.step)
            elif len(numbers):
                pieces.append(numbers)
            if missing == 0:
                break
        self._uncut -= count
        self.issued += count
        self.last_issued = pieces[-1][-1]
        self._drop_empty()
        return Block(tuple(pieces))

    def empty_out(self) -> list[tuple[Grant, int]]:
        """Give up all that is left: each grant with the end of what was issued of it. `take` issues nothing any more."""
        self._take_in()
        rest = [(held.grant, held.grant.first + held.place * held.grant.step - 1) for held in self._held]
        self._held.clear()
        self._uncut = 0
        return rest

    def _take_in(self) -> None:
        """Put what is left of the open segment back, so that its grant can be cut again."""
        # list() runs within the interpreter: no thread can take a number in the middle of it.
        rest = list(self._iterator)
        taken_back = len(rest)
        gone = len(self._segment) - taken_back
        self.issued += gone - self._counted
        if gone:
            self.last_issued = self._segment[gone - 1]
        if taken_back:
            self._held[0].place -= taken_back
            self._uncut += taken_back
        self._open(range(0), cut=False)
        self._drop_empty()

    def _close_segment(self) -> None:
        self.count()
        self._drop_empty()

    def _drop_empty(self) -> None:
        while self._held and self._held[0].left == 0:
            self.finished.append(self._held.popleft().grant)
        for held in [held for held in self._held if held.left == 0]:
            self._held.remove(held)
            self.finished.append(held.grant)

    def _open(self, numbers: range, *, cut: bool = True) -> None:
        self._segment = numbers
        self._iterator = iter(numbers)
        self._counted = 0
        if cut:
            self._uncut -= len(numbers)
        self.take = self._iterator.__next__
