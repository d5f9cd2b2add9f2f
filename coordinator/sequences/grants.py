"""Who was granted which numbers, and how a counter blob carries the newest grants. Pure: no I/O, no clock."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from coordinator.errors import ConfigurationError, SequenceCorrupt, SequenceExhausted, SequenceLowered

HIGHEST = 2**63 - 1
"""The largest number a sequence can reach: what a 64-bit column holds."""

GRANTED, USED, RETURNED, FREE = "granted", "used", "returned", "free"

_NUMBER = re.compile(r"[0-9]{1,19}")
_GRANTS, _OWNERS, _NEXT, _START = "kennel_grants", "kennel_owners", "kennel_next", "kennel_start"
_JUMPS, _TAILS, _MOVER, _SINCE = "kennel_jumps", "kennel_tails", "kennel_mover", "kennel_since"
_WINDOW = "kennel_window"
_OURS = (_GRANTS, _OWNERS, _NEXT, _START, _JUMPS, _TAILS, _MOVER, _SINCE, _WINDOW)


@dataclass(frozen=True, slots=True)
class Owner:
    """One process start: `id` is unique to it; `started_at` is wall-clock seconds since 1970."""

    id: str
    host: str = ""
    pid: int = 0
    started_at: int = 0
    software: str = ""


NOBODY = Owner("")


@dataclass(frozen=True, slots=True)
class Grant:
    """The numbers `first`, `first` + `step`, … up to `last`, given to one owner by one conditional write.

    `last` closes the span: the next grant begins at `last` + 1. `turn` is 0 for a grant from the counter, 1, 2, … when
    the unused end of a grant was returned and granted again. `outcome` is "granted" (in use, or lost with its owner),
    "used" (issued to the end), "returned" (issued up to `issued_through`) or "free" (returned, nobody has it yet).
    """

    first: int
    last: int
    owner: Owner
    nonce: str
    granted_at: float
    step: int = 1
    turn: int = 0
    outcome: str = GRANTED
    issued_through: int | None = None

    @property
    def key(self) -> str:
        """The ledger's row key: sorts by number, then by turn."""
        return row_key(self.last, self.turn)

    @property
    def covers_to(self) -> int:
        """The last number this grant answers for: what was returned is another grant's."""
        return (
            self.issued_through if self.outcome == RETURNED and self.issued_through is not None else self.last
        )

    @property
    def numbers(self) -> range:
        """The numbers it may issue."""
        return range(self.first, self.last + 1, self.step)

    def settled(self, outcome: str, issued_through: int | None = None) -> Grant:
        return replace(self, outcome=outcome, issued_through=issued_through)


@dataclass(frozen=True, slots=True)
class Jump:
    """A stretch in which somebody else moved the counter: numbers inside without a grant are unattributed."""

    first: int
    last: int


def row_key(last: int, turn: int = 0) -> str:
    return f"{last:020d}-{turn:04d}" if turn else f"{last:020d}"


