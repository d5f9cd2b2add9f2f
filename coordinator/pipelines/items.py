"""Processing the items of a chunk: time-outs, tries, and a failure for each item that could not be processed."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from coordinator.backoff import Backoff
from coordinator.clock import Clock
from coordinator.pipelines.messages import ItemChunk, ItemFailure
from coordinator.queues.delivery import Reject
from coordinator.tables.stepping import said

_BACKOFF = Backoff(base_seconds=0.2, cap_seconds=5.0)


_Tried = tuple[int, Any, BaseException | None]


class _Pass:
    """One thread's way through a chunk. `abandon` makes it stop before the next item, and nothing it does counts then."""

    def __init__(self, places: Sequence[int]) -> None:
        self.places = list(places)
        self.position = 0
        self.outcomes: list[tuple[int, Any, BaseException | None]] = []
        self.lock = threading.Lock()
        self.is_abandoned = False
        self.seconds = 0.0


class ItemRunner:
    """Calls the processor for each item of a chunk; each try within `seconds` (0: no bound), `attempts` tries an item."""

    def __init__(
        self,
        processor: Callable[[Any], Any],
        decoder: msgspec.json.Decoder[Any],
        *,
        seconds: float,
        attempts: int,
        clock: Clock,
    ) -> None:
        self.processor = processor
        self._decoder = decoder
        self._seconds, self._attempts = seconds, attempts
        self._clock = clock

    async def run(self, chunk: ItemChunk) -> tuple[list[Any], list[ItemFailure], float]:
        """The results, and what failed, each in the order of the items; and the seconds in the processor itself.

        Those are not what the chunk took: waiting for a thread or the loop is no property of an item.
        """
        seconds = 0.0
        done: dict[int, Any] = {}
        left: dict[int, str] = dict.fromkeys(range(len(chunk.items)), "")
        final: dict[int, str] = {}
        for attempt in range(self._attempts):
            if attempt:
                await self._clock.sleep(_BACKOFF.delay(attempt))
            outcomes, spent = await self._tried(chunk, list(left))
            seconds += spent
            for place, result, error in outcomes:
                if error is None:
                    done[place] = result
                    left.pop(place)
                elif isinstance(error, Reject):
                    final[place] = said(error)
                    left.pop(place)
                else:
                    left[place] = said(error) if not isinstance(error, _TooLong) else str(error)
            if not left:
                break
        failures = sorted({**left, **final}.items())
        return [done[place] for place in sorted(done)], [failure(chunk, *each) for each in failures], seconds

    async def _tried(self, chunk: ItemChunk, places: list[int]) -> tuple[list[_Tried], float]:
        if not inspect.iscoroutinefunction(self.processor):
            return await self._in_threads(chunk, places)
        outcomes = list[_Tried]()
        begun = self._clock.monotonic()
        for place in places:
            try:
                async with asyncio.timeout(self._seconds or None) as limit:
                    result = await self.processor(self._decoder.decode(chunk.items[place]))
                outcomes.append((place, result, None))
            except TimeoutError as error:
                outcomes.append((place, None, self._too_long() if limit.expired() else error))
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                outcomes.append((place, None, error))  # the processor's own
            except (Exception, SystemExit) as error:
                outcomes.append((place, None, error))
        return outcomes, self._clock.monotonic() - begun

    async def _in_threads(self, chunk: ItemChunk, places: list[int]) -> tuple[list[_Tried], float]:
        """One thread for all, and another one for the rest whenever an item uses up its time."""
        outcomes, seconds = list[_Tried](), 0.0
        while places:
            through = _Pass(places)
            future = asyncio.get_running_loop().run_in_executor(None, self._go_through, chunk, through)
            seen = -1
            while not future.done():
                try:
                    await asyncio.wait({future}, timeout=self._seconds or None)
                except asyncio.CancelledError:
                    through.is_abandoned = True  # its item is finished, no other begun
                    raise
                if future.done():
                    break
                with through.lock:
                    is_stuck = through.position == seen and through.position < len(through.places)
                    seen = through.position
                    if is_stuck:
                        through.is_abandoned = True
                        break
            outcomes += through.outcomes
            seconds += through.seconds
            if future.done():
                future.result()
                break
            outcomes.append((places[seen], None, self._too_long()))
            seconds += self._seconds
            places = places[seen + 1 :]
        return outcomes, seconds

    def _go_through(self, chunk: ItemChunk, through: _Pass) -> None:
        begun = self._clock.monotonic()
        for place in through.places:
            result, error = None, None
            try:
                result = self.processor(self._decoder.decode(chunk.items[place]))
            except BaseException as raised:
                error = raised
            with through.lock:
                if through.is_abandoned:
                    return
                through.outcomes.append((place, result, error))
                through.position += 1
                through.seconds = self._clock.monotonic() - begun

    def _too_long(self) -> BaseException:
        return _TooLong(f"took longer than {self._seconds:g} s")


class _TooLong(Exception):
    """Our own time-out, which must not be taken for one that the processor raised."""


def failure(chunk: ItemChunk, place: int, why: str) -> ItemFailure:
    """The item at that place of the chunk as a failure."""
    index = chunk.indexes[place] if chunk.indexes else chunk.first + place
    return ItemFailure(index, chunk.items[place], why[:1000])
