"""A whole storage account in memory, for tests of workers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, Unpack

from coordinator.azure.credentials import Endpoints
from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.config import check_name
from coordinator.errors import NotFound
from coordinator.gates.azure import BlobFlag
from coordinator.gates.gate import Gate, GateConfig
from coordinator.leadership.azure import ElectionOptions, LockOptions
from coordinator.leadership.election import Election
from coordinator.leadership.every import RunLog
from coordinator.leadership.lease import LeaderInfo
from coordinator.leadership.mutex import BlobDistributedMutex
from coordinator.leadership.semaphore import BlobDistributedSemaphore
from coordinator.pipelines.azure import PipelineOptions
from coordinator.pipelines.ledger import BatchLedger
from coordinator.pipelines.messages import BatchDone, BatchOrder, ChunkResult, ItemChunk
from coordinator.pipelines.pipeline import Pipeline
from coordinator.queues.azure import QueueOptions
from coordinator.queues.envelope import SUFFIX, Schema
from coordinator.queues.large_payloads import LargePayloads
from coordinator.queues.queue import Queue, QueueConfig
from coordinator.queues.shards import ShardedQueue
from coordinator.sequences.azure import owner_of
from coordinator.sequences.generator import UniqueIdGenerator
from coordinator.sequences.grants import SequenceConfig
from coordinator.storage import Storage
from coordinator.tables.azure import SagaOptions
from coordinator.tables.bulk import BulkOrder, BulkWrite
from coordinator.tables.saga import Saga, SagaMessage
from coordinator.tables.table import Table
from coordinator.testing.gates import MemoryGateStore
from coordinator.testing.leadership import MemoryEpochs, MemoryLeaseStore, MemoryRunLog, MemoryTermLog
from coordinator.testing.pipeline import MemoryReports
from coordinator.testing.queues import MemoryClaimStore, MemoryQueueTransport, MemoryRules, MemoryShards
from coordinator.testing.sequences import MemoryLedger, MemoryStore
from coordinator.testing.tables import MemoryTableStore

T = TypeVar("T")
K = TypeVar("K")
_ONE = QueueConfig(items_per_message=1)


class MemoryStorage(Storage):
    """A `Storage` without an account: everything that it makes keeps its data here, and makes no request.

    Two objects of one name share their data, as in an account. `until_empty` waits until a queue is worked off.
    Commands of the shell and listings (such as `list_queues`) need an account: use Azurite for them.
    """

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(Endpoints.from_connection_string("UseDevelopmentStorage=true"), clock=clock)
        self._stores: dict[tuple[str, str], Any] = {}
        self._epochs = MemoryEpochs()
        self._terms = MemoryTermLog()
        self._shards = MemoryShards()
        self._rules = MemoryRules()

    async def until_empty(self, queue: str, *, seconds: float = 10.0) -> None:
        """Wait until no message is left in the queue. Raises `TimeoutError`."""
        async with asyncio.timeout(seconds):
            while await self._transport(queue).count():  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    def _kept(self, kind: str, name: str, make: Callable[[], K]) -> K:
        store: K = self._stores.setdefault((kind, name), make())
        return store

    # --- sequences, gates, leaders -----------------------------------------------------------------------------------

    def _generator(self, name: str, place: dict[str, str], config: SequenceConfig) -> UniqueIdGenerator:
        where = "/".join([*place.values(), name])
        return UniqueIdGenerator(
            name,
            self._kept("counter", where, MemoryStore),
            self._kept("ledger", name, MemoryLedger),
            config=config,
            owner=lambda: owner_of(self),
            clock=self.clock,
        )

    def gate(
        self,
        name: str,
        *,
        identity: str = "",
        container: str = "",
        blob: str = "",
        config: GateConfig | None = None,
        rng: random.Random | None = None,
    ) -> Gate:
        check_name("gate", name)
        where = f"{container}/{blob or name}"
        return Gate(
            self._kept("gate", where, lambda: MemoryGateStore(name, clock=self.clock)),
            identity=identity or self.identity,
            bus=lambda: self.bus,
            clock=self.clock,
            config=config,
            rng=rng,
            portal=lambda: self.portal,
            epochs=self._epochs,
        )

    def flag(self, name: str, *, container: str = "", blob: str = "") -> BlobFlag:
        check_name("flag", name)
        return self._kept(
            "flag", f"{container}/{blob or name}", lambda: _Flag(self, blob or name, container=container)
        )

    def election(self, name: str, *, identity: str = "", **options: Unpack[ElectionOptions]) -> Election:
        store = self._lease(check_name("election", name), options)
        options.setdefault("history", self._terms)
        return Election(
            store,
            identity=identity or self.identity,
            bus=lambda: self.bus,
            clock=self.clock,
            portal=lambda: self.portal,
            **options,  # type: ignore[misc]
        )

    def mutex(self, name: str, *, identity: str = "", **options: Unpack[LockOptions]) -> BlobDistributedMutex:
        store = self._lease(check_name("mutex", name), options)
        return BlobDistributedMutex(
            store,
            identity=identity or self.identity,
            bus=lambda: self.bus,
            clock=self.clock,
            portal=lambda: self.portal,
            epochs=self._epochs,
            **options,  # type: ignore[misc]
        )

    def semaphore(
        self, name: str, places: int, *, identity: str = "", **options: Unpack[LockOptions]
    ) -> BlobDistributedSemaphore:
        check_name("semaphore", name)
        where = f"{options.pop('container', '')}/{options.pop('blob', '') or name}"
        names = [f"{name}.{number}" for number in range(places)]
        stores = [
            self._kept("lease", f"{where} {place}", partial(MemoryLeaseStore, place, clock=self.clock))
            for place in names
        ]

        async def look() -> list[LeaderInfo]:
            found = []
            for store in stores:
                try:
                    found.append(await store.read())
                except NotFound:
                    continue
            return found

        return BlobDistributedSemaphore(
            name,
            stores,
            look,
            identity=identity or self.identity,
            bus=lambda: self.bus,
            clock=self.clock,
            portal=lambda: self.portal,
            epochs=lambda place: self._epochs,
            **options,  # type: ignore[misc]
        )

    def _lease(self, name: str, options: Any) -> MemoryLeaseStore:
        where = f"{options.pop('container', '')}/{options.pop('blob', '') or name}"
        return self._kept("lease", where, lambda: MemoryLeaseStore(name, clock=self.clock))

    def run_log(self, election: str) -> RunLog:
        return self._kept("runs", election, MemoryRunLog)

    # --- queues, tables, what is made of them ------------------------------------------------------------------------

    def _transport(self, name: str) -> MemoryQueueTransport:
        return self._kept("queue", name, lambda: MemoryQueueTransport(name, clock=self.clock))

    def queue(self, name: str, type: Any = Any, **options: Unpack[QueueOptions]) -> Queue[Any]:
        return self._queue(check_name("queue", name), type, **options)

    def _queue(self, name: str, type: Any, **options: Unpack[QueueOptions]) -> Queue[Any]:
        config = options.pop("config", None) or QueueConfig()
        schema = {**options, "upcasters": dict(options.get("upcasters") or {})}
        claims = self._kept("claims", name.removesuffix(SUFFIX) or name, lambda: MemoryClaimStore(self.clock))
        return Queue(
            self._transport(name),
            LargePayloads(claims, clock=self.clock, max_payload_bytes=config.max_payload_bytes),
            schema=Schema(type=type, **schema),  # type: ignore[arg-type]
            bus=lambda: self.bus,
            transport_of=self._transport,
            identity=lambda: self.identity,
            clock=self.clock,
            config=config,
            rules=self._rules,
            portal=lambda: self.portal,
        )

    def sharded_queue(
        self, name: str, type: Any = Any, *, shards: int = 4, **options: Unpack[QueueOptions]
    ) -> ShardedQueue[Any]:
        def make(shard: str) -> Queue[Any]:
            return self.queue(shard, type=type, **options)

        return ShardedQueue(make, check_name("queue", name), shards=shards, store=self._shards)

    def table(self, name: str) -> Table:
        return Table(self._kept("table", name, lambda: MemoryTableStore(name, clock=self.clock)))

    def bulk(self) -> BulkWrite:
        return BulkWrite(
            self.saga("bulk-write", BulkOrder), self.table(self.config.table("bulk")), self.table
        )

    def saga(self, name: str, input: type[T] | Any = Any, **options: Unpack[SagaOptions]) -> Saga[T]:
        version = options.get("version", "")
        own = f"{self.config.prefix}saga-{check_name('saga', name)}" + (f"-{version}" if version else "")
        return Saga(
            name,
            self.table(self.config.table("sagas")),
            self._queue(options.get("queue", "") or own, SagaMessage),
            input_type=input,
            timeout_seconds=options.get("timeout_seconds", 0.0),
            version=version,
            identity=lambda: self.identity,
        )

    def pipeline(
        self,
        name: str,
        initiator: Callable[..., Any],
        processor: Callable[[Any], Any],
        controller: Callable[[Any, list[Any]], Any],
        *,
        queue: str = "",
        done_queue: str = "",
        **options: Unpack[PipelineOptions],
    ) -> Pipeline:
        base = queue or f"{self.config.prefix}{check_name('pipeline', name)}"
        return Pipeline(
            name,
            initiator,
            processor,
            controller,
            ledger=BatchLedger(name, self.table("batches"), self.table("batchparts")),
            reports=self._kept("reports", name, MemoryReports),
            orders=self._queue(f"{base}-orders", BatchOrder, config=_ONE),
            work=self._queue(f"{base}-work", ItemChunk, config=_ONE),
            results=self._queue(f"{base}-results", ChunkResult, config=_ONE),
            done=self._queue(done_queue, BatchDone) if done_queue else None,
            identity=lambda: self.identity,
            **options,
        )


class _Flag(BlobFlag):
    """A flag that is set in this process alone."""

    _set = False

    async def get_flag(self) -> bool:
        return self._set

    async def set_flag(self, value: bool) -> None:
        self._set = value
