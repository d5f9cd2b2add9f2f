"""What handlers did, summed up over all workers so that nothing is counted twice, and nothing that was reported is lost.

1. A worker reports counts that only grow from the start of its process on, with each heartbeat and once more when it stops.
2. The hub keeps the newest report of each process until it is in the database.
3. In one transaction, what is more than the process's mark is added to the tallies of this minute and hour, and the mark is
   set. A report that is not above its mark adds nothing: it was counted, by whichever dashboard process.

So a sum holds everything that was reported, across restarts of workers and dashboards. It lacks what a process did after its
last report: nothing if it stopped by itself; what it did within a heartbeat if it was killed, which nobody knows. If a
dashboard is killed, what ended in the seconds before is missing, too, if its worker ended as well. The numbers are repeated at the lines.

Hours of a day that is over are added up into a row of the day, so that a month is read in fifty rows a listener. Nothing is added
to what is over, so whoever reads may keep the sums of it (`PastSums`).
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec
from django.db import transaction
from django.db.models import Max, Min, QuerySet, Sum

from coordinator.bounds import MAX_COUNT
from coordinator.queues.figures import quantile, quantiles
from coordinator.realtime.protocol import HandlerFigures, WorkerState
from dashboard.models import Tally, TallyMark

MINUTE, HOUR, WHOLE_DAY = 60, 3600, 86_400
KEPT = {MINUTE: 86_400.0, HOUR: 38 * 86_400.0, WHOLE_DAY: 38 * 86_400.0}
REPORTED = (MINUTE, HOUR)
SETTLED_SECONDS = 5.0
"""When a minute or an hour is over this long, nothing is added to it."""
MOST_LISTENERS = 2_000
MOST_OF_A_TOKEN, MOST_OF_A_PROCESS = 1_000, 250
MARKS_AN_HOUR = 20_000
OTHER = "other"
MOST_A_SECOND = 100_000
AHEAD_SECONDS = 10.0
AT_ONCE = 200
NOTHING = HandlerFigures()

Key = tuple[str, str, str]
"""Instance, queue, handler."""
Listener = tuple[str, str]
"""Queue, handler."""


class ListenerTally(NamedTuple):
    """What a listener has done, as its process says that started then."""

    figures: HandlerFigures
    started_at: float


class Reported:
    """The newest reports that are not in the database yet (2). Used on the event loop.

    Of one process `MOST_OF_A_PROCESS` names (of a queue with a handler) are kept, of all processes of one token
    `MOST_OF_A_TOKEN`; what the others did is counted together, as `OTHER`. Each name of a process takes a row for a month: if
    more than `MARKS_AN_HOUR` are new, the others wait for a later report, which holds what this one does.
    """

    def __init__(self) -> None:
        self._fresh: dict[Key, ListenerTally] = {}
        self._seen: dict[str, dict[Listener, int]] = {}
        self._names: dict[str, set[Listener]] = {}
        self._marks: dict[str, tuple[float, int]] = {}

    def __len__(self) -> int:
        """How many names are kept of the processes that are connected."""
        return sum(len(names) for names in self._seen.values())

    def take(
        self, instance: str, started_at: float, state: WorkerState, *, token: str, now: float
    ) -> WorkerState:
        """Keep the figures of a report; returns the rest of it, which is all that pages and other processes need. `now` is monotonic."""
        if not any(_ran(each.figures) for each in state.listeners):
            return state
        seen = self._seen.setdefault(instance, {})
        others: list[HandlerFigures] = []
        for each in state.listeners:
            figures, name = each.figures, (each.queue, each.figures.handler)
            if name not in seen:
                if not self._has_room(seen, name, token):
                    others.append(figures)
                    continue
                if not self._may_mark(token, now):
                    continue
                self._names[token].add(name)
            self._keep(instance, name, ListenerTally(figures, started_at))
        if others:
            self._keep(instance, (OTHER, ""), ListenerTally(_together(others), started_at))
        listeners = tuple(msgspec.structs.replace(each, figures=NOTHING) for each in state.listeners)
        return msgspec.structs.replace(state, listeners=listeners)

    def _keep(self, instance: str, name: Listener, report: ListenerTally) -> None:
        seen, total = self._seen[instance], _ran(report.figures)
        if total > seen.get(name, 0):
            seen[name] = total
            self._fresh[(instance, *name)] = report

    def _has_room(self, seen: Mapping[Listener, int], name: Listener, token: str) -> bool:
        names = self._names.setdefault(token, set())
        return len(seen) < MOST_OF_A_PROCESS and (name in names or len(names) < MOST_OF_A_TOKEN)

    def _may_mark(self, token: str, now: float) -> bool:
        hour = now // HOUR
        counted, marks = self._marks.get(token, (hour, 0))
        marks = marks if counted == hour else 0
        self._marks[token] = hour, min(marks + 1, MARKS_AN_HOUR)
        return marks < MARKS_AN_HOUR

    def forget(self, instance: str) -> None:
        """Its socket has closed."""
        self._seen.pop(instance, None)

    def due(self) -> dict[Key, ListenerTally]:
        """What is to be saved; it is the caller's now."""
        fresh, self._fresh = self._fresh, {}
        return fresh

    def put_back(self, reports: Mapping[Key, ListenerTally]) -> None:
        """They could not be saved."""
        self._fresh = dict(reports) | self._fresh


