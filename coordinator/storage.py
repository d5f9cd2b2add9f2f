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
    TableRunLog,
    make_election,
    make_mutex,
    make_semaphore,
)
from coordinator.leadership.election import Election
from coordinator.leadership.every import RunLog
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

    Guarantees that no request is retried behind the caller's back, and that each is counted by `meter`. Building it,
    and everything that it creates, sends no request. It may be shared between threads and event loops; a forked child
    gets connections of its own.

    Does not guarantee that connections end by themselves: close with `await aclose()` on each loop that used it, and
    with `close()` for threads. `async with` does both.

    Args:
        endpoints: The addresses of the services and the credential; see `from_env`, `from_connection_string`,
            `from_account_url`.
        **options: `config`, a `StorageConfig`; `bus` for notifications (default: within this process); `clock`, for
            tests.

    Raises:
        ConfigurationError: A name or an option is out of bounds; also raised by each method.

    Examples:
        >>> async with Storage.from_env() as storage:
        ...     print(await storage.queue("orders-in").depth())
    """

    def __init__(self, endpoints: Endpoints, **options: Unpack[StorageOptions]) -> None:
        super().__init__(endpoints, **options)
        self._generators: dict[str, tuple[UniqueIdGenerator, SequenceOptions]] = {}

    def sequence(self, name: str, **options: Unpack[SequenceOptions]) -> UniqueIdGenerator:
        """Order numbers, unique across all nodes.

        A process has one generator for each name: asking again returns the same one until it is closed.

        Args:
            name: 3 to 48 lower-case letters, digits and single dashes.
            **options: The fields of `SequenceConfig`; `container` and `blob`, if another program keeps the counter
                (default ``{prefix}sequences/{name}``).

        Returns:
            The generator.

        Raises:
            ConfigurationError: An option is out of bounds, or differs from that of the generator which this process
                has.

        Examples:
            >>> orders = storage.sequence("orders", range_size=1000)
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
            generator = self._generator(name, place, SequenceConfig(**settings))  # type: ignore[arg-type]
            self._generators[name] = (generator, options)
            return generator

    def _generator(self, name: str, place: dict[str, str], config: SequenceConfig) -> UniqueIdGenerator:
        return make_generator(self, name, **place, config=config)

    def gate(self, name: str, **options: Unpack[GateOptions]) -> Gate:
        """A gate that holds workers until an operator opens it.

        Args:
            name: 3 to 48 lower-case letters, digits and single dashes.
            **options: `identity` of the process that waits (default: the storage's); `container` and `blob` (default
                ``{prefix}gates`` and the name); `config`, a `GateConfig`; `rng`, for tests.

        Returns:
            The gate.

        Raises:
            ConfigurationError: The name or an option is out of bounds.
        """
        return make_gate(self, check_name("gate", name), **options)

    def flag(self, name: str, *, container: str = "", blob: str = "") -> BlobFlag:
        """A bare flag: a blob whose presence means set.

        Args:
            name: 3 to 48 lower-case letters, digits and single dashes.
            container: Where it is stored (default ``{prefix}flags``).
            blob: The name of the blob (default: the name).

        Returns:
            A `GlobalFlag`.

        Raises:
            ConfigurationError: A name is out of bounds.
        """
        return make_flag(self, check_name("flag", name), container=container, blob=blob)

    def election(self, name: str, *, identity: str = "", **options: Unpack[ElectionOptions]) -> Election:
        """One leader at a time.

        Args:
            name: 3 to 48 lower-case letters, digits and single dashes.
            identity: What the leader is called in records (default: the storage's).
            **options: `lease_seconds`, `config`, `health`, `on_change`, `on_new_leader`, `on_stall`, `rng`, as for
                `Election`; `container` and `blob` (default ``{prefix}leases`` and the name); `history` (default: the
                table of terms).

        Returns:
            The election.

        Raises:
            ConfigurationError: A name or an option is out of bounds.
        """
        return make_election(
            self, check_name("election", name), identity=identity or self.identity, **options
        )

    def run_log(self, election: str) -> RunLog:
        """What a leader records of its scheduled jobs, so that its successor repeats none. See `Worker.every`.

        Args:
            election: The election whose leader runs the jobs.

        Returns:
            The log.
        """
        return TableRunLog(self, election)

    def mutex(self, name: str, *, identity: str = "", **options: Unpack[LockOptions]) -> BlobDistributedMutex:
        """A lock across nodes.

        Args:
            name: 3 to 48 lower-case letters, digits and single dashes.
            identity: What the holder is called in records (default: the storage's).
            **options: `lease_seconds`, `config`, `rng`, as for `BlobDistributedMutex`; `container` and `blob`
                (default ``{prefix}leases`` and the name).

        Returns:
            The mutex.

        Raises:
            ConfigurationError: A name or an option is out of bounds.

        Examples:
            >>> async with storage.mutex("stock-count").hold(timeout=60) as term:
            ...     term.check()
        """
        return make_mutex(self, check_name("mutex", name), identity=identity or self.identity, **options)

    def semaphore(
        self, name: str, places: int, *, identity: str = "", **options: Unpack[LockOptions]
    ) -> BlobDistributedSemaphore:
        """A lock that several holders may have at a time.

        Args:
            name: 3 to 48 lower-case letters, digits and single dashes.
            places: How many holders, at least 1. All users of the name must agree.
            identity: What the holder is called in records (default: the storage's).
            **options: As for `mutex`.

        Returns:
            The semaphore.

        Raises:
            ConfigurationError: A name or an option is out of bounds.
        """
        return make_semaphore(
            self, check_name("semaphore", name), places, identity=identity or self.identity, **options
        )

    @overload
    def queue(self, name: str, type: type[T], **options: Unpack[QueueOptions]) -> Queue[T]: ...

    @overload
    def queue(self, name: str, type: Any = Any, **options: Unpack[QueueOptions]) -> Queue[Any]: ...

    def queue(self, name: str, type: Any = Any, **options: Unpack[QueueOptions]) -> Queue[Any]:
        """A queue of items of one type.

        Args:
            name: 3 to 48 lower-case letters, digits and single dashes.
            type: What the items are, anything that msgspec can decode (default: any JSON).
            **options: `version` of the type (default 1), and `upcasters`, which bring items of earlier versions up to
                it; `config`, a `QueueConfig`.

        Returns:
            The queue. It is created on first use.

        Raises:
            ConfigurationError: The name or an option is out of bounds.

        Examples:
            >>> queue = storage.queue("orders-in", type=Order)
        """
        return make_queue(self, check_name("queue", name), type=type, **options)

    def sharded_queue(
        self, name: str, type: Any = Any, *, shards: int = 4, **options: Unpack[QueueOptions]
    ) -> ShardedQueue[Any]:
        """Several queues that are used as one.

        Args:
            name: 3 to 48 lower-case letters, digits and single dashes; the shards are ``NAME-0``, ``NAME-1``, …
            type: What the items are (default: any JSON).
            shards: Number of shards until `reshard` stores one, at least 1 (default 4).
            **options: As for `queue`.

        Returns:
            The queue.

        Raises:
            ConfigurationError: The name or an option is out of bounds.
        """

        def make(shard: str) -> Queue[Any]:
            return self.queue(shard, type=type, **options)

        return ShardedQueue(make, check_name("queue", name), shards=shards, store=BlobShards(self))

    def table(self, name: str) -> Table:
        """A table.

        Args:
            name: Its full name; the prefix is not added.

        Returns:
            The table. It is created on first use.

        Raises:
            ConfigurationError: The service does not allow the name.
        """
        return make_table(self, name)

    def bulk(self) -> BulkWrite:
        """More writes than a transaction takes, with one call; see `BulkWrite`."""
        return make_bulk(self)

    def saga(self, name: str, input: type[T] | Any = Any, **options: Unpack[SagaOptions]) -> Saga[T]:
        """Steps that either all complete or are all rolled back, even after crashes.

        Args:
            name: 3 to 48 lower-case letters, digits and single dashes.
            input: The type of the input (default: any JSON).
            **options: `queue` of the saga's messages (default ``{prefix}saga-{name}``); `timeout_seconds` and
                `version`, as for `Saga`.

        Returns:
            The saga, without steps: add them with its decorator `step`.

        Raises:
            ConfigurationError: The name or an option is out of bounds.
        """
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
        """Batches that are split and processed in parallel, each item counted once.

        Args:
            name: 3 to 48 lower-case letters, digits and single dashes.
            initiator: ``initiator(source)`` yields the items of a batch.
            processor: ``processor(item)`` returns the result of one item, or raises.
            controller: ``controller(total, results)`` adds results to the total, which starts as None.
            queue: Start of the names of its queues (default ``{prefix}{name}``).
            done_queue: The queue that gets a `BatchDone` for each complete batch (default: none).
            **options: `item`, `result`, `combine`, `reporter`, `chunk_items`, `chunk_seconds`, `item_seconds`,
                `item_attempts`, as for `Pipeline`.

        Returns:
            The pipeline.

        Raises:
            ConfigurationError: The name or an option is out of bounds.
        """
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
