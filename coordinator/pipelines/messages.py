"""What a batch consists of: its messages and its rows, as plain values."""

from __future__ import annotations

from typing import Literal

import msgspec

BatchState = Literal["running", "partial", "complete", "cancelled", "failed"]

# Rows of a batch's own partition.
SENT = "a-sent"
COUNTED = "b-counted"
RESULT = "r-"
RESULT_END = "r."


class BatchOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """To the initiator: split this batch (`round` 0), or send again what failed (later rounds)."""

    batch: str
    round: int = 0


class Chunk(msgspec.Struct, frozen=True, omit_defaults=True):
    """To the processors: some items of a batch. Number and round tell it from all others, however often it is sent.

    `indexes` are the items' places in the batch, given if they are not `first`, `first` + 1, …. `run` tells the batch from an
    earlier one of its name ("": sent by an older version).
    """

    batch: str
    number: int
    first: int
    items: list[msgspec.Raw]
    round: int = 0
    indexes: list[int] | None = None
    run: str = ""


class ItemFailure(msgspec.Struct, frozen=True):
    """An item that could not be processed: its place in the batch, itself, and why."""

    index: int
    item: msgspec.Raw
    error: str


class ChunkResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """To the controller: what became of a chunk of `size` items, and the seconds that it took."""

    batch: str
    number: int
    size: int
    results: list[msgspec.Raw]
    failures: list[ItemFailure] = []
    round: int = 0
    seconds: float = 0.0
    run: str = ""


class BatchDone(msgspec.Struct, frozen=True):
    """Tells whoever waits that a batch is complete; `report` names the blob."""

    pipeline: str
    batch: str
    items: int
    failed: int
    report: str


class Head(msgspec.Struct, frozen=True):
    """A batch as it was ordered, and how it ended. One row of the table of batches.

    `first_items` is the size of the first chunks (0: all chunks have `chunk_items`, as in older versions), which are cut
    smaller if the time of an item `is_unmeasured`. `stumbles` counts
    failures of the initiator or the controller in a row, `cause` is the latest of them. `report_name` is where the report goes. `run` tells the batch from an
    earlier one of its name that was forgotten.
    """

    source: str
    state: BatchState
    chunk_items: int
    started_at: float
    by: str = ""
    expected_items: int = 0
    sla_seconds: float = 0.0
    round: int = 0
    finished_at: float = 0.0
    items: int = 0
    failed: int = 0
    report: str = ""
    orders_queue: str = ""
    first_items: int = 0
    stumbles: int = 0
    cause: str = ""
    report_name: str = ""
    resumed_at: float = 0.0
    is_unmeasured: bool = False
    run: str = ""


class Sent(msgspec.Struct, frozen=True):
    """How far the initiator is: everything before `position` is in the queue, in `chunks` chunks (of all rounds).

    In a later round `position` counts the chunk numbers looked at. `next_items` is the size of the next chunks: noted before they
    are sent, so that after a crash they are cut the same way.
    """

    position: int = 0
    chunks: int = 0
    items: int = 0
    round: int = 0
    is_finished: bool = False
    next_items: int = 0
    changed_at: float = 0.0


class Counted(msgspec.Struct, frozen=True):
    """What the controller has counted: changes in one transaction with the rows of the results themselves."""

    chunks: int = 0
    items: int = 0
    failed: int = 0
    state: BatchState = "running"
    first_at: float = 0.0
    changed_at: float = 0.0
    per_second: float = 0.0
    item_seconds: float = 0.0
    run: str = ""


def result_row(number: int, round: int) -> str:
    return f"{RESULT}{number:010d}-{round:03d}"
