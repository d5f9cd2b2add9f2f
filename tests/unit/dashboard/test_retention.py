"""Promises of an audit that is not kept for ever."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from pytest_django import Settings

from dashboard.core import audit, audit_chain
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
    assert list(audit_chain.verify()) == []
    row = AuditRow.objects.get(action="audit.prune", outcome="done")
    assert (row.actor, row.target) == ("adam", "#1 to #6")
    assert json.loads(row.after)["count"] == 6
    assert verify().startswith("6 rows, after 6 that retention removed")
    assert prune_audit(ADAM, 30) == 0
    assert AuditRow.objects.count() == 6, "nothing to do is no act"


@pytest.mark.usefixtures("aged")
def test_it_goes_on_over_many_steps_and_times(monkeypatch: pytest.MonkeyPatch) -> None:
    assert prune_audit(ADAM, 30, at_once=4) == 6
    assert list(audit_chain.verify()) == []
    now = audit.time.time()
    monkeypatch.setattr("time.time", lambda: now + OLD)
    assert prune_audit(ADAM, 30) == 8
    acts("f")
    assert list(audit_chain.verify()) == []


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
    faults = [fault.what for fault in audit_chain.verify()]
    assert any(named in what for what in faults), faults


@pytest.mark.usefixtures("aged")
def test_rows_removed_without_the_act_are_missing_even_if_old() -> None:
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM dashboard_auditrow WHERE id <= 6")
    assert any("#1 to #6 are missing" in fault.what for fault in audit_chain.verify())


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
    assert list(audit_chain.verify()) == []


@pytest.fixture
def exported(aged: None, tmp_path: Path) -> Path:
    """The rows #1 to #10 and the line that says so."""
    path = tmp_path / "audit.jsonl"
    call_command("audit", "export", "--to", str(path))
    return path


def verify_file(path: Path, *options: str) -> tuple[str, list[str]]:
    """What is printed if an export verifies, else "", and the faults."""
    out, err = io.StringIO(), io.StringIO()
    try:
        call_command("audit", "verify", "--file", str(path), *options, stdout=out, stderr=err)
    except CommandError as error:
        return "", [*err.getvalue().splitlines(), str(error)]
    return out.getvalue(), []


def test_an_export_proves_itself_without_the_database(exported: Path) -> None:
    with pytest.raises(CommandError, match="name a new file"):
        call_command("audit", "export", "--to", str(exported))
    end = ":".join(map(str, audit.head()))
    prune_audit(ADAM, 30)
    lines = exported.read_text().splitlines()
    assert len(lines) == 11 and json.loads(lines[-1])["end"] == 10
    said, _ = verify_file(exported)
    assert "10 rows, each as it was written." in said and "Not compared with a head" in said
    assert verify_file(exported, "--head", end) == ("10 rows, each as it was written.\n", [])
    tampered = exported.read_text().replace('"target": "b"', '"target": "x"')
    exported.write_text(tampered)
    assert [each.partition(" after")[0] for each in verify_file(exported)[1][:2]] == [
        "#3 was changed",
        "#4 was changed",
    ]


@pytest.mark.parametrize(
    ("kept", "named"),
    [
        (slice(3, None), "#1 to #3 are missing"),
        (slice(3, 7), "#1 to #3 are missing"),
        (slice(3, 7), "nothing shows whether rows followed"),
        (slice(0, 0), "holds no row"),
        (slice(10, None), "holds no row"),
        (slice(0, 8), "nothing shows whether rows followed"),
        (slice(0, 10), "nothing shows whether rows followed"),
    ],
)
def test_a_cut_export_does_not_verify(kept: slice, named: str, exported: Path) -> None:
    lines = exported.read_text().splitlines(keepends=True)
    exported.write_text("".join(lines[kept]))
    assert any(named in fault for fault in verify_file(exported)[1]), verify_file(exported)


def test_rows_cut_before_the_end_of_an_export_are_found_and_a_head_proves_the_end(exported: Path) -> None:
    lines = exported.read_text().splitlines(keepends=True)
    rows = [json.loads(line) for line in lines[:10]]
    exported.write_text("".join(lines[:8] + lines[10:]))
    assert "ends at #8, but #10 was the last" in verify_file(exported)[1][0]
    forged = {"end": 8, "digest": rows[7]["digest"]}
    exported.write_text("".join([*lines[:8], json.dumps(forged)]))
    assert verify_file(exported)[0], "only a head kept elsewhere shows it"
    faults = verify_file(exported, "--head", f"10:{rows[9]['digest']}")[1]
    assert "does not hold the row #10 that was once its end" in faults[0]
    assert verify_file(exported, "--head", f"8:{rows[7]['digest']}")[0]
    exported.write_text("".join(lines[:8]))
    assert verify_file(exported, "--head", f"8:{rows[7]['digest']}")[0], (
        "the head shows that the end is meant"
    )
    assert "is ID:DIGEST" in verify_file(exported, "--head", "8")[1][0]


