"""People: added, given a role, disabled, given a new password; one's own password."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.test import Client

from dashboard.access import people_actions
from dashboard.core.audit import ActionFailed
from dashboard.core.permissions import Actor, role_of
from dashboard.models import AuditRow

pytestmark = pytest.mark.django_db
ADAM = Actor("adam", "admin")


@pytest.fixture
def admin(client: Client) -> Client:
    adam = get_user_model().objects.create_user("adam", password="correct horse battery")
    adam.groups.add(Group.objects.get(name="admin"))
    client.force_login(adam)
    return client


def person(name: str) -> object:
    return get_user_model().objects.get(username=name)


def audited(action: str) -> list[str]:
    """The outcomes of that act."""
    return [row.outcome for row in AuditRow.objects.filter(action=action).exclude(outcome="intent")]


def test_a_person_is_added_with_a_password_that_is_shown_once(admin: Client) -> None:
    shown = admin.post("/access/people", {"user": "olga", "role": "operator"})
    assert shown.status_code == 200
    assert "no-store" in shown["Cache-Control"]
    found = re.search(r'id="first-password"[^>]*value="([^"]+)"', shown.content.decode())
    assert found is not None
    assert role_of(person("olga")) == "operator"
    assert Client().login(username="olga", password=found[1])
    assert found[1] not in admin.get("/access/").content.decode()
    assert audited("person.add") == ["done"]
    assert all(found[1] not in f"{row.before}{row.after}" for row in AuditRow.objects.all())


@pytest.mark.parametrize(
    ("user", "role"),
    [
        ("", "viewer"),
        ("a b", "viewer"),
        ("x" * 81, "viewer"),
        ("ok", "root"),
        ("adam", "viewer"),
        ("Adam", "viewer"),
        ("Nobody", "viewer"),
        ("anonymous", "viewer"),
    ],
)
def test_what_is_no_name_no_role_or_taken_is_refused(admin: Client, user: str, role: str) -> None:
    with pytest.raises(ActionFailed):
        people_actions.add_person(ADAM, user, role)
    assert get_user_model().objects.count() == 1


def test_a_role_is_changed_and_counts_at_once(admin: Client) -> None:
    people_actions.add_person(ADAM, "olga", "viewer")
    admin.post("/access/people/role", {"user": "olga", "role": "operator"})
    assert role_of(person("olga")) == "operator"


def test_a_superuser_that_is_given_a_role_has_that_one(admin: Client) -> None:
    get_user_model().objects.create_superuser("root", password="correct horse battery")
    admin.post("/access/people/role", {"user": "root", "role": "viewer"})
    assert role_of(person("root")) == "viewer"


def test_who_is_disabled_is_signed_out_and_stays_out_until_enabled(admin: Client) -> None:
    password = people_actions.add_person(ADAM, "olga", "operator")
    olga = Client()
    assert olga.login(username="olga", password=password)
    assert olga.get("/access/").status_code == 200
    admin.post("/access/people/disable", {"user": "olga"})
    assert olga.get("/access/").status_code in (302, 403)
    assert not Client().login(username="olga", password=password)
    admin.post("/access/people/enable", {"user": "olga"})
    assert Client().login(username="olga", password=password)
    assert audited("person.disable") == audited("person.enable") == ["done"]


def test_a_new_password_ends_sessions_and_the_old_password(admin: Client) -> None:
    old = people_actions.add_person(ADAM, "olga", "operator")
    olga = Client()
    assert olga.login(username="olga", password=old)
    shown = admin.post("/access/people/password", {"user": "olga"}).content.decode()
    found = re.search(r'id="first-password"[^>]*value="([^"]+)"', shown)
    assert found is not None
    assert olga.get("/access/").status_code in (302, 403)
    assert not Client().login(username="olga", password=old)
    assert Client().login(username="olga", password=found[1])


@pytest.mark.parametrize("act", ["role", "disable", "password", "second-factor"])
def test_nobody_does_this_to_themselves(admin: Client, act: str) -> None:
    admin.post(f"/access/people/{act}", {"user": "adam", "role": "viewer"})
    assert role_of(person("adam")) == "admin"
    assert Client().login(username="adam", password="correct horse battery")


def test_ones_own_password_is_changed_with_the_old_one_and_audited(admin: Client) -> None:
    other = Client()
    assert other.login(username="adam", password="correct horse battery")
    wrong = {"old_password": "no", "new_password1": "a much better one", "new_password2": "a much better one"}
    assert admin.post("/accounts/password/", wrong).status_code == 200
    weak = wrong | {
        "old_password": "correct horse battery",
        "new_password1": "short",
        "new_password2": "short",
    }
    assert b"too short" in admin.post("/accounts/password/", weak).content
    assert (
        admin.post("/accounts/password/", wrong | {"old_password": "correct horse battery"}).status_code
        == 302
    )
    assert admin.get("/access/").status_code == 200, "this session goes on"
    assert other.get("/access/").status_code == 302, "the others have ended"
    assert Client().login(username="adam", password="a much better one")
    assert audited("password.change") == ["done"]
