"""Pages that ask once more, and pages that say that something cannot be: named, styled, and fit for the keyboard."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import Group, User
from django.template.loader import render_to_string
from django.test import Client


@pytest.fixture
def adam(client: Client) -> Client:
    user = User.objects.create_user("adam", password="correct horse battery")
    user.groups.add(Group.objects.get(name="admin"))
    client.force_login(user)
    return client


def field(page: str, name: str) -> str:
    found = re.search(rf'<input[^>]*name="{name}"[^>]*>', page)
    assert found is not None
    return found[0]


@pytest.mark.django_db
def test_a_wrong_name_is_explained_at_its_field_and_the_cursor_is_there(adam: Client) -> None:
    first = adam.get("/workers/i-1/stop").content.decode()
    assert "aria-describedby" not in field(first, "typed")
    assert re.search(r'<a class="button" href="[^"]*" autofocus>Cancel', first)
    answer = adam.post("/workers/i-1/stop", {"typed": "something else"})
    page = answer.content.decode()
    assert answer.status_code == 422
    assert 'id="typed-problem"' in page
    for part in ('aria-describedby="typed-problem"', 'aria-invalid="true"', "autofocus"):
        assert part in field(page, "typed")
    assert page.count("autofocus") == 1


@pytest.mark.django_db
def test_the_page_that_asks_for_the_password_once_more_says_why_and_names_the_person(adam: Client) -> None:
    page = adam.get("/accounts/confirm/?next=/queues/").content.decode()
    assert "Confirm it is you" in page
    assert "Nothing has changed yet" in page
    assert "autofocus" in field(page, "password")
    assert 'value="adam"' in field(page, "username")
    assert 'value="/queues/"' in field(page, "next")
    wrong = adam.post("/accounts/confirm/", {"password": "wrong", "next": "/queues/"}).content.decode()
    assert 'role="alert" id="id_password_error"' in wrong
    assert 'aria-describedby="id_password_error"' in field(wrong, "password")
    for _ in range(4):
        adam.post("/accounts/confirm/", {"password": "wrong"})
    locked = adam.post("/accounts/confirm/", {"password": "correct horse battery"})
    assert locked.status_code == 429
    assert "Too many failed attempts" in locked.content.decode()


@pytest.mark.parametrize("template", ["400.html", "500.html", "503.html"])
def test_what_is_shown_when_nothing_works_has_the_look_of_the_rest(template: str) -> None:
    page = render_to_string(template)
    for part in ("tokens.css", "base.css", "layout.css", "parts.css", "theme.js", "<span>Kennel</span>"):
        assert part in page
    assert "plain-card" in page


@pytest.mark.parametrize(
    ("address", "host"),
    [("/gates/?at=%00", "testserver"), ("/gates/", "somebody-else.example")],
    ids=["NUL", "host"],
)
def test_a_request_that_cannot_be_read_is_answered_with_a_page_of_ours(address: str, host: str) -> None:
    answer = Client(raise_request_exception=False).get(address, headers={"host": host})
    page = answer.content.decode()
    assert answer.status_code == 400
    assert "<h1>Bad request</h1>" in page
    assert "Nothing changed" in page
    assert "css/tokens" in page