def test_an_export_of_what_retention_left_verifies_and_nothing_else_that_starts_late(exported: Path) -> None:
    before = exported.read_text().splitlines(keepends=True)
    prune_audit(ADAM, 30)
    rest = exported.with_name("rest.jsonl")
    call_command("audit", "export", "--to", str(rest))
    assert "6 rows, after 6 that retention removed, each as it was written." in verify_file(rest)[0]
    gone, last = (f"{row['id']}:{row['digest']}" for row in map(json.loads, before[4:6]))
    assert verify_file(rest, "--head", last)[0]
    assert "removed by retention" in verify_file(rest, "--head", gone)[1][0]
    lines = rest.read_text().splitlines(keepends=True)
    rest.write_text("".join(lines[1:]))
    assert "#7 to #7 are missing" in verify_file(rest)[1][0]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (lambda text: text.replace("{", '{"actor": "otto", ', 1), "line 4 is not a row"),
        (lambda text: text.replace("{", '{"approved": true, ', 1), "line 4 is not a row"),
        (lambda text: text.replace('"id": 4', '"id": "4"', 1), "line 4 is not a row"),
        (lambda text: text.replace('"id": 4', '"id": 4.0', 1), "line 4 is not a row"),
        (lambda text: text.replace('"previous": ', '"previous": null, "x": ', 1), "line 4 is not a row"),
        (lambda text: text.replace('"target": "b"', '"target": ["b"]', 1), "#4 was changed"),
        (lambda text: text.replace('"target": "b"', '"target": "\udcff"', 1), "#4 was changed"),
        (lambda text: "[" * 100_000, "line 4 is not a row"),
        (lambda text: text + text, "#4 comes after #4"),
        (lambda text: '{"end": 3, "digest": ""}\n' + text, "line 5 comes after the end"),
    ],
)
def test_a_line_that_the_export_did_not_write_does_not_verify(
    line: Callable[[str], str], named: str, exported: Path
) -> None:
    lines = exported.read_text().splitlines(keepends=True)
    lines[3] = line(lines[3])
    exported.write_text("".join(lines), encoding="utf-8", errors="surrogateescape")
    assert any(named in fault for fault in verify_file(exported)[1]), verify_file(exported)


def test_a_file_that_is_not_there_is_answered_with_a_sentence(tmp_path: Path) -> None:
    assert verify_file(tmp_path / "none") == (
        "",
        [f"{tmp_path / 'none'} cannot be read: No such file or directory."],
    )
    with pytest.raises(CommandError, match="cannot be written: No such file"):
        call_command("audit", "export", "--to", str(tmp_path / "none" / "audit.jsonl"))


@pytest.mark.usefixtures("aged")
@pytest.mark.parametrize(
    ("column", "value", "named"),
    [
        ("reason", "x'ff'", "#4 was changed"),
        ("at", "x'ff'", "#4 was changed"),
        ("digest", "x'ff'", "#4 was changed"),
        ("previous", "x'ff'", "#4 was changed"),
        ("reason", "cast(x'ff' as text)", "#4 was changed after it was written: it cannot be read"),
    ],
)
def test_a_row_of_bytes_is_named_and_hides_no_other(column: str, value: str, named: str) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("only SQLite stores bytes as a text")
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE dashboard_auditrow SET {column} = {value} WHERE id = 4")
        cursor.execute("UPDATE dashboard_auditrow SET actor = 'otto' WHERE id = 8")
    faults = [fault.what for fault in audit_chain.verify()]
    assert any(what.startswith(named) for what in faults), faults
    assert any(what.startswith("#8 was changed") for what in faults), faults
    with pytest.raises(CommandError, match="#4 was changed"):
        call_command("audit", "export", stdout=io.StringIO())


def test_a_spreadsheet_gets_no_formula() -> None:
    audit.intent(Actor("=cmd()", "viewer"), "gate.open", "a")
    out = io.StringIO()
    call_command("audit", "export", "--format", "csv", stdout=out)
    (row,) = csv.DictReader(io.StringIO(out.getvalue()))
    assert row["actor"] == "'=cmd()"
