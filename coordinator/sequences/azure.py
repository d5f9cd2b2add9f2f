"""Counters in blobs, the ledger in a table: the one module of this room that speaks the SDK's language."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple, TypeVar

import psutil
from azure.core import MatchConditions
from azure.data.tables import EdmType, EntityProperty, TransactionOperation, UpdateMode
from azure.storage.blob import BlobClient

from coordinator.azure.account import Account
from coordinator.azure.errors import translated
from coordinator.backoff import Backoff, retry_blocking
from coordinator.config import check_blob, check_container
from coordinator.errors import AlreadyExists, NotFound, PreconditionFailed, SequenceError, StorageUnreachable
from coordinator.sequences.generator import UniqueIdGenerator
from coordinator.sequences.grants import (
    FREE,
    GRANTED,
    RETURNED,
    Counter,
    Grant,
    Jump,
    Owner,
    SequenceConfig,
    read_counter,
    row_key,
    tail_of,
)
from coordinator.sequences.store import Snapshot

CONTAINER, TABLE = "sequences", "ledger"
BATCH = 100
"""The most operations the service takes in one transaction."""
JUMP_PREFIX, HEAD = "!", "0!head"
"""Keys of release 0.1: grants are digits, jumps begin with "!". It reads neither of the ranges that the head's key is in."""
AFTER_GRANTS = "~"

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
        self._blob_name = check_blob(blob) if blob else name

    def get_data(self) -> Snapshot:
        with translated("read the counter of sequence", self._name):
            answer = self._blob().download_blob()
            data = answer.readall()
        properties = answer.properties
        if len(data) != properties.size:
            raise StorageUnreachable(
                f"read the counter of sequence {self._name}: {len(data)} of {properties.size} bytes came",
                resource=self._name,
            )
        text = data.decode("utf-8", errors="replace")
        return Snapshot(text, str(properties.etag), dict(properties.metadata or {}))

    def try_optimistic_write(self, data: str, *, etag: str | None, metadata: Mapping[str, str]) -> str | None:
        def write() -> str:
            condition: dict[str, Any] = (
                {"overwrite": False}
                if etag is None
                else {"overwrite": True, "etag": etag, "match_condition": MatchConditions.IfNotModified}
            )
            with translated("write the counter of sequence", self._name):
                answer = self._blob().upload_blob(data.encode(), metadata=dict(metadata), **condition)
            if not answer.get("etag"):  # a head cut short after its first lines
                raise StorageUnreachable(
                    f"write the counter of sequence {self._name}: the answer was cut short",
                    resource=self._name,
                    maybe_done=True,
                )
            return str(answer["etag"])

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

    def _blob(self) -> BlobClient:
        return self._storage.blocking.blobs.get_blob_client(self._container, self._blob_name)


