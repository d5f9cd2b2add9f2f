"""One storage account: its endpoints, its clients, its names, and what all rooms need of it."""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Self, TypedDict, TypeVar, Unpack
from urllib.parse import urlsplit

from anyio.from_thread import BlockingPortal
from azure.core.credentials import TokenCredential
from azure.data.tables import TableServiceClient
from azure.data.tables.aio import TableServiceClient as AioTableServiceClient
from azure.storage.blob import BlobServiceClient
from azure.storage.blob.aio import BlobServiceClient as AioBlobServiceClient
from azure.storage.queue import QueueServiceClient
from azure.storage.queue.aio import QueueServiceClient as AioQueueServiceClient

from coordinator.azure.credentials import AioCredential, Endpoints
from coordinator.azure.errors import translated
from coordinator.azure.metering import (
    CountingAioTransport,
    CountingRequestsTransport,
    Meter,
    aio_session,
    blocking_session,
)
from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.config import StorageConfig
from coordinator.errors import AlreadyExists, ConfigurationError, NotFound
from coordinator.realtime.bus import Bus, LocalBus

T = TypeVar("T")


class StorageOptions(TypedDict, total=False):
    """What every way to make a `Storage` takes: naming and limits, the bus for hints, the clock."""

    config: StorageConfig | None
    bus: Bus | None
    clock: Clock


async def _nothing() -> None:
    pass


class Account:
    """An account and the connections to it, for the adapters of every room. `Storage` adds what users call.

    Does no I/O when built. Each event loop has connections of its own, closed when the loop ends; threads share others.
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
        self.before_listing: Callable[[], Awaitable[None]] = _nothing
        """Awaited before each page of a listing: a program that has something more urgent to send lets the page wait."""
        self.identity = f"{os.uname().nodename}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._lock = threading.Lock()
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _AioClients] = (
            weakref.WeakKeyDictionary()
        )
        self._threads: _BlockingClients | None = None
        self._portal: tuple[threading.Thread, BlockingPortal] | None = None
        _open.add(self)

    def _in_forked_child(self) -> None:
        """A child shares no connection and no lock with its parent, and is somebody else in every record."""
        # Clients that are dropped close their connections, and with them stop the parent's loop from hearing its own.
        _of_parents.append((list(self._loops.items()), self._threads, self._portal))
        self._lock = threading.Lock()
        self._loops = weakref.WeakKeyDictionary()
        self._threads = None
        self._portal = None
        self.meter = Meter()
        self.identity = f"{self.identity}-fork-{os.getpid()}"

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **options: Unpack[StorageOptions]) -> Self:
        """Connect as the environment says.

        Reads ``AZURE_STORAGE_CONNECTION_STRING``, or ``AZURE_STORAGE_ACCOUNT_URL`` with `DefaultAzureCredential`, and
        ``KENNEL_PREFIX`` for the prefix.

        Args:
            environ: The environment (default: that of the process).
            **options: `config`, a `StorageConfig`; `bus` for notifications; `clock`, for tests.

        Returns:
            The storage. No request has been sent.

        Raises:
            ConfigurationError: Neither variable is set, or a value is invalid.

        Examples:
            >>> storage = Storage.from_env()
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
            "machine's Azure identity"
        )

    @classmethod
    def from_connection_string(cls, connection_string: str, **options: Unpack[StorageOptions]) -> Self:
        """Connect with an account key or SAS.

        Args:
            connection_string: As the Azure portal shows it. ``UseDevelopmentStorage=true`` means a local Azurite.
            **options: As for `from_env`.

        Returns:
            The storage. No request has been sent.

        Raises:
            ConfigurationError: The text is not a connection string.
        """
        return cls(Endpoints.from_connection_string(connection_string), **options)

    @classmethod
    def from_account_url(
        cls, url: str, credential: str | TokenCredential | None = None, **options: Unpack[StorageOptions]
    ) -> Self:
        """Connect to an account by its address.

        Args:
            url: Such as ``https://ACCOUNT.blob.core.windows.net``.
            credential: A SAS or a token credential (default: the machine's own identity, through
                `DefaultAzureCredential`).
            **options: As for `from_env`.

        Returns:
            The storage. No request has been sent.

        Raises:
            ConfigurationError: The address is not one of a storage account.
        """
        return cls(Endpoints.from_account_url(url, credential), **options)

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
                self._portal = _start_portal()
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
            thread, portal = running
            portal.call(self.aclose)
            portal.call(portal.stop)
            thread.join()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()
        self.close()


