"""What operators do to a batch; needs none of the pipeline's own code."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from coordinator.clock import Clock
from coordinator.errors import AlreadyExists, KennelError, PreconditionFailed
from coordinator.pipelines.ledger import BatchLedger
from coordinator.pipelines.messages import BatchOrder, Head, ItemFailure
from coordinator.pipelines.status import BatchStatus, batch_status
from coordinator.tables.operations import Replace
from coordinator.tables.optimistic import optimistic_update
from coordinator.tables.outbox import Outbox


class PipelineError(KennelError):
    """A batch was asked for something that it cannot do; the message names the batch and its state."""


class BatchControl:
    """Looks at the batches of one pipeline, cancels them, and has what failed tried again.

    Guarantees: a retry is ordered once for each round, and its order reaches the initiators at least once, even if this
    process dies in between (then with their next look, every five minutes); a batch that was cancelled stays so. Does not
    guarantee that what is on its way stops at once: processors look every two seconds.
    """

    def __init__(self, ledger: BatchLedger, outbox: Outbox[BatchOrder], *, clock: Clock) -> None:
        self._ledger = ledger
        self._outbox = outbox
        self._clock = clock
        self.pipeline = ledger.pipeline

    async def status(self, batch: str) -> BatchStatus:
        """How the batch goes; two requests. Raises `NotFound`."""
        head = (await self._ledger.head(batch)).value
        sent, counted = await self._ledger.progress(batch)
        return batch_status(self.pipeline, batch, head, sent.value, counted.value, now=self._clock.time())

    async def failures(self, batch: str) -> AsyncIterator[ItemFailure]:
        """The items that failed and were not put right since, in their order."""
        async for row in self._ledger.failed_rows(batch):
            for failure in (await self._ledger.result(batch, row)).failures:
                yield failure

    async def cancel(self, batch: str) -> Head:
        """Stop a batch: what is on its way is dropped within seconds, no report is written. Final.

        Returns what it was. Raises `NotFound`, or `PipelineError` if the batch is complete.
        """

        def change(head: Head) -> Head:
            if head.state == "complete":
                raise PipelineError(f"batch {batch} of {self.pipeline} is complete; it cannot be cancelled")
            if head.state == "cancelled":
                return head
            return msgspec.structs.replace(head, state="cancelled", finished_at=self._clock.time())

        update = await optimistic_update(
            self._ledger.heads,
            (self.pipeline, batch),
            lambda row: msgspec.structs.asdict(change(msgspec.convert(row, Head, strict=False))),
        )
        assert update.old is not None
        return msgspec.convert(update.old.values, Head, strict=False)

    async def retry_failed(self, batch: str) -> int:
        """Process the failed items of a `partial` batch again, or have a `failed` one go on where it stopped; returns how many items.

        Raises `PipelineError` if it is neither, or somebody else changed it meanwhile.
        """
        head, etag = await self._ledger.head(batch)
        round = head.round
        if head.state != "failed":
            self.must_be_partial(batch, head)
            round += 1
        again = msgspec.structs.replace(
            head,
            state="running",
            round=round,
            stumbles=0,
            cause="",
            finished_at=0.0,
            resumed_at=self._clock.time(),
        )
        replace = Replace((self.pipeline, batch), msgspec.structs.asdict(again), etag)
        order = BatchOrder(batch, again.round)
        try:
            await self._outbox.commit(self.pipeline, [replace], order, intent=f"{batch}|{again.round}")
        except (AlreadyExists, PreconditionFailed) as error:
            raise PipelineError(
                f"batch {batch} of {self.pipeline}: somebody else has just retried or cancelled it; nothing changed"
            ) from error
        return head.failed if head.state == "partial" else 0

    def must_be_partial(self, batch: str, head: Head) -> None:
        """Raises `PipelineError` if it is not."""
        if head.state != "partial":
            raise PipelineError(
                f"batch {batch} of {self.pipeline} is {head.state}; only a partial batch has failures to settle"
            )
