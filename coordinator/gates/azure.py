"""Gates and flags in blobs."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import TypedDict
from urllib.parse import quote

from anyio.from_thread import BlockingPortal

from coordinator.azure.account import Account, ensure_container
from coordinator.azure.epochs import TableEpochs
from coordinator.azure.errors import translated
from coordinator.azure.listing import BlobListing, ListedBlob
from coordinator.azure.metering import Request
from coordinator.azure.rest import RestResponse, SignedRest
from coordinator.blocking import call_blocking
from coordinator.clock import parse_date
from coordinator.config import check_blob, check_container
from coordinator.errors import GateCorrupt, KennelError, NotFound
from coordinator.gates import state as rules
from coordinator.gates.gate import Answer, Gate, GateConfig, GateStore
from coordinator.gates.state import GateState

_MIRROR = "gate"
MOST_FOREIGN = 20
_NOT_READ = f"not read: it is one of more than {MOST_FOREIGN} that Kennel did not write"


class BlobGateStore:
    """One gate in the blob `{prefix}gates/{name}`: JSON, mirrored in the metadata so that one request lists all.

    `container` and `blob` name another place.
    """

    def __init__(
        self,
        storage: Account,
        name: str,
        *,
        container: str = "",
        blob: str = "",
        request_seconds: float = 5.0,
    ) -> None:
        self.name = name
        self._storage = storage
        self._request_seconds = request_seconds
        self._container = container or storage.config.container("gates")
        self._rest = SignedRest(storage, storage.endpoints.blob)
        self._path = f"/{self._container}/{quote(blob or name, safe='')}"

    @property
    def key(self) -> str:
        """What no other gate of the account has."""
        return self._path

    async def read(self, etag: str) -> Answer:
        # What is larger than a gate can be is not read whole. An empty blob has no first byte: 416.
        headers = {"x-ms-range": f"bytes=0-{rules.MAX_BYTES}"} | ({"If-None-Match": etag} if etag else {})
        answer = await self._ask(
            "read the gate", "GetBlob", "GET", headers, accepted_statuses=(304, 404, 416)
        )
        date = parse_date(answer.headers.get("Date"))
        if answer.status == 404:
            return Answer(GateState(name=self.name), "", date)
        if answer.status == 304:
            return Answer(None, etag, date)
        if answer.status == 416:
            return Answer(rules.decode(self.name, b"", await self._etag_of_nothing()), "", date)
        found = answer.headers["ETag"]
        return Answer(rules.decode(self.name, answer.content, found), found, date)

    async def _etag_of_nothing(self) -> str:
        answer = await self._ask("read the gate", "GetBlobProperties", "HEAD", {}, accepted_statuses=(404,))
        return answer.headers.get("ETag", "")

    async def write(self, state: GateState, etag: str) -> str:
        text = rules.encode(state)
        headers = {
            "x-ms-blob-type": "BlockBlob",
            "x-ms-blob-content-type": "application/json",
            f"x-ms-meta-{_MIRROR}": text,
            **({"If-Match": etag} if etag else {"If-None-Match": "*"}),
        }

        async def upload() -> str:
            answer = await self._ask("change the gate", "PutBlob", "PUT", headers, text.encode())
            return answer.headers["ETag"]

        return await ensure_container(self._storage, self._container, upload)

    async def _ask(
        self, action: str, operation: str, method: str, headers: dict[str, str], body: bytes = b"", accepted_statuses: tuple[int, ...] = ()
    ) -> RestResponse:  # fmt: skip
        counted = Request("blob", operation, self._container)
        with translated(action, self.name):
            async with asyncio.timeout(self._request_seconds):
                return await self._rest.send(
                    action, self.name, counted, method, self._path, headers=headers, body=body, accepted_statuses=accepted_statuses
                )  # fmt: skip


class SharedReads:
    """Reads of one gate, joined.

    Guarantees that an answer belongs to a request that was sent after `read` was called: a caller never joins a request
    that is on its way already, but the one after it. So any number of callers costs at most two requests in a row.
    """

    def __init__(self, store: GateStore) -> None:
        self._store = store
        self._flying: asyncio.Task[Answer] | None = None
        self._next: asyncio.Task[Answer] | None = None
        self._etag = ""
        self._state: GateState | None = None

    async def read(self, etag: str) -> Answer:
        if self._next is None:
            self._next = asyncio.create_task(self._ask(self._flying), name=f"read gate {self._store.name}")
            self._next.add_done_callback(_retrieve)
        answer = await asyncio.shield(self._next)
        return Answer(None, etag, answer.date) if etag and etag == answer.etag else answer

    async def _ask(self, before: asyncio.Task[Answer] | None) -> Answer:
        if before is not None and not before.done():
            await asyncio.wait([before])
        self._flying, self._next = self._next, None
        answer = await self._store.read(self._etag)
        if answer.state is None:
            return Answer(self._state, self._etag, answer.date)
        self._state, self._etag = answer.state, answer.etag
        return answer


def _retrieve(task: asyncio.Task[Answer]) -> None:
    # The caller may be gone; then nobody else takes the error.
    if not task.cancelled() and isinstance(task.exception(), KennelError):
        return


class SharedGateStore:
    """The same, for all gates of that name on one event loop: what they ask at the same time is asked once."""

    def __init__(self, store: BlobGateStore, storage: Account) -> None:
        self.name = store.name
        self._store = store
        self._storage = storage

    async def read(self, etag: str) -> Answer:
        reads: SharedReads = self._storage.aio.shared.setdefault(
            ("gate", self._store.key), SharedReads(self._store)
        )
        return await reads.read(etag)

    async def write(self, state: GateState, etag: str) -> str:
        return await self._store.write(state, etag)


class BlobFlag:
    """A flag whose blob is there or not. See `GlobalFlag`."""

    def __init__(self, storage: Account, blob: str, *, container: str, request_seconds: float = 5.0) -> None:
        self._storage = storage
        self._container = container
        self._blob = blob
        self._request_seconds = request_seconds

    async def get_flag(self) -> bool:
        """Whether the blob is there."""
        with translated("look for the flag", self._blob):
            async with asyncio.timeout(self._request_seconds):
                blob = self._storage.aio.blobs.get_blob_client(self._container, self._blob)
                return bool(await blob.exists())

    async def set_flag(self, value: bool) -> None:
        """Make or delete the blob; harmless when repeated."""

        async def upload() -> None:
            with translated("set the flag", self._blob):
                async with asyncio.timeout(self._request_seconds):
                    blob = self._storage.aio.blobs.get_blob_client(self._container, self._blob)
                    await blob.upload_blob(b"", overwrite=True)

        async def delete() -> None:
            with translated("clear the flag", self._blob):
                async with asyncio.timeout(self._request_seconds):
                    blob = self._storage.aio.blobs.get_blob_client(self._container, self._blob)
                    await blob.delete_blob()

        if value:
            await ensure_container(self._storage, self._container, upload)
        else:
            try:
                await delete()
            except NotFound:
                return

    def get_flag_blocking(self) -> bool:
        """`get_flag` for threads."""
        return call_blocking(self._portal, "get_flag_blocking", "await flag.get_flag()", self.get_flag)

    def set_flag_blocking(self, value: bool) -> None:
        """`set_flag` for threads."""
        call_blocking(self._portal, "set_flag_blocking", "await flag.set_flag()", self.set_flag, value)

    def _portal(self) -> BlockingPortal:
        return self._storage.portal


class GateOptions(TypedDict, total=False):
    """What `storage.gate` and `worker.gate` take beside the name.

    `identity`: who waits here, default the storage's. `container`, `blob`: where the gate is stored, default
    `{prefix}gates` and its name. `config`, `rng`: see `Gate`.
    """

    identity: str
    container: str
    blob: str
    config: GateConfig | None
    rng: random.Random | None


def make_gate(
    storage: Account,
    name: str,
    *,
    identity: str = "",
    container: str = "",
    blob: str = "",
    config: GateConfig | None = None,
    rng: random.Random | None = None,
) -> Gate:
    """The gate of that name; see `GateOptions`."""
    store = BlobGateStore(storage, name, container=check_container(container), blob=check_blob(blob))
    return Gate(
        SharedGateStore(store, storage),
        identity=identity or storage.identity,
        bus=lambda: storage.bus,
        clock=storage.clock,
        config=config,
        rng=rng,
        portal=lambda: storage.portal,
        epochs=TableEpochs(storage, f"gate {store.key.replace('/', ' ').strip()}"),
        group=storage.identity,
        keep=lambda task: storage.aio.keep(task),
    )


def make_flag(storage: Account, name: str, *, container: str = "", blob: str = "") -> BlobFlag:
    """The flag in the blob `blob` (default: the name) of `container`, by default `{prefix}flags`."""
    return BlobFlag(
        storage,
        check_blob(blob) or name,
        container=check_container(container) or storage.config.container("flags"),
    )


@dataclass(frozen=True)
class GateReading:
    """What is stored under a gate's name: its state, or (None) what is wrong with it."""

    name: str
    state: GateState | None
    problem: str = ""


