"""`Pipeline`: initiator, processors, controller over queues, each item counted once."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Callable
from typing import Any, Unpack

import msgspec

from coordinator.backoff import TRANSIENT
from coordinator.bounds import MAX_COUNT, MAX_SECONDS
from coordinator.errors import AlreadyExists, ConfigurationError, NotFound
from coordinator.pipelines.aggregating import Fold, Reporter, Reports, ResultAggregator
from coordinator.pipelines.control import BatchControl, PipelineError
from coordinator.pipelines.items import ItemRunner, failure
from coordinator.pipelines.ledger import MAX_RESULT_BYTES, BatchLedger, fitted
from coordinator.pipelines.messages import BatchDone, BatchOrder, ChunkResult, Head, ItemChunk, ItemFailure
from coordinator.pipelines.sending import CHUNK_SECONDS, Initiator, Sender
from coordinator.pipelines.status import BatchStatus
from coordinator.queues.envelope import encode_item
from coordinator.queues.handlers import current_message
from coordinator.queues.listener import ListenerOptions, QueueListener
from coordinator.queues.queue import Queue
from coordinator.queues.settling import RetryPolicy
from coordinator.tables.operations import Insert
from coordinator.tables.outbox import RELAY_SECONDS, Outbox, RelayingListener
from coordinator.tables.rows import check_key
from coordinator.tables.stepping import said

_log = logging.getLogger("coordinator.pipelines")
_WANTED_SECONDS = 2.0
# Items fail by themselves; a chunk as a whole fails for storage or a crash only, and must not be given up for that.
_RETRIES = RetryPolicy(attempts=1_000_000, base_seconds=0.5, cap_seconds=30.0)
# A chunk that never gets as far as an answer ends its process, or its time.
CHUNK_ATTEMPTS = 20
ORDER_ATTEMPTS = 50


class Pipeline:
    """Splits batches into items, has them processed in parallel, counts each once, and writes one report a batch.

    Guarantees that a started batch is split wholly, and that every item is counted exactly once, as a result or as a
    failure, no matter what crashes and how often anything is delivered; that the report is written once; and that
    memory stays constant in the size of the batch, in every part. A failing initiator, controller, reporter or store
    of reports is tried five times; then the batch is `failed`, with the cause, and `retry_failed` has it go on where
    it stopped.

    Does not guarantee that an item is *processed* once (its processor must be idempotent), nor an order.

    Args:
        name: Its name.
        initiator: ``initiator(source)`` yields the items of a batch.
        processor: ``processor(item)`` returns the result of one item, or raises to have it counted as failed. A `def`
            processor cannot be stopped: after `item_seconds` its item has failed, and its thread is left behind.
        controller: ``controller(total, results)`` adds results to a total that starts as None.
        ledger: Where progress is stored.
        reports: Where reports are stored.
        orders: The queue of batches.
        work: The queue of chunks.
        results: The queue of their results.
        done: Gets a `BatchDone` for each complete batch (default: none).
        item: The type of the items (default: any JSON).
        result: The type of the results (default: any JSON).
        combine: ``combine(results)`` may shrink the results of a chunk before they travel, such as sums per customer.
        reporter: ``reporter(total)`` returns the report as bytes (default: JSON).
        chunk_items: Maximum items that travel together, 1 to 10,000 (default 500). More is cheaper and coarser, and
            the results of a chunk must fit in a row (900 KiB).
        chunk_seconds: About how long a chunk should take a processor, in seconds, by the measured time of an item
            (default 0.5; 0: every chunk has `chunk_items`). Until it is measured, a batch of up to eight times
            `chunk_items` is spread over 16 chunks.
        item_seconds: Bound of one attempt of an item, in seconds (default 600; 0: none).
        item_attempts: Attempts of an item before it counts as failed (default 1).
        identity: What this process is called in records.

    Raises:
        ConfigurationError: An option is out of bounds.
        StorageError: Storage refused or stayed unreachable; also raised by each method.

    Examples:
        >>> billing = storage.pipeline("billing", read_customers, bill, add_up, item=Customer, result=int)
        >>> await billing.start("2026-11", "customers.csv", sla_seconds=3600)
    """

    def __init__(
        self,
        name: str,
        initiator: Initiator,
        processor: Callable[[Any], Any],
        controller: Fold,
        *,
        ledger: BatchLedger,
        reports: Reports,
        orders: Queue[BatchOrder],
        work: Queue[ItemChunk],
        results: Queue[ChunkResult],
        done: Queue[BatchDone] | None = None,
        item: Any = Any,
        result: Any = Any,
        combine: Callable[[list[Any]], list[Any]] | None = None,
        reporter: Reporter = msgspec.json.encode,
        chunk_items: int = 500,
        chunk_seconds: float = CHUNK_SECONDS,
        item_seconds: float = 600.0,
        item_attempts: int = 1,
        identity: Callable[[], str] = lambda: "",
    ) -> None:
        if not 1 <= chunk_items <= 10_000:
            raise ConfigurationError(f"chunk_items must be between 1 and 10,000, got {chunk_items}")
        if chunk_seconds < 0 or item_seconds < 0 or item_attempts < 1:
            raise ConfigurationError(
                "chunk_seconds and item_seconds must not be negative, and item_attempts at least 1"
            )
        self.name = name
        self._items = ItemRunner(
            processor,
            msgspec.json.Decoder(item),
            seconds=item_seconds,
            attempts=item_attempts,
            clock=orders.clock,
        )
        self.chunk_items = chunk_items
        self.orders, self.work, self.results = orders, work, results
        self._ledger = ledger
        self._combine, self._reports = combine, reports
        self._identity = identity
        self._clock = orders.clock
        self._sender = Sender(ledger, initiator, work, chunk_seconds=chunk_seconds)
        self._outbox = Outbox(ledger.heads, orders)
        self.control = BatchControl(ledger, self._outbox, clock=self._clock)
        self._wanted: dict[str, tuple[float, bool]] = {}
        self._counter = ResultAggregator(
            ledger,
            controller=controller,
            result_type=result,
            reporter=reporter,
            reports=reports,
            done=done,
            clock=self._clock,
            is_wanted=self._is_wanted,
        )

    # --- batches ------------------------------------------------------------------------------------------------

    async def start(
        self, batch: str, source: Any, *, sla_seconds: float = 0.0, expected_items: int = 0
    ) -> bool:
        """Order a batch.

        Args:
            batch: Its name.
            source: What the initiator gets, any JSON.
            sla_seconds: Seconds from now within which it should complete (default 0: no SLA).
            expected_items: Number of items, if known: the ETA is then known from the start.

        Returns:
            False if there is a batch of that name.

        Raises:
            ConfigurationError: `source` is not JSON, or an option is out of bounds.
        """
        check_key((self.name, batch))
        if not (0 <= sla_seconds <= MAX_SECONDS and 0 <= expected_items <= MAX_COUNT):
            raise ConfigurationError(
                f"sla_seconds must be between 0 and {MAX_SECONDS:g}, expected_items between 0 and {MAX_COUNT}"
            )
        first_items, is_unmeasured = self._sender.first_items(self.chunk_items)
        head = Head(
            source=msgspec.json.encode(source).decode(),
            state="running",
            chunk_items=self.chunk_items,
            started_at=self._clock.time(),
            by=self._identity(),
            expected_items=expected_items,
            sla_seconds=sla_seconds,
            orders_queue=self.orders.name,
            first_items=first_items,
            is_unmeasured=is_unmeasured,
            run=secrets.token_hex(4),
            report_name=await self._report_name(batch),
        )
        insert = Insert((self.name, batch), msgspec.structs.asdict(head))
        try:
            await self._outbox.commit(self.name, [insert], BatchOrder(batch), intent=batch)
        except AlreadyExists:
            await self._outbox.relay_one(self.name, batch)
            return False
        return True

    async def _report_name(self, batch: str) -> str:
        """A report outlives its batch. One that bears the name of a forgotten batch must not pass for ours."""
        name = f"{self.name}/{batch}.json"
        if not await self._reports.exists(name):
            return name
        return f"{self.name}/{batch}-{secrets.token_hex(4)}.json"

    async def status(self, batch: str) -> BatchStatus:
        """How far the batch is; two requests.

        Args:
            batch: The batch.

        Returns:
            Its status.

        Raises:
            NotFound: It was never started.
        """
        return await self.control.status(batch)

    async def wait(self, batch: str, *, poll_seconds: float = 0.2) -> BatchStatus:
        """Read again and again until the batch has ended.

        Args:
            batch: The batch.
            poll_seconds: Seconds between two reads (default 0.2).

        Returns:
            Its status at the end.

        Raises:
            NotFound: It was never started.
        """
        while (status := await self.status(batch)).state == "running":
            await self._clock.sleep(poll_seconds)
        return status

    async def cancel(self, batch: str) -> None:
        """Stop a batch for good. Chunks in flight are dropped within seconds, and no report is written.

        Args:
            batch: The batch.

        Raises:
            PipelineError: The batch is complete.
            NotFound: It was never started.
        """
        await self.control.cancel(batch)
        self._wanted.pop(batch, None)

    def failures(self, batch: str) -> AsyncIterator[ItemFailure]:
        """The items that failed and did not succeed since, in their order.

        Args:
            batch: The batch.

        Yields:
            Each item, with the reason.
        """
        return self.control.failures(batch)

    async def results_of(self, batch: str) -> AsyncIterator[Any]:
        """Each result that was counted, in the order of the chunks, in constant memory.

        Args:
            batch: The batch.

        Yields:
            Each result.
        """
        async for chunk in self._ledger.results(batch):
            for raw in chunk.results:
                yield self._counter.decode(raw)

    async def retry_failed(self, batch: str) -> None:
        """Process the failed items of a `partial` batch again, or have a `failed` one go on.

        Args:
            batch: The batch.

        Raises:
            PipelineError: It is neither.
            NotFound: It was never started.
        """
        await self.control.retry_failed(batch)

    async def accept_failures(self, batch: str) -> None:
        """Complete a `partial` batch without its failed items.

        Args:
            batch: The batch.

        Raises:
            PipelineError: It is not `partial`.
            NotFound: It was never started.
        """
        head = (await self._ledger.head(batch)).value
        self.control.must_be_partial(batch, head)
        (sent, _), (counted, etag) = await self._ledger.progress(batch)
        await self._counter.finish(batch, sent, counted, etag, head)

    # --- the three parts, for any number of processes ---------------------------------------------------------------

    def initiators(
        self, *, relay_seconds: float = RELAY_SECONDS, **options: Unpack[ListenerOptions]
    ) -> QueueListener[BatchOrder]:
        """A listener that splits batches.

        Args:
            relay_seconds: Seconds between two looks for orders that were stored and not sent (default 300).
            **options: As for `QueueListener`.

        Returns:
            The listener; run it with `Worker.add`.
        """
        options.setdefault("retries", _RETRIES)
        options.setdefault("tasks", range(1, 5))
        return RelayingListener(
            self._outbox, self.name, self.initiate, relay_seconds=relay_seconds, **options
        )

    def processors(self, **options: Unpack[ListenerOptions]) -> QueueListener[ItemChunk]:
        """A listener that processes items.

        Args:
            **options: As for `QueueListener`.

        Returns:
            The listener; run it with `Worker.add`.
        """
        options.setdefault("retries", _RETRIES)
        return self.work.listener(self.process, **options)

    def controllers(self, **options: Unpack[ListenerOptions]) -> QueueListener[ChunkResult]:
        """A listener that counts results. One task a process is best: it counts up to 32 chunks at a time.

        Args:
            **options: As for `QueueListener`.

        Returns:
            The listener; run it with `Worker.add`.
        """
        options.setdefault("retries", _RETRIES)
        options.setdefault("tasks", range(1, 2))
        options.setdefault("batch", 32)
        return self.results.listener(self._counter.handle, **options)

    async def initiate(self, order: BatchOrder) -> None:
        """Split a batch, or go on where an initiator that died had stopped.

        Args:
            order: The batch.
        """
        try:
            head = (await self._ledger.head(order.batch)).value
        except NotFound:
            _log.warning("Batch %s of %s is gone; its order is dropped", order.batch, self.name)
            return

        async def is_wanted() -> bool:
            return await self._is_wanted(order.batch)

        if head.state != "running" or order.round != head.round:
            await self._counter.settle(order.batch)
            return
        if (attempt := _attempt()) > ORDER_ATTEMPTS:
            error = PipelineError(
                f"its order was delivered {attempt - 1} times without an outcome: the initiator may end its process"
            )
            await self._counter.stumbled(order.batch, "the initiator", error, is_final=True)
            return
        try:
            if order.round:
                is_sent = await self._sender.send_failed(order.batch, order.round, head, is_wanted=is_wanted)
            else:
                source = msgspec.json.decode(head.source)
                is_sent = await self._sender.send(order.batch, source, head, is_wanted=is_wanted)
        except TRANSIENT:
            raise  # the order comes again, until storage is back
        except Exception as error:
            await self._counter.stumbled(order.batch, "the initiator", error)
            return
        if is_sent and head.stumbles:
            await self._counter.save_head(
                order.batch, lambda now: msgspec.structs.replace(now, stumbles=0, cause="")
            )
        if is_sent:
            await self._counter.settle(order.batch)

    async def process(self, chunk: ItemChunk) -> None:
        """Process the items of a chunk and send on the results.

        Args:
            chunk: The items.
        """
        if not await self._is_wanted(chunk.batch):
            return
        attempt = _attempt()
        if attempt > CHUNK_ATTEMPTS:
            why = f"its chunk was tried {attempt - 1} times without an answer: an item may end its process"
            done, seconds = list[Any](), 0.0
            failures = [failure(chunk, place, why) for place in range(len(chunk.items))]
        else:
            done, failures, seconds = await self._items.run(chunk)
        packed, failures = await self._pack(chunk, done, failures)
        result = ChunkResult(
            batch=chunk.batch,
            number=chunk.number,
            size=len(chunk.items),
            results=packed,
            failures=failures,
            round=chunk.round,
            seconds=seconds,
            run=chunk.run,
        )
        await self.results.put(fitted(result))

    async def _pack(
        self, chunk: ItemChunk, done: list[Any], failures: list[ItemFailure]
    ) -> tuple[list[msgspec.Raw], list[ItemFailure]]:
        """The results as they are sent. One that cannot be sent has failed: nobody could count it."""
        try:
            if self._combine is not None and done:
                done = self._combine(done)
            packed = [encode_item(each) for each in done]
        except Exception as error:
            return [], _all_failed(chunk, failures, f"its results cannot be combined or sent: {said(error)}")
        size = sum(len(bytes(each)) + 1 for each in packed)
        if size > MAX_RESULT_BYTES:
            why = (
                f"the results of its chunk have {size} bytes; at most {MAX_RESULT_BYTES} can be stored. Use combine=, a smaller "
                "chunk_items, or results that name a blob"
            )
            return [], _all_failed(chunk, failures, why)
        return packed, failures

    async def _is_wanted(self, batch: str) -> bool:
        """Whether the batch was not cancelled, as known for two seconds at most."""
        seen = self._wanted.get(batch)
        now = self._clock.monotonic()
        if seen is None or now - seen[0] > _WANTED_SECONDS:
            try:
                state = (await self._ledger.head(batch)).value.state
            except NotFound:
                state = "cancelled"
            if len(self._wanted) > 1000:
                self._wanted.clear()
            seen = self._wanted[batch] = (now, state != "cancelled")
        return seen[1]


def _attempt() -> int:
    try:
        return current_message().attempt
    except LookupError:
        return 1


def _all_failed(chunk: ItemChunk, failures: list[ItemFailure], why: str) -> list[ItemFailure]:
    known = {each.index: each for each in failures}
    every = [failure(chunk, place, why) for place in range(len(chunk.items))]
    return [known.get(each.index, each) for each in every]
