"""Promises of the audit."""

from __future__ import annotations

import io
import json
import logging
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection
from django.utils import timezone
from pytest_django import Settings

from dashboard.access.queries import tokens as tokens_kept
from dashboard.access.token_actions import create_token, revoke_token
from dashboard.audit import queries as selectors
from dashboard.core import audit, audit_chain, audit_heads, tokens
from dashboard.core.audit import ActionFailed, Denied
from dashboard.core.dispatch import by_name
from dashboard.core.permissions import ACTIONS, Actor
from dashboard.hub.runtime import current
from dashboard.models import AuditHead, AuditOutcome, AuditRow, WorkerToken
from dashboard.workers.actions import COMMANDS, Asked, worker_command

from .making import hello

pytestmark = pytest.mark.django_db

OLGA = Actor("olga", "operator", "10.0.0.1", "request-1")
VERA = Actor("vera", "viewer")


def act(target: str = "start-it") -> AuditRow:
    return audit.outcome(
        audit.intent(OLGA, "gate.open", target, reason="go"), AuditOutcome.DONE, after="open"
    )


def test_an_act_has_its_intent_before_and_its_outcome_after() -> None:
    row = act()
    intent = AuditRow.objects.get(pk=row.intent_id)
    assert (intent.outcome, intent.pk, row.outcome, row.pk) == ("intent", 1, "done", 2)
    assert (row.actor, row.address, row.reason, row.request_id) == ("olga", "10.0.0.1", "go", "request-1")
    assert list(audit_chain.verify()) == []


def test_people_see_one_line_for_each_act_and_open_intents_too() -> None:
    act("a")
    audit.intent(OLGA, "gate.open", "b")
    assert [(row.target, row.outcome) for row in selectors.audit().rows] == [("b", "intent"), ("a", "done")]


@pytest.mark.parametrize(
    ("tamper", "named"),
    [
        ("UPDATE dashboard_auditrow SET actor = 'otto' WHERE id = 3", "#3 was changed"),
        ("UPDATE dashboard_auditrow SET outcome = 'denied' WHERE id = 4", "#4 was changed"),
        ("DELETE FROM dashboard_auditrow WHERE id = 3", "#3 to #3 are missing"),
        ("DELETE FROM dashboard_auditrow WHERE id = 6", "#6 was the last"),
        ("DELETE FROM dashboard_auditrow WHERE id = 1", "#1 to #1 are missing"),
    ],
)
def test_a_row_changed_or_removed_behind_our_back_is_found_and_named(tamper: str, named: str) -> None:
    for name in "abc":
        act(name)
    with connection.cursor() as cursor:
        cursor.execute(tamper)
    faults = list(audit_chain.verify())
    assert any(named in fault.what for fault in faults), faults


def test_an_intent_that_a_crash_left_behind_is_reconciled_as_unknown_once() -> None:
    row = audit.intent(OLGA, "queue.clear", "orders-in")
    assert audit.reconcile() == 0
    AuditRow.objects.filter(pk=row.pk).update(at=row.at - 1000)
    assert audit.reconcile() == 1
    assert audit.reconcile() == 0
    assert selectors.audit().rows[0].outcome == "unknown"


def test_an_outcome_that_comes_after_it_was_given_up_is_told_all_the_same() -> None:
    row = audit.intent(OLGA, "queue.clear", "orders-in")
    AuditRow.objects.filter(pk=row.pk).update(at=row.at - 1000)
    audit.reconcile()
    audit.outcome(row, AuditOutcome.DONE)
    assert [view.outcome for view in selectors.audit().rows] == ["done", "unknown"]


def test_the_audit_is_paged_by_key_and_searched() -> None:
    for number in range(5):
        act(f"gate-{number}")
    audit.denied(VERA, "gate.open", "gate-0")
    first = selectors.audit(limit=4)
    rest = selectors.audit(limit=4, before=first.next)
    assert [row.target for row in (*first.rows, *rest.rows)] == [
        "gate-0", "gate-4", "gate-3", "gate-2", "gate-1", "gate-0",
    ]  # fmt: skip
    assert rest.next is None
    assert [row.actor for row in selectors.audit(q="denied gate-0").rows] == ["vera"]
    assert selectors.audit(q="nothing-like-it").rows == ()


def test_what_was_done_since_a_moment_is_told_newest_first_without_what_was_not_done() -> None:
    for name in "abc":
        act(name)
    audit.outcome(audit.intent(OLGA, "gate.open", "failed"), AuditOutcome.FAILED)
    audit.denied(VERA, "gate.open", "denied")
    assert [row.target for row in selectors.acts(("gate.open",), since=0, limit=2)] == ["c", "b"]
    assert selectors.acts(("gate.close",), since=0, limit=9) == ()
    assert selectors.acts(("gate.open",), since=time.time() + 1, limit=9) == ()


