"""Counters in blobs, the ledger in a table. Their requests are signed by hand (decision 0155)."""

from __future__ import annotations

import json
import re
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import psutil
import requests

from coordinator.azure.account import Account
from coordinator.azure.errors import refused, translated
from coordinator.azure.listing import BlobListing, ListedBlob
from coordinator.azure.metering import Request
from coordinator.azure.rest import BlockingRest, RestResponse, SignedRest, error_code
from coordinator.backoff import Backoff, retry_blocking
from coordinator.config import check_blob, check_container
from coordinator.errors import AlreadyExists, NotFound, PreconditionFailed, SequenceError, StorageUnreachable
from coordinator.sequences.generator import UniqueIdGenerator
from coordinator.sequences.grants import (
    FREE,
    GRANTED,
    RETURNED,
    Counter,
    ExternalAdvance,
    Grant,
    Owner,
    SequenceConfig,
    read_counter,
    row_key,
    unused_end_of,
)
from coordinator.sequences.store import LedgerState, Snapshot

CONTAINER, TABLE = "sequences", "ledger"
READ_BYTES = 128
"""No counter is as long."""
BATCH = 100
"""The most operations the service takes in one transaction."""
ADVANCE_PREFIX, HEAD, AFTER_HEADS = "!", "0!head", "0!heae"
"""Keys of release 0.1: grants are digits, advances begin with "!". It reads neither of the ranges that the heads' keys are in."""
AFTER_GRANTS = "~"
METADATA = "x-ms-meta-"
TABLE_HEADERS = {
    "x-ms-version": "2019-02-02",
    "DataServiceVersion": "3.0",
    "Accept": "application/json;odata=nometadata",
}
_PART = re.compile(
    rb"^HTTP/1\.1 (\d{3}) ?([^\r\n]*)(.*?)(?=^--changesetresponse|\Z)", re.MULTILINE | re.DOTALL
)

R = TypeVar("R")


def make_generator(
    storage: Account, name: str, *, container: str = "", blob: str = "", config: SequenceConfig
) -> UniqueIdGenerator:
    """The generator of one sequence of this account."""
    return UniqueIdGenerator(
        name,
        BlobCounterStore(storage, name, container=container, blob=blob),
        TableLedger(storage, name),
        config=config,
        owner=lambda: owner_of(storage),
        clock=storage.clock,
    )


def owner_of(storage: Account) -> Owner:
    """This process, as the ledger names it."""
    return _owner(storage.identity)


@lru_cache(maxsize=64)
def _owner(identity: str) -> Owner:
    process = psutil.Process()
    return Owner(identity, socket.gethostname(), process.pid, int(process.create_time()), _software())


class BlobCounterStore:
    """`OptimisticSyncStore` on one blob. The container is made when it is first missed.

    `container` and `blob` are for counters that another program keeps; by default the prefix's own container, and `name`.
    """

    def __init__(self, storage: Account, name: str, *, container: str = "", blob: str = "") -> None:
        self._storage, self._name = storage, name
        self._container = check_container(container) if container else storage.config.container(CONTAINER)
        self._path = f"/{self._container}/{quote(check_blob(blob) if blob else name, safe='/')}"
        self._rest = BlockingRest(storage, storage.endpoints.blob, service="blob")

    def get_data(self) -> Snapshot:
        try:
            return self._read()
        except StorageUnreachable as error:
            if not isinstance(error.__cause__, requests.exceptions.ChunkedEncodingError):
                raise
        return self._read()  # the answer broke off: that costs no time, and a read may be repeated

    def _read(self) -> Snapshot:
        action = "read the counter of sequence"
        answer = self._rest.send(
            action, self._name, Request("blob", "GetBlob", self._container), "GET", self._path
        )
        length = answer.headers.get("Content-Length", "")
        if length != str(len(answer.content)) or "ETag" not in answer.headers:
            raise StorageUnreachable(
                f"{action} {self._name}: {len(answer.content)} of {length or 'unknown'} bytes came",
                resource=self._name,
            )
        metadata = {
            name[len(METADATA) :]: value
            for name, value in answer.headers.items()
            if name.lower().startswith(METADATA)
        }
        return Snapshot(answer.content.decode("utf-8", errors="replace"), answer.headers["ETag"], metadata)

    def try_optimistic_write(self, data: str, *, etag: str | None, metadata: Mapping[str, str]) -> str | None:
        action, counted = "write the counter of sequence", Request("blob", "PutBlob", self._container)
        headers = {
            "x-ms-blob-type": "BlockBlob",
            "Content-Type": "application/octet-stream",
            **{METADATA + name: value for name, value in metadata.items()},
            **({"If-None-Match": "*"} if etag is None else {"If-Match": etag}),
        }

        def write() -> str:
            answer = self._rest.send(
                action, self._name, counted, "PUT", self._path, headers=headers, body=data.encode()
            )
            if not answer.headers.get("ETag"):  # a head cut short after its first lines
                raise StorageUnreachable(
                    f"{action} {self._name}: the answer was cut short", resource=self._name, maybe_done=True
                )
            return answer.headers["ETag"]

        try:
            return write()
        except (AlreadyExists, PreconditionFailed):
            return None
        except NotFound:
            if etag is not None:  # gone since it was read: the next read tells
                return None
        self._make_container()
        try:
            return write()
        except (AlreadyExists, PreconditionFailed):
            return None

    def _make_container(self) -> None:
        with suppress(AlreadyExists), translated("create the container for sequence", self._name):
            self._storage.blocking.blobs.create_container(self._container)


