"""The blobs of a container, listed by plain REST: the SDK's deserializer takes ten times the processor time, on the event
loop, and the dashboard lists all gates, leases and counters each second."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from hashlib import blake2b
from typing import NamedTuple
from urllib.parse import unquote
from xml.etree import ElementTree

from coordinator.azure.account import Account
from coordinator.azure.metering import Request
from coordinator.azure.rest import SignedRest
from coordinator.backoff import Backoff, retry
from coordinator.errors import StorageUnreachable

PAGE, PAGE_OF_EMULATOR = 1_000, 100
"""Blobs an answer. The service charges by the request, so a page is large. An emulator answers one request at a time, and takes
0.2 ms for each blob: a write must not wait for a thousand."""
_ACTION = "list the blobs in"
_STEP_BYTES, _STEP_BLOBS = 64 * 1024, 100
_RESTS, _MOST_REST_SECONDS = 3, 0.1
_RETRY = Backoff(base_seconds=0.1, cap_seconds=2.0, deadline_seconds=8.0)


class ListedBlob(NamedTuple):
    """A blob as a listing shows it. `lease_state` is "available" for one that was never leased."""

    name: str
    etag: str
    size: int
    lease_state: str
    metadata: Mapping[str, str]


class _Page(NamedTuple):
    """One answer: its digest, the blobs in it, and where the next one begins ("" at the end)."""

    digest: bytes
    blobs: list[ListedBlob]
    marker: str


class BlobListing:
    """The blobs of a container whose names begin with `prefix`, for those who list them again and again.

    One request for each `page` blobs (by default 1,000, of an emulator 100), after `Account.before_listing`, and never two of an
    account at a time: a write waits for one at most. An answer that is as the one before is not decoded again; one that is not
    is decoded in small steps, so that others on the event loop need not wait for thousands of blobs.
    """

    def __init__(
        self, storage: Account, container: str, *, prefix: str = "", page: int | None = None
    ) -> None:
        self._rest, self._clock, self._container = (
            SignedRest(storage, storage.endpoints.blob),
            storage.clock,
            container,
        )
        self._storage = storage
        page = page or (PAGE_OF_EMULATOR if storage.endpoints.is_emulator else PAGE)
        self._query = {"restype": "container", "comp": "list", "include": "metadata", "maxresults": str(page)}
        self._query |= {"prefix": prefix} if prefix else {}
        self._pages: list[_Page] = []

    async def read(self) -> list[ListedBlob]:
        """The blobs now, by name, with their metadata. A request that fails is sent again for up to 8 s.

        Raises `NotFound` if there is no such container.
        """
        pages: list[_Page] = []
        marker = ""
        while not pages or marker:
            content, took = await self._send(marker)
            digest = blake2b(content).digest()
            known = self._pages[len(pages)] if len(pages) < len(self._pages) else None
            if known is None or known.digest != digest:
                known = await self._decoded(content, digest)
            pages.append(known)
            marker = known.marker
            if marker and took > 0:
                # A write takes an emulator several steps, and would wait for a page before each.
                async with self._storage.aio.listing:
                    await self._clock.sleep(min(_RESTS * took, _MOST_REST_SECONDS))
        self._pages = pages
        return [blob for each in pages for blob in each.blobs]

    async def _send(self, marker: str) -> tuple[bytes, float]:
        """The answer, and how long it took."""

        async def ask() -> tuple[bytes, float]:
            async with self._storage.aio.listing:
                await self._storage.before_listing()
                began = self._clock.monotonic()
                content = await self._page(marker)
            return content, self._clock.monotonic() - began

        return await retry(ask, backoff=_RETRY, clock=self._clock)

    async def _page(self, marker: str) -> bytes:
        query = self._query | ({"marker": marker} if marker else {})
        counted = Request("blob", "ListBlobs", self._container)
        path = f"/{self._container}"
        answer = await self._rest.send(_ACTION, self._container, counted, "GET", path, query=query)
        return answer.content

    async def _decoded(self, content: bytes, digest: bytes) -> _Page:
        parser = ElementTree.XMLParser()
        blobs: list[ListedBlob] = []
        try:
            for place in range(0, len(content), _STEP_BYTES):
                parser.feed(content[place : place + _STEP_BYTES])
                await asyncio.sleep(0)
            root = parser.close()
            for element in root.iterfind("Blobs/Blob"):
                blobs.append(_blob(element))
                if len(blobs) % _STEP_BLOBS == 0:
                    await asyncio.sleep(0)
        except (ElementTree.ParseError, ValueError) as error:
            raise StorageUnreachable(
                f"{_ACTION} {self._container}: the answer could not be read ({error})",
                resource=self._container,
            ) from error
        return _Page(digest, blobs, root.findtext("NextMarker") or "")


def _blob(element: ElementTree.Element) -> ListedBlob:
    named = element.find("Name")
    name = "" if named is None else named.text or ""
    if named is not None and named.get("Encoded") == "true":
        name = unquote(name)  # it holds what XML cannot
    properties = element.find("Properties")
    metadata = element.find("Metadata")

    def text(key: str) -> str:
        return "" if properties is None else properties.findtext(key) or ""

    return ListedBlob(
        name,
        text("Etag"),
        int(text("Content-Length") or 0),
        text("LeaseState") or "available",
        {} if metadata is None else {each.tag: each.text or "" for each in metadata},
    )
