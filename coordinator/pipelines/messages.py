"""What a batch consists of: its messages and its rows, as plain values."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from coordinator.bounds import Count, Duration, KeyText, Moment, Number, Rate, Remark

# `combine` may make more results than there were items; the bytes of a row bound them, too.
MAX_CHUNK_ITEMS, MAX_RESULTS = 10_000, 1_000_000

BatchState = Literal["running", "partial", "complete", "cancelled", "failed"]

# Rows of a batch's own partition.
SENT = "a-sent"
COUNTED = "b-counted"
RESULT = "r-"
RESULT_END = "r."


class BatchOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """To the initiator: split this batch (`round` 0), or send again what failed (later rounds)."""

    batch: KeyText
    round: Count = 0


class ItemChunk(msgspec.Struct, frozen=True, omit_defaults=True):
    """To the processors: some items of a batch. Number and round tell it from all others, however often it is sent.

    `indexes` are the items' places in the batch, given if they are not `first`, `first` + 1, …. `run` distinguishes the batch from an
    earlier one of its name ("": sent by an older version).
    """

    batch: KeyText
    number: Number
    first: Number
    items: Annotated[list[msgspec.Raw], Meta(max_length=MAX_CHUNK_ITEMS)]
    round: Count = 0
    indexes: Annotated[list[Number], Meta(max_length=MAX_CHUNK_ITEMS)] | None = None
    run: KeyText = ""


class ItemFailure(msgspec.Struct, frozen=True):
    """An item that could not be processed: its place in the batch, itself, and why."""

    index: Number
    item: msgspec.Raw
    error: Remark


class ChunkResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """To the controller: what became of a chunk of `size` items, and the seconds that it took."""

    batch: KeyText
    number: Number
    size: Count
    results: Annotated[list[msgspec.Raw], Meta(max_length=MAX_RESULTS)]
    failures: Annotated[list[ItemFailure], Meta(max_length=MAX_CHUNK_ITEMS)] = []
    round: Count = 0
    seconds: Duration = 0.0
    run: KeyText = ""


class BatchDone(msgspec.Struct, frozen=True):
    """The message for a batch that is complete.

    Attributes:
        pipeline: The pipeline.
        batch: The batch.
        items: How many items it had.
        failed: How many of them failed.
        report: The name of the report's blob.
    """

    pipeline: KeyText
    batch: KeyText
    items: Count
    failed: Count
    report: Remark


class Head(msgspec.Struct, frozen=True):
    """A batch as it was ordered, and how it ended. One row of the table of batches.

    `first_items` is the size of the first chunks (0: all chunks have `chunk_items`, as in older versions), which are cut
    smaller if the time of an item `is_unmeasured`. `stumbles` counts
    failures of the initiator or the controller in a row, `cause` is the latest of them. `report_name` is where the report goes. `run` distinguishes the batch from an
    earlier one of its name that was forgotten.
    """

    source: Remark
    state: BatchState
    chunk_items: Count
    started_at: Moment
    by: KeyText = ""
    expected_items: Count = 0
    sla_seconds: Duration = 0.0
    round: Count = 0
    finished_at: Moment = 0.0
    items: Count = 0
    failed: Count = 0
    report: Remark = ""
    orders_queue: KeyText = ""
    first_items: Count = 0
    stumbles: Count = 0
    cause: Remark = ""
    report_name: Remark = ""
    resumed_at: Moment = 0.0
    is_unmeasured: bool = False
    run: KeyText = ""


class Sent(msgspec.Struct, frozen=True):
    """How far the initiator is: everything before `position` is in the queue, in `chunks` chunks (of all rounds).

    In a later round `position` counts the chunk numbers looked at. `next_items` is the size of the next chunks: noted before they
    are sent, so that after a crash they are cut the same way.
    """

    position: Number = 0
    chunks: Count = 0
    items: Count = 0
    round: Count = 0
    is_finished: bool = False
    next_items: Count = 0
    changed_at: Moment = 0.0


class Counted(msgspec.Struct, frozen=True):
    """What the controller has counted: changes in one transaction with the rows of the results themselves."""

    chunks: Count = 0
    items: Count = 0
    failed: Count = 0
    state: BatchState = "running"
    first_at: Moment = 0.0
    changed_at: Moment = 0.0
    per_second: Rate = 0.0
    item_seconds: Duration = 0.0
    run: KeyText = ""


def result_row(number: int, round: int) -> str:
    return f"{RESULT}{number:010d}-{round:03d}"