class _Operation(NamedTuple):
    """One operation of a transaction: POST inserts, PATCH merges, DELETE deletes; with `etag` only an unchanged row."""

    method: str
    entity: dict[str, Any]
    etag: str = ""


class TableLedger:
    """`Ledger` in one partition of a table. The table is made when it is first missed."""

    def __init__(self, storage: Account, name: str) -> None:
        self._storage, self._name = storage, name
        self._table = storage.config.table(TABLE)
        self._rest = BlockingRest(storage, storage.endpoints.table, service="table")

    def enter(
        self,
        grants: Sequence[Grant],
        *,
        after: str | LedgerState,
        is_newest: bool = True,
        others: Sequence[Grant] = (),
        advances: Sequence[ExternalAdvance] = (),
    ) -> bool:
        rows = self._rows_of(others, advances)
        newest = grants[-1]
        operations = self._exchange(after, newest if is_newest else None)
        operations += [_Operation("POST", {**_entity(self._name, each), **_outcome(each)}) for each in grants]
        if len(operations) + len(rows) > BATCH:
            self.record(others, advances)
            rows = []
        try:
            self._transact([*operations, *(_Operation("PATCH", row) for row in rows)])
        except (AlreadyExists, NotFound, PreconditionFailed):
            return False
        return True

    def _exchange(self, after: str | LedgerState, newest: Grant | None) -> list[_Operation]:
        """Take the heads away if they are as they must be, and write the new one.

        The one of the sequence's birth stays: two that find no other are not both the first to change it.
        """
        operations: list[_Operation] = []
        if isinstance(after, str):
            operations.append(_Operation("DELETE", self._head(after), "*"))
        else:
            reached = {"next": max(after.next, newest.last + 1 if newest else 0)}
            birth = {**self._head(""), **_int64("next", reached["next"])}
            operations.append(
                _Operation("PATCH", birth, after.versions[HEAD])
                if HEAD in after.versions
                else _Operation("POST", birth)
            )
            operations += [
                _Operation(
                    "DELETE" if newest else "PATCH", {"PartitionKey": self._name, "RowKey": key}, version
                )
                for key, version in after.versions.items()
                if key != HEAD
            ]
        if newest is not None:
            operations.append(
                _Operation("POST", {**self._head(newest.nonce), **_int64("next", newest.last + 1)})
            )
        return operations

    def _head(self, nonce: str) -> dict[str, Any]:
        return {"PartitionKey": self._name, "RowKey": f"{HEAD}-{nonce}" if nonce else HEAD}

    def state(self, *, at_or_after: int, limit: int) -> LedgerState:
        rows: list[Grant] = []
        versions: dict[str, str] = {}
        reached = 0
        query = (
            f"PartitionKey eq '{self._name}' and ((RowKey ge '{HEAD}' and RowKey lt '{AFTER_HEADS}') or "
            f"(RowKey ge '{row_key(at_or_after)}' and RowKey lt '{AFTER_GRANTS}'))"
        )
        for entity in self._query(query, None):
            if entity["RowKey"].startswith(HEAD):
                versions[entity["RowKey"]] = _version(entity)
                reached = max(reached, int(entity["next"]))
            else:
                rows.append(_grant(entity))
                if len(rows) == limit:
                    break
        return LedgerState(rows, reached, versions)

    def head(self) -> int:
        query = f"PartitionKey eq '{self._name}' and RowKey ge '{HEAD}' and RowKey lt '{AFTER_HEADS}'"
        return max((int(entity["next"]) for entity in self._query(query, None)), default=0)

    def record(self, grants: Sequence[Grant], advances: Sequence[ExternalAdvance] = ()) -> None:
        rows = self._rows_of(grants, advances)
        for place in range(0, len(rows), BATCH):
            batch = [_Operation("PATCH", row) for row in rows[place : place + BATCH]]
            # Said twice is said once; and a connection that was idle for long breaks at its first use.
            retry_blocking(
                partial(self._transact, batch), backoff=Backoff(cap_seconds=0.2, deadline_seconds=1.0)
            )

    def _rows_of(self, grants: Sequence[Grant], advances: Sequence[ExternalAdvance]) -> list[dict[str, Any]]:
        return [{**_entity(self._name, grant), **_outcome(grant)} for grant in grants] + [
            {
                "PartitionKey": self._name,
                "RowKey": ADVANCE_PREFIX + row_key(advance.last),
                **_int64("first", advance.first),
            }
            for advance in advances
        ]

    def row(self, key: str) -> Grant | None:
        try:
            return _grant(self._get(key)[0])
        except NotFound:
            return None

    def rows(
        self, *, at_or_after: int = 0, below: int | None = None, owner: str = "", limit: int | None = None
    ) -> Iterator[Grant]:
        top = AFTER_GRANTS if below is None else row_key(below)
        query = f"PartitionKey eq '{self._name}' and RowKey ge '{row_key(at_or_after)}' and RowKey lt '{top}'"
        if owner:
            query += f" and owner eq '{owner.replace(chr(39), chr(39) * 2)}'"
        for number, entity in enumerate(self._query(query, limit), 1):
            yield _grant(entity)
            if number == limit:
                return

    def advances(self, *, at_or_after: int = 0) -> Iterator[ExternalAdvance]:
        bottom = ADVANCE_PREFIX + row_key(at_or_after)
        query = f"PartitionKey eq '{self._name}' and RowKey ge '{bottom}' and RowKey lt '0'"
        for entity in self._query(query, None):
            yield ExternalAdvance(int(entity["first"]), int(entity["RowKey"][len(ADVANCE_PREFIX) :]))

    def give_back(self, grant: Grant, issued_through: int, others: Sequence[Grant] = ()) -> str:
        if len(others) > BATCH - 2:
            self.record(others)
            others = ()
        settled, unused_end = grant.settled(RETURNED, issued_through), unused_end_of(grant, issued_through)
        operations = [
            _Operation("PATCH", {**_entity(self._name, settled), **_outcome(settled)}),
            _Operation("POST", {**_entity(self._name, unused_end), **_outcome(unused_end)}),
            *(_Operation("PATCH", row) for row in self._rows_of(others, ())),
        ]
        with suppress(AlreadyExists):  # an earlier try was carried out although its answer was lost
            self._transact(operations)
        return unused_end.key

    def take(self, key: str, owner: Owner, nonce: str, at: float) -> Grant | None:
        try:
            entity, etag = self._get(key)
        except NotFound:
            return None
        unused_end = _grant(entity)
        if unused_end.outcome != FREE:
            return (
                unused_end if unused_end.nonce == nonce else None
            )  # or an earlier try of ours was carried out
        mine = Grant(
            unused_end.first,
            unused_end.last,
            owner,
            nonce,
            at,
            unused_end.step,
            unused_end.generation,
            GRANTED,
        )
        try:
            self._transact([_Operation("PATCH", {**_entity(self._name, mine), "outcome": GRANTED}, etag)])
        except (NotFound, PreconditionFailed):
            return None
        return mine

    def _transact(self, operations: Sequence[_Operation]) -> None:
        """All or none."""
        boundary = secrets.token_hex(16)
        body = self._batch(operations, boundary)
        self._with_table(lambda: self._send_batch(body, boundary, len(operations)))

    def _send_batch(self, body: bytes, boundary: str, operations: int) -> None:
        headers = {"Content-Type": f"multipart/mixed; boundary=batch_{boundary}", **TABLE_HEADERS}
        counted = Request("table", "EntityGroupTransaction", "$batch")
        action = "write the ledger of sequence"
        answer = self._rest.send(action, self._name, counted, "POST", "/$batch", headers=headers, body=body)
        parts = [
            (int(status), reason.decode(errors="replace"), rest)
            for status, reason, rest in _PART.findall(answer.content)
        ]
        for status, reason, rest in parts:
            if status >= 300:
                raise refused(status, error_code(rest), reason, action, self._name)
        if len(parts) != operations:
            raise StorageUnreachable(
                f"{action} {self._name}: {len(parts)} of {operations} answers came",
                resource=self._name,
                maybe_done=True,
            )

    def _batch(self, operations: Sequence[_Operation], boundary: str) -> bytes:
        """One transaction in the form that the service takes: a set of changes inside a batch."""
        base = f"{self._rest.origin}{self._rest.base}/{self._table}"
        lines = [
            f"--batch_{boundary}",
            f"Content-Type: multipart/mixed; boundary=changeset_{boundary}",
            "",
        ]
        for number, (method, entity, etag) in enumerate(operations):
            text = "" if method == "DELETE" else json.dumps(entity)  # ASCII
            lines += [
                f"--changeset_{boundary}",
                "Content-Type: application/http",
                "Content-Transfer-Encoding: binary",
                f"Content-ID: {number}",
                "",
                f"{method} {base if method == 'POST' else base + _key(entity['PartitionKey'], entity['RowKey'])} HTTP/1.1",
                *(["Content-Type: application/json", f"Content-Length: {len(text)}"] if text else []),
                "Accept: application/json;odata=nometadata",
                "Prefer: return-no-content",
                "DataServiceVersion: 3.0",
                *([f"If-Match: {etag}"] if etag else []),
                "",
                text,
            ]
        lines += [f"--changeset_{boundary}--", "", f"--batch_{boundary}--", ""]
        return "\r\n".join(lines).encode()

    def _get(self, key: str) -> tuple[Mapping[str, Any], str]:
        """One row, and its version. Raises `NotFound`."""
        entity, answer = self._read(_key(self._name, key), {})
        return entity, answer.headers.get("ETag", "")

    def _query(self, query: str, limit: int | None) -> Iterator[Mapping[str, Any]]:
        asked = {"$filter": query, "$top": str(min(limit, 1000) if limit else 1000)}
        following: dict[str, str] = {}
        while True:
            try:
                found, answer = self._read("()", {**asked, **following})
            except NotFound:
                return
            yield from found["value"]
            following = {
                word: answer.headers[f"x-ms-continuation-{word}"]
                for word in ("NextPartitionKey", "NextRowKey")
                if f"x-ms-continuation-{word}" in answer.headers
            }
            if not following:
                return

    def _read(self, what: str, query: Mapping[str, str]) -> tuple[dict[str, Any], RestResponse]:
        action, counted = "read the ledger of sequence", Request("table", "QueryEntities", self._table)
        answer = self._rest.send(
            action, self._name, counted, "GET", f"/{self._table}{what}", query=query, headers=TABLE_HEADERS
        )
        try:
            found = json.loads(answer.content)
            if what == "()" and not isinstance(found["value"], list):
                raise ValueError
        except (ValueError, KeyError, TypeError) as error:
            raise StorageUnreachable(
                f"{action} {self._name}: the answer was cut short", resource=self._name
            ) from error
        return found, answer

    def _with_table(self, call: Callable[[], R]) -> R:
        try:
            return call()
        except NotFound as error:
            if error.code != "TableNotFound":
                raise
        with suppress(AlreadyExists), translated("create the ledger of sequence", self._name):
            self._storage.blocking.tables.create_table(self._table)
        return call()


