"""Putting a damaged counter right: first a plan to look at, then one conditional write."""

from __future__ import annotations

from dataclasses import dataclass, replace

from coordinator.errors import (
    ConfigurationError,
    NotFound,
    SequenceCorrupt,
    SequenceError,
    SequenceMissing,
)
from coordinator.sequences.grants import HIGHEST, Counter, ExternalAdvance, read_counter
from coordinator.sequences.store import Ledger, OptimisticSyncStore


@dataclass(frozen=True)
class Repair:
    """What is wrong, what would be written, and why. `counter` is None if nothing is wrong."""

    problem: str
    reason: str
    counter: Counter | None

    @property
    def next_number(self) -> int | None:
        return self.counter.value if self.counter else None


def plan_repair(
    name: str, store: OptimisticSyncStore, ledger: Ledger, *, next_number: int | None = None
) -> Repair:
    """Look at counter and ledger, write nothing.

    The new counter is above everything that the ledger, its head or the metadata knows as granted; numbers of others that
    it skips show as unattributed. `next_number` overrides the proposal, but never downwards into granted numbers. Returned
    numbers that only the ledger has are not offered again.
    """
    by_ledger = max([ledger.head(), *(row.last + 1 for row in ledger.rows())])
    problem, salvaged = _salvage(name, store, known=by_ledger > 0)
    granted = max([by_ledger, salvaged.noted or 0, *(grant.last + 1 for grant in salvaged.grants)])
    if not problem and not granted and salvaged.etag is None:
        raise SequenceMissing(
            f"sequence {name}: there is no such sequence: neither a counter nor a ledger", sequence=name
        )
    if not problem and salvaged.noted is None and salvaged.value == by_ledger:
        problem = f"the counter says {salvaged.value} without metadata, where the last grant ends"
    lowered = salvaged.value < granted
    if not problem and not lowered and next_number in (None, salvaged.value):
        return Repair("", f"the counter says {salvaged.value}; all that is granted lies below", None)
    if not problem:
        problem = (
            f"the counter says {salvaged.value}, but numbers up to {granted - 1} are granted"
            if lowered
            else "as you asked"
        )
    proposed, reason = max(granted, salvaged.value), "above all that the ledger and the metadata know"
    if next_number is not None:
        if not proposed <= next_number <= HIGHEST:
            raise ConfigurationError(
                f"sequence {name}: the next number must be at least {proposed}, got {next_number}"
            )
        proposed, reason = next_number, "as you asked"
    advances = (
        salvaged.advances
        if proposed == granted
        else (*salvaged.advances, ExternalAdvance(granted, proposed - 1))
    )
    counter = replace(salvaged, value=proposed, noted=proposed, advances=advances)
    return Repair(problem, reason, counter)


def carry_out(name: str, store: OptimisticSyncStore, repair: Repair) -> None:
    """Write what was planned, unless the counter changed since: then `SequenceError`, and nothing is written."""
    counter = repair.counter
    if counter is None:
        return
    if not store.try_optimistic_write(counter.text(), etag=counter.etag, metadata=counter.metadata()):
        raise SequenceError(
            f"sequence {name}: the counter changed since the plan was made; look again", sequence=name
        )


def _salvage(name: str, store: OptimisticSyncStore, *, known: bool) -> tuple[str, Counter]:
    """What is wrong with the counter by itself, and what can still be read of it."""
    try:
        snapshot = store.get_data()
    except NotFound:
        return ("the counter does not exist" if known else ""), Counter(0, None)
    try:
        return "", read_counter(name, snapshot.data, snapshot.etag, snapshot.metadata)
    except SequenceError as error:
        problem = str(error).partition("; ")[0]
    try:
        # Any number will do here: only the metadata is wanted.
        return problem, replace(read_counter(name, str(HIGHEST), snapshot.etag, snapshot.metadata), value=0)
    except SequenceCorrupt:
        others = {
            key: text for key, text in snapshot.metadata.items() if not key.lower().startswith("kennel_")
        }
        return problem, Counter(0, snapshot.etag, others=others)
