"""Writes as values, checked before they are sent: the service's own answers to a bad transaction help nobody."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coordinator.errors import ConfigurationError
from coordinator.tables.rows import Key, Values, check_key, check_values

MAX_OPERATIONS = 100
MAX_TRANSACTION_BYTES = 4 * 1024 * 1024
ANY = "*"

# What one operation adds to the body of a transaction besides its values: headers, URL, quotes, type marks.
_ENVELOPE_BYTES = 1024
_PER_VALUE_BYTES = 64


@dataclass(frozen=True)
class Insert:
    """Store a new row; `AlreadyExists` if there is one.

    Attributes:
        key: Partition and row.
        values: The columns.
        nonces: For `commit` and `optimistic_update`.
    """

    key: tuple[str, str]
    values: Values
    nonces: tuple[str, ...] = ()


@dataclass(frozen=True)
class Replace:
    """Put these values in place of all that the row holds, if its ETag is unchanged.

    Attributes:
        key: Partition and row.
        values: The columns.
        etag: The ETag that was read; `ANY` for whatever the row has become.
        nonces: For `commit` and `optimistic_update`.
    """

    key: tuple[str, str]
    values: Values
    etag: str
    nonces: tuple[str, ...] = ()


@dataclass(frozen=True)
class Merge:
    """Set these columns and leave the others, if the ETag is unchanged.

    Attributes:
        key: Partition and row.
        values: The columns to set.
        etag: The ETag that was read; `ANY` for whatever the row has become.
        nonces: For `commit` and `optimistic_update`.
    """

    key: tuple[str, str]
    values: Values
    etag: str
    nonces: tuple[str, ...] = ()


@dataclass(frozen=True)
class Upsert:
    """Store the row, new or not, without looking: the last writer wins. `Put` is its earlier name.

    Attributes:
        key: Partition and row.
        values: The columns; they replace all that the row holds.
        nonces: For `commit` and `optimistic_update`.
    """

    key: tuple[str, str]
    values: Values
    nonces: tuple[str, ...] = ()


@dataclass(frozen=True)
class Delete:
    """Delete the row, if its ETag is unchanged.

    Attributes:
        key: Partition and row.
        etag: The ETag that was read; `ANY` for whatever the row has become.
    """

    key: tuple[str, str]
    etag: str


Put = Upsert  # its earlier name

Operation = Insert | Replace | Merge | Upsert | Delete


def check_operation(operation: Operation) -> int:
    """The most bytes it can take in a transaction; raises `ConfigurationError` naming what is wrong."""
    key = check_key(operation.key)
    if isinstance(operation, Replace | Merge | Delete) and not operation.etag:
        raise ConfigurationError(
            f"{type(operation).__name__} of {key}: without an ETag the write would be unconditional; "
            "give the one that was read, or ANY to say so"
        )
    size = _ENVELOPE_BYTES + 4 * (len(key.partition) + len(key.row))
    if isinstance(operation, Delete):
        return size
    for name, value in operation.values.items():
        if isinstance(value, str):
            size += 2 * len(value.encode("utf-8", "surrogatepass"))
        elif isinstance(value, bytes):
            size += len(value) * 4 // 3
        size += _PER_VALUE_BYTES + 2 * len(name)
    check_values(operation.values)
    return size


def check_transaction(operations: Sequence[Operation]) -> Sequence[Operation]:
    """Return the operations if the service can take them as one transaction; else raise `ConfigurationError`.

    That is: at most 100, one partition, each row once, at most 4 MiB (counted from above, so that a body close to the
    limit may be refused here although the service would have taken it).
    """
    if not operations:
        raise ConfigurationError("a transaction needs at least one operation")
    if len(operations) > MAX_OPERATIONS:
        raise ConfigurationError(
            f"{len(operations)} operations in one transaction; at most {MAX_OPERATIONS} are allowed: see split()"
        )
    size, seen = 0, set[Key]()
    for operation in operations:
        size += check_operation(operation)
        key = Key(*operation.key)
        if key.partition != operations[0].key[0]:
            raise ConfigurationError(
                f"a transaction is about one partition; found {operations[0].key[0]!r} and {key.partition!r}: see split()"
            )
        if key in seen:
            raise ConfigurationError(f"row {key} appears twice in the transaction; join the two operations")
        seen.add(key)
    if size > MAX_TRANSACTION_BYTES:
        raise ConfigurationError(
            f"the transaction may take {size} bytes; at most {MAX_TRANSACTION_BYTES} are allowed: see split()"
        )
    return operations


def split(operations: Iterable[Operation]) -> list[list[Operation]]:
    """Cut a list of any length into transactions that can be sent, in order, partition by partition.

    Does not make them atomic together: after a crash some are done and some are not. Send them from a saga step, with
    operations that may be repeated (`Upsert`, or `Delete` with `ANY`).
    """
    partitions: dict[str, list[Operation]] = {}
    for operation in operations:
        partitions.setdefault(operation.key[0], []).append(operation)
    parts: list[list[Operation]] = []
    for group in partitions.values():
        part: list[Operation] = []
        size, seen = 0, set[str]()
        for operation in group:
            more = check_operation(operation)
            if part and (
                len(part) == MAX_OPERATIONS or size + more > MAX_TRANSACTION_BYTES or operation.key[1] in seen
            ):
                parts.append(part)
                part, size, seen = [], 0, set()
            part.append(operation)
            size += more
            seen.add(operation.key[1])
        parts.append(part)
    return parts