def test_a_denied_action_changes_nothing_but_the_audit() -> None:
    with pytest.raises(Denied, match="operator"):
        by_name(VERA, "unleash", "start-it", {})
    assert [(row.actor, row.action, row.outcome) for row in AuditRow.objects.all()] == [
        ("vera", "gate.open", "denied")
    ]


def test_an_action_nobody_knows_is_denied_to_an_admin_too() -> None:
    with pytest.raises(Denied):
        by_name(Actor("adam", "admin"), "gate.explode", "start-it", {})
    assert AuditRow.objects.get().outcome == "denied"


@pytest.mark.parametrize(
    ("action", "target", "options", "message"),
    [
        ("gate.open", "Bad Name", {}, "name 'Bad Name': use"),
        ("gate.open", "start-it", {"share": "lots"}, "share must be a number"),
        ("gate.close", "start-it", {"reason": "x" * 501}, "501 characters"),
        ("worker.drain", "nobody", {}, "not connected"),
        ("worker.dance", "nobody", {}, "Unknown action 'worker.dance'"),
        ("leader.step_down", "month-end", {}, "force-release its lease"),
        ("queue.put", "orders-in", {"body": "{"}, "not JSON"),
    ],
)
def test_bad_input_is_answered_with_what_was_wrong(
    action: str, target: str, options: dict[str, object], message: str, settings: Settings
) -> None:
    settings.STORAGE_ENV = {"AZURE_STORAGE_CONNECTION_STRING": "UseDevelopmentStorage=true"}
    with pytest.raises(ActionFailed, match=message):
        by_name(Actor("adam", "admin"), action, target, options)
    assert not AuditRow.objects.filter(outcome="done").exists()
    assert not AuditRow.objects.filter(outcome="intent", closed=False).exists()


def test_a_message_body_is_not_in_the_audit() -> None:
    with pytest.raises(ActionFailed):
        by_name(OLGA, "queue.put", "orders-in", {"body": "{canary-secret"})
    assert "canary" not in str(list(AuditRow.objects.values()))


def test_an_unknown_verb_for_a_worker_is_refused() -> None:
    with pytest.raises(ActionFailed, match="not 'explode'"):
        worker_command(OLGA, "i-1", "explode")


def test_a_worker_of_an_older_release_is_not_sent_a_command_that_it_does_not_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    older = SimpleNamespace(hello=msgspec.structs.replace(hello("a"), version=2))
    monkeypatch.setitem(current().presence.entries, "i-a", older)  # type: ignore[arg-type]
    monkeypatch.setitem(COMMANDS, "collect", Asked("Collect garbage", "", "", since=3))
    monkeypatch.setitem(ACTIONS, "worker.collect", "operator")
    with pytest.raises(ActionFailed, match="older release"):
        worker_command(OLGA, "i-a", "collect")
    assert AuditRow.objects.get(outcome="failed").target == "a"


def test_verify_says_how_many_rows_are_sound_and_a_kept_head_proves_the_chain_was_not_rewritten() -> None:
    act("a")
    out = io.StringIO()
    call_command("audit", "head", stdout=out)
    head = out.getvalue().strip()
    act("b")
    out = io.StringIO()
    call_command("audit", "verify", "--head", head, stdout=out)
    assert out.getvalue().startswith("4 rows")
    AuditRow.objects.all().delete()
    AuditHead.objects.update(last_id=0, digest="")
    act("rewritten")
    errors = io.StringIO()
    with pytest.raises(CommandError, match="1 faults"):
        call_command("audit", "verify", "--head", head, stderr=errors)
    assert "#2" in errors.getvalue()


def test_a_token_is_shown_once_kept_as_a_digest_and_in_the_audit_without_its_secret() -> None:
    adam = Actor("adam", "admin")
    token = create_token(adam, "billing workers", days=30)
    assert tokens.check(token) is not None
    (view,) = tokens_kept()
    assert (view.name, view.state, view.scope) == ("billing workers", "valid", "worker")
    revoke_token(adam, view.id)
    assert tokens.check(token) is None
    assert tokens_kept()[0].state == "revoked"
    kept = str(list(AuditRow.objects.values())) + str(list(WorkerToken.objects.values()))
    assert token not in kept
    with pytest.raises(ActionFailed, match="No such valid token"):
        revoke_token(adam, view.id)
    with pytest.raises(Denied):
        create_token(OLGA, "mine")


def test_an_expired_token_opens_nothing() -> None:
    token = tokens.create("old", expires_at=timezone.now() - timedelta(seconds=1))
    assert tokens.check(token) is None
    assert tokens_kept()[0].state == "expired"