class TableLedger:
    """`Ledger` in one partition of a table. The table is made when it is first missed."""

    def __init__(self, storage: Account, name: str) -> None:
        self._storage, self._name = storage, name

    def enter(
        self, grant: Grant, *, others: Sequence[Grant] = (), jumps: Sequence[Jump] = (), head: str = ""
    ) -> str:
        rows = self._rows_of(others, jumps)
        if len(rows) > BATCH - 2:
            self.record(others, jumps)
            rows = []
        stamp = {"PartitionKey": self._name, "RowKey": HEAD, "next": _int64(grant.last + 1)}
        unchanged = {"etag": head, "match_condition": MatchConditions.IfNotModified}
        operations: list[Any] = [
            (TransactionOperation.UPDATE, stamp, {"mode": UpdateMode.REPLACE, **unchanged})
            if head
            else (TransactionOperation.UPSERT, stamp, {"mode": UpdateMode.REPLACE}),
            (TransactionOperation.CREATE, _entity(self._name, grant)),
            *((TransactionOperation.UPSERT, row, {"mode": UpdateMode.MERGE}) for row in rows),
        ]
        try:
            return str(self._transact(operations)[0].get("etag") or "")
        except NotFound as error:
            raise PreconditionFailed(f"the head of the ledger of sequence {self._name} is gone", resource=self._name) from error  # fmt: skip

    def head(self) -> int:
        try:
            with translated("read the ledger of sequence", self._name):
                return _number(self._table().get_entity(self._name, HEAD)["next"])
        except NotFound:
            return 0

    def record(self, grants: Sequence[Grant], jumps: Sequence[Jump] = ()) -> None:
        rows = self._rows_of(grants, jumps)
        merge = {"mode": UpdateMode.MERGE}
        for place in range(0, len(rows), BATCH):
            batch = [(TransactionOperation.UPSERT, row, merge) for row in rows[place : place + BATCH]]
            # Said twice is said once; and a connection that was idle for long breaks at its first use.
            retry_blocking(
                partial(self._transact, batch), backoff=Backoff(cap_seconds=0.2, deadline_seconds=1.0)
            )

    def _rows_of(self, grants: Sequence[Grant], jumps: Sequence[Jump]) -> list[dict[str, Any]]:
        return [{**_entity(self._name, grant), **_outcome(grant)} for grant in grants] + [
            {
                "PartitionKey": self._name,
                "RowKey": JUMP_PREFIX + row_key(jump.last),
                "first": _int64(jump.first),
            }
            for jump in jumps
        ]

    def row(self, key: str) -> Grant | None:
        try:
            with translated("read the ledger of sequence", self._name):
                return _grant(self._table().get_entity(self._name, key))
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

    def jumps(self, *, at_or_after: int = 0) -> Iterator[Jump]:
        bottom = JUMP_PREFIX + row_key(at_or_after)
        query = f"PartitionKey eq '{self._name}' and RowKey ge '{bottom}' and RowKey lt '0'"
        for entity in self._query(query, None):
            yield Jump(_number(entity["first"]), int(entity["RowKey"][len(JUMP_PREFIX) :]))

    def give_back(self, grant: Grant, issued_through: int, others: Sequence[Grant] = ()) -> str:
        if len(others) > BATCH - 2:
            self.record(others)
            others = ()
        settled, tail = grant.settled(RETURNED, issued_through), tail_of(grant, issued_through)
        operations: list[Any] = [
            (
                TransactionOperation.UPSERT,
                {**_entity(self._name, settled), **_outcome(settled)},
                {"mode": UpdateMode.MERGE},
            ),
            (TransactionOperation.CREATE, {**_entity(self._name, tail), **_outcome(tail)}),
            *(
                (TransactionOperation.UPSERT, row, {"mode": UpdateMode.MERGE})
                for row in self._rows_of(others, ())
            ),
        ]
        with suppress(AlreadyExists):  # an earlier try was carried out although its answer was lost
            self._transact(operations)
        return tail.key

    def take(self, key: str, owner: Owner, nonce: str, at: float) -> Grant | None:
        try:
            with translated("read the ledger of sequence", self._name):
                entity = self._table().get_entity(self._name, key)
        except NotFound:
            return None
        tail = _grant(entity)
        if tail.outcome != FREE:
            return tail if tail.nonce == nonce else None  # or an earlier try of ours was carried out
        mine = Grant(tail.first, tail.last, owner, nonce, at, tail.step, tail.turn, GRANTED)
        unchanged = {
            "mode": UpdateMode.MERGE,
            "etag": entity.metadata["etag"],
            "match_condition": MatchConditions.IfNotModified,
        }
        try:
            self._transact([(TransactionOperation.UPDATE, {**_entity(self._name, mine), "outcome": GRANTED}, unchanged)])  # fmt: skip
        except (NotFound, PreconditionFailed):
            return None
        return mine

    def _transact(self, operations: list[Any]) -> list[Mapping[str, Any]]:
        def send() -> list[Mapping[str, Any]]:
            with translated("write the ledger of sequence", self._name):
                return list(self._table().submit_transaction(operations))

        return self._with_table(send)

    def _query(self, query: str, limit: int | None) -> Iterator[Mapping[str, Any]]:
        page = min(limit, 1000) if limit else 1000
        try:
            with translated("read the ledger of sequence", self._name):
                yield from self._table().query_entities(query, results_per_page=page)
        except NotFound:
            return

    def _with_table(self, call: Callable[[], R]) -> R:
        try:
            return call()
        except NotFound as error:
            if error.code != "TableNotFound":
                raise
        with suppress(AlreadyExists), translated("create the ledger of sequence", self._name):
            self._storage.blocking.tables.create_table(self._storage.config.table(TABLE))
        return call()

    def _table(self) -> Any:
        return self._storage.blocking.tables.get_table_client(self._storage.config.table(TABLE))


