"""The controller: counts each chunk once however often its result comes, and ends the batch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec

from coordinator.backoff import TRANSIENT, Backoff
from coordinator.clock import Clock
from coordinator.errors import AlreadyExists, ConfigurationError, NotFound, PreconditionFailed
from coordinator.pipelines.ledger import BatchLedger, Versioned, insert_result
from coordinator.pipelines.messages import COUNTED, BatchDone, ChunkResult, Counted, Head, Sent, result_row
from coordinator.pipelines.status import rate
from coordinator.queues.delivery import DONE, Outcome, Reject
from coordinator.queues.queue import Queue
from coordinator.tables.commit import commit
from coordinator.tables.operations import split
from coordinator.tables.optimistic import optimistic_update
from coordinator.tables.outbox import Outbox
from coordinator.tables.stepping import said

_log = logging.getLogger("coordinator.pipelines")
# So often in a row may the initiator, the controller or the reporter fail.
STUMBLES = 5
_CONTENDED = Backoff(base_seconds=0.02, cap_seconds=1.0)

Fold = Callable[[Any, list[Any]], Any]
Reporter = Callable[[Any], bytes]


class Reports(Protocol):
    """Where reports are kept: each written once."""

    async def write_once(self, name: str, content: bytes) -> bool:
        """Store under that name; False if there is one already, which stays as it is."""

    async def exists(self, name: str) -> bool:
        """Whether there is a report of that name."""


class ResultAggregator:
    """Counts results and settles batches.

    Each result becomes a row of its own, in one transaction with the batch's sums: the row is the marker. Delivered
    again, by whomever, it exists already, and the sums stay.
    """

    def __init__(
        self,
        ledger: BatchLedger,
        *,
        controller: Fold,
        result_type: Any,
        reporter: Reporter,
        reports: Reports,
        done: Queue[BatchDone] | None,
        clock: Clock,
        is_wanted: Callable[[str], Awaitable[bool]],
    ) -> None:
        self._ledger = ledger
        self._controller = controller
        self.decode = msgspec.json.Decoder(result_type).decode
        self._reporter = reporter
        self._reports = reports
        self._outbox = Outbox(ledger.parts, done) if done is not None else None
        self._clock = clock
        self._is_wanted = is_wanted
        self._locks: dict[str, asyncio.Lock] = {}
        self._known: dict[str, Versioned[Counted]] = {}

    async def handle(self, results: Sequence[ChunkResult]) -> list[Outcome]:
        """`count` for a listener: a batch that fails does not hold up the others."""
        problems = await self._count(results)
        return [problems.get(result.batch, DONE) for result in results]

    async def count(self, results: Sequence[ChunkResult]) -> None:
        """Count results of any batches; returns when they are counted, and their batches settled if they are ready."""
        for error in (await self._count(results)).values():
            raise error

    async def _count(self, results: Sequence[ChunkResult]) -> dict[str, Exception]:
        """What went wrong, by batch."""
        problems: dict[str, Exception] = {}
        by_batch: dict[tuple[str, str], dict[str, ChunkResult]] = {}
        for result in results:
            rows = by_batch.setdefault((result.batch, result.run), {})
            rows[result_row(result.number, result.round)] = result
        for (batch, _), rows in by_batch.items():
            try:
                if not await self._is_wanted(batch):
                    continue
                # One transaction of this process at a time: two would only take turns in losing.
                async with self._locks.setdefault(batch, asyncio.Lock()):
                    try:
                        await self._record(batch, rows)
                    except ConfigurationError as error:
                        # A result of an older version that no row can hold: no repetition helps.
                        await self.stumbled(batch, "a result cannot be stored", error, is_final=True)
                        continue
                    await self.settle(batch)
            except Exception as error:
                problems[batch] = error
        return problems

    async def stumbled(self, batch: str, part: str, error: Exception, *, is_final: bool = False) -> None:
        """Note that a part of the pipeline failed. Returns if the batch has `failed` by that; else raises the error again."""
        is_final = is_final or isinstance(error, Reject)
        _log.warning("Batch %s of %s: %s failed", batch, self._ledger.pipeline, part, exc_info=error)

        def change(head: Head) -> Head:
            if head.state != "running":
                return head
            stumbles = head.stumbles + 1
            head = msgspec.structs.replace(head, stumbles=stumbles, cause=f"{part}: {said(error)}"[:1000])
            if is_final or stumbles >= STUMBLES:
                head = msgspec.structs.replace(head, state="failed", finished_at=self._clock.time())
            return head

        try:
            head = await self.save_head(batch, change)
        except NotFound:
            return
        if head.state == "running":
            raise error

    async def _record(self, batch: str, pending: dict[str, ChunkResult]) -> None:
        partition, conflicts = self._ledger.partition(batch), 0
        while pending:
            known = self._known.pop(batch, None) or await self._ledger.counted(batch)
            # The run goes into the same transaction: what is late for a batch that was forgotten is never counted for its successor.
            run = known.value.run if known.etag else (await self._ledger.head(batch)).value.run
            for row in [row for row, result in pending.items() if run and result.run not in ("", run)]:
                _log.warning(
                    "A result of the unknown batch %s of %s is dropped", batch, self._ledger.pipeline
                )
                del pending[row]
            if not pending:
                return
            known = Versioned(msgspec.structs.replace(known.value, run=run), known.etag)
            # How many fit in a transaction beside the sums (which are stored with their real values below).
            inserts = [insert_result((partition, row), result) for row, result in pending.items()]
            sums = self._ledger.store(batch, COUNTED, known.value, known.etag)
            part = split([sums, *inserts])[0][1:]
            rows = [operation.key[1] for operation in part]
            counted = self._added(known.value, [pending[row] for row in rows])
            sums = self._ledger.store(batch, COUNTED, counted, known.etag)
            try:
                # The marker goes first: nobody writes it again, so it can always tell whether this was done.
                etags = await commit(self._ledger.parts, *part, sums)
            except PreconditionFailed:
                pass
            except AlreadyExists:
                repeated = await self._ledger.known(batch, rows)
                for row in repeated:
                    del pending[row]
                if repeated:
                    continue
            else:
                if etags[-1]:
                    self._known[batch] = Versioned(counted, etags[-1])
                for row in rows:
                    del pending[row]
                continue
            conflicts += 1
            await self._clock.sleep(_CONTENDED.delay(conflicts))

    def _added(self, counted: Counted, results: Sequence[ChunkResult]) -> Counted:
        now = self._clock.time()
        items = sum(result.size - len(result.failures) for result in results)
        # What is sent again has failed before, and was counted so.
        failed = sum(len(result.failures) - (result.size if result.round else 0) for result in results)
        return Counted(
            chunks=counted.chunks + len(results),
            items=counted.items + items,
            failed=counted.failed + failed,
            state=counted.state,
            first_at=counted.first_at or now,
            changed_at=now,
            per_second=rate(counted, items, now),
            item_seconds=_item_seconds(counted, results),
            run=counted.run,
        )

    async def settle(self, batch: str) -> None:
        """End the batch if all that was sent has been counted. Harmless when repeated, by any process."""
        (sent, _), (counted, etag) = await self._ledger.progress(batch)
        if not sent.is_finished or counted.chunks != sent.chunks:
            return
        try:
            head = (await self._ledger.head(batch)).value
        except NotFound:
            return
        if head.state in ("cancelled", "failed") or head.round != sent.round:
            return
        if head.state == "complete":
            await self._relay(batch)
        elif counted.failed and head.state != "partial":
            await self.save_head(
                batch,
                lambda now: (
                    _ended(now, "partial", counted, 0.0)
                    if now.state == "running" and now.round == sent.round
                    else now
                ),
            )
        elif not counted.failed:
            try:
                await self.finish(batch, sent, counted, etag, head)
            except (*TRANSIENT, PreconditionFailed, AlreadyExists):
                raise  # storage, or others: the message brings us here again
            except Exception as error:
                await self.stumbled(batch, "the controller, the reporter or the store of reports", error)

    async def finish(self, batch: str, sent: Sent, counted: Counted, etag: str, head: Head) -> None:
        """Add up all results, write the report once, tell whoever waits, close the head."""
        total: Any = None
        async for result in self._ledger.results(batch):
            values = [self.decode(each) for each in result.results]
            total = await asyncio.to_thread(self._controller, total, values)
        name = head.report_name or f"{self._ledger.pipeline}/{batch}.json"
        await self._reports.write_once(name, await asyncio.to_thread(self._reporter, total))
        if counted.state != "complete":
            closing = self._ledger.store(
                batch, COUNTED, msgspec.structs.replace(counted, state="complete"), etag
            )
            event = BatchDone(self._ledger.pipeline, batch, counted.items, counted.failed, name)
            try:
                if self._outbox is not None:
                    await self._outbox.commit(self._ledger.partition(batch), [closing], event, intent="done")
                else:
                    await commit(self._ledger.parts, closing)
            except (PreconditionFailed, AlreadyExists):
                await self._relay(batch)
        else:
            await self._relay(batch)
        now = self._clock.time()
        await self.save_head(
            batch,
            lambda head: (
                head
                if head.state in ("complete", "cancelled")
                else _ended(head, "complete", counted, now, report=name)
            ),
        )
        self._known.pop(batch, None)

    async def save_head(self, batch: str, change: Callable[[Head], Head]) -> Head:
        """Change the head whatever others do meanwhile; raises `NotFound` for an unknown batch."""
        update = await optimistic_update(
            self._ledger.heads,
            (self._ledger.pipeline, batch),
            lambda row: msgspec.structs.asdict(change(msgspec.convert(row, Head, strict=False))),
        )
        assert update.new is not None
        return msgspec.convert(update.new.values, Head, strict=False)

    async def _relay(self, batch: str) -> None:
        if self._outbox is not None:
            await self._outbox.relay_one(self._ledger.partition(batch), "done")


def _item_seconds(counted: Counted, results: Sequence[ChunkResult]) -> float:
    """How long an item takes a processor: a mean by items that forgets."""
    timed = [result for result in results if result.seconds > 0 and result.size]
    if not timed:
        return counted.item_seconds
    items = sum(result.size for result in timed)
    now = sum(result.seconds for result in timed) / items
    # The first few items must not outweigh the many after them.
    share = max(0.3, items / (items + counted.items + counted.failed)) if counted.item_seconds else 1.0
    return (1 - share) * counted.item_seconds + share * now


def _ended(head: Head, state: Any, counted: Counted, at: float, *, report: str = "") -> Head:
    return msgspec.structs.replace(
        head, state=state, finished_at=at, items=counted.items, failed=counted.failed, report=report
    )