def _start_portal() -> tuple[threading.Thread, BlockingPortal]:
    """A portal and its thread.

    Not `anyio.from_thread.start_blocking_portal`: dropped in a forked child, which has no such thread, that waits for ever.
    """
    started: Future[BlockingPortal] = Future()

    async def serve() -> None:
        async with BlockingPortal() as portal:
            started.set_result(portal)
            await portal.sleep_until_stopped()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=run, name="kennel-portal", daemon=True)
    thread.start()
    return thread, started.result()


def _client_options(
    transport: Callable[..., object], config: StorageConfig, meter: Meter
) -> Callable[[str, str], dict[str, Any]]:
    """The options of an SDK client, by service and address: a counting transport, and no retries of the SDK's own."""

    def options(service: str, url: str) -> dict[str, Any]:
        counting = transport(
            service=service,
            base_path=urlsplit(url).path,
            claims=config.container("claims"),
            meter=meter,
            connection_timeout=config.connect_seconds,
            read_timeout=config.read_seconds,
        )
        return {"transport": counting, "retry_total": 0}

    return options


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
        self._kept: set[asyncio.Task[None]] = set()
        self.listing = asyncio.Lock()
        """Held for each page of a listing, and while one rests: of all listings of a program, one request is under way."""

        options = _client_options(partial(CountingAioTransport, self.session), config, meter)
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

    def keep(self, task: asyncio.Task[None]) -> None:
        """Cancel it when these clients are closed."""
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)

    async def aclose(self) -> None:
        kept = list(self._kept)
        for task in kept:
            task.cancel()
        await asyncio.gather(*kept, return_exceptions=True)
        await self._end_of_loop.aclose()


class _BlockingClients:
    """The SDK's blocking clients, over one session that threads share."""

    def __init__(self, endpoints: Endpoints, config: StorageConfig, meter: Meter) -> None:
        self.session = blocking_session()

        options = _client_options(partial(CountingRequestsTransport, self.session), config, meter)
        credential: Any = endpoints.credential
        self.blobs = BlobServiceClient(endpoints.blob, credential, **options("blob", endpoints.blob))
        self.queues = QueueServiceClient(endpoints.queue, credential, **options("queue", endpoints.queue))
        self.tables = TableServiceClient(
            endpoints.table, credential=credential, **options("table", endpoints.table)
        )


_open: weakref.WeakSet[Account] = weakref.WeakSet()
_of_parents: list[object] = []


def _in_forked_child() -> None:
    for storage in list(_open):
        storage._in_forked_child()


os.register_at_fork(after_in_child=_in_forked_child)


async def ensure_container(storage: Account, container: str, write: Callable[[], Awaitable[T]]) -> T:
    """What `write` gives; after `NotFound` the container is made and `write` called once more."""
    try:
        return await write()
    except NotFound:
        with suppress(AlreadyExists), translated("create the container", container):
            await storage.aio.blobs.create_container(container)
    return await write()


async def ensure_table(storage: Account, table: str, write: Callable[[], Awaitable[T]]) -> T:
    """What `write` gives; if the table (not a row) is missing, it is made and `write` called once more."""
    try:
        return await write()
    except NotFound as error:
        if error.code != "TableNotFound":
            raise
        with suppress(AlreadyExists), translated("create the table", table):
            await storage.aio.tables.create_table(table)
    return await write()
