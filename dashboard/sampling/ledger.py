"""Ranges of numbers and what became of them: from the ledger, the counter and what workers say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from coordinator.protocol import SequenceStatus
from coordinator.sequences.grants import FREE, GRANTED, RETURNED, USED, Grant
from coordinator.storage import Storage
from dashboard.fleet import GrantView
from dashboard.hub.presence import LATE_SECONDS, Presence

if TYPE_CHECKING:
    from dashboard.selectors import LedgerPage

_STATES = {USED: "used", RETURNED: "returned", FREE: "free"}
SCANNED_ROWS = 5000


class Owners(NamedTuple):
    """Which processes take numbers of a sequence: those alive (with what they say of it), and whether any is."""

    alive: dict[tuple[str, int], SequenceStatus]
    somebody: bool


def owners_of(presence: Presence, sequence: str) -> Owners:
    """The processes that presence knows to be alive, by name and process id."""
    limit = presence.clock.monotonic() - LATE_SECONDS
    entries = [entry for entry in list(presence.entries.values()) if entry.seen >= limit]
    alive = {}
    for entry in entries:
        own = next((s for s in entry.state.sequences if s.name == sequence), SequenceStatus(sequence))
        alive[(entry.hello.worker, entry.hello.pid)] = own
    return Owners(alive, bool(presence.entries))


def judge(sequence: str, grant: Grant, owners: Owners) -> GrantView:
    """What became of a grant. A process that ended without settling its grant lost what it had not issued."""
    state, last_issued = _STATES.get(grant.outcome), grant.issued_through
    if grant.outcome == GRANTED:
        status = owners.alive.get((grant.owner.id, grant.owner.pid))
        if status is not None:
            state = "used" if status.first > grant.last else "in use"
            if status.first == grant.first:
                last_issued = status.last_issued or None
        else:
            # Without a single worker on the socket nothing can be said of those that only poll.
            state = "lost" if owners.somebody else "granted"
    return GrantView(
        sequence=sequence,
        first=grant.first,
        last=grant.last,
        owner=grant.owner.id,
        granted_at=grant.granted_at or None,
        state=state or grant.outcome,
        last_issued=last_issued,
    )


async def page(
    storage: Storage,
    presence: Presence,
    sequence: str,
    *,
    before: int | None,
    number: int | None,
    owner: str,
    limit: int,
) -> LedgerPage:
    """One page of the ledger, newest first, with the grants that still lie on the counter."""
    from coordinator.sequences.azure_store import TableLedger, list_counters
    from dashboard.selectors import LedgerPage

    counter = next((info for info in await list_counters(storage) if info.name == sequence), None)
    if counter is None:
        return LedgerPage((), problem=f"there is no sequence {sequence}")
    if counter.counter is None:
        return LedgerPage((), problem=counter.problem)
    fresh = list(counter.counter.grants)
    top = before if before is not None else counter.counter.value
    size = max((grant.last - grant.first + 1 for grant in fresh), default=1000)
    ledger = TableLedger(storage, sequence)

    def read() -> list[Grant]:
        if number is not None:
            near = list(islice(ledger.rows(at_or_after=number, limit=64), 64))
            return [grant for grant in near if grant.first <= number <= grant.last]
        return _backwards(ledger.rows, top, size * limit * 2, limit + 1, owner)

    stored = await asyncio.to_thread(read)
    keys = {grant.nonce for grant in stored}
    mine = [grant for grant in fresh if grant.nonce not in keys and grant.last < top]
    if number is not None:
        mine = [grant for grant in mine if grant.first <= number <= grant.last]
    if owner:
        mine = [grant for grant in mine if owner.lower() in grant.owner.id.lower()]
    rows = sorted([*stored, *mine], key=lambda grant: (grant.last, grant.turn), reverse=True)
    owners = owners_of(presence, sequence)
    while len(rows) > limit and rows[limit].last == rows[limit - 1].last:
        limit += 1  # the turns of one range stay together: the cursor is its last number
    views = tuple(judge(sequence, grant, owners) for grant in rows[:limit])
    more = len(rows) > limit
    return LedgerPage(views, views[-1].last if more else None)


def _backwards(
    read: Callable[..., Iterable[Grant]], top: int, window: int, wanted: int, owner: str
) -> list[Grant]:
    """The newest rows below `top`. The service lists upwards only, so look through windows that double."""
    high, scanned = top, 0
    found: list[Grant] = []
    while high > 0 and len(found) < wanted and scanned < SCANNED_ROWS:
        low = max(0, high - window)
        block = _below(read(at_or_after=low, limit=None), high)
        scanned += len(block)
        found = [grant for grant in block if not owner or owner.lower() in grant.owner.id.lower()] + found
        high, window = low, window * 2
    return found[-wanted:]


def _below(rows: Iterable[Grant], high: int) -> list[Grant]:
    block = []
    for grant in rows:
        if grant.last >= high:
            break
        block.append(grant)
    return block
