"""Refusing the writes of leaders whose term is over, where they land.

A lease can promise that two nodes do not *believe* to lead at once. It cannot promise that a request which the old
leader has sent, or sends after a long pause, does not arrive after the new leader's first. The store that is written
to must compare epochs; these helpers make it. All of them raise `LeadershipLost` for a refused write.

    write_fenced            a blob, by a condition on its tag: one request
    LeasedBlob              a blob, by a lease of its own: for accounts without tags
    transact_fenced         table operations, by an epoch row in the same transaction
    fence_sql               any SQL database, by an epoch row in the same transaction
"""

from __future__ import annotations

from typing import Any

from coordinator.errors import LeadershipLost
from coordinator.leadership.azure import LeasedBlob, transact_fenced, write_fenced
from coordinator.leadership.term import Term

__all__ = ["FENCE_TABLE", "LeasedBlob", "fence_sql", "transact_fenced", "write_fenced"]

FENCE_TABLE = "CREATE TABLE IF NOT EXISTS kennel_fence (name VARCHAR(48) PRIMARY KEY, epoch BIGINT NOT NULL)"


def fence_sql(cursor: Any, term: Term, *, placeholder: str = "?") -> None:
    """Refuse the current transaction if a later term has written; call it first in each transaction of a leader.

    `cursor` is a DB-API cursor on a database that has the table `FENCE_TABLE`; `placeholder` is its parameter style
    ("?" for SQLite, "%s" for PostgreSQL). The row stays locked until the transaction ends, so a successor's first
    transaction waits for it or refuses it. Raises `LeadershipLost`; roll back then.
    """
    term.check()
    p = placeholder
    cursor.execute(
        f"INSERT INTO kennel_fence (name, epoch) VALUES ({p}, {p}) "  # noqa: S608 - only the placeholder varies
        "ON CONFLICT (name) DO UPDATE SET epoch = excluded.epoch WHERE kennel_fence.epoch <= excluded.epoch",
        (term.name, term.epoch),
    )
    if cursor.rowcount != 1:
        raise LeadershipLost(
            f"{term.name}: a later term than {term.epoch} has written; this write was refused"
        )