def test_an_outcome_that_the_database_does_not_take_is_written_later(monkeypatch: pytest.MonkeyPatch) -> None:
    row = audit.intent(OLGA, "gate.open", "start-it")

    def locked(*_: object, **__: object) -> None:
        raise OperationalError("database is locked")

    with monkeypatch.context() as patched:
        patched.setattr(audit, "outcome", locked)
        audit.settle(row, AuditOutcome.DONE, after="open")
    assert not AuditRow.objects.filter(intent_id=row.pk).exists()
    audit.reconcile()
    told = AuditRow.objects.get(intent_id=row.pk)
    assert (told.outcome, told.after) == ("done", "open")
    assert not audit._unsettled


def test_an_open_intent_cannot_be_hidden_by_its_mark() -> None:
    act("a")
    row = audit.intent(OLGA, "gate.open", "hidden")
    AuditRow.objects.filter(pk=row.pk).update(closed=True)
    assert [each.target for each in selectors.audit().rows] == ["hidden", "a"]
    assert [each.target for each in selectors.audit(q="hidden").rows] == ["hidden"]
    assert [fault.what for fault in audit_chain.verify()] == [
        f"#{row.pk} is marked as over, and no row reports its outcome"
    ]
    AuditRow.objects.filter(pk=row.pk).update(at=time.time() - 1000)
    assert audit.reconcile() == 1


def test_an_emptied_table_is_not_whole() -> None:
    act()
    AuditRow.objects.all().delete()
    AuditHead.objects.update(last_id=0, digest="")
    assert ["was emptied" in fault.what for fault in audit_chain.verify()] == [True]
    with pytest.raises(CommandError):
        call_command("audit", "verify", stderr=io.StringIO())
    AuditHead.objects.all().delete()
    assert list(audit_chain.verify())


def heads() -> list[str]:
    """The journal as it is when the end was kept after each of three acts."""
    lines = []
    for name in "abc":
        act(name)
        lines.append(audit_heads.line_of(*audit.head(), time.time()))
    return lines


def test_kept_ends_show_a_chain_that_was_emptied_shortened_or_written_anew() -> None:
    lines = heads()
    assert list(audit_heads.verify(lines)) == []
    AuditRow.objects.filter(pk__gt=4).delete()
    last = AuditRow.objects.get(pk=4)
    AuditHead.objects.update(last_id=4, digest=last.digest)
    assert list(audit_chain.verify()) == []
    assert [fault.row for fault in audit_heads.verify(lines)] == [6]
    act("another")
    assert list(audit_chain.verify()) == []
    assert [fault.row for fault in audit_heads.verify(lines)] == [6]
    AuditRow.objects.all().delete()
    assert [fault.row for fault in audit_heads.verify(lines)] == [2, 4, 6]


def test_a_kept_end_is_not_asked_for_after_retention_removed_it() -> None:
    lines = heads()
    AuditRow.objects.filter(pk__lte=4).update(at=time.time() - 3 * 86400)
    call_command("audit", "prune", "--keep-days", "2", stdout=io.StringIO())
    assert list(audit_heads.verify(lines)) == []


def test_ends_are_signed_with_a_key_that_the_database_does_not_have(settings: Settings) -> None:
    settings.AUDIT_KEY = "0123456789abcdef" * 4
    lines = heads()
    assert list(audit_heads.verify(lines)) == []
    forged = json.loads(lines[0]) | {"digest": "0" * 64}
    settings.AUDIT_KEY = ""
    unsigned = audit_heads.line_of(*audit.head(), 1.0)
    settings.AUDIT_KEY = "0123456789abcdef" * 4
    told = [fault.what for fault in audit_heads.verify([json.dumps(forged), unsigned, "nonsense", *lines])]
    assert ["not written with" in text or "is not a head" in text for text in told] == [True] * 3


def test_each_row_goes_to_syslog_as_one_line(
    caplog: pytest.LogCaptureFixture, django_capture_on_commit_callbacks: Any
) -> None:
    class Kept(logging.Handler):
        lines: ClassVar[list[str]] = []

        def emit(self, record: logging.LogRecord) -> None:
            self.lines.append(record.getMessage())

    handler = Kept()
    audit.syslog.addHandler(handler)
    audit.syslog.setLevel(logging.INFO)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            audit.denied(OLGA, "gate.open", "start-it\nforged", reason="x" * 1000)
    finally:
        audit.syslog.removeHandler(handler)
    [line] = Kept.lines
    assert "\n" not in line
    told = json.loads(line)
    assert (told["id"], told["actor"], told["target"], len(told["reason"])) == (
        1,
        "olga",
        "start-it\nforged",
        500,
    )
    assert told["digest"] == AuditRow.objects.get().digest
