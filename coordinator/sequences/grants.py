"""Who was granted which numbers, and how a counter blob carries the newest grants. Pure: no I/O, no clock."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

from coordinator.errors import (
    ConfigurationError,
    SequenceCorrupt,
    SequenceExhausted,
    SequenceLowered,
    SequenceOverwritten,
)

HIGHEST = 2**63 - 1
"""The largest number a sequence can reach: what a 64-bit column holds."""

GRANTED, USED, RETURNED, FREE = "granted", "used", "returned", "free"

_NUMBER = re.compile(r"[0-9]{1,19}")
_GRANTS, _OWNERS, _NEXT, _START = "kennel_grants", "kennel_owners", "kennel_next", "kennel_start"
_JUMPS, _TAILS, _SINCE, _WINDOW = "kennel_jumps", "kennel_tails", "kennel_since", "kennel_window"
_HEAD = "kennel_head"
_FORMER = ("kennel_mover",)
_OURS = (_GRANTS, _OWNERS, _NEXT, _START, _JUMPS, _TAILS, _SINCE, _WINDOW, _HEAD, *_FORMER)
_KEY = re.compile(r"[0-9]{20}-[0-9]{4,}")
_NONCE = re.compile(r"[A-Za-z0-9.-]{1,64}")
MOST_RETURNED_RANGES = 40
"""How many returned ends a counter offers; more are not used again."""


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

    `last` closes the span: the next grant begins at `last` + 1. `generation` is 0 for a grant from the counter, 1, 2, … when
    the unused end of a grant was returned and granted again. `outcome` is "granted" (in use, or lost with its owner),
    "used" (issued to the end), "returned" (issued until `issued_through`) or "free" (returned, nobody has it yet).
    """

    first: int
    last: int
    owner: Owner
    nonce: str
    granted_at: float
    step: int = 1
    generation: int = 0
    outcome: str = GRANTED
    issued_through: int | None = None

    @property
    def key(self) -> str:
        """The ledger's row key: sorts by number, then by generation."""
        return row_key(self.last, self.generation)

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
class ExternalAdvance:
    """A stretch in which somebody else moved the counter: numbers inside without a grant are unattributed."""

    first: int
    last: int


def unused_end_of(grant: Grant, issued_through: int) -> Grant:
    """What is left of a grant that was returned: free, behind the grant it came from."""
    return Grant(
        issued_through + 1, grant.last, grant.owner, "", grant.granted_at, grant.step, grant.generation + 1, FREE
    )  # fmt: skip


def row_key(last: int, generation: int = 0) -> str:
    return f"{last:020d}-{generation:04d}" if generation else f"{last:020d}"


@dataclass(frozen=True)
class Counter:
    """A counter as read: the next free number, and what its metadata says.

    `grants` are those that may not be in the ledger yet. `noted` is the next number by the metadata; it differs from
    `value` only if a writer that knows no metadata was there (or left none: None). `returned_ranges` are the ledger's keys of
    returned ends that may be granted again. `head` is the nonce of the newest grant, if its writer keeps the head of the
    ledger. `others` is metadata that is not ours and is kept.
    """

    value: int
    etag: str | None
    grants: tuple[Grant, ...] = ()
    advances: tuple[ExternalAdvance, ...] = ()
    noted: int | None = None
    start: int | None = None
    returned_ranges: tuple[str, ...] = ()
    since: int | None = None
    window: float = 0.0
    others: Mapping[str, str] = field(default_factory=dict)
    head: str = ""

    def find(self, nonce: str) -> Grant | None:
        """The grant that carries this nonce, if its write was committed."""
        return next((grant for grant in self.grants if grant.nonce == nonce), None)

    @property
    def newest(self) -> str:
        """The nonce of the grant that ends where the counter stands; empty unless a writer of the head left it like that."""
        if not self.grants or self.noted != self.value:
            return ""
        grant = self.grants[-1]
        return self.head if (grant.nonce, grant.last + 1) == (self.head, self.value) else ""

    def granting(
        self, sequence: str, *, count: int, step: int, upper_bound: int, owner: Owner, nonce: str, at: float
    ) -> Grant:
        """The grant of up to `count` numbers that would follow; fewer if the upper bound is nearer.

        Raises `SequenceExhausted` if not one number is left.
        """
        left = (upper_bound - self.value) // step + 1
        if left <= 0:
            raise SequenceExhausted(
                f"sequence {sequence}: the next number would be {self.value}, its upper bound is {upper_bound}",
                sequence=sequence,
            )
        return Grant(self.value, self.value + min(count, left) * step - 1, owner, nonce, at, step)

    def after(self, grant: Grant) -> Counter:
        """The counter once `grant` is written."""
        return replace(
            self, value=grant.last + 1, noted=grant.last + 1, grants=(*self.grants, grant), head=grant.nonce
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
                    [g.first, g.last, g.step, g.nonce, index[g.owner], round(g.granted_at, 3)]
                    + ([1] if g.outcome == USED else [])
                    for g in self.grants
                ]
            ),
            _OWNERS: _pack([[o.id, o.host, o.pid, o.started_at, o.software] for o in owners]),
        }
        if self.start is not None:
            metadata[_START] = str(self.start)
        if self.advances:
            metadata[_JUMPS] = _pack([[advance.first, advance.last] for advance in self.advances])
        if self.returned_ranges:
            metadata[_TAILS] = ",".join(self.returned_ranges)
        if self.since is not None:
            metadata[_SINCE] = str(self.since)
        if self.window:
            metadata[_WINDOW] = f"{self.window:.3g}"
        if self.head:
            metadata[_HEAD] = self.head
        return metadata


