"""Putting a damaged counter right: first a plan to look at, then one conditional write."""

from __future__ import annotations

from dataclasses import dataclass, replace

from coordinator.errors import ConfigurationError, NotFound, SequenceCorrupt, SequenceError
from coordinator.sequences.allocator import MOVE_AT
from coordinator.sequences.grants import HIGHEST, Counter, Jump, read_counter
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

    Whatever the metadata or the ledger knows as granted stays below the new counter. If the metadata is gone, grants may
    have been on it that no row knows; then a margin is left, and the skipped numbers will show as unattributed.
    `next_number` overrides the proposal, but never downwards into granted numbers.
    """
    highest, largest = 0, 1
    for row in ledger.rows():
        highest, largest = max(highest, row.last), max(largest, row.last - row.first + 1)
    problem, salvaged = _salvage(name, store)
    certain = max([highest + 1, salvaged.noted or 0, *(grant.last + 1 for grant in salvaged.grants)])
    if not problem and salvaged.value >= certain and (next_number is None or next_number == salvaged.value):
        return Repair("", f"the counter says {salvaged.value}; all that is granted lies below", None)
    if not problem:
        problem = f"the counter says {salvaged.value}, but numbers up to {certain - 1} are granted"
    if salvaged.noted is not None:
        proposed, reason = certain, "the blob's own metadata and the ledger tell where it was"
    else:
        proposed = certain + 2 * MOVE_AT * largest
        reason = (
            f"the ledger ends at {highest}; up to {2 * MOVE_AT} ranges of {largest} may have been granted that only the "
            "lost metadata knew, so they are skipped"
        )
    if next_number is not None:
        if not certain <= next_number <= HIGHEST:
            raise ConfigurationError(
                f"sequence {name}: the next number must be at least {certain}, got {next_number}"
            )
        proposed, reason = next_number, "as you asked"
    jumps = salvaged.jumps if proposed == certain else (*salvaged.jumps, Jump(certain, proposed - 1))
    counter = replace(salvaged, value=proposed, noted=proposed, jumps=jumps, tails=True)
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


def _salvage(name: str, store: OptimisticSyncStore) -> tuple[str, Counter]:
    """What is wrong with the counter by itself, and what can still be read of it."""
    try:
        snapshot = store.get_data()
    except NotFound:
        return "the counter does not exist", Counter(0, None)
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
