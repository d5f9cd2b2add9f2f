"""Promises of backups."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from django.contrib.auth.models import Group, User
from django.core.management import CommandError, call_command

from dashboard.access.team_actions import add_rule
from dashboard.access.token_actions import create_token
from dashboard.core import audit_chain, backups, tokens
from dashboard.core.audit import ActionFailed
from dashboard.core.permissions import Actor
from dashboard.models import AuditHead, AuditRow, Scope, TeamRule, WorkerToken

pytestmark = pytest.mark.django_db

ADAM = Actor("adam", "admin")
GATE = backups.GateCopy("start-it", "open", 7, "olga", "tickets")


def written(folder: Path) -> tuple[Path, str]:
    """A backup of a database with people, a team, a token and an audit."""
    olga = User.objects.create_user("olga", password="correct horse battery")
    olga.groups.add(Group.objects.get(name="operator"))
    add_rule(ADAM, "payments", "gate", "pay-*", "operator")
    token = create_token(ADAM, "deploys", scope=Scope.ACT, role="operator", team="payments")
    file = folder / "kennel.jsonl.gz"
    backups.write(file, [GATE])
    return file, token


def emptied() -> None:
    for model in (WorkerToken, TeamRule, AuditRow, AuditHead, User, Group):
        model.objects.all().delete()
    for name in ("viewer", "operator", "admin"):
        Group.objects.create(name=name)
    AuditHead.objects.create(pk=1)


def lines_of(file: Path) -> list[str]:
    with gzip.open(file, "rt") as lines:
        return lines.read().splitlines()


def rewritten(file: Path, lines: list[str]) -> Path:
    bad = file.with_name("bad.jsonl.gz")
    with gzip.open(bad, "wt") as out:
        out.write("\n".join(lines) + "\n")
    return bad


def test_what_was_written_comes_back_and_the_audit_goes_on(tmp_path: Path) -> None:
    file, token = written(tmp_path)
    before = list(AuditRow.objects.order_by("pk").values())
    emptied()
    restored = backups.read(file, ADAM)
    assert restored.gates == (GATE,)
    assert restored.rows["auth.User"] == 1
    olga = User.objects.get()
    assert olga.check_password("correct horse battery")
    assert [group.name for group in olga.groups.all()] == ["operator"]
    assert str(TeamRule.objects.get()) == "payments: operator of gate pay-*"
    actor = tokens.actor_of_token(token)
    assert actor is not None
    assert (actor.name, actor.role, actor.teams) == ("service deploys", "operator", frozenset({"payments"}))
    assert list(AuditRow.objects.order_by("pk").values())[: len(before)] == before
    assert list(audit_chain.verify()) == []
    assert User.objects.create_user("otto").pk > olga.pk
    row = AuditRow.objects.get(action="restore", outcome="done")
    assert json.loads(row.after)["through"] == before[-1]["id"]


def test_a_database_with_anything_in_it_is_refused(tmp_path: Path) -> None:
    file, _ = written(tmp_path)
    with pytest.raises(ActionFailed, match="empty one"):
        backups.read(file, ADAM)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda lines: [line.replace('"olga"', '"eve"') for line in lines], "not whole"),
        (lambda lines: lines[:-1], "not whole"),
        (lambda lines: [*lines[:4], *lines[5:]], "not whole"),
        (lambda lines: ["{}", *lines[1:]], "no backup of this version"),
        (lambda lines: [*lines, lines[1]], "not one of a backup"),
        (lambda lines: [lines[0], "nonsense", *lines[1:]], "cannot be read"),
        (
            lambda lines: [lines[0], '{"row": {"model": "sessions.session", "pk": "x", "fields": {}}}', *lines[1:]],
            "belongs in none",
        ),
    ],
    ids=["changed", "cut", "a row less", "no head", "a row more", "no JSON", "foreign"],
)  # fmt: skip
def test_a_file_that_was_cut_or_changed_is_refused_and_nothing_is_kept(
    tmp_path: Path, change: object, why: str
) -> None:
    file, _ = written(tmp_path)
    emptied()
    assert callable(change)
    with pytest.raises(ActionFailed, match=why):
        backups.read(rewritten(file, change(lines_of(file))), ADAM)
    assert not User.objects.exists()
    assert not AuditRow.objects.exists()
    assert backups.read(file, ADAM).rows["auth.User"] == 1


def test_an_audit_that_was_not_whole_is_not_restored(tmp_path: Path) -> None:
    written(tmp_path)
    AuditRow.objects.filter(pk=2).update(actor="eve")
    file = tmp_path / "tampered.jsonl.gz"
    backups.write(file, [])
    emptied()
    with pytest.raises(ActionFailed, match="#2 was changed"):
        backups.read(file, ADAM)


def test_a_file_is_for_its_owner_alone_and_never_written_over(tmp_path: Path) -> None:
    file = tmp_path / "kennel.jsonl.gz"
    call_command("backup", str(file), "--without-gates")
    assert file.stat().st_mode & 0o077 == 0
    with pytest.raises(CommandError, match="name a new file"):
        call_command("backup", str(file), "--without-gates")
