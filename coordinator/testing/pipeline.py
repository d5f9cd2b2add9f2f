"""A pipeline in memory, for unit tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.pipelines.ledger import BatchLedger
from coordinator.pipelines.messages import BatchDone, BatchOrder, ChunkResult, ItemChunk
from coordinator.pipelines.pipeline import Pipeline
from coordinator.queues.queue import QueueConfig
from coordinator.tables.table import Table
from coordinator.testing.queues import memory_queue
from coordinator.testing.tables import MemoryTableStore

_ONE = QueueConfig(items_per_message=1)


class MemoryReports:
    """`Reports` in memory; `written` counts the writes that took effect."""

    def __init__(self) -> None:
        self.reports: dict[str, bytes] = {}
        self.written = 0

    async def write_once(self, name: str, content: bytes) -> bool:
        if name in self.reports:
            return False
        self.reports[name] = content
        self.written += 1
        return True

    async def exists(self, name: str) -> bool:
        return name in self.reports


def memory_pipeline(
    name: str,
    initiator: Callable[..., Any],
    processor: Callable[[Any], Any],
    controller: Callable[[Any, list[Any]], Any],
    *,
    clock: Clock = SYSTEM_CLOCK,
    reports: MemoryReports | None = None,
    heads: MemoryTableStore | None = None,
    parts: MemoryTableStore | None = None,
    **options: Any,
) -> Pipeline:
    """A `Pipeline` without a storage account, whose `orders`, `work` and `results` are queues in memory."""
    heads = heads or MemoryTableStore("batches", clock=clock)
    parts = parts or MemoryTableStore("batchparts", clock=clock)

    def queue(suffix: str, kind: Any) -> Any:
        return memory_queue(f"{name}-{suffix}", type=kind, clock=clock, config=_ONE)

    return Pipeline(
        name,
        initiator,
        processor,
        controller,
        ledger=BatchLedger(name, Table(heads), Table(parts)),
        reports=reports or MemoryReports(),
        orders=queue("orders", BatchOrder),
        work=queue("work", ItemChunk),
        results=queue("results", ChunkResult),
        done=queue("done", BatchDone),
        **options,
    )