class CounterInfo(NamedTuple):
    """One counter as listed. `counter` is None and `problem` says why if it cannot be read."""

    name: str
    next: int | None
    counter: Counter | None
    problem: str = ""
    etag: str = ""


class CounterListing:
    """All sequences of an account with their newest grants.

    A look takes one request, and one more for each counter that another program wrote last and that has changed since
    the look before. Of a blob that is too long for a counter only the beginning is read.
    """

    def __init__(self, storage: Account) -> None:
        self._container = storage.config.container(CONTAINER)
        self._rest = SignedRest(storage, storage.endpoints.blob)
        self._listing = BlobListing(storage, self._container)
        self._last: dict[str, CounterInfo] = {}

    async def read(self) -> list[CounterInfo]:
        """The sequences now; none if the container does not exist."""
        found: list[CounterInfo] = []
        try:
            with translated("list the counters in", self._container):
                for blob in await self._listing.read():
                    last = self._last.get(blob.name)
                    if last is None or last.etag != blob.etag:
                        last = self._last[blob.name] = await self._info(blob)
                    found.append(last)
        except NotFound:
            found = []
        self._last = {info.name: info for info in found}
        return found

    async def _info(self, blob: ListedBlob) -> CounterInfo:
        name, etag, size, _, metadata = blob
        text = metadata.get("kennel_next", "")
        if not text or len(text) != size:
            text = await self._text(name) if size else ""
            if size > READ_BYTES:
                text += "…"
        try:
            counter = read_counter(name, text, etag, metadata)
        except SequenceError as error:
            return CounterInfo(name, None, None, str(error), etag)
        return CounterInfo(name, counter.value, counter, etag=etag)

    async def _text(self, name: str) -> str:
        answer = await self._rest.send(
            "read the counter of sequence",
            name,
            Request("blob", "GetBlob", self._container),
            "GET",
            f"/{self._container}/{quote(name, safe='')}",
            headers={"x-ms-range": f"bytes=0-{READ_BYTES - 1}"},
            accepted_statuses=(404, 416),
        )
        # Since it was listed it may have been deleted (404) or emptied (416).
        return "" if answer.status in (404, 416) else answer.content.decode("utf-8", "replace")


