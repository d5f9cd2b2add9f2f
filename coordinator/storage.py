"""`Storage`: the way to everything Kennel offers in one account."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar, Unpack, overload

from coordinator.azure.account import Account, StorageOptions
from coordinator.azure.credentials import Endpoints
from coordinator.config import check_name
from coordinator.errors import ConfigurationError
from coordinator.gates.azure import BlobFlag, GateOptions, make_flag, make_gate
from coordinator.gates.gate import Gate
from coordinator.leadership.azure import (
    ElectionOptions,
    LockOptions,
    make_election,
    make_mutex,
    make_semaphore,
)
from coordinator.leadership.election import Election
from coordinator.leadership.mutex import BlobDistributedMutex
from coordinator.leadership.semaphore import BlobDistributedSemaphore
from coordinator.pipelines.azure import PipelineOptions, make_pipeline
from coordinator.pipelines.pipeline import Pipeline
from coordinator.queues.azure import BlobShards, QueueOptions, make_queue
from coordinator.queues.queue import Queue
from coordinator.queues.shards import ShardedQueue
from coordinator.sequences.azure import make_generator
from coordinator.sequences.generator import UniqueIdGenerator
from coordinator.sequences.grants import SequenceConfig, SequenceOptions
from coordinator.tables.azure import SagaOptions, make_bulk, make_saga, make_table
from coordinator.tables.bulk import BulkWrite
from coordinator.tables.saga import Saga
from coordinator.tables.table import Table

T = TypeVar("T")


class Storage(Account):
    """A storage account, and the factory of all that Kennel keeps in it.

    Does no I/O when built: clients are made on first use, one set for each event loop and one for threads, over
    pooled connections. No request is retried behind the caller's back; each is counted by `meter`. Safe to share
    between threads and event loops. Close with `await aclose()` on each loop that used it, `close()` for threads.
    """

    def __init__(self, endpoints: Endpoints, **options: Unpack[StorageOptions]) -> None:
        super().__init__(endpoints, **options)
        self._generators: dict[str, tuple[UniqueIdGenerator, SequenceOptions]] = {}

    def sequence(self, name: str, **options: Unpack[SequenceOptions]) -> UniqueIdGenerator:
        """Order numbers, unique across all nodes. See `UniqueIdGenerator`; `options` are those of `SequenceConfig`.

        container, blob: where the counter is, if another program keeps it; by default ``{prefix}sequences/{name}``.

        One generator for each name: asking again gives the same one until it is closed, and `ConfigurationError` for
        options that differ from its own; those not given need not agree.
        """
        check_name("sequence", name)
        with self._lock:
            generator, given = self._generators.get(name, (None, options))
            if generator is not None and not generator.is_closed:
                theirs = {"container": "", "blob": "", **asdict(generator.config), **given}
                if differing := [key for key, value in options.items() if value != theirs[key]]:
                    raise ConfigurationError(
                        f"sequence {name}: this process has it already, with another {' and '.join(differing)}; use that "
                        "generator, or close it first"
                    )
                return generator
            settings = dict(options)
            place = {key: str(settings.pop(key, "")) for key in ("container", "blob")}
            generator = make_generator(self, name, **place, config=SequenceConfig(**settings))  # type: ignore[arg-type]
            self._generators[name] = (generator, options)
            return generator

    def gate(self, name: str, **options: Unpack[GateOptions]) -> Gate:
        """A gate that holds workers until an operator opens it. See `Gate`."""
        return make_gate(self, check_name("gate", name), **options)

    def flag(self, name: str, *, container: str = "", blob: str = "") -> BlobFlag:
        """A bare flag: a blob whose presence means set, by default `{prefix}flags/{name}`. See `GlobalFlag`."""
        return make_flag(self, check_name("flag", name), container=container, blob=blob)

    def election(self, name: str, *, identity: str = "", **options: Unpack[ElectionOptions]) -> Election:
        """One leader at a time. See `Election`."""
        return make_election(
            self, check_name("election", name), identity=identity or self.identity, **options
        )

    def mutex(self, name: str, *, identity: str = "", **options: Unpack[LockOptions]) -> BlobDistributedMutex:
        """A lock across nodes. See `BlobDistributedMutex`."""
        return make_mutex(self, check_name("mutex", name), identity=identity or self.identity, **options)

    def semaphore(
        self, name: str, places: int, *, identity: str = "", **options: Unpack[LockOptions]
    ) -> BlobDistributedSemaphore:
        """A lock that `places` holders may have at a time. See `BlobDistributedSemaphore`."""
        return make_semaphore(
            self, check_name("semaphore", name), places, identity=identity or self.identity, **options
        )

    @overload
    def queue(self, name: str, type: type[T], **options: Unpack[QueueOptions]) -> Queue[T]: ...

    @overload
    def queue(self, name: str, type: Any = Any, **options: Unpack[QueueOptions]) -> Queue[Any]: ...

    def queue(self, name: str, type: Any = Any, **options: Unpack[QueueOptions]) -> Queue[Any]:
        """A queue of messages of that type, anything msgspec can decode. See `Queue`."""
        return make_queue(self, check_name("queue", name), type=type, **options)

    def sharded_queue(
        self, name: str, type: Any = Any, *, shards: int = 4, **options: Unpack[QueueOptions]
    ) -> ShardedQueue[Any]:
        """A queue over several whose number the account keeps; `shards` until one is stored. See `ShardedQueue`."""

        def make(shard: str) -> Queue[Any]:
            return self.queue(shard, type=type, **options)

        return ShardedQueue(make, check_name("queue", name), shards=shards, store=BlobShards(self))

    def table(self, name: str) -> Table:
        """A table, by its full name. See `Table`."""
        return make_table(self, name)

    def bulk(self) -> BulkWrite:
        """More writes than a transaction takes, with one call. See `BulkWrite`."""
        return make_bulk(self)

    def saga(self, name: str, input: type[T] | Any = Any, **options: Unpack[SagaOptions]) -> Saga[T]:
        """Steps that end done or undone, whoever crashes. See `Saga`."""
        return make_saga(self, check_name("saga", name), input_type=input, **options)

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
        """Batches split, processed in parallel, each item counted once. See `Pipeline`."""
        return make_pipeline(
            self,
            check_name("pipeline", name),
            initiator,
            processor,
            controller,
            queue=queue,
            done_queue=done_queue,
            **options,
        )
