"""Reads of the ledger of a sequence."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice

import msgspec

from coordinator.sequences.grants import Owner
from dashboard.hub.runtime import current
from dashboard.live import ledger as ranges
from dashboard.live.fleet import GrantView
from dashboard.live.ledger import Account, LedgerPage
from dashboard.sequences.balance import Balance, balance


def account(sequence: str) -> Account | None:
    """Its ledger in the index, and who takes its numbers now; None if the index has nothing of it yet."""
    return ranges.account_of(current().presence, sequence)


def ledger(
    sequence: str,
    account: Account | None,
    *,
    before: int | None = None,
    number: int | None = None,
    owner: str = "",
    limit: int = 50,
) -> LedgerPage:
    """The grants of a sequence, newest first: all, those that hold `number`, or those of an owner. From the index.

    The problem of one that only workers know is "unused": its counter begins with the first number that is asked for.
    """
    page = ranges.page(account, before=before, number=number, owner=owner, limit=limit, now=time.time())
    if page.problem and _is_unused(sequence):
        page = msgspec.structs.replace(page, problem="unused")
    return page


def balance_of(account: Account | None) -> Balance | None:
    """What became of all its numbers; None if none was granted, or too many ranges are open to say."""
    if account is None or account.book.next <= account.book.start:
        return None
    return balance(account.book, account.owners)


def _is_unused(sequence: str) -> bool:
    fleet = current().fleet_state.fleet()
    view = next((each for each in fleet.sequences if each.name == sequence), None)
    return view is not None and view.as_of is None and fleet.read_at.get("sequences") is not None


def ledger_lines(
    sequence: str, *, before: int | None = None, owner: str = ""
) -> Iterator[list[tuple[GrantView, Owner]]]:
    """The whole ledger for a file, newest first, a thousand ranges at a time: constant memory."""
    found = account(sequence)
    if found is None:
        return
    book, owners = found
    rows = map(ranges.grant_of, ranges.newest_first(book, before=before, owner=owner))
    while part := list(islice(rows, ranges.CHUNK)):
        known = ranges.with_last_words(owners, sequence, part)
        yield [(ranges.judge(sequence, grant, known, book.read_at), grant.owner) for grant in part]
