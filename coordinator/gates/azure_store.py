"""Gates and flags in blobs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from coordinator.creating import in_container
from coordinator.errors import NotFound
from coordinator.gates import state as rules
from coordinator.gates.gate import Gate
from coordinator.gates.sharing import SharedReads
from coordinator.gates.state import GateState
from coordinator.gates.store import Answer
from coordinator.meter import Request
from coordinator.offset import parse_date
from coordinator.service_errors import translated
from coordinator.signed import Received, SignedRest

if TYPE_CHECKING:
    from coordinator.storage import Storage

_MIRROR = "gate"


class BlobGateStore:
    """One gate in the blob `{prefix}gates/{name}`: JSON, mirrored in the metadata so that one request lists all."""

    def __init__(self, storage: Storage, name: str, *, request_seconds: float = 5.0) -> None:
        self.name = name
        self._storage = storage
        self._request_seconds = request_seconds
        self._container = storage.config.container("gates")
        self._rest = SignedRest(storage, storage.endpoints.blob)
        self._path = f"/{self._container}/{quote(name, safe='')}"

    async def read(self, etag: str) -> Answer:
        headers = {"If-None-Match": etag} if etag else {}
        answer = await self._ask("read the gate", "GetBlob", "GET", headers, passing=(304, 404))
        date = parse_date(answer.headers.get("Date"))
        if answer.status == 404:
            return Answer(GateState(name=self.name), "", date)
        if answer.status == 304:
            return Answer(None, etag, date)
        return Answer(rules.decode(self.name, answer.content), answer.headers["ETag"], date)

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

        return await in_container(self._storage, self._container, upload)

    async def _ask(
        self, action: str, operation: str, method: str, headers: dict[str, str], body: bytes = b"", passing: tuple[int, ...] = ()
    ) -> Received:  # fmt: skip
        counted = Request("blob", operation, self._container)
        with translated(action, self.name):
            async with asyncio.timeout(self._request_seconds):
                return await self._rest.send(
                    action, self.name, counted, method, self._path, headers=headers, body=body, passing=passing
                )  # fmt: skip


class SharedGateStore:
    """The same, for all gates of that name on one event loop: what they ask at the same time is asked once."""

    def __init__(self, store: BlobGateStore, storage: Storage) -> None:
        self.name = store.name
        self._store = store
        self._storage = storage

    async def read(self, etag: str) -> Answer:
        reads: SharedReads = self._storage.aio.shared.setdefault(
            ("gate", self.name), SharedReads(self._store)
        )
        return await reads.read(etag)

    async def write(self, state: GateState, etag: str) -> str:
        return await self._store.write(state, etag)


class BlobFlag:
    """A flag whose blob is there or not (S2). See `GlobalFlag`."""

    def __init__(self, storage: Storage, blob: str, *, container: str, request_seconds: float = 5.0) -> None:
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
            await in_container(self._storage, self._container, upload)
        else:
            try:
                await delete()
            except NotFound:
                return


def make_gate(storage: Storage, name: str, *, identity: str = "", **options: Any) -> Gate:
    """The gate of that name; see `Gate` for the options."""
    return Gate(
        SharedGateStore(BlobGateStore(storage, name), storage),
        identity=identity or storage.identity,
        bus=lambda: storage.bus,
        clock=storage.clock,
        portal=lambda: storage.portal,
        **options,
    )


def make_flag(storage: Storage, name: str, *, container: str = "") -> BlobFlag:
    """The flag in the blob `name` of `container`, by default `{prefix}flags`."""
    return BlobFlag(storage, name, container=container or storage.config.container("flags"))


async def list_gates(storage: Storage) -> list[GateState]:
    """All gates, by name; one request for up to 5,000 of them."""
    container = storage.config.container("gates")
    found: list[GateState] = []
    missing: list[str] = []
    try:
        with translated("list the gates in", container):
            async for blob in storage.aio.blobs.get_container_client(container).list_blobs(
                include=["metadata"]
            ):
                mirror = (blob.metadata or {}).get(_MIRROR)
                if mirror is None:
                    missing.append(blob.name)
                else:
                    found.append(rules.decode(blob.name, mirror))
    except NotFound:
        return []
    for name in missing:  # written by somebody else's program
        answer = await BlobGateStore(storage, name).read("")
        if answer.state is not None:
            found.append(answer.state)
    return sorted(found, key=lambda state: state.name)
