"""``ids`` as an operator types it, on a real store."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from coordinator.cli.ids import ids
from coordinator.config import StorageConfig
from coordinator.storage import Storage


class Shell:
    def __init__(self, storage: Storage, connection_string: str) -> None:
        self.storage = storage
        self._env = {
            "AZURE_STORAGE_CONNECTION_STRING": connection_string,
            "KENNEL_PREFIX": storage.config.prefix,
        }

    def __call__(self, *words: Any) -> Result:
        return CliRunner().invoke(ids, [str(word) for word in words], env=self._env)

    def wreck(self, text: str) -> None:
        blob = self.storage.blocking.blobs.get_blob_client(
            self.storage.config.container("sequences"), "orders"
        )
        blob.upload_blob(text.encode(), overwrite=True)


@pytest.fixture
def shell(connection_string: str, storage_prefix: str) -> Iterator[Shell]:
    storage = Storage.from_connection_string(connection_string, config=StorageConfig(prefix=storage_prefix))
    with storage.sequence("orders", range_size=10, max_range_size=10) as generator:
        for _ in range(35):
            generator.next_id()
    yield Shell(storage, connection_string)
    storage.close()


def test_verify_proves_and_exits_0(shell: Shell) -> None:
    result = shell("verify", "orders")
    assert result.exit_code == 0
    assert result.output.splitlines()[-1].startswith("ok: ")
    assert "35" in result.output


@pytest.mark.parametrize("verb", ["verify", "repair"])
def test_a_sequence_that_never_was_is_an_error_that_says_so(shell: Shell, verb: str) -> None:
    result = shell(verb, "unused")
    assert result.exit_code == 1
    assert "sequence unused: there is no" in result.output


@pytest.mark.parametrize("words", [("list",), ("export",), ("who", 1), ("export", "--owner", "nobody")])
def test_what_is_read_of_a_sequence_that_never_was_is_an_error(shell: Shell, words: tuple[Any, ...]) -> None:
    result = shell(words[0], "unused", *words[1:])
    assert (result.exit_code, "," in result.stdout) == (1, False)
    assert "sequence unused: there is no counter" in result.output


def test_a_number_below_all_is_not_granted(shell: Shell) -> None:
    for number in (-3, 0):
        result = shell("who", "orders", "--", number)
        assert (result.exit_code, f"{number}: not granted" in result.output) == (1, True)


def test_a_deleted_counter_is_an_error_that_names_the_cure(shell: Shell) -> None:
    blobs = shell.storage.blocking.blobs
    blobs.get_blob_client(shell.storage.config.container("sequences"), "orders").delete_blob()
    result = shell("verify", "orders")
    assert result.exit_code == 1
    assert "ids repair orders" in result.output


def test_verify_finds_a_deleted_row_and_exits_1(shell: Shell) -> None:
    table = shell.storage.blocking.tables.get_table_client(shell.storage.config.table("ledger"))
    table.delete_entity("orders", f"{20:020d}")
    result = shell("verify", "orders")
    assert result.exit_code == 1
    assert "11…20" in result.output


def test_who_names_owner_host_and_range(shell: Shell) -> None:
    result = shell("who", "orders", 17)
    assert result.exit_code == 0
    assert "11…20" in result.output
    assert shell.storage.identity in result.output


def test_who_of_a_number_that_nobody_has_exits_1(shell: Shell) -> None:
    result = shell("who", "orders", 5000)
    assert (result.exit_code, "not granted" in result.output) == (1, True)


def test_list_shows_the_newest_first(shell: Shell) -> None:
    lines = shell("list", "orders", "--limit", 2, "--owner", shell.storage.identity).output.splitlines()
    assert len(lines) == 2
    firsts = [int(line.split("…")[0]) for line in lines]
    assert firsts == sorted(firsts, reverse=True)


def test_export_is_csv_with_every_grant(shell: Shell) -> None:
    rows = list(csv.DictReader(io.StringIO(shell("export", "orders").output)))
    assert [int(row["first"]) for row in rows][:3] == [1, 11, 21]
    assert {row["outcome"] for row in rows} >= {"used", "returned", "free"}


def test_repair_shows_its_plan_and_writes_only_with_yes(shell: Shell) -> None:
    assert shell("repair", "orders").exit_code == 0
    shell.wreck("7")
    planned = shell("repair", "orders")
    assert planned.exit_code == 1
    assert "plan: set the counter to" in planned.output
    assert shell("repair", "orders").output == planned.output
    assert shell("repair", "orders", "--yes").exit_code == 0
    assert shell("verify", "orders").exit_code == 0
    with shell.storage.sequence("orders") as generator:
        assert generator.next_id() >= 41, "only the ledger vouches for returned numbers now"
