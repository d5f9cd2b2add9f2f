"""What strangers and people with a role may send without harm: names, cursors, keys, cells, lines of the log."""

from __future__ import annotations

import configparser
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import Client

from coordinator.logs import LineFormatter
from coordinator.spreadsheets import cell
from dashboard.access.team_actions import add_rule
from dashboard.access.token_actions import create_token
from dashboard.api import health
from dashboard.core import tokens
from dashboard.core.audit import ActionFailed
from dashboard.core.permissions import Actor
from dashboard.models import Pricing, Scope
from tests.support.readme import PROJECT

ADAM = Actor("adam", "admin")
FORGED = "orders\n2026-01-01 00:00:00 INFO dashboard.core.audit: olga opened start-it"


def line_of(record: logging.LogRecord) -> str:
    return LineFormatter("%(levelname)s %(name)s: %(message)s").format(record)


@pytest.mark.parametrize(
    "ending", ["\n", "\r", "\r\n", "\x0b", "\x0c", "\x85", "\u2028", "\u2029", "\x1b[2K"]
)
def test_a_name_with_a_newline_cannot_forge_a_line_of_the_log(ending: str) -> None:
    text = FORGED.replace("\n", ending)
    record = logging.LogRecord("hub", logging.WARNING, __file__, 1, "Closing the socket of %s", (text,), None)
    assert len(line_of(record).splitlines()) == 1
    assert "\x1b" not in line_of(record)


def test_the_lines_of_a_traceback_do_not_look_like_records() -> None:
    try:
        raise ValueError(FORGED)
    except ValueError:
        record = logging.LogRecord("hub", logging.ERROR, __file__, 1, "Failed", (), sys.exc_info())
    first, *rest = line_of(record).splitlines()
    assert first == "ERROR hub: Failed"
    assert rest and all(line.startswith("    ") for line in rest)


def test_the_dashboard_writes_its_log_through_that_formatter(settings: Any) -> None:
    assert settings.LOGGING["formatters"]["line"]["()"] == "coordinator.logs.LineFormatter"


@pytest.mark.parametrize(
    "text",
    ["\uff1d1+1", "\uff0b1", "\uff0d1", "\uff20x", "\n=1+1", "\n1", " =1+1", "\u200b=1", "\u3000\uff1d1", "\ufeff=1", "\xa0@x"],
)  # fmt: skip
def test_no_text_becomes_a_formula_behind_blanks_or_in_full_width(text: str) -> None:
    assert cell(text) == f"'{text}"


@pytest.mark.parametrize("text", ["orders = 3", "a-b", "übrig", "１", " orders"])
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert cell(text) == text


@pytest.mark.django_db
@pytest.mark.parametrize("cursor", ["²", "٣", "1²", "-1", "1e3"])
@pytest.mark.parametrize("path", ["audit", "sequences/orders/ledger"])
def test_a_cursor_of_strange_digits_is_refused(client: Client, path: str, cursor: str) -> None:
    token = tokens.create("reader", scope=Scope.READ)
    answer = client.get(f"/api/v1/{path}", {"cursor": cursor}, headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 400
    assert "cursor" in answer.json()["detail"]


@pytest.mark.django_db
@pytest.mark.parametrize(
    "team", ["Admin", "ADMIN", "admins", "Administrator", "ad-min", "adm1n", "Adrnin", "0perator", "vievver", "Viewer s"]
)  # fmt: skip
def test_a_team_cannot_be_called_like_a_role(team: str) -> None:
    with pytest.raises(ActionFailed, match="looks like one"):
        add_rule(ADAM, team, "gate", "*", "operator")
    assert not Group.objects.filter(name=team).exists()


@pytest.mark.django_db
def test_a_team_with_a_name_of_its_own_is_made() -> None:
    add_rule(ADAM, "Administration Nord", "gate", "nord-*", "operator")
    assert Group.objects.filter(name="Administration Nord").exists()


@pytest.mark.django_db
def test_the_same_key_of_two_services_of_one_name_is_two_keys(client: Client) -> None:
    first, second = (create_token(ADAM, "deploys", scope=Scope.ACT, role="operator") for _ in range(2))

    def press(token: str, dollars: float) -> Any:
        return client.put(
            "/api/v1/cost/prices",
            {"prices": {}, "per_day": dollars},
            content_type="application/json",
            headers={"Authorization": f"Bearer {token}", "Idempotency-Key": "night-run-1"},
        )

    assert press(first, 5.0).status_code == 200
    assert press(second, 7.0).status_code == 200
    assert Pricing.objects.get().per_day == 7.0
    assert press(first, 5.0)["Idempotency-Replayed"] == "true"


@pytest.mark.django_db(transaction=True)
def test_a_database_without_our_tables_is_not_ready() -> None:
    assert health._database_answers()
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE dashboard_audithead RENAME TO away")
        try:
            assert not health._database_answers()
        finally:
            cursor.execute("ALTER TABLE away RENAME TO dashboard_audithead")


@pytest.mark.django_db(transaction=True)
def test_strangers_are_not_told_why_storage_is_away(client: Client) -> None:
    assert "storage_error" not in client.get("/readyz").json()


@pytest.mark.django_db
@pytest.mark.parametrize(
    "path", ["/", "/access/", "/audit/", "/help/", "/accounts/login/", "/audit.csv", "/tables/gates.csv"]
)
def test_no_page_is_kept_by_a_cache(client: Client, path: str) -> None:
    olga = User.objects.create_user("olga")
    olga.groups.add(Group.objects.get(name="operator"))
    if "login" not in path:
        client.force_login(olga)
    answer = client.get(path)
    assert answer.status_code == 200
    assert "no-store" in answer["Cache-Control"] or "no-cache" in answer["Cache-Control"]


@pytest.mark.parametrize("unit", ["kennel-dashboard.service", "kennel-worker@.service"])
def test_the_units_may_open_a_file_for_each_socket(unit: str) -> None:
    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    parsed.read(Path(PROJECT) / "deploy" / "systemd" / unit)
    assert int(parsed["Service"]["LimitNOFILE"]) >= 16_384
