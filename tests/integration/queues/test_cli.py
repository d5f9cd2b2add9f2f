"""``python -m coordinator queue`` as a person uses it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from coordinator.__main__ import main


@pytest.fixture
def name(monkeypatch: pytest.MonkeyPatch, connection_string: str, storage_prefix: str) -> str:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection_string)
    monkeypatch.setenv("KENNEL_PREFIX", storage_prefix)
    return f"{storage_prefix}work"


def queue(*words: str, stdin: str = "") -> Result:
    return CliRunner().invoke(main, ["queue", *words], input=stdin)


def test_items_are_put_counted_peeked_moved_and_cleared(name: str) -> None:
    assert "Sent 3 items" in queue("put", name, stdin='{"n":1}\n\n{"n":2}\n"three"\n').stderr
    assert queue("count", name).stdout == "1\n"
    message = json.loads(queue("peek", name).stdout)
    assert message["items"] == [{"n": 1}, {"n": 2}, "three"]
    assert "Moved 1 messages" in queue("move", name, f"{name}2").stdout
    assert queue("count", name).stdout == "0\n"
    assert f"1  {name}2" in queue("list").stdout
    assert queue("clear", f"{name}2", "--yes").exit_code == 0
    assert queue("count", f"{name}2").stdout == "0\n"


def test_a_line_that_is_no_json_is_named_and_what_came_before_is_put(name: str) -> None:
    result = queue("put", name, stdin="1\n2\nthree\n4\n")
    assert result.exit_code == 1
    assert "line 3 is not JSON" in result.stderr
    assert "sent the 2 items before it" in result.stderr
    assert json.loads(queue("peek", name).stdout)["items"] == [1, 2]


def test_what_destroys_asks_for_the_name(name: str) -> None:
    queue("put", name, stdin="1\n")
    assert queue("delete", name, stdin="yes\n").exit_code == 1
    assert queue("count", name).stdout == "1\n"
    assert queue("delete", name, stdin=f"{name}\n").exit_code == 0
    assert queue("count", name).exit_code == 1


@pytest.mark.parametrize(
    "words",
    [
        ("clear", "NAME", "--yes"),
        ("delete", "NAME", "--yes"),
        ("move", "NAME", "NAME-2"),
        ("requeue-poison", "NAME"),
        ("peek", "NAME"),
        ("count", "NAME"),
    ],
)
def test_an_act_on_a_queue_that_does_not_exist_fails_and_names_it(name: str, words: tuple[str, ...]) -> None:
    result = queue(*(word.replace("NAME", name) for word in words))
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"queue {name} does not exist; nothing changed" in result.stderr


def test_what_an_empty_queue_answers_is_no_failure(name: str) -> None:
    queue("create", name)
    for words in (["clear", name, "--yes"], ["move", name, f"{name}2"], ["peek", name], ["count", name]):
        assert queue(*words).exit_code == 0, words


@pytest.mark.parametrize("line", [b"\xff", b'"\xff"', b'"' + b"[" * 10 + b"\xc3", b"[" * 100_000])
def test_a_line_that_is_no_text_is_named_and_what_came_before_is_put(name: str, line: bytes) -> None:
    result = CliRunner().invoke(main, ["queue", "put", name], input=b"1\n" + line + b"\n3\n")
    assert result.exit_code == 1
    assert "line 2 is not JSON" in result.stderr and "sent the 1 items before it" in result.stderr


def test_poison_is_brought_back(name: str) -> None:
    queue("create", name)
    assert "Requeued 0 messages" in queue("requeue-poison", name).stdout


def test_what_cannot_come_back_from_poison_is_named(name: str) -> None:
    queue("put", f"{name}-poison", stdin='"left here by hand"\n')
    result = queue("requeue-poison", name)
    assert "Requeued 0 messages" in result.stdout
    assert "1 stay in place:" in result.stderr
    assert "the message is not a poison record" in result.stderr
    assert queue("peek", f"{name}-poison").stdout


def test_numbers_that_json_has_not_are_refused(name: str) -> None:
    assert "line 1 is not JSON" in queue("put", name, stdin="NaN\n").stderr
