"""History with roll-ups: 1 s for an hour, 10 s for a day, 1 min for a month, packed into chunks of one row each."""

from __future__ import annotations

import logging
import math
import sys
import time
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple
from zlib import crc32

from channels.db import database_sync_to_async
from django.db import DatabaseError, connection, transaction
from django.db.models import Exists, OuterRef

from dashboard.live.fleet import Point
from dashboard.models import Chunk, Series

log = logging.getLogger(__name__)

# seconds a value, values a chunk, seconds kept
LEVELS = ((1, 60, 3600), (10, 90, 86400), (60, 60, 31 * 86400))
FLUSH_SECONDS = 15
PRUNE_SECONDS = 60.0
SWEEP_SECONDS = 3600.0
SHORTEST_GAP_SECONDS = 4.0
GAP_FACTOR = 3.0
MOST_POINTS = 3600
NAN = float("nan")
# Some hundred rows each second: with models they took ten times as long, and pages waited.
_WRITE = """
INSERT INTO dashboard_chunk (series_id, resolution, start, "values", lows, highs) VALUES (%s, %s, %s, %s, %s, %s)
ON CONFLICT (series_id, resolution, start)
DO UPDATE SET "values" = excluded."values", lows = excluded.lows, highs = excluded.highs
"""


class _Row(NamedTuple):
    """A chunk to be written."""

    name: str
    seconds: int
    start: int
    values: bytes
    lows: bytes | None
    highs: bytes | None


class _Open:
    """A chunk being filled: means, extremes and counts by slot."""

    __slots__ = ("counts", "dirty", "due", "highs", "lows", "means", "start")

    def __init__(self, start: int, size: int, due: float) -> None:
        self.start = start
        self.means, self.lows, self.highs = (array("d", [NAN]) * size for _ in range(3))
        self.counts = array("l", [0]) * size
        self.dirty = False
        self.due = due

    def add(self, slot: int, value: float) -> None:
        n = self.counts[slot] = self.counts[slot] + 1
        before = self.means[slot]
        self.means[slot] = value if n == 1 else before + (value - before) / n
        self.lows[slot] = value if n == 1 else min(value, self.lows[slot])
        self.highs[slot] = value if n == 1 else max(value, self.highs[slot])
        self.dirty = True

    def packed(self) -> bytes:
        return pack(self.means)

    def row(self, name: str, seconds: int) -> _Row:
        """As it is written. Each second is one sample, so its extremes say nothing more."""
        lows, highs = (None, None) if seconds == 1 else (pack(self.lows), pack(self.highs))
        return _Row(name, seconds, self.start, self.packed(), lows, highs)


