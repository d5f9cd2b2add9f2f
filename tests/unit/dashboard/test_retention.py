"""Promises of an audit that is not kept for ever."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from pytest_django import Settings

from dashboard.core import audit
from dashboard.core.audit import ActionFailed, Denied
from dashboard.core.permissions import Actor
from dashboard.core.retention import prune_audit
from dashboard.hub.background import reconcile_and_prune
from dashboard.models import AuditOutcome, AuditRow

pytestmark = pytest.mark.django_db

ADAM = Actor("adam", "admin")
OLD = 40 * 86400.0


def acts(*targets: str, age: float = 0.0, monkeypatch: pytest.MonkeyPatch | None = None) -> None:
    """Acts of two rows each, written `age` seconds ago."""
    if monkeypatch is None:
        for target in targets:
            audit.outcome(audit.intent(ADAM, "gate.open", target), AuditOutcome.DONE)
        return
    with monkeypatch.context() as then:
        now = audit.time.time()
        then.setattr(audit.time, "time", lambda: now - age)
        acts(*targets)


def verify(*options: str) -> str:
    out = io.StringIO()
    call_command("audit", "verify", *options, stdout=out, stderr=io.StringIO())
    return out.getvalue()


@pytest.fixture
def aged(monkeypatch: pytest.MonkeyPatch) -> None:
    """#1 to #6 are forty days old, #7 to #10 of today."""
    acts("a", "b", "c", age=OLD, monkeypatch=monkeypatch)
    acts("d", "e")


@pytest.mark.usefixtures("aged")
def test_what_is_left_proves_itself_and_says_how_much_went() -> None:
    assert prune_audit(ADAM, 30) == 6
    assert list(audit.verify()) == []
    row = AuditRow.objects.get(action="audit.prune", outcome="done")
    assert (row.actor, row.target) == ("adam", "#1 to #6")
    assert json.loads(row.after)["count"] == 6
    assert verify().startswith("6 rows, after 6 that retention removed")
    assert prune_audit(ADAM, 30) == 0
    assert AuditRow.objects.count() == 6, "nothing to do is no act"


@pytest.mark.usefixtures("aged")
def test_it_goes_on_over_many_steps_and_times(monkeypatch: pytest.MonkeyPatch) -> None:
    assert prune_audit(ADAM, 30, at_once=4) == 6
    assert list(audit.verify()) == []
    now = audit.time.time()
    monkeypatch.setattr("time.time", lambda: now + OLD)
    assert prune_audit(ADAM, 30) == 8
    acts("f")
    assert list(audit.verify()) == []


@pytest.mark.usefixtures("aged")
@pytest.mark.parametrize(
    ("tamper", "named"),
    [
        ("DELETE FROM dashboard_auditrow WHERE id = 7", "#7 to #7 are missing"),
        ("DELETE FROM dashboard_auditrow WHERE id = 9", "#9 to #9 are missing"),
        ("UPDATE dashboard_auditrow SET actor = 'otto' WHERE id = 7", "#7 was changed"),
        ("UPDATE dashboard_auditrow SET previous = '' WHERE id = 7", "#7 does not follow"),
        ("UPDATE dashboard_auditrow SET after = '{}' WHERE action = 'audit.prune'", "#12 was changed"),
        ("DELETE FROM dashboard_auditrow WHERE action = 'audit.prune'", "#1 to #6 are missing"),
    ],
)
def test_tampering_after_a_removal_is_found_and_named(tamper: str, named: str) -> None:
    prune_audit(ADAM, 30)
    acts("z")
    with connection.cursor() as cursor:
        cursor.execute(tamper)
    faults = [fault.what for fault in audit.verify()]
    assert any(named in what for what in faults), faults


@pytest.mark.usefixtures("aged")
def test_rows_removed_without_the_act_are_missing_even_if_old() -> None:
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM dashboard_auditrow WHERE id <= 6")
    assert any("#1 to #6 are missing" in fault.what for fault in audit.verify())


@pytest.mark.usefixtures("aged")
def test_a_head_that_was_kept_elsewhere_is_told_from_one_that_went() -> None:
    gone, last = (f"{row.pk}:{row.digest}" for row in AuditRow.objects.filter(pk__in=(5, 6)).order_by("pk"))
    prune_audit(ADAM, 30)
    assert "each as it was written" in verify("--head", last)
    with pytest.raises(CommandError, match="removed by retention"):
        verify("--head", gone)
    with pytest.raises(CommandError, match="not as it was written"):
        verify("--head", last[:-1] + "x")


def test_it_is_for_administrators_and_never_all() -> None:
    acts("a")
    with pytest.raises(ActionFailed, match="at least 1 day"):
        prune_audit(ADAM, 0)
    AuditRow.objects.filter(pk=1).update(at=0)
    with pytest.raises(Denied):
        prune_audit(Actor("olga", "operator"), 30)


@pytest.mark.usefixtures("aged")
def test_housekeeping_removes_a_day_at_a_time_and_nothing_without_the_setting(settings: Settings) -> None:
    settings.AUDIT_DAYS = 0.0
    reconcile_and_prune()
    settings.AUDIT_DAYS = 39.5  # #1 is half a day over: not yet worth an act
    reconcile_and_prune()
    assert AuditRow.objects.filter(pk=1).exists()
    settings.AUDIT_DAYS = 30.0
    reconcile_and_prune()
    assert not AuditRow.objects.filter(pk=1).exists()
    assert {row.actor for row in AuditRow.objects.filter(action="audit.prune")} == {"Kennel retention"}
    assert list(audit.verify()) == []


@pytest.mark.usefixtures("aged")
def test_an_export_proves_itself_without_the_database(tmp_path: Path) -> None:
    kept = tmp_path / "audit.jsonl"
    call_command("audit", "export", "--to", str(kept))
    with pytest.raises(CommandError, match="name a new file"):
        call_command("audit", "export", "--to", str(kept))
    prune_audit(ADAM, 30)
    assert verify("--file", str(kept)) == "Each row as it was written.\n"
    lines = kept.read_text().splitlines()
    assert len(lines) == 10
    forged = tmp_path / "forged.jsonl"
    for text, what in (
        ("\n".join(lines).replace('"target": "b"', '"target": "x"'), "2 faults"),
        ("\n".join(lines[:3] + lines[4:]), "1 faults"),
        ("\n".join(lines[:3]) + "\nnothing", "1 faults"),
    ):
        forged.write_text(text)
        with pytest.raises(CommandError, match=what):
            verify("--file", str(forged))


def test_a_spreadsheet_gets_no_formula() -> None:
    audit.intent(Actor("=cmd()", "viewer"), "gate.open", "a")
    out = io.StringIO()
    call_command("audit", "export", "--format", "csv", stdout=out)
    (row,) = csv.DictReader(io.StringIO(out.getvalue()))
    assert row["actor"] == "'=cmd()"