def _spread(grant: Grant, lasts: Sequence[int]) -> Iterator[Grant]:
    """The grants of one write of release 0.1: each begins where the one before ends, and counts its nonce on."""
    base = grant.nonce.partition(".")[0]
    for place, last in enumerate(map(int, lasts), int(grant.nonce.partition(".")[2] or 0)):
        grant = replace(grant, last=last, nonce=f"{base}.{place}" if place else base)
        yield grant
        grant = replace(grant, first=last + 1)


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
        advances = tuple(
            ExternalAdvance(int(first), int(last)) for first, last in _unpack(lowered.get(_JUMPS))
        )
        noted = int(lowered[_NEXT]) if _NEXT in lowered else None
        start = int(lowered[_START]) if _START in lowered else None
        window = float(lowered.get(_WINDOW, 0))
        head = lowered.get(_HEAD, "")
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
    # Release 0.1 wrote "1" for "there are some": those are not used again.
    returned_ranges = tuple(key for key in lowered.get(_TAILS, "").split(",") if _KEY.fullmatch(key))
    head = head if _NONCE.fullmatch(head) else ""
    return Counter(value, etag, grants, advances, noted, start, returned_ranges, since, window, others, head)


def lowered_error(sequence: str, found: int, expected: int, witness: str) -> SequenceLowered:
    return SequenceLowered(
        f"sequence {sequence}: the counter says {found}, but by {witness} it must be at least {expected}; issuing would "
        "repeat numbers, so none is issued. Either a backup was restored, or another program writes the counter without "
        f"regard to its ETag: stop that program; `python -m coordinator ids repair {sequence}` shows how to raise the counter",
        sequence=sequence,
    )


def overwritten_error(sequence: str, found: int) -> SequenceOverwritten:
    return SequenceOverwritten(
        f"sequence {sequence}: the counter says {found}, where the last grant in the ledger ends, but its metadata is gone: "
        "another program wrote the same number without regard to the ETag, and may issue numbers that are granted here, or "
        "somebody removed the metadata; no number is issued. Stop that program, then "
        f"`python -m coordinator ids repair {sequence}` shows how to go on",
        sequence=sequence,
    )


def note_advance(counter: Counter, *, known_next: int) -> Counter:
    """Record that somebody else moved the counter, if its metadata does not account for its value.

    `known_next` is the lowest next number that is certain from elsewhere, for when no metadata was left.
    """
    before = counter.noted if counter.noted is not None else known_next
    if before >= counter.value:
        return counter
    return replace(
        counter, advances=(*counter.advances, ExternalAdvance(before, counter.value - 1)), noted=counter.value
    )


class SequenceOptions(TypedDict, total=False):
    """The fields of `SequenceConfig`; `container` and `blob` are where the counter is, if not where Kennel puts it."""

    range_size: int
    min_range_size: int | None
    max_range_size: int | None
    range_seconds: float
    start: int
    step: int
    upper_bound: int
    max_retries: int
    deadline_seconds: float
    return_tails: bool
    container: str
    blob: str


@dataclass(frozen=True, kw_only=True)
class SequenceConfig:
    """How one sequence is used by this process. All generators of a sequence should agree on start, step and bound.

    Attributes:
        range_size: Numbers taken at a time (default 1,000). Small loses few numbers in a crash and asks storage
            often; large the reverse.
        min_range_size: Smallest range (default: `range_size`). The size adapts so that a range lasts `range_seconds`;
            equal bounds switch that off.
        max_range_size: Largest range (default: 1,000 times `range_size`).
        range_seconds: How long a range should last, in seconds (default 12).
        start: First number of a new sequence (default 1).
        step: Distance of two numbers (default 1).
        upper_bound: Last number that may be issued (default 2^63 - 1).
        max_retries: Lost races before `SequenceContended` (default 100).
        deadline_seconds: Longest time spent on one range, and longest time a caller waits for one (default 30).
        return_tails: Return unused numbers on close, and use returned ones first (default True).

    Raises:
        ConfigurationError: A value is out of bounds.
    """

    range_size: int = 1000
    min_range_size: int | None = None
    max_range_size: int | None = None
    range_seconds: float = 12.0
    start: int = 1
    step: int = 1
    upper_bound: int = HIGHEST
    max_retries: int = 100
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
