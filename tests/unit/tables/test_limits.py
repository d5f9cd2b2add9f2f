"""What cannot be stored is refused before it is sent, with the reason."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.errors import ConfigurationError
from coordinator.tables.operations import (
    ANY,
    Delete,
    Insert,
    Merge,
    Operation,
    Replace,
    Upsert,
    check_transaction,
    split,
)
from coordinator.tables.rows import check_key, check_table, check_values
from coordinator.tables.table import Table
from coordinator.testing.tables import MemoryTableStore


@pytest.mark.parametrize(
    ("operations", "words"),
    [
        ([], "at least one"),
        ([Upsert(("a", str(n)), {}) for n in range(101)], "101 operations"),
        ([Upsert(("a", "1"), {}), Upsert(("b", "1"), {})], "one partition"),
        ([Upsert(("a", "1"), {}), Delete(("a", "1"), ANY)], "appears twice"),
        (
            [Upsert(("a", str(n)), {f"c{i}": "x" * 30_000 for i in range(10)}) for n in range(9)],
            "at most 4194304",
        ),
        ([Replace(("a", "1"), {}, "")], "unconditional"),
        ([Delete(("a", "1"), "")], "unconditional"),
        ([Merge(("a", "1"), {"x": None}, ANY)], "leave out what is not known"),  # type: ignore[dict-item]
    ],
    ids=["none", "101", "partitions", "twice", "bytes", "no etag", "no etag to delete", "none value"],
)
def test_a_transaction_the_service_would_refuse_is_named(operations: list[Operation], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        check_transaction(operations)


async def test_nothing_is_sent_of_a_transaction_that_is_refused() -> None:
    store = MemoryTableStore()
    with pytest.raises(ConfigurationError):
        await Table(store).transact([Insert(("a", "1"), {}), Insert(("b", "1"), {})])
    assert store.requests == 0


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"n": 2**63}, "64 bits"),
        ({"when": datetime(2026, 1, 1)}, "time zone"),  # noqa: DTZ001
        ({"text": "x" * 40_000}, "'text' takes 80004 bytes"),
        ({"raw": b"x" * 70_000}, "'raw' takes"),
        ({f"c{n}": "x" * 32_000 for n in range(17)}, "the row takes"),
        ({f"c{n}": 1 for n in range(253)}, "253 columns"),
        ({"a-b": 1}, "column name 'a-b'"),
        ({"RowKey": 1}, "column name 'RowKey'"),
        ({"list": [1]}, "list cannot be stored"),
    ],
)
def test_values_that_cannot_be_stored_are_named(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        check_values(values)


@pytest.mark.parametrize("key", [("a/b", "1"), ("a", "1#2"), ("a", "x" * 513), ("a", "\n"), ("a", 7)])
def test_keys_that_cannot_be_one_are_named(key: tuple[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="key"):
        check_key(key)


@pytest.mark.parametrize("name", ["ab", "9lives", "with-dash", "tables", "x" * 64])
def test_names_that_no_table_can_have_are_named(name: str) -> None:
    with pytest.raises(ConfigurationError, match="table name"):
        check_table(name)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 150), st.integers(0, 30_000)), max_size=300))
def test_split_parts_can_be_sent_and_hold_everything_in_order(rows: list[tuple[str, int, int]]) -> None:
    operations: list[Operation] = [
        Upsert((partition, str(row)), {"n": n, "text": "x" * size})
        for n, (partition, row, size) in enumerate(rows)
    ]
    parts = split(operations)
    for part in parts:
        check_transaction(part)
    for partition in "ab":
        flat = [op for part in parts for op in part if op.key[0] == partition]
        assert flat == [op for op in operations if op.key[0] == partition]
