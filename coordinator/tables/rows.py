"""Rows of a table as values, and the limits that the service sets them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from coordinator.errors import ConfigurationError

Value = str | int | float | bool | bytes | datetime | UUID
Values = Mapping[str, Value]

MAX_PROPERTIES = 252
MAX_ENTITY_BYTES = 1024 * 1024
MAX_PROPERTY_BYTES = 64 * 1024
MAX_KEY_BYTES = 1024
NONCES = "kennel_nonces"

_TABLE = re.compile(r"[A-Za-z][A-Za-z0-9]{2,62}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_FORBIDDEN = re.compile(r"[/\\#?\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_SYSTEM = {"PartitionKey", "RowKey", "Timestamp", NONCES}


PART_BYTES = 63 * 1024
MAX_PARTS = 15
MAX_BYTES = PART_BYTES * MAX_PARTS


class Key(NamedTuple):
    """Where a row is.

    Attributes:
        partition: The partition; a transaction stays within one.
        row: The row within it.
    """

    partition: str
    row: str


def utf16(text: str) -> bytes:
    """What the service sorts and compares keys by: UTF-16 code units. Python's own order differs above U+FFFF."""
    return text.encode("utf-16-be", "surrogatepass")


def order(key: Key) -> tuple[bytes, bytes]:
    """Sorts keys as the service does."""
    return utf16(key.partition), utf16(key.row)


@dataclass(frozen=True)
class Row:
    """One row as it was read.

    Attributes:
        key: Partition and row.
        values: The columns by name; also as ``row["count"]``.
        etag: The version; "" for a row that was never stored.
        nonces: Of its latest updates by `optimistic_update` and `commit`.
    """

    key: Key
    values: dict[str, Any] = field(default_factory=dict)
    etag: str = ""
    nonces: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a column.

        Args:
            name: The column.
            default: What to return if there is no such column (default None).

        Returns:
            The value, or `default`.
        """
        return self.values.get(name, default)


def check_table(name: str) -> str:
    """Return `name` if it may name a table (3-63 letters and digits, a letter first); else raise."""
    if not _TABLE.fullmatch(name) or name.lower() == "tables":
        raise ConfigurationError(
            f"table name {name!r}: use 3-63 letters and digits, starting with a letter, and not 'tables'"
        )
    return name


def check_key(key: tuple[str, str]) -> Key:
    """The key, if both halves may be one: text of at most 1 KiB without ``/ \\ # ?`` and control characters."""
    for half, text in zip(("partition", "row"), key, strict=True):
        if not isinstance(text, str):
            raise ConfigurationError(f"{half} key {text!r}: use text")
        if found := _FORBIDDEN.search(text):
            raise ConfigurationError(f"{half} key {text!r}: the character {found.group()!r} is not allowed")
        if _utf16_bytes(text) > MAX_KEY_BYTES:
            raise ConfigurationError(
                f"{half} key {text[:40]!r}…: {_utf16_bytes(text) // 2} characters (those above U+FFFF count twice), at most "
                "512 are allowed"
            )
    return Key(*key)


def check_values(values: Values) -> int:
    """The bytes these values take by the service's own formula; raises `ConfigurationError` if they cannot be stored."""
    if len(values) > MAX_PROPERTIES:
        raise ConfigurationError(f"{len(values)} columns in one row; at most {MAX_PROPERTIES} are allowed")
    total = 0
    for name, value in values.items():
        if name in _SYSTEM or not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"column name {name!r}: use letters, digits and _; the names of system columns are reserved"
            )
        size = _size(name, value)
        if size > MAX_PROPERTY_BYTES:
            raise ConfigurationError(
                f"column {name!r} takes {size} bytes; at most {MAX_PROPERTY_BYTES} are allowed"
            )
        total += 8 + 2 * len(name) + size
    if total > MAX_ENTITY_BYTES:
        raise ConfigurationError(f"the row takes {total} bytes; at most {MAX_ENTITY_BYTES} are allowed")
    return total


def check_column(name: str) -> str:
    """The name, if a question may name such a column; raises `ConfigurationError`: it would become part of the question."""
    if name not in _SYSTEM and not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"column name {name!r}: use letters, digits and _, not starting with a digit"
        )
    return name


def check_compared(name: str, value: Any) -> None:
    """Raises `ConfigurationError` if a column cannot be compared with that value."""
    _size(name, value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigurationError(f"column {name!r} cannot be compared with {value}: use a finite number")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ConfigurationError(
                f"column {name!r} cannot be compared with {value!r}: it has half of a surrogate pair"
            ) from error


def _utf16_bytes(text: str) -> int:
    return 2 * len(text) if text.isascii() else len(utf16(text))


def _size(name: str, value: Any) -> int:
    match value:
        case bool():
            return 1
        case str():
            return _utf16_bytes(value) + 4
        case int():
            if not -(2**63) <= value < 2**63:
                raise ConfigurationError(f"column {name!r}: {value} does not fit in 64 bits")
            return 8
        case float():
            return 8
        case bytes():
            return len(value) + 4
        case datetime():
            if value.tzinfo is None:
                raise ConfigurationError(f"column {name!r}: a date without a time zone; use an aware one")
            return 8
        case UUID():
            return 16
        case _:
            raise ConfigurationError(
                f"column {name!r}: {type(value).__name__} cannot be stored; use str, int, float, bool, bytes, "
                "an aware datetime or UUID, and leave out what is not known"
            )


def chunk_columns(name: str, data: bytes) -> dict[str, Value]:
    """The columns ``name_0``, ``name_1``, … that hold `data`; raises `ConfigurationError` above 945 KiB."""
    if len(data) > MAX_BYTES:
        raise ConfigurationError(
            f"{name}: {len(data)} bytes do not fit in a row; at most {MAX_BYTES} do. "
            "Keep it in a blob and store its name"
        )
    return {
        f"{name}_{index}": data[start : start + PART_BYTES]
        for index, start in enumerate(range(0, len(data), PART_BYTES))
    }


def join_columns(name: str, values: Mapping[str, Any]) -> bytes:
    """What `chunk_columns` put there; empty without such columns."""
    parts: list[bytes] = []
    while (part := values.get(f"{name}_{len(parts)}")) is not None:
        parts.append(bytes(part))
    return b"".join(parts)
