"""Bytes of any length, up to what a row can hold, chunk_columns over columns of 64 KiB at most. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coordinator.errors import ConfigurationError
from coordinator.tables.rows import Value

PART_BYTES = 63 * 1024
MAX_PARTS = 15
MAX_BYTES = PART_BYTES * MAX_PARTS


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