def _together(figures: Iterable[HandlerFigures]) -> HandlerFigures:
    """The sums, which stay within the bounds of a report."""
    total = _Sum()
    for each in figures:
        total.add(each, NOTHING)
    return HandlerFigures(
        done=min(total.done, MAX_COUNT),
        failed=min(total.failed, MAX_COUNT),
        retried=min(total.retried, MAX_COUNT),
        durations={bucket: min(count, MAX_COUNT) for bucket, count in total.durations.items()},
        waits={bucket: min(count, MAX_COUNT) for bucket, count in total.waits.items()},
    )


def save(source: str, reports: Mapping[Key, ListenerTally], now: float) -> None:
    """Add what is new to the tallies (3). Blocking."""
    keys = sorted(reports)
    for start in range(0, len(keys), AT_ONCE):
        _save(source, {key: reports[key] for key in keys[start : start + AT_ONCE]}, now)


@transaction.atomic
def _save(source: str, reports: Mapping[Key, ListenerTally], now: float) -> None:
    TallyMark.objects.bulk_create(
        [
            TallyMark(source=source, instance=instance, queue=queue, handler=handler, counted="{}", at=now)
            for instance, queue, handler in reports
        ],
        ignore_conflicts=True,
    )
    marks = TallyMark.objects.select_for_update().filter(
        source=source, instance__in={key[0] for key in reports}
    )
    sums: dict[tuple[str, str], _Sum] = {}
    changed = []
    for mark in marks.order_by("pk"):
        report = reports.get((mark.instance, mark.queue, mark.handler))
        if report is None:
            continue
        before = msgspec.json.decode(mark.counted, type=HandlerFigures)
        if not _is_above(report.figures, before):
            continue
        most = MOST_A_SECOND * (max(0.0, now - report.started_at) + AHEAD_SECONDS)
        if _ran(report.figures) <= most:
            sums.setdefault((mark.queue, mark.handler), _Sum()).add(report.figures, before)
        mark.counted, mark.at = msgspec.json.encode(report.figures).decode(), now
        changed.append(mark)
    TallyMark.objects.bulk_update(changed, ["counted", "at"], batch_size=100)
    for seconds in REPORTED:
        _add(source, sums, seconds, int(now) // seconds * seconds)


def _ran(figures: HandlerFigures) -> int:
    return figures.done + figures.failed + figures.retried


def _is_above(now: HandlerFigures, before: HandlerFigures) -> bool:
    counts = ((now.done, before.done), (now.failed, before.failed), (now.retried, before.retried))
    return all(new >= old for new, old in counts) and any(new > old for new, old in counts)


class _Sum:
    """What several reports add."""

    def __init__(self) -> None:
        self.done = self.failed = self.retried = 0
        self.durations: Counter[int] = Counter()
        self.waits: Counter[int] = Counter()

    def add(self, now: HandlerFigures, before: HandlerFigures) -> None:
        self.done += now.done - before.done
        self.failed += now.failed - before.failed
        self.retried += now.retried - before.retried
        # Counter's own "-" leaves out what is not above 0.
        self.durations += Counter(now.durations) - Counter(before.durations)
        self.waits += Counter(now.waits) - Counter(before.waits)

    def add_sum(self, more: _Sum) -> None:
        self.done += more.done
        self.failed += more.failed
        self.retried += more.retried
        self._add_times(more.durations, more.waits)

    def _add_times(self, durations: Mapping[int, int], waits: Mapping[int, int]) -> None:
        # Thousands of rows: a Counter's own "+" makes a new one each time.
        for into, times in ((self.durations, durations), (self.waits, waits)):
            for bucket, count in times.items():
                into[bucket] = into.get(bucket, 0) + count

    def add_row(self, done: int, failed: int, retried: int, durations: str, waits: str) -> None:
        """What a tally has."""
        self.done += done
        self.failed += failed
        self.retried += retried
        self._add_times(_BUCKETS.decode(durations), _BUCKETS.decode(waits))


def _add(source: str, sums: Mapping[tuple[str, str], _Sum], seconds: int, start: int) -> None:
    if not sums:
        return
    there = Tally.objects.filter(source=source, seconds=seconds, start=start)
    room = MOST_LISTENERS - there.count()
    known = set(there.values_list("queue", "handler")) if room < len(sums) else set(sums)
    folded: dict[tuple[str, str], _Sum] = {}
    for name in sorted(sums):
        kept = name if name in known or room > 0 else (OTHER, "")
        room -= name not in known
        total = folded.setdefault(kept, _Sum())
        each = sums[name]
        total.done, total.failed, total.retried = (
            total.done + each.done, total.failed + each.failed, total.retried + each.retried,
        )  # fmt: skip
        total.durations += each.durations
        total.waits += each.waits
    values = {"source": source, "seconds": seconds, "start": start}
    Tally.objects.bulk_create(
        [Tally(queue=queue, handler=handler, **values) for queue, handler in folded], ignore_conflicts=True
    )
    rows = there.select_for_update().filter(queue__in={queue for queue, _ in folded}).order_by("pk")
    changed = []
    for row in rows:
        more = folded.get((row.queue, row.handler))
        if more is None:
            continue
        row.done, row.failed, row.retried = (
            row.done + more.done,
            row.failed + more.failed,
            row.retried + more.retried,
        )
        row.durations = _packed(_unpacked(row.durations) + more.durations)
        row.waits = _packed(_unpacked(row.waits) + more.waits)
        changed.append(row)
    Tally.objects.bulk_update(changed, ["done", "failed", "retried", "durations", "waits"], batch_size=100)


def _packed(buckets: Counter[int]) -> str:
    return json.dumps(dict(sorted(buckets.items())), separators=(",", ":"))


def _unpacked(text: str) -> Counter[int]:
    return Counter({int(bucket): count for bucket, count in json.loads(text).items()})


def forget_old() -> None:
    """Remove what is older than `KEPT`; marks of processes that have not reported for a month."""
    now = time.time()
    for seconds, kept in KEPT.items():
        Tally.objects.filter(seconds=seconds, start__lt=now - kept).delete()
    TallyMark.objects.filter(at__lt=now - KEPT[HOUR]).delete()


def roll_up(now: float) -> None:
    """Add up the hours of each day that has been over for an hour, the oldest day first. Blocking; harmless if done twice."""
    for source in Tally.objects.filter(seconds=HOUR).values_list("source", flat=True).distinct():
        first = Tally.objects.filter(source=source, seconds=HOUR).aggregate(Min("start"))["start__min"]
        oldest = max(first // WHOLE_DAY * WHOLE_DAY, _rolled_until(source))
        for day in range(oldest, int(now - HOUR) // WHOLE_DAY * WHOLE_DAY, WHOLE_DAY):
            _roll_up(source, day)


@transaction.atomic
def _roll_up(source: str, day: int) -> None:
    """All listeners of a day at once: whoever sees one row of a day sees all."""
    hours = Tally.objects.filter(source=source, seconds=HOUR, start__gte=day, start__lt=day + WHOLE_DAY)
    rows = [
        Tally(
            source=source,
            seconds=WHOLE_DAY,
            start=day,
            queue=queue,
            handler=handler,
            done=total.done,
            failed=total.failed,
            retried=total.retried,
            durations=_packed(total.durations),
            waits=_packed(total.waits),
        )
        for (queue, handler), total in sorted(_sums(hours).items())
    ]
    Tally.objects.bulk_create(rows, ignore_conflicts=True, batch_size=500)


def _rolled_until(source: str) -> int:
    """The end of the newest day that is added up; days before it without a row had nothing."""
    newest = Tally.objects.filter(source=source, seconds=WHOLE_DAY).aggregate(Max("start"))["start__max"]
    return 0 if newest is None else newest + WHOLE_DAY


class Throughput(msgspec.Struct, frozen=True):
    """What the handler of a queue did within a span. Times are in seconds, no more than a fifth too long; None: nothing ran.

    `done_before` is `done` of the same span a day or a week before, None where no tallies of it are kept. It is a sum of whole
    hours; of those in which the span begins and ends, it has the part that lies within.
    """

    queue: str
    handler: str
    done: int
    failed: int
    retried: int
    seconds: float
    handler_p50: float | None
    handler_p95: float | None
    handler_p99: float | None
    wait_p50: float | None
    wait_p95: float | None
    wait_p99: float | None
    done_before: int | None = None

    @property
    def per_minute(self) -> float:
        return self.done * 60 / self.seconds

    @property
    def failed_share(self) -> float | None:
        ran = self.done + self.failed + self.retried
        return self.failed / ran if ran else None


DAY, WEEK = 86_400.0, 7 * 86_400.0


class Piece(NamedTuple):
    """A part of a span, of tallies of one length."""

    step: int
    first: int
    end: int


def _pieces(source: str, first: int, end: int) -> list[Piece]:
    """A span of whole hours: its whole days, as far as they are added up, and the hours before and after."""
    day = -(-first // WHOLE_DAY) * WHOLE_DAY
    rolled = min(_rolled_until(source), end // WHOLE_DAY * WHOLE_DAY)
    if rolled <= day:
        return [Piece(HOUR, first, end)]
    pieces = (Piece(HOUR, first, day), Piece(WHOLE_DAY, day, rolled), Piece(HOUR, rolled, end))
    return [piece for piece in pieces if piece.first < piece.end]


def _of_span(source: str, seconds: float, now: float) -> list[Piece]:
    """What the tallies of a span that ends now are, the last of them the one that is not over yet."""
    step, since = _begins(seconds, now)
    end = int(now - SETTLED_SECONDS) // step * step
    over = _pieces(source, since, end) if step == HOUR else [Piece(step, since, end)]
    return [*over, Piece(step, end, end + 2 * step)]


class PastSums:
    """The sums of listeners over what is over, kept while they are asked for again. For several threads."""

    MOST = 32

    def __init__(self) -> None:
        self._kept: dict[tuple[str, Piece, Collection[Listener]], Mapping[Listener, _Sum]] = {}

    def sums(self, source: str, piece: Piece, only: frozenset[Listener]) -> Mapping[Listener, _Sum]:
        """They are not the caller's to change."""
        key = (source, piece, only)
        found = self._kept.get(key)
        if found is None:
            found = _sums(_rows(source, piece, only))
            if len(self._kept) >= self.MOST:
                self._kept.clear()
            self._kept[key] = found
        return found


def throughput(
    source: str,
    seconds: float,
    now: float,
    *,
    before: float = WEEK,
    only: frozenset[Listener] | None = None,
    past: PastSums | None = None,
) -> tuple[Throughput, ...]:
    """Each listener's handlers over the last `seconds`, by queue and handler, beside what they did `before` seconds earlier.

    A span begins with a whole minute, or hour if it is long. With `only` those listeners alone, and then what is over may be
    in `past`.
    """
    since = _begins(seconds, now)[1]
    *over, last = _of_span(source, seconds, now)
    sums: dict[Listener, _Sum] = {}
    for piece in (*over, last):
        if past is not None and only is not None and piece is not last:
            found = past.sums(source, piece, only)
        else:
            found = _sums(_rows(source, piece, only))
        for name, total in found.items():
            sums.setdefault(name, _Sum()).add_sum(total)
    if only is not None:
        sums = {name: total for name, total in sums.items() if name in only}
    earlier = _done(source, since - before, now - before, now, only)
    return tuple(_throughput(name, sums[name], max(1.0, now - since), earlier) for name in sorted(sums))


def _rows(source: str, piece: Piece, only: Collection[Listener] | None = None) -> QuerySet[Tally]:
    rows = Tally.objects.filter(
        source=source, seconds=piece.step, start__gte=piece.first, start__lt=piece.end
    )
    return rows if only is None else rows.filter(queue__in={queue for queue, _ in only})


SHARES = (0.5, 0.95, 0.99)


def _throughput(
    name: Listener, total: _Sum, seconds: float, earlier: Mapping[Listener, int] | None
) -> Throughput:
    (handler_p50, handler_p95, handler_p99), (wait_p50, wait_p95, wait_p99) = (
        quantiles(times, SHARES) for times in (total.durations, total.waits)
    )
    return Throughput(
        queue=name[0],
        handler=name[1],
        done=total.done,
        failed=total.failed,
        retried=total.retried,
        seconds=seconds,
        handler_p50=handler_p50,
        handler_p95=handler_p95,
        handler_p99=handler_p99,
        wait_p50=wait_p50,
        wait_p95=wait_p95,
        wait_p99=wait_p99,
        done_before=None if earlier is None else earlier.get(name, 0),
    )


def listeners(source: str, seconds: float, now: float) -> list[Listener]:
    """The listeners of which a handler ended in the last `seconds`, by name."""
    found: set[Listener] = set()
    for piece in _of_span(source, seconds, now):
        found.update(_rows(source, piece).values_list("queue", "handler").distinct())
    return sorted(found)


def _begins(seconds: float, now: float) -> tuple[int, int]:
    """Of which length the tallies of a span are, and with which it begins."""
    step = MINUTE if seconds <= KEPT[MINUTE] / 2 else HOUR
    return step, int(now - seconds) // step * step


class Minute(NamedTuple):
    """What all handlers of an account did within a minute: items by how they ended, and the p95 of their times in seconds."""

    done: float | None = 0
    failed: float | None = 0
    retried: float | None = 0
    handler_p95: float | None = None
    wait_p95: float | None = None


def minutes(source: str, first: int, end: int) -> list[Minute]:
    """The minutes from one to another, oldest first."""
    rows = Tally.objects.filter(source=source, seconds=MINUTE, start__gte=first, start__lt=end)
    found: dict[int, _Sum] = {}
    for start, *values in rows.values_list("start", *_COLUMNS[2:]).iterator():
        found.setdefault(start, _Sum()).add_row(*values)
    return [_minute(found.get(start), 1) for start in range(first, end, MINUTE)]


def a_minute_of(source: str, at: float) -> Minute | None:
    """The mean minute of the hour around a moment of the past; None if nothing is known of it."""
    low, high = at - HOUR / 2, at + HOUR / 2
    total, weight = _Sum(), 0.0
    rows = Tally.objects.filter(source=source, seconds=HOUR, start__gt=low - HOUR, start__lt=high)
    done = failed = retried = 0.0
    for start, *values in rows.values_list("start", *_COLUMNS[2:]).iterator():
        part = (min(high, start + HOUR) - max(low, start)) / HOUR
        done, failed, retried = done + part * values[0], failed + part * values[1], retried + part * values[2]
        total.add_row(*values)
        weight += part
    if not weight:
        return None
    return _minute(total, 60)._replace(done=done / 60, failed=failed / 60, retried=retried / 60)


def _minute(total: _Sum | None, count: int) -> Minute:
    if total is None:
        return Minute()
    return Minute(
        total.done / count,
        total.failed / count,
        total.retried / count,
        quantile(total.durations, 0.95),
        quantile(total.waits, 0.95),
    )


def _done(
    source: str, since: float, until: float, now: float, only: Collection[Listener] | None
) -> dict[tuple[str, str], int] | None:
    """What ended within a span of the past, by queue and handler."""
    if since < now - KEPT[HOUR]:
        return None
    first, end = -(-int(since) // HOUR) * HOUR, int(until) // HOUR * HOUR
    found: Counter[tuple[str, str]] = Counter()
    for piece in _pieces(source, first, end) if first < end else ():
        sums = _rows(source, piece, only).values_list("queue", "handler").annotate(Sum("done"))
        for queue, handler, done in sums:
            found[queue, handler] += done
    parts: defaultdict[tuple[str, str], float] = defaultdict(float)
    for edge in {int(since) // HOUR * HOUR, end} - set(range(first, end, HOUR)):
        part = (min(until, edge + HOUR) - max(since, edge)) / HOUR
        if part > 0:
            rows = _rows(source, Piece(HOUR, edge, edge + HOUR), only)
            for queue, handler, done in rows.values_list("queue", "handler", "done"):
                parts[queue, handler] += done * part
    for name, share in parts.items():
        found[name] += round(share)
    return dict(found) if found or Tally.objects.filter(source=source, start__lte=since).exists() else None


_COLUMNS = ("queue", "handler", "done", "failed", "retried", "durations", "waits")
_BUCKETS = msgspec.json.Decoder(dict[int, int])


def _sums(rows: QuerySet[Tally]) -> dict[tuple[str, str], _Sum]:
    sums: dict[tuple[str, str], _Sum] = {}
    for queue, handler, *values in rows.values_list(*_COLUMNS).iterator():
        total = sums.get((queue, handler))
        if total is None:
            total = sums[queue, handler] = _Sum()
        total.add_row(*values)
    return sums
