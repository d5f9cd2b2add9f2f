"""`Storage`: one account, its clients, its names, and the way to everything Kennel offers."""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Self, TypedDict, TypeVar, Unpack, overload
from urllib.parse import urlsplit

from anyio.from_thread import BlockingPortal, start_blocking_portal
from azure.core.credentials import TokenCredential
from azure.data.tables import TableServiceClient
from azure.data.tables.aio import TableServiceClient as AioTableServiceClient
from azure.storage.blob import BlobServiceClient
from azure.storage.blob.aio import BlobServiceClient as AioBlobServiceClient
from azure.storage.queue import QueueServiceClient
from azure.storage.queue.aio import QueueServiceClient as AioQueueServiceClient

from coordinator.bus import Bus, LocalBus
from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.config import StorageConfig, check_name
from coordinator.credentials import AioCredential, Endpoints
from coordinator.errors import ConfigurationError
from coordinator.meter import Meter
from coordinator.transport import (
    CountingAioTransport,
    CountingRequestsTransport,
    aio_session,
    blocking_session,
)

if TYPE_CHECKING:
    from coordinator.gates.azure_store import BlobFlag, GateOptions
    from coordinator.gates.gate import Gate
    from coordinator.leadership.azure_store import ElectionOptions, LockOptions, SemaphoreOptions
    from coordinator.leadership.election import Election
    from coordinator.leadership.mutex import BlobDistributedMutex
    from coordinator.leadership.semaphore import BlobDistributedSemaphore
    from coordinator.pipeline.azure_store import PipelineOptions
    from coordinator.pipeline.pipeline import Pipeline
    from coordinator.queues.azure_store import QueueOptions
    from coordinator.queues.queue import Queue
    from coordinator.queues.shards import ShardedQueue
    from coordinator.sequences.generator import UniqueIdGenerator
    from coordinator.sequences.grants import SequenceOptions
    from coordinator.tables.azure_store import SagaOptions
    from coordinator.tables.bulk import BulkWrite
    from coordinator.tables.saga import Saga
    from coordinator.tables.table import Table

T = TypeVar("T")


class StorageOptions(TypedDict, total=False):
    """What every way to make a `Storage` takes: naming and limits, the bus for hints, the clock."""

    config: StorageConfig | None
    bus: Bus | None
    clock: Clock