def _software() -> str:
    try:
        return version("kennel-coordinator")
    except PackageNotFoundError:
        return "from source"


def _key(partition: str, row: str) -> str:
    """A row, in an address."""
    quoted = [quote(part.replace("'", "''"), safe="") for part in (partition, row)]
    return f"(PartitionKey='{quoted[0]}',RowKey='{quoted[1]}')"


def _version(entity: Mapping[str, Any]) -> str:
    """Of a row in an answer to a query, which has no header for it; as the SDK has it."""
    return f"W/\"datetime'{quote(entity['Timestamp'], safe='')}'\""


def _int64(name: str, value: int) -> dict[str, str]:
    """A number of 64 bits travels as text, beside its type."""
    return {name: str(value), f"{name}@odata.type": "Edm.Int64"}


def _entity(sequence: str, grant: Grant) -> dict[str, Any]:
    return {
        "PartitionKey": sequence,
        "RowKey": grant.key,
        **_int64("first", grant.first),
        **_int64("last", grant.last),
        "step": grant.step,
        "owner": grant.owner.id,
        "host": grant.owner.host,
        "pid": grant.owner.pid,
        **_int64("started_at", grant.owner.started_at),
        "software": grant.owner.software,
        "nonce": grant.nonce,
        "granted_at": float(grant.granted_at),
        "granted_at@odata.type": "Edm.Double",
    }


def _outcome(grant: Grant) -> dict[str, Any]:
    """Nothing for a plain grant: recording it again must not take an outcome back."""
    if grant.outcome == GRANTED:
        return {}
    through = {} if grant.issued_through is None else _int64("issued_through", grant.issued_through)
    return {"outcome": grant.outcome, **through}


def _grant(entity: Mapping[str, Any]) -> Grant:
    key = str(entity["RowKey"])
    owner = Owner(
        str(entity.get("owner", "")),
        str(entity.get("host", "")),
        int(entity.get("pid", 0)),
        int(entity.get("started_at", 0)),
        str(entity.get("software", "")),
    )
    through = entity.get("issued_through")
    return Grant(
        int(entity["first"]),
        int(entity["last"]),
        owner,
        str(entity.get("nonce", "")),
        float(entity.get("granted_at", 0.0)),
        int(entity.get("step", 1)),
        int(key.partition("-")[2] or 0),
        str(entity.get("outcome", GRANTED)),
        None if through is None else int(through),
    )
