"""The blobs of a container, listed by plain REST: the SDK's deserializer takes ten times the processor time, on the event
loop, and the dashboard lists all gates, leases and counters each second."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple
from urllib.parse import unquote
from xml.etree import ElementTree

from coordinator.azure.account import Account
from coordinator.azure.metering import Request
from coordinator.azure.rest import SignedRest
from coordinator.backoff import Backoff, retry
from coordinator.errors import StorageUnreachable

_RETRY = Backoff(base_seconds=0.1, cap_seconds=2.0, deadline_seconds=8.0)


class ListedBlob(NamedTuple):
    """A blob as a listing shows it. `lease_state` is "available" for one that was never leased."""

    name: str
    etag: str
    size: int
    lease_state: str
    metadata: Mapping[str, str]


async def list_blobs(
    storage: Account, container: str, *, prefix: str = "", page: int = 5_000
) -> AsyncIterator[ListedBlob]:
    """Each blob whose name begins with `prefix`, by name, with its metadata; one request for up to `page` of them.

    A request that fails is sent again for up to 8 s. Raises `NotFound` if there is no such container.
    """
    rest, action = SignedRest(storage, storage.endpoints.blob), "list the blobs in"
    query = {"restype": "container", "comp": "list", "include": "metadata", "maxresults": str(page)}
    query |= {"prefix": prefix} if prefix else {}
    counted = Request("blob", "ListBlobs", container)
    while True:
        answer = await retry(
            lambda: rest.send(action, container, counted, "GET", f"/{container}", query=query),
            backoff=_RETRY,
            clock=storage.clock,
        )
        try:
            root = ElementTree.fromstring(answer.content)
            listed = [_blob(each) for each in root.iterfind("Blobs/Blob")]
        except (ElementTree.ParseError, ValueError) as error:
            raise StorageUnreachable(
                f"{action} {container}: the answer could not be read ({error})", resource=container
            ) from error
        for blob in listed:
            yield blob
        marker = root.findtext("NextMarker") or ""
        if not marker:
            return
        query["marker"] = marker


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