class GateListing:
    """All gates of an account, for those who list them again and again.

    A look takes one request for each page of `coordinator.azure.listing` (1,000 gates), and one more for each that another program wrote, or damaged, and that
    has changed since the look before. Of those the first `MOST_FOREIGN` are read.
    """

    def __init__(self, storage: Account) -> None:
        self._storage = storage
        self._container = storage.config.container("gates")
        self._listing = BlobListing(storage, self._container)
        self._mirrored: dict[str, tuple[str, GateReading | None]] = {}
        self._foreign: dict[str, tuple[str, GateReading]] = {}

    async def read(self) -> list[GateReading]:
        """The gates by name; what does not hold a gate is an item with its problem."""
        try:
            with translated("list the gates in", self._container):
                blobs = await self._listing.read()
        except NotFound:
            blobs = []
        mirrored: dict[str, tuple[str, GateReading | None]] = {}
        for blob in blobs:
            last = self._mirrored.get(blob.name)
            unchanged = last is not None and last[0] == blob.etag
            mirrored[blob.name] = last if last is not None and unchanged else (blob.etag, _of_mirror(blob))
        self._mirrored = mirrored
        self._foreign = {name: known for name, known in self._foreign.items() if name in mirrored}
        found: list[GateReading] = []
        others = 0
        for name, (etag, reading) in mirrored.items():
            if reading is None:
                others += 1
                is_read = others <= MOST_FOREIGN
                reading = await self._of_blob(name, etag) if is_read else GateReading(name, None, _NOT_READ)
            found.append(reading)
        return sorted(found, key=lambda reading: reading.name)

    async def _of_blob(self, name: str, etag: str) -> GateReading:
        """What another program wrote, or what is damaged: the blob itself decides, and is read once."""
        known = self._foreign.get(name)
        if known is None or known[0] != etag:
            try:
                answer = await BlobGateStore(self._storage, name).read("")
                reading = GateReading(name, answer.state)
            except GateCorrupt as error:
                reading = GateReading(name, None, f"unreadable: {error}")
            known = self._foreign[name] = etag, reading
        return known[1]


def _of_mirror(blob: ListedBlob) -> GateReading | None:
    """The gate by the blob's metadata; None if Kennel did not write it, or not last."""
    try:
        return GateReading(blob.name, rules.decode(blob.name, blob.metadata.get(_MIRROR, "")))
    except GateCorrupt:
        return None


async def read_gates(storage: Account) -> list[GateReading]:
    """All gates, by name, once; see `GateListing`."""
    return await GateListing(storage).read()


async def list_gates(storage: Account) -> list[GateState]:
    """All gates that can be read, by name; see `read_gates` for those that cannot."""
    return [reading.state for reading in await read_gates(storage) if reading.state is not None]
