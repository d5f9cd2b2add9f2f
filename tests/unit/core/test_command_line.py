"""What the command line refuses, and which way it acts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from coordinator import __main__ as shell
from coordinator.cli import queue as queue_commands
from coordinator.cli import remote
from coordinator.cli.run import load
from coordinator.client import Act, Client, GateRecord, PoisonActRecord, PoisonKind
from coordinator.queues.requeue import Moved
from coordinator.worker import Worker

API = {"KENNEL_API_URL": "https://kennel.example.org", "KENNEL_API_TOKEN": "sesame"}


def kennel(*words: str, stdin: str = "", **environ: str) -> Result:
    return CliRunner().invoke(shell.main, words, input=stdin, env=environ)


class Dashboard(Client):
    """Does nothing, and keeps what it was asked."""

    asked: list[tuple[Any, ...]] = []
    moved = Moved(3, left=1, in_doubt=2)

    def open_gate(self, name: str, *, reason: str = "", **_: Any) -> GateRecord:
        self.asked.append(("open", name, reason))
        return GateRecord(name=name, state="open", epoch=5)

    def close_gate(self, name: str, *, reason: str, **_: Any) -> GateRecord:
        self.asked.append(("close", name, reason))
        return GateRecord(name=name, state="closed", epoch=6)

    def create_queue(self, name: str, *, reason: str = "") -> Act:
        return self._did("create", name)

    def clear_queue(self, name: str, *, reason: str = "") -> Act:
        return self._did("clear", name)

    def delete_queue(self, name: str, *, reason: str = "") -> Act:
        return self._did("delete", name)

    def requeue_poison(self, name: str, *, reason: str = "") -> Moved:
        self._did("requeue", name)
        return self.moved

    def read_poison(self, name: str) -> PoisonActRecord:
        self._did("read", name)
        return PoisonActRecord(id=1, verb="read", messages="all", outcome="running", done=0, left=0)

    def delete_poison(self, name: str, *, kind: str) -> PoisonActRecord:
        self._did(f"delete {kind}", name)
        return PoisonActRecord(id=2, verb="delete", messages=kind, outcome="done", done=4, left=0)

    def poison_acts(self, name: str) -> list[PoisonActRecord]:
        return [PoisonActRecord(id=1, verb="read", messages="all", outcome="done", done=9, left=0)]

    def poison(self, name: str) -> list[PoisonKind]:
        return [
            PoisonKind(
                kind="k1", error="KeyError", reason="x", handler="bill", messages=5, first_at=1.0, last_at=2.0
            )
        ]

    def _did(self, what: str, name: str) -> Act:
        self.asked.append((what, name))
        return Act(done=what, target=name, request_id="r")


def test_the_help_quotes_the_first_sentence_of_each_command_without_loading_it() -> None:
    context = click.Context(shell.main)
    for name, (_module, sentence) in shell.COMMANDS.items():
        command = shell.main.get_command(context, name)
        assert command is not None and command.name == name and command.help is not None
        assert " ".join(command.help.split()).startswith(sentence.removesuffix(".")), name
        assert name in kennel("--help").stdout
    assert kennel("no-such-command").exit_code == 2


@pytest.fixture
def dashboard(monkeypatch: pytest.MonkeyPatch) -> type[Dashboard]:
    monkeypatch.setattr(remote, "Client", Dashboard)
    monkeypatch.setattr(Dashboard, "asked", [])
    return Dashboard


def test_gates_are_steered_through_the_dashboard_where_it_is_known(dashboard: type[Dashboard]) -> None:
    assert "sales is open (epoch 5)" in kennel("release", "sales", "--reason", "tickets", **API).stdout
    assert "sales is closed (epoch 6)" in kennel("leash", "sales", "--reason", "stock", **API).stdout
    assert dashboard.asked == [("open", "sales", "tickets"), ("close", "sales", "stock")]


@pytest.mark.parametrize("act", ["release", "leash"])
def test_nobody_chooses_the_name_that_the_dashboard_records(dashboard: type[Dashboard], act: str) -> None:
    result = kennel(act, "sales", "--reason", "stock", "--by", "olga", **API)
    assert result.exit_code == 2 and "the token identifies you" in result.stderr
    assert not dashboard.asked


@pytest.mark.parametrize(
    ("words", "said", "asked"),
    [
        (["create", "orders"], "Queue orders exists", "create"),
        (["clear", "orders", "--yes"], "Cleared orders", "clear"),
        (["delete", "orders", "--yes"], "Deleted orders", "delete"),
        (["requeue-poison", "orders"], "Requeued 3 messages", "requeue"),
    ],
    ids=["create", "clear", "delete", "requeue"],
)
def test_queues_are_changed_through_the_dashboard_where_it_is_known(
    dashboard: type[Dashboard], words: list[str], said: str, asked: str
) -> None:
    result = kennel("queue", *words, **API)
    assert result.exit_code == 0 and said in result.stdout
    assert dashboard.asked == [(asked, "orders")]


def test_kinds_of_poison_are_listed_read_and_deleted_through_the_dashboard(
    dashboard: type[Dashboard],
) -> None:
    result = kennel("queue", "poison", "orders", "--read", "--delete", "k2", "--yes", **API)
    assert result.exit_code == 0
    assert result.stdout.split() == ["5", "k1", "KeyError:", "x", "bill"]
    assert "read: 9 messages done" in result.stderr and "delete: 4 messages done" in result.stderr
    assert dashboard.asked == [("read", "orders"), ("delete k2", "orders")]
    assert kennel("queue", "poison", "orders").exit_code == 2, (
        "without the dashboard there is nobody who keeps them"
    )


def test_what_stays_in_poison_is_named_for_the_dashboard_too(dashboard: type[Dashboard]) -> None:
    said = kennel("queue", "requeue-poison", "orders", **API).stderr
    assert "2 are in doubt" in said and "1 stay in place" in said


def test_the_dashboard_puts_all_of_the_poison_back_or_none(dashboard: type[Dashboard]) -> None:
    result = kennel("queue", "requeue-poison", "orders", "--limit", "5", **API)
    assert result.exit_code == 2 and "--limit cannot be used with the API" in result.stderr


@pytest.mark.parametrize("missing", list(API))
def test_an_address_without_a_token_or_a_token_without_an_address_is_refused(missing: str) -> None:
    given = {name: value for name, value in API.items() if name != missing}
    result = kennel("release", "sales", **given)
    assert result.exit_code == 2 and f"{missing} is missing" in result.stderr


def test_without_storage_a_command_ends_with_one_line_and_no_trace() -> None:
    result = kennel("queue", "count", "orders")
    assert result.exit_code == 1 and "AZURE_STORAGE_CONNECTION_STRING" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_level_that_logging_does_not_know_is_refused_with_those_it_does() -> None:
    result = kennel("--log-level", "foo", "queue", "list")
    assert result.exit_code == 2 and "'debug', 'info', 'warning', 'error'" in result.stderr


def test_a_queue_is_not_moved_into_itself() -> None:
    result = kennel("queue", "move", "orders", "orders")
    assert result.exit_code == 1 and "the same queue" in result.stderr


def test_messages_that_came_back_once_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    queue_commands._others(Moved(1, repeated=4))
    assert "4 were duplicates, requeued once" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("examples", "name a module and a worker in it"),
        (":worker", "name a module and a worker in it"),
        ("no_such_module_here:worker", "there is no module 'no_such_module_here' here"),
        ("json:dumps", "json has no Worker called 'dumps'"),
        ("json:nothing", "json has no Worker called 'nothing'"),
    ],
)
def test_a_worker_that_cannot_be_found_is_explained(target: str, words: str) -> None:
    result = kennel("run", target)
    assert result.exit_code == 2 and words in " ".join(result.stderr.replace("│", " ").split())


def test_a_module_that_a_worker_lacks_is_not_taken_for_the_workers_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lacking_something.py").write_text("import no_such_library\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        load("lacking_something:worker")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give one of: a COMMAND after --, --deployment, --figure, --dry-run"),
        (["--dry-run", "--deployment", "web"], "give one of"),
        (["--dry-run", "--", "python"], "give one of"),
        (["--", "python"], "a COMMAND needs --state"),
    ],
)
def test_a_scaling_agent_needs_exactly_one_way_to_scale(words: list[str], said: str) -> None:
    result = kennel("scale", "pool", "--queue", "orders", *words)
    assert result.exit_code == 2 and said in result.stderr


def test_only_processes_can_be_drained_at_the_end() -> None:
    environ = {"AZURE_STORAGE_CONNECTION_STRING": "UseDevelopmentStorage=true"}
    result = kennel("scale", "pool", "--queue", "orders", "--dry-run", "--drain-at-end", **environ)
    assert result.exit_code == 1 and "works only with processes of this machine" in result.stderr


@pytest.mark.parametrize(
    ("option", "name"), [("--dry-run", "scale-pool-dry-run"), ("--figure", "scale-pool")]
)
def test_a_dry_run_never_takes_the_place_of_the_live_agent(
    monkeypatch: pytest.MonkeyPatch, option: str, name: str
) -> None:
    ran: list[Worker] = []

    async def run(worker: Worker) -> None:
        ran.append(worker)

    monkeypatch.setattr(Worker, "run", run)
    environ = {"AZURE_STORAGE_CONNECTION_STRING": "UseDevelopmentStorage=true"}
    result = kennel("scale", "pool", "--queue", "orders", "--queue", "refunds", option, **environ)
    assert result.exit_code == 0, result.output
    assert [each.name for each in ran[0]._campaigns()] == [name]


def test_outside_a_cluster_a_deployment_cannot_be_scaled() -> None:
    environ = {"AZURE_STORAGE_CONNECTION_STRING": "UseDevelopmentStorage=true"}
    result = kennel("scale", "pool", "--queue", "orders", "--deployment", "web", **environ)
    assert result.exit_code == 1 and "there is no service account here" in result.stderr