class Storage:
    """A storage account, and the factory of all that Kennel keeps in it.

    Does no I/O when built: clients are made on first use, one set for each event loop and one for threads, over
    pooled connections. No request is retried behind the caller's back; each is counted by `meter`. Safe to share
    between threads and event loops. Close with `await aclose()` on each loop that used it, `close()` for threads.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        *,
        config: StorageConfig | None = None,
        bus: Bus | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.endpoints = endpoints
        self.config = config or StorageConfig()
        self.bus: Bus = bus or LocalBus()
        self.clock = clock
        self.meter = Meter()
        self.identity = f"{os.uname().nodename}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._lock = threading.Lock()
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _AioClients] = (
            weakref.WeakKeyDictionary()
        )
        self._threads: _BlockingClients | None = None
        self._portal: tuple[AbstractContextManager[BlockingPortal], BlockingPortal] | None = None
        self._generators: dict[str, tuple[UniqueIdGenerator, SequenceOptions]] = {}
        _open.add(self)

    def _in_forked_child(self) -> None:
        """A child shares no connection and no lock with its parent, and is somebody else in every record."""
        self._lock = threading.Lock()
        self._loops = weakref.WeakKeyDictionary()
        self._threads = None
        self._portal = None
        self.meter = Meter()
        self.identity = f"{self.identity}-fork-{os.getpid()}"

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **options: Unpack[StorageOptions]) -> Storage:
        """Connect as the environment says.

        ``AZURE_STORAGE_CONNECTION_STRING``, or ``AZURE_STORAGE_ACCOUNT_URL`` with `DefaultAzureCredential`;
        ``KENNEL_PREFIX`` sets the prefix. Raises `ConfigurationError` if neither is set.
        """
        env = os.environ if environ is None else environ
        if prefix := env.get("KENNEL_PREFIX"):
            options.setdefault("config", StorageConfig(prefix=prefix))
        if connection_string := env.get("AZURE_STORAGE_CONNECTION_STRING"):
            return cls.from_connection_string(connection_string, **options)
        if account_url := env.get("AZURE_STORAGE_ACCOUNT_URL"):
            return cls.from_account_url(account_url, **options)
        raise ConfigurationError(
            "no storage account: set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_URL to use the "
            "machine's own Azure identity"
        )

    @classmethod
    def from_connection_string(cls, connection_string: str, **options: Unpack[StorageOptions]) -> Storage:
        """Connect with an account key or SAS; ``UseDevelopmentStorage=true`` means a local Azurite."""
        return cls(Endpoints.from_connection_string(connection_string), **options)

    @classmethod
    def from_account_url(
        cls, url: str, credential: str | TokenCredential | None = None, **options: Unpack[StorageOptions]
    ) -> Storage:
        """Connect to ``https://ACCOUNT.blob.core.windows.net`` with a SAS, a token credential, or (None) the
        machine's own identity through `DefaultAzureCredential`."""
        return cls(Endpoints.from_account_url(url, credential), **options)

    # --- what Kennel offers -------------------------------------------------------------------------------------

    def sequence(self, name: str, **options: Unpack[SequenceOptions]) -> UniqueIdGenerator:
        """Order numbers, unique across all nodes (S1). See `UniqueIdGenerator`; `options` are those of `SequenceConfig`.

        container, blob: where the counter is, if another program keeps it; by default ``{prefix}sequences/{name}``.

        One generator for each name: asking again gives the same one until it is closed, and `ConfigurationError` for
        options that differ from its own; those not given need not agree.
        """
        from coordinator.sequences.azure_store import make_generator
        from coordinator.sequences.grants import SequenceConfig

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
        """A gate that holds workers until an operator opens it (S4). See `Gate`."""
        from coordinator.gates.azure_store import make_gate

        return make_gate(self, check_name("gate", name), **options)

    def flag(self, name: str, *, container: str = "", blob: str = "") -> BlobFlag:
        """A bare flag: a blob whose presence means set (S2), by default `{prefix}flags/{name}`. See `GlobalFlag`."""
        from coordinator.gates.azure_store import make_flag

        return make_flag(self, check_name("flag", name), container=container, blob=blob)

    def election(self, name: str, *, identity: str = "", **options: Unpack[ElectionOptions]) -> Election:
        """One leader at a time (S15). See `Election`."""
        from coordinator.leadership.azure_store import make_election

        return make_election(
            self, check_name("election", name), identity=identity or self.identity, **options
        )

    def mutex(self, name: str, *, identity: str = "", **options: Unpack[LockOptions]) -> BlobDistributedMutex:
        """A lock across nodes (S15). See `BlobDistributedMutex`."""
        from coordinator.leadership.azure_store import make_mutex

        return make_mutex(self, check_name("mutex", name), identity=identity or self.identity, **options)

    def semaphore(
        self, name: str, places: int, *, identity: str = "", **options: Unpack[SemaphoreOptions]
    ) -> BlobDistributedSemaphore:
        """A lock that `places` holders may have at a time (S15). See `BlobDistributedSemaphore`."""
        from coordinator.leadership.azure_store import make_semaphore

        return make_semaphore(
            self, check_name("semaphore", name), places, identity=identity or self.identity, **options
        )

    @overload
    def queue(self, name: str, type: type[T], **options: Unpack[QueueOptions]) -> Queue[T]: ...

    @overload
    def queue(self, name: str, type: Any = Any, **options: Unpack[QueueOptions]) -> Queue[Any]: ...

    def queue(self, name: str, type: Any = Any, **options: Unpack[QueueOptions]) -> Queue[Any]:
        """A queue of messages of that type, anything msgspec can decode (S6, S10, S19). See `Queue`."""
        from coordinator.queues.azure_store import make_queue

        return make_queue(self, check_name("queue", name), type=type, **options)

    def sharded_queue(
        self, name: str, type: Any = Any, *, shards: int = 4, **options: Unpack[QueueOptions]
    ) -> ShardedQueue[Any]:
        """A queue over several whose number the account keeps (S14); `shards` until one is stored. See `ShardedQueue`."""
        from coordinator.queues.azure_shards import BlobShards
        from coordinator.queues.shards import ShardedQueue

        def make(shard: str) -> Queue[Any]:
            return self.queue(shard, type=type, **options)

        return ShardedQueue(make, check_name("queue", name), shards=shards, store=BlobShards(self))

    def table(self, name: str) -> Table:
        """A table, by its full name (S17). See `Table`."""
        from coordinator.tables.azure_tables import make_table

        return make_table(self, name)

    def bulk(self) -> BulkWrite:
        """More writes than a transaction takes, with one call (S17, S18). See `BulkWrite`."""
        from coordinator.tables.azure_store import make_bulk

        return make_bulk(self)

    def saga(self, name: str, input: type[T] | Any = Any, **options: Unpack[SagaOptions]) -> Saga[T]:
        """Steps that end done or undone, whoever crashes (S18). See `Saga`."""
        from coordinator.tables.azure_store import make_saga

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
        """Batches split, processed in parallel, each item counted once (S12). See `Pipeline`."""
        from coordinator.pipeline.azure_store import make_pipeline

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

    # --- clients, for adapters ----------------------------------------------------------------------------------

    @property
    def aio(self) -> _AioClients:
        """The asyncio clients of the running event loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            clients = self._loops.get(loop)
            if clients is None:
                clients = _AioClients(
                    self.endpoints, self.config, self.meter, closed=lambda: self._loops.pop(loop, None)
                )
                self._loops[loop] = clients
            return clients

    @property
    def blocking(self) -> _BlockingClients:
        """The clients for threads."""
        with self._lock:
            if self._threads is None:
                self._threads = _BlockingClients(self.endpoints, self.config, self.meter)
            return self._threads

    @property
    def portal(self) -> BlockingPortal:
        """An event loop in a thread of its own, through which threads use what is async; ended by `close()`."""
        with self._lock:
            if self._portal is None:
                manager = start_blocking_portal(name="kennel-portal")
                self._portal = (manager, manager.__enter__())
            return self._portal[1]

    async def aclose(self) -> None:
        """Close the connections of the running event loop. Harmless when repeated; a later use connects again."""
        with self._lock:
            clients = self._loops.get(asyncio.get_running_loop())
        if clients is not None:
            await clients.aclose()

    def close(self) -> None:
        """Close the connections used by threads. Harmless when repeated; a later use connects again."""
        with self._lock:
            clients, self._threads = self._threads, None
            running, self._portal = self._portal, None
        if clients is not None:
            clients.session.close()
        if running is not None:
            manager, portal = running
            portal.call(self.aclose)
            manager.__exit__(None, None, None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()
        self.close()


class _AioClients:
    """The SDK's asyncio clients of one event loop, over one session."""

    def __init__(
        self, endpoints: Endpoints, config: StorageConfig, meter: Meter, *, closed: Callable[[], object]
    ) -> None:
        self.session = aio_session()
        self._closed = closed
        self.shared: dict[
            tuple[str, str], Any
        ] = {}  # what the objects of one name have in common on this loop

        def options(service: str, url: str) -> dict[str, Any]:
            transport = CountingAioTransport(
                self.session,
                service=service,
                base_path=urlsplit(url).path,
                claims=config.container("claims"),
                meter=meter,
                connection_timeout=config.connect_seconds,
                read_timeout=config.read_seconds,
            )
            return {"transport": transport, "retry_total": 0}

        credential: Any = endpoints.credential
        if hasattr(credential, "get_token"):
            credential = AioCredential(credential)
        try:
            self.blobs = AioBlobServiceClient(endpoints.blob, credential, **options("blob", endpoints.blob))
            self.queues = AioQueueServiceClient(
                endpoints.queue, credential, **options("queue", endpoints.queue)
            )
            self.tables = AioTableServiceClient(
                endpoints.table, credential=credential, **options("table", endpoints.table)
            )
        except BaseException:
            # The SDK refused the credential. A session that was never used closes without waiting for anything.
            with suppress(StopIteration):
                self.session.close().send(None)
            raise
        # A loop closes its async generators when it ends: the connections of an `asyncio.run` end with it.
        self._end_of_loop = self._close_at_end_of_loop()
        with suppress(StopIteration):
            self._end_of_loop.asend(None).send(None)

    async def _close_at_end_of_loop(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self._closed()
            await self.session.close()

    async def aclose(self) -> None:
        await self._end_of_loop.aclose()


class _BlockingClients:
    """The SDK's blocking clients, over one session that threads share."""

    def __init__(self, endpoints: Endpoints, config: StorageConfig, meter: Meter) -> None:
        self.session = blocking_session()

        def options(service: str, url: str) -> dict[str, Any]:
            transport = CountingRequestsTransport(
                self.session,
                service=service,
                base_path=urlsplit(url).path,
                claims=config.container("claims"),
                meter=meter,
                connection_timeout=config.connect_seconds,
                read_timeout=config.read_seconds,
            )
            return {"transport": transport, "retry_total": 0}

        credential: Any = endpoints.credential
        self.blobs = BlobServiceClient(endpoints.blob, credential, **options("blob", endpoints.blob))
        self.queues = QueueServiceClient(endpoints.queue, credential, **options("queue", endpoints.queue))
        self.tables = TableServiceClient(
            endpoints.table, credential=credential, **options("table", endpoints.table)
        )


_open: weakref.WeakSet[Storage] = weakref.WeakSet()


def _in_forked_child() -> None:
    for storage in list(_open):
        storage._in_forked_child()


os.register_at_fork(after_in_child=_in_forked_child)
