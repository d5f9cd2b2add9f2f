"""The results of a batch as lines (JSON, CSV) and as rows of a SQL database, in constant memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from coordinator.errors import ConfigurationError
from coordinator.spreadsheets import csv_text

_PIECE_BYTES = 256 * 1024
MARKER_TABLE = "CREATE TABLE IF NOT EXISTS kennel_batches (name VARCHAR(200) PRIMARY KEY)"


async def json_lines(results: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    """One JSON object a line, in pieces of about 256 KiB: for `BlobReports.write_stream_once` or a file."""
    piece = bytearray()
    async for result in results:
        piece += msgspec.json.encode(result) + b"\n"
        if len(piece) >= _PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)


async def csv_lines(results: AsyncIterator[Any], columns: Sequence[str]) -> AsyncIterator[bytes]:
    """CSV with a head line, UTF-8; each result must be an object with these fields. Text that a spreadsheet would take for
    a formula is made text with an apostrophe."""
    if not columns:
        raise ConfigurationError("CSV needs at least one column")
    piece = bytearray(csv_text([columns]).encode())
    async for result in results:
        values = msgspec.to_builtins(result)
        piece += csv_text([[values[column] for column in columns]]).encode()
        if len(piece) >= _PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece)


async def to_sql(
    connection: Any,
    results: AsyncIterator[Any],
    *,
    batch: str,
    statement: str,
    columns: Sequence[str],
    placeholder: str = "?",
) -> bool:
    """Execute `statement` once for each result, all in one transaction with a marker; False if this batch is there already.

    `connection` is of a DB-API driver, such as sqlite3 or psycopg, on a database that has the table `MARKER_TABLE`;
    `statement` an INSERT with a parameter for each of `columns`. Guarantees that a batch arrives wholly and once,
    however often this is called. The driver's calls block; give it a connection that nobody else uses meanwhile.
    """
    cursor = connection.cursor()
    try:
        cursor.execute(
            f"INSERT INTO kennel_batches (name) VALUES ({placeholder}) ON CONFLICT DO NOTHING",  # noqa: S608
            (batch,),
        )
        if cursor.rowcount != 1:
            connection.rollback()
            return False
        async for result in results:
            values = msgspec.to_builtins(result)
            cursor.execute(statement, tuple(values[column] for column in columns))
        connection.commit()
    except BaseException:
        connection.rollback()
        raise
    finally:
        cursor.close()
    return True
