"""What the helper that starts the storage emulator says when it cannot."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest

from coordinator.testing import azurite
from coordinator.testing.azurite import Azurite, AzuriteError, AzuriteMissing, next_free_port


def a_node_that(does: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of Node: a shell script, which is given what Node would be."""
    program = folder / "node"
    program.write_text(f"#!/bin/sh\n{does}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(azurite, "find_node", lambda: program)


def test_what_was_not_started_has_neither_address_nor_process() -> None:
    for of in ("pid", "connection_string"):
        with pytest.raises(AzuriteError, match="call start"):
            getattr(Azurite(), of)
    Azurite().stop()


def test_without_node_the_error_names_the_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(azurite.sysconfig, "get_path", lambda _: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AzuriteMissing, match=r"Node is missing.*make setup"):
        Azurite().start()


def test_the_node_of_the_path_is_used_where_no_wheel_has_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(azurite.sysconfig, "get_path", lambda _: str(tmp_path / "none"))
    (tmp_path / "node").write_text("#!/bin/sh\n")
    (tmp_path / "node").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert azurite.find_node() == tmp_path / "node"


def test_without_azurite_the_error_names_the_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    a_node_that("exit 0", tmp_path, monkeypatch)
    monkeypatch.setattr(azurite, "_PROJECT", tmp_path)
    with pytest.raises(AzuriteMissing, match=r"Azurite is missing in node_modules.*make setup"):
        Azurite().start()


def test_data_that_cannot_be_kept_there_is_said_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    a_node_that("exit 0", tmp_path, monkeypatch)
    (tmp_path / "file").write_text("")
    with pytest.raises(AzuriteError, match="cannot keep Azurite's data in .*file"):
        Azurite(location=tmp_path / "file").start()


def test_an_emulator_that_ends_while_starting_is_quoted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    a_node_that("echo out of memory; exit 3", tmp_path, monkeypatch)
    emulator = Azurite(location=tmp_path / "data")
    with pytest.raises(AzuriteError, match=r"ended while starting \(exit 3\): out of memory"):
        emulator.start()
    assert not emulator.is_running


def test_an_emulator_that_never_answers_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    a_node_that("echo starting; exec sleep 600", tmp_path, monkeypatch)
    emulator = Azurite(start_timeout_seconds=0.0)
    with pytest.raises(AzuriteError, match="did not answer within 0 s"):
        emulator.start()
    assert not emulator.is_running


def test_a_port_that_is_taken_is_stepped_over() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert next_free_port(port) > port


def test_a_host_without_any_free_port_is_named() -> None:
    with pytest.raises(AzuriteError, match=r"no free port from 20000 to 20199 on 192\.0\.2\.1"):
        next_free_port(20000, host="192.0.2.1")


def test_services_that_want_the_same_port_get_ports_of_their_own() -> None:
    emulator = Azurite(ports={"blob": 21000, "queue": 21000})
    chosen = emulator._choose_ports()
    assert chosen["blob"] != chosen["queue"]
    assert emulator.moved["queue"] == (21000, chosen["queue"])