class Recorder:
    """Collects values and writes them in batches. Loses at most the last quarter of a minute when killed.

    Each series has its own turn within that time, so that hundreds of them make no burst.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], _Open] = {}
        self._full: list[_Row] = []
        self._ids: dict[str, int] = {}
        self._pruned = self._swept = 0.0

    async def record(self, at: float, values: Mapping[str, float]) -> None:
        """Take the values of one moment; write what is due."""
        self.add(at, values)
        await self.flush(due=time.monotonic())

    def add(self, at: float, values: Mapping[str, float]) -> None:
        """Take the values of one moment, in memory."""
        now = time.monotonic()
        for name, value in values.items():
            for seconds, size, _ in LEVELS:
                slot_time = int(at) // seconds * seconds
                key = (name, seconds)
                chunk = self._open.get(key)
                if chunk is None or not 0 <= slot_time - chunk.start < seconds * size:
                    if chunk is not None and chunk.dirty:
                        self._full.append(chunk.row(name, seconds))
                    due = chunk.due if chunk is not None else now + crc32(name.encode()) % FLUSH_SECONDS
                    chunk = self._open[key] = _Open(slot_time, size, due)
                chunk.add((slot_time - chunk.start) // seconds, value)

    async def flush(self, *, due: float = math.inf) -> None:
        """Write what is not yet written: all, or the series whose turn is `due` at the latest."""
        rows, self._full = self._full, []
        now = time.monotonic()
        for (name, seconds), chunk in list(self._open.items()):
            if chunk.dirty and chunk.due <= due:
                rows.append(chunk.row(name, seconds))
                chunk.dirty, chunk.due = False, now + FLUSH_SECONDS
            elif not chunk.dirty and chunk.due < now - SWEEP_SECONDS:
                del self._open[(name, seconds)]
        if not rows:
            return
        try:
            await database_sync_to_async(self._write)(rows)
        except DatabaseError:
            self._ids.clear()
            log.exception("History could not be written; %d chunks are lost", len(rows))

    def _write(self, rows: list[_Row]) -> None:
        with transaction.atomic():
            # In one transaction, so that a series without chunks is one that nobody is about to fill.
            ids = self._series_ids({row.name for row in rows})
            with connection.cursor() as cursor:
                cursor.executemany(
                    _WRITE, [(ids[row.name], row.seconds, row.start, *row[-3:]) for row in rows]
                )
        if time.monotonic() - self._pruned > PRUNE_SECONDS:
            self._pruned = time.monotonic()
            now = int(time.time())
            for seconds, size, kept in LEVELS:
                Chunk.objects.filter(resolution=seconds, start__lt=now - kept - seconds * size).delete()
        if time.monotonic() - self._swept > SWEEP_SECONDS:
            self._swept = time.monotonic()
            self._ids.clear()
            # Of queues and sequences that are gone for a month.
            Series.objects.filter(~Exists(Chunk.objects.filter(series=OuterRef("pk")))).delete()

    def _series_ids(self, names: set[str]) -> dict[str, int]:
        missing = names - self._ids.keys()
        if missing:
            Series.objects.bulk_create([Series(name=name) for name in sorted(missing)], ignore_conflicts=True)
            self._ids.update(Series.objects.filter(name__in=missing).values_list("name", "pk"))
        return self._ids


def pack(values: Iterable[float]) -> bytes:
    """Little-endian doubles."""
    packed = array("d", values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack(packed: bytes | memoryview) -> array[float]:
    """What `pack` packed."""
    values = array("d")
    values.frombytes(bytes(packed))
    if sys.byteorder == "big":
        values.byteswap()
    return values


def level_for(seconds: float) -> tuple[int, int, int]:
    """The finest level that reaches back that far."""
    return next((level for level in LEVELS if seconds <= level[2]), LEVELS[-1])


def step_for(seconds: float, age: float | None = None) -> int:
    """How many values of its level become one point, so that a span has at most about `MOST_POINTS`."""
    resolution, size, kept = level_for(age or seconds)
    needed = min(seconds, kept) / resolution / MOST_POINTS
    return next((step for step in range(1, size + 1) if size % step == 0 and step >= needed), size)


def read(series: str, since: float, until: float, *, age: float | None = None) -> list[Point]:
    """The points of a series between two moments, oldest first, without marks for gaps.

    Long spans are averaged; the least and the greatest of what a point is the mean of stay with it. `age` is how long ago a
    span began that does not end now: what is kept of it is coarser.
    """
    seconds, size, _ = level_for(age or until - since)
    step = step_for(until - since, age)
    chunks = Chunk.objects.filter(
        series__name=series, resolution=seconds, start__gt=since - seconds * size, start__lte=until
    ).order_by("start")
    points: list[Point] = []
    is_mean = seconds * step > 1
    slots = range(0, size, step)
    for start, packed, packed_lows, packed_highs in chunks.values_list("start", "values", "lows", "highs"):
        values: Sequence[float] = unpack(packed)
        lows: Sequence[float] = unpack(packed_lows) if packed_lows else values
        highs: Sequence[float] = unpack(packed_highs) if packed_highs else values
        # A month has 40,000 values. Most chunks know all of theirs: the sum says so at once.
        parts = _whole if _has_all(values, lows, highs) else _known
        found = parts(start, seconds, step, slots, values, lows, highs)
        # Two processes may have sampled the same moment when one took over from the other.
        after = points[-1].at if points else -math.inf
        if start < since or start <= after or start + size * seconds > until:
            found = [point for point in found if since <= point.at <= until and point.at > after]
        points += found if is_mean else [Point(point.at, point.value) for point in found]
    return points


def _has_all(values: Sequence[float], lows: Sequence[float], highs: Sequence[float]) -> bool:
    total = sum(values) if lows is values and highs is values else sum(values) + sum(lows) + sum(highs)
    return not math.isnan(total)


def _whole(
    start: int,
    seconds: int,
    step: int,
    slots: range,
    values: Sequence[float],
    lows: Sequence[float],
    highs: Sequence[float],
) -> list[Point]:
    """The points of a chunk without gaps."""
    if step == 1:
        return [Point(float(start + n * seconds), values[n], lows[n], highs[n]) for n in slots]
    points = []
    is_alone = lows is values and highs is values
    for n in slots:
        part = values[n : n + step]
        least, most = (part, part) if is_alone else (lows[n : n + step], highs[n : n + step])
        points.append(Point(float(start + n * seconds), sum(part) / step, min(least), max(most)))
    return points


def _known(
    start: int,
    seconds: int,
    step: int,
    slots: range,
    values: Sequence[float],
    lows: Sequence[float],
    highs: Sequence[float],
) -> list[Point]:
    """The same of one with gaps: of what is known."""

    def known(given: Sequence[float], n: int) -> list[float]:
        return [value for value in given[n : n + step] if not math.isnan(value)]

    return [
        Point(float(start + n * seconds), sum(part) / len(part), min(known(lows, n)), max(known(highs, n)))
        for n in slots
        if (part := known(values, n))
    ]


def with_gaps(points: Iterable[Point], resolution: float) -> list[Point]:
    """Put an unknown point where samples are missing, so that graphs show the gap.

    Samples come each second or each few, as somebody looks or not; a pause is a gap if it is much longer than the
    pauses on both sides of it.
    """
    given = list(points)
    pauses = [later.at - earlier.at for earlier, later in pairwise(given)]
    shortest = max(SHORTEST_GAP_SECONDS, GAP_FACTOR * resolution)
    marked: list[Point] = []
    begun = 0
    for n, pause in enumerate(pauses):
        if pause <= shortest:
            continue
        around = max([*pauses[max(0, n - 1) : n], *pauses[n + 1 : n + 2]], default=resolution)
        if pause > GAP_FACTOR * around:
            marked += [*given[begun : n + 1], Point(given[n].at + resolution, None)]
            begun = n + 1
    return marked + given[begun:]