@dataclass(frozen=True)
class Counter:
    """A counter blob as read: the next free number, and what its metadata says of the newest grants.

    `noted` is the next number by the metadata; it differs from `value` only if a writer that knows no metadata was
    there (or left none: None). `others` is metadata that is not ours and is kept.
    """

    value: int
    etag: str | None
    grants: tuple[Grant, ...] = ()
    jumps: tuple[Jump, ...] = ()
    noted: int | None = None
    start: int | None = None
    tails: bool = False
    mover: str = ""
    since: int | None = None
    window: float = 0.0
    others: Mapping[str, str] = field(default_factory=dict)

    def find(self, nonce: str) -> Grant | None:
        """The grant that carries this nonce, if its write was committed."""
        return next((grant for grant in self.grants if grant.nonce == nonce), None)

    def granting(
        self,
        sequence: str,
        *,
        count: int,
        step: int,
        upper_bound: int,
        owner: Owner,
        nonce: str,
        at: float,
        ranges: int = 1,
    ) -> tuple[Grant, ...]:
        """The grants of up to `count` numbers each that would follow; fewer if the upper bound is nearer.

        Raises `SequenceExhausted` if not one number is left.
        """
        left = (upper_bound - self.value) // step + 1
        if left <= 0:
            raise SequenceExhausted(
                f"sequence {sequence}: the next number would be {self.value}, its upper bound is {upper_bound}",
                sequence=sequence,
            )
        ranges = min(ranges, -(-left // count))
        lasts = [self.value + min((place + 1) * count, left) * step - 1 for place in range(ranges)]
        return tuple(_spread(Grant(self.value, 0, owner, nonce, at, step), lasts))

    def knowing(self, used: Mapping[str, Grant]) -> Counter:
        """The counter with a note at each of these grants (by nonce) that is still on it: all its numbers were issued."""
        if not any(one.nonce in used for one in self.grants):
            return self
        return replace(self, grants=tuple(used.get(one.nonce, one) for one in self.grants))

    def after(
        self, *grants: Grant, moved: frozenset[str] | set[str] = frozenset(), mover: str | None = None
    ) -> Counter:
        """The counter once `grants` are written; grants in `moved` (nonces) are in the ledger and dropped here."""
        kept = tuple(one for one in self.grants if one.nonce not in moved)
        return replace(
            self, value=grants[-1].last + 1, noted=grants[-1].last + 1, grants=(*kept, *grants),
            mover=self.mover if mover is None else mover,
        )  # fmt: skip

    def text(self) -> str:
        """The blob's content: the next free number and nothing else."""
        return str(self.value)

    def metadata(self) -> dict[str, str]:
        """The blob's metadata: ASCII, compact."""
        owners = list(dict.fromkeys(grant.owner for grant in self.grants))
        index = {owner: place for place, owner in enumerate(owners)}
        metadata = {
            **self.others,
            _NEXT: str(self.value),
            _GRANTS: _pack(
                [
                    [
                        g.first,
                        lasts if len(lasts) > 1 else g.last,
                        g.step,
                        g.nonce,
                        index[g.owner],
                        round(g.granted_at, 3),
                    ]
                    + ([1] if g.outcome == USED else [])
                    for g, lasts in _runs(self.grants)
                ]
            ),
            _OWNERS: _pack([[o.id, o.host, o.pid, o.started_at, o.software] for o in owners]),
        }
        if self.start is not None:
            metadata[_START] = str(self.start)
        if self.jumps:
            metadata[_JUMPS] = _pack([[jump.first, jump.last] for jump in self.jumps])
        if self.tails:
            metadata[_TAILS] = "1"
        if self.since is not None:
            metadata[_SINCE] = str(self.since)
        if self.window:
            metadata[_WINDOW] = f"{self.window:.3g}"
        if self.mover:
            metadata[_MOVER] = self.mover
        return metadata


def _spread(grant: Grant, lasts: Sequence[int]) -> Iterator[Grant]:
    """The grants of one write: each begins where the one before ends, and counts its nonce on."""
    for last in map(int, lasts):
        grant = replace(grant, last=last)
        yield grant
        grant = replace(grant, first=last + 1, nonce=_next_nonce(grant.nonce))


def _runs(grants: Sequence[Grant]) -> Iterator[tuple[Grant, list[int]]]:
    """The first grant of each run that `_spread` would make, and where the grants of the run end."""
    run: tuple[Grant, list[int]] | None = None
    follower: Grant | None = None
    for grant in grants:
        if run is None or follower != replace(grant, last=0):
            if run is not None:
                yield run
            run = grant, []
        run[1].append(grant.last)
        follower = replace(grant, first=grant.last + 1, last=0, nonce=_next_nonce(grant.nonce))
    if run is not None:
        yield run


def _next_nonce(nonce: str) -> str:
    base, _, place = nonce.partition(".")
    return f"{base}.{int(place or 0) + 1}"


def metadata_bytes(metadata: Mapping[str, str]) -> int:
    """How much of the service's 8 KiB a set of metadata takes."""
    return sum(len(key) + len(value) for key, value in metadata.items())


def parse_number(sequence: str, text: str) -> int:
    """The next free number in a counter's text; raises `SequenceCorrupt` naming the text, never guesses."""
    stripped = text.removeprefix("\ufeff").strip()
    if not _NUMBER.fullmatch(stripped) or int(stripped) > HIGHEST:
        found = text if len(text) <= 60 else text[:60] + "…"
        raise SequenceCorrupt(
            f"sequence {sequence}: the counter holds {found!r} instead of a number; no number is issued. "
            f"`python -m coordinator ids repair {sequence}` shows what the ledger says it should be",
            sequence=sequence,
            found=found,
        )
    return int(stripped)


def read_counter(sequence: str, text: str, etag: str | None, metadata: Mapping[str, str]) -> Counter:
    """Decode a counter. Raises `SequenceCorrupt` for what cannot be read, `SequenceLowered` if the number is below
    what its own metadata has granted."""
    value = parse_number(sequence, text)
    lowered = {key.lower(): entry for key, entry in metadata.items()}
    others = {key: entry for key, entry in metadata.items() if key.lower() not in _OURS}
    try:
        owners = [Owner(*entry) for entry in _unpack(lowered.get(_OWNERS))]
        grants = tuple(
            grant
            for first, lasts, step, nonce, place, at, *used in _unpack(lowered.get(_GRANTS))
            for grant in _spread(
                Grant(
                    int(first),
                    0,
                    owners[place],
                    str(nonce),
                    float(at),
                    int(step),
                    outcome=USED if used else GRANTED,
                ),
                lasts if isinstance(lasts, list) else [lasts],
            )
        )
        jumps = tuple(Jump(int(first), int(last)) for first, last in _unpack(lowered.get(_JUMPS)))
        noted = int(lowered[_NEXT]) if _NEXT in lowered else None
        start = int(lowered[_START]) if _START in lowered else None
        window = float(lowered.get(_WINDOW, 0))
        since = int(lowered[_SINCE]) if _SINCE in lowered and noted is not None else None
    except (ValueError, TypeError, IndexError) as error:
        raise SequenceCorrupt(
            f"sequence {sequence}: the metadata of the counter cannot be read ({error}); "
            f"`python -m coordinator ids repair {sequence}` shows what can be done",
            sequence=sequence,
            found=str({key: lowered[key] for key in _OURS if key in lowered})[:200],
        ) from error
    highest = max((grant.last + 1 for grant in grants), default=0)
    if value < max(highest, noted or 0):
        raise lowered_error(sequence, value, max(highest, noted or 0), "its own metadata")
    return Counter(
        value, etag, grants, jumps, noted, start, _TAILS in lowered, lowered.get(_MOVER, ""), since, window, others
    )  # fmt: skip


def lowered_error(sequence: str, found: int, expected: int, witness: str) -> SequenceLowered:
    return SequenceLowered(
        f"sequence {sequence}: the counter says {found}, but by {witness} it must be at least {expected}; issuing would "
        f"repeat numbers, so none is issued. `python -m coordinator ids repair {sequence}` shows how to raise it",
        sequence=sequence,
    )


def note_jump(counter: Counter, *, known_next: int) -> Counter:
    """Record that somebody else moved the counter, if its metadata does not account for its value.

    `known_next` is the lowest next number that is certain from elsewhere, for when no metadata was left.
    """
    before = counter.noted if counter.noted is not None else known_next
    if before >= counter.value:
        return counter
    jumps = (*counter.jumps, Jump(before, counter.value - 1))
    # With the metadata the hint at returned numbers was lost, too: look once.
    return replace(counter, jumps=jumps, noted=counter.value, tails=counter.tails or counter.noted is None)


@dataclass(frozen=True, kw_only=True)
class SequenceConfig:
    """How one sequence is used by this process. All generators of a sequence should agree on start, step and bound.

    range_size: numbers taken at a time (default 1000). Small loses few numbers in a crash and asks storage often;
        large the reverse.
    min_range_size, max_range_size: bounds within which the size adapts so that a range lasts `range_seconds`
        (defaults: `range_size`, and 1000 times that). Equal bounds switch adapting off.
    range_seconds: how long a range should last (default 10): a write every so many seconds.
    start: first number of a new sequence (default 1). step: distance of numbers (default 1).
    upper_bound: last number that may be issued (default 2^63 - 1); beyond it `SequenceExhausted`.
    max_retries: lost races before `SequenceContended` (default 25).
    deadline_seconds: longest time spent on one range, and longest time a caller waits for one (default 30).
    return_tails: give unused numbers back on close, and use returned ones first (default True).
    """

    range_size: int = 1000
    min_range_size: int | None = None
    max_range_size: int | None = None
    range_seconds: float = 10.0
    start: int = 1
    step: int = 1
    upper_bound: int = HIGHEST
    max_retries: int = 25
    deadline_seconds: float = 30.0
    return_tails: bool = True

    def __post_init__(self) -> None:
        smallest, largest = self.sizes
        checks = (
            (
                1 <= smallest <= self.range_size <= largest,
                "1 <= min_range_size <= range_size <= max_range_size",
            ),
            (largest <= 10**9, "max_range_size at most 1,000,000,000"),
            (0.05 <= self.range_seconds <= 3600, "range_seconds between 0.05 and 3600"),
            (0 <= self.start <= self.upper_bound <= HIGHEST, f"0 <= start <= upper_bound <= {HIGHEST}"),
            (1 <= self.step <= 10**6, "step between 1 and 1,000,000"),
            (0 <= self.max_retries <= 10_000, "max_retries between 0 and 10,000"),
            (0.1 <= self.deadline_seconds <= 3600, "deadline_seconds between 0.1 and 3600"),
        )
        for holds, rule in checks:
            if not holds:
                raise ConfigurationError(f"sequence settings need {rule}; got {self}")

    @property
    def sizes(self) -> tuple[int, int]:
        """The smallest and the largest range."""
        smallest = self.range_size if self.min_range_size is None else self.min_range_size
        largest = self.range_size * 1000 if self.max_range_size is None else self.max_range_size
        return smallest, min(largest, 10**9) if self.max_range_size is None else largest


def _pack(value: Sequence[Any]) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True)


def _unpack(text: str | None) -> list[Any]:
    if not text:
        return []
    value = json.loads(text)
    if not isinstance(value, list):
        raise ValueError("a list was expected")
    return value
