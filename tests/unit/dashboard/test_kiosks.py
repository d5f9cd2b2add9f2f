"""Promises of screens: a token of their own shows the wallboard, nothing else, and as long as it is valid."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from dashboard.access.token_actions import create_token, revoke_token
from dashboard.accounts import kiosks
from dashboard.core import tokens
from dashboard.core.audit import ActionFailed, Denied
from dashboard.core.permissions import Actor
from dashboard.hub.background import current_permissions
from dashboard.models import AuditRow, Scope, WorkerToken

pytestmark = pytest.mark.django_db

ADAM = Actor("adam", "admin")
PASSWORD = "correct horse battery"


@pytest.fixture(autouse=True)
def fast(settings: Settings) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


def token_of_screen(**more: Any) -> str:
    return create_token(ADAM, "hall", scope=Scope.KIOSK, **more)


def screen(token: str = "") -> Client:
    client = Client()
    answer = client.post(reverse("kiosk"), {"token": token or token_of_screen()})
    assert (answer.status_code, answer["Location"]) == (302, reverse("tv"))
    return client


class Socket:
    """An open socket, as housekeeping sees it."""

    def __init__(self, client: Client, user: Any = None) -> None:
        self.scope: dict[str, Any] = {"session": client.session}
        self.user = user or User()

    def role(self) -> str:
        return current_permissions([self])[0][0]


def test_a_screen_sees_the_wallboard_and_its_graph() -> None:
    client = screen()
    page = client.get("/tv")
    assert page.status_code == 200
    assert b"wall-back" not in page.content
    assert client.get("/history/?series=depth:orders-in").status_code == 200
    assert Socket(client).role() == "viewer"
    assert client.get(reverse("kiosk"))["Location"] == reverse("tv")
    row = AuditRow.objects.filter(action="sign_in", outcome="done").get()
    assert (row.actor, row.after) == ("screen hall", '{"by": ["kiosk token"]}')


@pytest.mark.parametrize(
    "path", ["/", "/gates/", "/audit/", "/access/", "/search/?q=a", "/tables/queues.csv"]
)
def test_a_screen_sees_nothing_else(path: str) -> None:
    answer = screen().get(path)
    assert answer.status_code == 302
    assert answer["Location"].startswith(reverse("account_login"))


def test_a_screen_does_nothing() -> None:
    answer = screen().post(reverse("gate-leash", args=["start"]))
    assert answer.status_code == 302
    assert answer["Location"].startswith(reverse("account_login"))


@pytest.mark.parametrize("scope", [Scope.WORKER, Scope.READ, Scope.ACT])
def test_no_other_token_opens_the_wallboard(scope: str) -> None:
    other = create_token(ADAM, "other", scope=scope, role="admin" if scope == Scope.ACT else "")
    client = Client()
    answer = client.post(reverse("kiosk"), {"token": other})
    assert answer.status_code == 403
    assert b"not the valid token of a screen" in answer.content
    assert not client.session.keys()
    assert client.get("/tv").status_code == 302


def test_the_token_of_a_screen_opens_neither_hub_nor_api() -> None:
    token = token_of_screen()
    assert [tokens.check(token, scope) for scope in (Scope.WORKER, Scope.READ, Scope.ACT)] == [None] * 3
    assert tokens.actor_of_token(token) is None
    answer = Client(headers={"Authorization": f"Bearer {token}"}).get("/api/v1/fleet")
    assert answer.status_code == 401


def test_a_revoked_token_ends_its_screen_and_says_so() -> None:
    client = screen()
    socket = Socket(client)
    revoke_token(ADAM, WorkerToken.objects.get().pk)
    assert socket.role() == ""
    assert client.get("/tv")["Location"] == reverse("kiosk")
    assert b"has expired or was revoked" in client.get(reverse("kiosk")).content
    assert client.get("/history/?series=depth:a").status_code == 302


def test_a_token_that_expires_ends_its_screen() -> None:
    client = screen(token_of_screen(days=1.0))
    row = WorkerToken.objects.get()
    assert row.expires_at is not None
    row.expires_at = row.created_at
    row.save()
    assert Socket(client).role() == ""
    assert client.get("/tv")["Location"] == reverse("kiosk")


def test_a_wrong_token_changes_nothing_for_who_is_signed_in() -> None:
    olga = User.objects.create_user("olga", password=PASSWORD)
    olga.groups.add(Group.objects.get(name="operator"))
    client = Client()
    client.force_login(olga)
    assert b"signed in as olga: this signs you out" in client.get(reverse("kiosk")).content
    assert client.post(reverse("kiosk"), {"token": "kk_nothing"}).status_code == 403
    assert client.get("/gates/").status_code == 200
    assert client.post(reverse("kiosk"), {"token": token_of_screen()}).status_code == 302
    assert client.get("/gates/").status_code == 302


def test_a_person_who_signs_in_at_a_screen_is_that_person_and_not_for_longer() -> None:
    olga = User.objects.create_user("olga", password=PASSWORD)
    olga.groups.add(Group.objects.get(name="operator"))
    client = screen()
    answer = client.post(reverse("account_login"), {"username": "olga", "password": PASSWORD})
    assert answer.status_code == 302
    assert client.get("/gates/").status_code == 200
    assert Socket(client, olga).role() == "operator"
    assert kiosks.KEY not in client.session
    assert client.session.get_expiry_age() <= 12 * 3600


def test_only_administrators_make_tokens_of_screens_and_these_have_no_role() -> None:
    with pytest.raises(Denied):
        create_token(Actor("olga", "operator"), "hall", scope=Scope.KIOSK)
    with pytest.raises(ActionFailed, match="shows the wallboard and nothing else"):
        token_of_screen(role="viewer")
    olga = User.objects.create_user("olga", password=PASSWORD)
    olga.groups.add(Group.objects.get(name="operator"))
    with pytest.raises(ActionFailed, match="no owner"):
        create_token(Actor.of(olga), "hall", scope=Scope.KIOSK, owner=olga, days=1.0)


def test_the_address_for_the_screen_is_shown_once_with_the_token_behind_its_fragment() -> None:
    adam = User.objects.create_user("adam", password=PASSWORD)
    adam.groups.add(Group.objects.get(name="admin"))
    client = Client()
    client.force_login(adam)
    page = client.post(reverse("token-create"), {"name": "hall", "kind": "kiosk", "role": "viewer"})
    assert "http://testserver/tv/kiosk#kk_" in page.content.decode()
    listed = client.get("/access/").content.decode()
    assert "a screen" in listed
    assert "#kk_" not in listed
