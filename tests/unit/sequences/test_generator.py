"""The generator against a store in memory: what its refill thread survives."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from coordinator.errors import SequenceError
from coordinator.testing.sequences import MemoryStore, memory_generator


class Surprising(MemoryStore):
    """Raises what no store should, as long as `surprises` says so."""

    surprises = False

    def try_optimistic_write(self, data: str, *, etag: str | None, metadata: Mapping[str, str]) -> str | None:
        if self.surprises:
            raise ZeroDivisionError("nobody foresaw this")
        return super().try_optimistic_write(data, etag=etag, metadata=metadata)


def test_an_unforeseen_error_is_told_and_does_not_end_the_refills() -> None:
    store = Surprising()
    with memory_generator(store=store, range_size=10, max_range_size=10) as ids:
        assert [ids.next_id() for _ in range(5)] == [1, 2, 3, 4, 5]
        left = ids.runway().numbers
        store.surprises = True
        assert len({ids.next_id() for _ in range(left)}) == left
        with pytest.raises(SequenceError, match="nobody foresaw this") as caught:
            ids.next_ids(1000)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        store.surprises = False
        assert ids.next_id() > 5
