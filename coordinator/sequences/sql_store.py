"""Counters in a table of a database: PostgreSQL (extra `postgres`) or SQLite."""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any

from coordinator.errors import NotFound, StorageUnreachable
from coordinator.sequences.store import Snapshot

CREATE = (
    "CREATE TABLE IF NOT EXISTS kennel_counters "
    "(name text PRIMARY KEY, data text NOT NULL, metadata text NOT NULL, version text NOT NULL)"
)


class SqlCounterStore:
    """`OptimisticSyncStore` on one row of the table ``kennel_counters``, which is created when it is first written.

    Make it with `postgres` or `sqlite`. Each call takes a connection of its own and ends its transaction; a program that
    wants a pool passes `connections`, which gives a context with a connection of the Python database API. `parameter` is
    how the driver writes a parameter.

    Guarantees what the protocol does, as far as the database does: a restored database is a restored counter, which the
    ledger discovers.
    """

    def __init__(
        self,
        name: str,
        connections: Callable[[], AbstractContextManager[Any]],
        *,
        errors: tuple[type[Exception], ...],
        missing: Callable[[Exception], bool],
        parameter: str = "%s",
    ) -> None:
        self._name, self._connections = name, connections
        self._errors, self._missing, self._parameter = errors, missing, parameter

    @classmethod
    def postgres(cls, name: str, url: str) -> SqlCounterStore:
        """A counter in PostgreSQL, by the URL that libpq takes."""
        import psycopg

        address = url.replace("postgres://", "postgresql://", 1)
        return cls(
            name,
            lambda: psycopg.connect(address, connect_timeout=5),
            errors=(psycopg.Error,),
            missing=lambda error: isinstance(error, psycopg.errors.UndefinedTable),
        )

    @classmethod
    def sqlite(cls, name: str, path: str) -> SqlCounterStore:
        """A counter in a SQLite file, for processes of one machine."""

        @contextmanager
        def connected() -> Iterator[sqlite3.Connection]:
            with closing(sqlite3.connect(path, timeout=5.0)) as connection, connection:
                yield connection

        return cls(
            name,
            connected,
            errors=(sqlite3.Error,),
            missing=lambda error: "no such table" in str(error),
            parameter="?",
        )

    def get_data(self) -> Snapshot:
        try:
            found = self._run(
                "SELECT data, version, metadata FROM kennel_counters WHERE name = {}", self._name
            )
        except self._errors as error:
            if not self._missing(error):
                raise self._unreachable("read", error, maybe_done=False) from error
            found = []
        if not found:
            raise NotFound(f"read the counter of sequence {self._name}: there is none", resource=self._name)
        data, version, metadata = found[0]
        return Snapshot(data, version, json.loads(metadata))

    def try_optimistic_write(self, data: str, *, etag: str | None, metadata: Mapping[str, str]) -> str | None:
        version, text = secrets.token_hex(8), json.dumps(dict(metadata))
        try:
            if etag is not None:
                written = self._run(
                    "UPDATE kennel_counters SET data = {}, metadata = {}, version = {} WHERE name = {} AND version = {} "
                    "RETURNING version",
                    data, text, version, self._name, etag,
                )  # fmt: skip
            else:
                self._run(CREATE)
                written = self._run(
                    "INSERT INTO kennel_counters (name, data, metadata, version) VALUES ({}, {}, {}, {}) "
                    "ON CONFLICT DO NOTHING RETURNING version",
                    self._name, data, text, version,
                )  # fmt: skip
        except self._errors as error:
            if self._missing(error):
                return None
            raise self._unreachable("write", error, maybe_done=True) from error
        return version if written else None

    def _run(self, statement: str, *values: str) -> list[Any]:
        with self._connections() as connection:
            cursor = connection.execute(statement.replace("{}", self._parameter), values)
            return list(cursor.fetchall()) if cursor.description else []

    def _unreachable(self, action: str, error: Exception, *, maybe_done: bool) -> StorageUnreachable:
        return StorageUnreachable(
            f"{action} the counter of sequence {self._name}: the database failed ({type(error).__name__}: {error})",
            resource=self._name,
            maybe_done=maybe_done,
        )
