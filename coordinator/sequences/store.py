"""What a sequence needs of a store: one versioned text, and a book of grants. Open to other stores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from coordinator.sequences.grants import ExternalAdvance, Grant, Owner


@dataclass(frozen=True)
class Snapshot:
    """One answer of the store: text, version and metadata that belong together."""

    data: str
    etag: str
    metadata: Mapping[str, str] = field(default_factory=dict)


class OptimisticSyncStore(Protocol):
    """One text with a version ([its source](../sources.md#s1-uniqueidgenerator)). Blocking; called from the refill
    thread only.

    An implementation guarantees that of several writes on the same `etag` at most one succeeds, and that the ETag of
    a `Snapshot` comes from the same answer as its text. It raises the errors of `StorageError`; `maybe_done` says
    whether a failed write may have been carried out.
    """

    def get_data(self) -> Snapshot:
        """The text as it is now.

        Returns:
            The text, its version and its metadata.

        Raises:
            NotFound: There is none.
        """

    def try_optimistic_write(self, data: str, *, etag: str | None, metadata: Mapping[str, str]) -> str | None:
        """Write if the version is unchanged.

        Args:
            data: The text.
            etag: The version; None if there is no text yet.
            metadata: What is stored beside the text.

        Returns:
            The new version; None if another writer was first.
        """


@dataclass(frozen=True)
class LedgerState:
    """The heads of a ledger by key, each with its version, and the rows that were asked for, all of one moment."""

    rows: Sequence[Grant]
    next: int
    versions: Mapping[str, str]


class Ledger(Protocol):
    """The book of all grants of one sequence. Blocking. Rows are found by number, in order of number.

    Its head is one more row, with the nonce of the newest grant as its key. Each `enter` exchanges it for another, so grants are
    entered one after the other, and a program that knows the newest grant needs no read to prove that nothing follows it.
    """

    def enter(
        self,
        grants: Sequence[Grant],
        *,
        after: str | LedgerState,
        is_newest: bool = True,
        others: Sequence[Grant] = (),
        advances: Sequence[ExternalAdvance] = (),
    ) -> bool:
        """Write down new grants, in order, with what else there is to `record`, in one step; the last becomes the head.

        `after`: the nonce of the head as it must be, or a `state` since when no grant may have been entered. False, and
        nothing is written, if it is not like that, or if there is a row with the key of one of the grants. Without
        `is_newest` the head stays; that takes a state.
        """

    def state(self, *, at_or_after: int, limit: int) -> LedgerState:
        """The heads, and so many grants in order of number: from the first whose span ends at or after a number."""

    def head(self) -> int:
        """The next free number as of the newest `enter`; 0 if there was none. Survives the rows, and they it."""

    def record(self, grants: Sequence[Grant], advances: Sequence[ExternalAdvance] = ()) -> None:
        """Write down grants. Idempotent; a recorded outcome is never taken back by recording the grant again."""

    def row(self, key: str) -> Grant | None:
        """The grant with this `Grant.key`."""

    def rows(
        self, *, at_or_after: int = 0, below: int | None = None, owner: str = "", limit: int | None = None
    ) -> Iterator[Grant]:
        """Grants in order of number, in constant memory: from the first whose span ends at or after a number, to the
        last whose span ends below another; only of one owner (its id) if named."""

    def advances(self, *, at_or_after: int = 0) -> Iterator[ExternalAdvance]:
        """The stretches in which others moved the counter, by last number: from the first that ends at or after one."""

    def give_back(self, grant: Grant, issued_through: int, others: Sequence[Grant] = ()) -> str:
        """Settle a grant as returned after `issued_through` and write the rest down as free, in one step with what else
        there is to `record`. The rest's key."""

    def take(self, key: str, owner: Owner, nonce: str, at: float) -> Grant | None:
        """Grant the free numbers of this key, in one step; None if they are not free (any more)."""