class CounterInfo(NamedTuple):
    """One counter as listed. `counter` is None and `problem` says why if it cannot be read."""

    name: str
    next: int | None
    counter: Counter | None
    problem: str = ""


async def list_counters(storage: Account) -> list[CounterInfo]:
    """All sequences with their newest grants, in one request (one more for each counter that others wrote last)."""
    container = storage.aio.blobs.get_container_client(storage.config.container(CONTAINER))
    found: list[CounterInfo] = []
    try:
        with translated("list the counters in", container.container_name):
            async for blob in container.list_blobs(include=["metadata"]):
                metadata = dict(blob.metadata or {})
                text = metadata.get("kennel_next", "")
                if not text or len(text) != blob.size:
                    text = (await (await container.download_blob(blob.name)).readall()).decode(
                        "utf-8", "replace"
                    )
                found.append(_info(blob.name, text, str(blob.etag), metadata))
    except NotFound:
        return []
    return found


def _info(name: str, text: str, etag: str, metadata: Mapping[str, str]) -> CounterInfo:
    try:
        counter = read_counter(name, text, etag, metadata)
    except SequenceError as error:
        return CounterInfo(name, None, None, str(error))
    return CounterInfo(name, counter.value, counter)


def _software() -> str:
    try:
        return version("kennel-coordinator")
    except PackageNotFoundError:
        return "from source"


def _int64(value: int) -> EntityProperty:
    return EntityProperty(value, EdmType.INT64)


def _number(value: Any) -> int:
    return int(getattr(value, "value", value))


def _entity(sequence: str, grant: Grant) -> dict[str, Any]:
    return {
        "PartitionKey": sequence,
        "RowKey": grant.key,
        "first": _int64(grant.first),
        "last": _int64(grant.last),
        "step": grant.step,
        "owner": grant.owner.id,
        "host": grant.owner.host,
        "pid": grant.owner.pid,
        "started_at": _int64(grant.owner.started_at),
        "software": grant.owner.software,
        "nonce": grant.nonce,
        "granted_at": float(grant.granted_at),
    }


def _outcome(grant: Grant) -> dict[str, Any]:
    """Nothing for a plain grant: recording it again must not take an outcome back."""
    if grant.outcome == GRANTED:
        return {}
    through = {} if grant.issued_through is None else {"issued_through": _int64(grant.issued_through)}
    return {"outcome": grant.outcome, **through}


def _grant(entity: Mapping[str, Any]) -> Grant:
    key = str(entity["RowKey"])
    owner = Owner(
        str(entity.get("owner", "")),
        str(entity.get("host", "")),
        _number(entity.get("pid", 0)),
        _number(entity.get("started_at", 0)),
        str(entity.get("software", "")),
    )
    through = entity.get("issued_through")
    return Grant(
        _number(entity["first"]),
        _number(entity["last"]),
        owner,
        str(entity.get("nonce", "")),
        float(entity.get("granted_at", 0.0)),
        _number(entity.get("step", 1)),
        int(key.partition("-")[2] or 0),
        str(entity.get("outcome", GRANTED)),
        None if through is None else _number(through),
    )
