"""Tables as files, and the links between pages."""

from __future__ import annotations

import csv
import json
from io import StringIO

import pytest
from django.contrib.auth.models import Group, User
from django.http import QueryDict
from django.test import Client
from django.urls import resolve, reverse

from dashboard.core.pages import registry
from dashboard.pages import queries
from dashboard.pages.tables import rows_of
from dashboard.templatetags.links import audit_url, ranges_url, target_url, worker_url
from tests.unit.pages.fleets import full, nothing

TABLES = registry().tables
FROM_STORAGE = {"terms"}  # read when asked for, not part of the fleet


@pytest.mark.parametrize("name", sorted(TABLES.keys() - FROM_STORAGE))
def test_every_table_has_rows_of_one_shape_and_none_of_what_is_not_there(name: str) -> None:
    rows = list(rows_of(TABLES[name], full(), QueryDict()))
    assert rows
    assert {tuple(row) for row in rows} == {tuple(TABLES[name].columns)}
    assert json.loads(json.dumps(rows)) == rows, "nothing but figures, texts and None"
    assert list(rows_of(TABLES[name], nothing(), QueryDict())) == []


def test_a_file_holds_what_the_page_is_filtered_to() -> None:
    names = [row["batch"] for row in rows_of(TABLES["batches"], full(), QueryDict("state=partial"))]
    assert names == ["odd"]
    assert not list(rows_of(TABLES["workers"], full(), QueryDict("q=nobody-like-this")))


def test_unknown_is_neither_nought_nor_missing() -> None:
    row = next(row for row in rows_of(TABLES["batches"], full(), QueryDict()) if row["batch"] == "late")
    assert row["items_total"] is None and row["eta_seconds"] is None and row["items_failed"] == 0


@pytest.mark.django_db
def test_tables_come_as_csv_and_json_and_an_unknown_one_is_not_found(client: Client) -> None:
    user = User.objects.create_user("vera")
    user.groups.add(Group.objects.get(name="viewer"))
    client.force_login(user)
    for name in sorted(TABLES.keys() - FROM_STORAGE):
        table = client.get(f"/tables/{name}.csv")
        assert table["Content-Type"].startswith("text/csv") and f'"{name}-' in table["Content-Disposition"]
        rows = list(csv.DictReader(StringIO(table.content.decode())))
        assert len(client.get(f"/tables/{name}.json").json()) == len(rows)
    assert client.get("/tables/secrets.csv").status_code == 404
    assert client.get("/tables/terms.csv?election=No+such+name").status_code == 404


@pytest.mark.django_db
def test_a_file_without_rows_has_its_head(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "fleet", nothing)
    user = User.objects.create_user("vera")
    user.groups.add(Group.objects.get(name="viewer"))
    client.force_login(user)
    for name in sorted(TABLES.keys() - FROM_STORAGE):
        (head,) = csv.reader(StringIO(client.get(f"/tables/{name}.csv?q=nobody&state=none").content.decode()))
        assert head == list(TABLES[name].columns)


@pytest.mark.parametrize(
    ("target", "action", "page"),
    [
        ("start", "gate.open", "gates"),
        ("orders-in", "queue.clear", "queue"),
        ("w-1", "worker.drain", "workers"),
        ("month-end", "leader.break", "leaders"),
        ("billing/night", "batch.retry", "batches"),
        ("trip/t-1", "saga.retry", "batches"),
        ("orders", "scaling.policy", "scaling"),
    ],
)
def test_what_was_acted_upon_is_one_step_away(target: str, action: str, page: str) -> None:
    path = target_url(target, action).partition("?")[0].partition("#")[0]
    assert resolve(path).url_name == page


def test_what_has_no_page_has_no_link() -> None:
    assert [target_url(*each) for each in (("", "gate.open"), ("night", "batch.retry"), ("x", "odd"))] == [
        ""
    ] * 3


def test_names_in_links_are_quoted() -> None:
    assert worker_url("a&b c") == f"{reverse('workers')}?q=a%26b+c"
    assert ranges_url("a&b", "orders") == f"{reverse('sequences')}?sequence=orders&owner=a%26b#ledger"
    assert audit_url("a=b") == f"{reverse('audit')}?q=a%3Db"


@pytest.mark.django_db
def test_a_pool_that_can_have_no_such_name_is_not_found(client: Client) -> None:
    user = User.objects.create_user("vera")
    user.groups.add(Group.objects.get(name="viewer"))
    client.force_login(user)
    for name in ("../../etc/passwd", ".."):
        assert client.get(f"/scaling/?pool={name}").status_code == 404
