"""Promises of sessions: they end, they can be ended, they must be fresh for what destroys, and roles may demand a second factor."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from allauth.usersessions.models import UserSession
from django.contrib.auth.models import Group, User
from django.contrib.sessions.models import Session
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from dashboard.access.people_actions import end_session, end_sessions
from dashboard.access.token_actions import create_token
from dashboard.accounts import sessions
from dashboard.accounts.sessions import SEEN
from dashboard.core import tokens
from dashboard.core.audit import ActionFailed, Denied
from dashboard.core.permissions import Actor
from dashboard.core.retention import remove_expired
from dashboard.hub.background import current_permissions
from dashboard.models import AuditRow, Scope, WorkerToken

pytestmark = pytest.mark.django_db

PASSWORD = "correct horse battery"
CHROME = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/140.0 Safari/537.36"
ADAM = Actor("adam", "admin")


@pytest.fixture(autouse=True)
def fast(settings: Settings) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


def person(name: str, role: str = "operator") -> User:
    user = User.objects.create_user(name, password=PASSWORD)
    user.groups.add(Group.objects.get(name=role))
    return user


def signed_in(name: str) -> Client:
    client = Client(headers={"user-agent": CHROME})
    answer: HttpResponse = client.post(
        reverse("account_login"), {"username": name, "password": PASSWORD}, REMOTE_ADDR="10.0.0.1"
    )  # type: ignore[assignment]
    assert answer.status_code == 302, answer.content.decode()
    return client


class Viewer:
    """An open socket, as housekeeping sees it."""

    def __init__(self, client: Client, user: User) -> None:
        self.scope: dict[str, Any] = {"session": client.session}
        self.user = user

    def role(self) -> str:
        return current_permissions([self])[0][0]


def long_ago(client: Client, *, seconds: float) -> None:
    """As if the last request and the sign-in had been so long ago."""
    session = client.session
    session[SEEN] = time.time() - seconds
    for record in session["account_authentication_methods"]:
        record["at"] = time.time() - seconds
    session.save()


@pytest.mark.parametrize("role", ["operator", "admin"])
def test_who_may_act_is_signed_out_after_an_hour_of_nothing(role: str) -> None:
    olga = person("olga", role)
    client = signed_in("olga")
    socket = Viewer(client, olga)
    assert client.get("/gates/").status_code == 200
    long_ago(client, seconds=3500)
    assert (client.get("/gates/").status_code, socket.role()) == (200, role)
    long_ago(client, seconds=3700)
    assert socket.role() == ""
    answer = client.get("/gates/")
    assert answer.status_code == 302
    assert answer["Location"].startswith(reverse("account_login"))
    assert not Session.objects.filter(session_key=client.session.session_key).exists()


def test_a_wallboard_of_a_viewer_stays_on() -> None:
    vera = person("vera", "viewer")
    client = signed_in("vera")
    long_ago(client, seconds=8 * 3600)
    assert Viewer(client, vera).role() == "viewer"
    assert client.get("/tv").status_code == 200


def test_activity_is_noted_once_a_minute(django_assert_num_queries: Any) -> None:
    person("olga")
    client = signed_in("olga")
    client.get("/help/")
    noted = client.session[SEEN]
    client.get("/help/")
    assert client.session[SEEN] == noted
    long_ago(client, seconds=90)
    client.get("/help/")
    assert client.session[SEEN] >= noted


def test_a_password_change_ends_the_sessions_and_sockets_that_the_old_one_opened() -> None:
    olga = person("olga")
    client = signed_in("olga")
    socket = Viewer(client, olga)
    assert socket.role() == "operator"
    olga.set_password("another horse battery")
    olga.save()
    assert socket.role() == ""
    assert client.get("/gates/").status_code == 302


def test_a_session_is_nobodys_whose_it_was_not_made_for() -> None:
    person("olga")
    otto = person("otto")
    assert Viewer(signed_in("olga"), otto).role() == ""


def test_people_see_their_sessions_and_sign_out_everywhere_else() -> None:
    olga = person("olga")
    here, there = signed_in("olga"), signed_in("olga")
    page = here.get("/access/").content.decode()
    assert len(re.findall(r'data-label="Browser">\s*Chrome, Linux', page)) == 2
    assert "this browser" in page
    socket = Viewer(there, olga)
    assert here.post(reverse("sessions-end")).status_code == 302
    assert socket.role() == ""
    assert there.get("/gates/").status_code == 302
    assert here.get("/gates/").status_code == 200
    row = AuditRow.objects.filter(action="session.end_own", outcome="done").get()
    assert (row.actor, row.target, row.after) == ("olga", "olga", '{"sessions_ended": 1}')


def test_one_browser_is_signed_out_by_its_row() -> None:
    person("olga")
    here, there = signed_in("olga"), signed_in("olga")
    other = UserSession.objects.get(session_key=there.session.session_key)
    assert here.post(reverse("session-end", args=[other.pk])).status_code == 302
    assert there.get("/gates/").status_code == 302
    assert here.get("/gates/").status_code == 200
    with pytest.raises(ActionFailed, match="already ended"):
        end_session(ADAM, other.pk)


def test_nobody_but_an_administrator_ends_or_sees_the_sessions_of_others() -> None:
    person("vera", "viewer")
    olga, adam = person("olga"), person("adam", "admin")
    vera, other = signed_in("vera"), signed_in("olga")
    row = UserSession.objects.get(user=olga)
    assert "olga" not in vera.get("/access/").content.decode()
    vera.post(reverse("session-end", args=[row.pk]))
    vera.post(reverse("sessions-end"), {"user": "olga"})
    assert other.get("/gates/").status_code == 200
    denied = AuditRow.objects.filter(outcome="denied").values_list("actor", "action", "target")
    assert list(denied) == [("vera", "session.end", "olga")] * 2
    assert [each.user for each in sessions.listed()] == ["olga", "vera"]
    assert end_sessions(Actor.of(adam), "olga") == 1
    assert other.get("/gates/").status_code == 302


def test_a_session_that_no_list_knows_is_ended_too() -> None:
    olga = person("olga")
    client = Client()
    client.force_login(olga)
    assert not UserSession.objects.exists()
    assert end_sessions(ADAM, "olga") == 1
    assert client.get("/gates/").status_code == 302


def test_what_lists_sessions_goes_with_them() -> None:
    person("olga")
    client = signed_in("olga")
    remove_expired()
    assert UserSession.objects.count() == 1
    client.session.delete()
    remove_expired()
    assert UserSession.objects.count() == 0


DESTROYING = [
    ("queue-do", {"name": "orders-in", "verb": "clear"}, "queue.clear"),
    ("queue-do", {"name": "orders-in", "verb": "delete"}, "queue.delete"),
    ("leader-break", {"name": "month-end"}, "leader.break"),
    ("queues-clear", {}, "queue.clear"),
]


@pytest.mark.parametrize(
    ("name", "arguments", "action"), DESTROYING, ids=["clear", "delete", "break", "bulk"]
)
def test_what_destroys_asks_for_the_password_when_the_sign_in_is_old(
    name: str, arguments: dict[str, str], action: str
) -> None:
    person("adam", "admin")
    client = signed_in("adam")
    long_ago(client, seconds=1000)
    asked = client.post(reverse(name, kwargs=arguments), {"typed": "orders-in"})
    assert asked.status_code == 302
    assert asked["Location"].startswith(reverse("account_reauthenticate"))
    confirmed = client.post(asked["Location"], {"password": PASSWORD})
    assert confirmed.status_code == 302
    back = client.get(confirmed["Location"])
    assert back.status_code == 200 or name == "leader-break"
    assert not AuditRow.objects.filter(action=action).exists()
    assert client.get(reverse("queue-do", kwargs={"name": "orders-in", "verb": "clear"})).status_code == 200


@pytest.mark.parametrize("action", ["queue.clear", "queue.delete", "leader.break"])
def test_no_way_round_the_pages_destroys_with_an_old_sign_in(action: str) -> None:
    from dashboard.core.dispatch import by_name

    stale = Actor("adam", "admin", fresh=False)
    with pytest.raises(Denied, match="too old for this action"):
        by_name(stale, action, "orders-in", {})
    row = AuditRow.objects.get()
    assert (row.action, row.outcome) == (action, "denied")


def test_the_api_with_a_session_is_asked_for_a_fresh_sign_in_too() -> None:
    person("adam", "admin")
    client = signed_in("adam")
    long_ago(client, seconds=1000)
    answer = client.post("/api/v1/queues/orders-in/clear", {}, content_type="application/json")
    assert answer.status_code == 403
    assert "/accounts/confirm/" in answer.json()["detail"]


def test_a_role_may_demand_a_second_factor_before_anything_else(settings: Settings) -> None:
    settings.SECOND_FACTOR_ROLES = frozenset({"admin"})
    adam, olga = person("adam", "admin"), person("olga")
    client = signed_in("adam")
    for path in ("/", "/gates/", "/access/"):
        answer = client.get(path)
        assert answer.status_code == 302
        assert answer["Location"] == reverse("mfa_activate_totp")
    assert client.get("/api/v1/fleet").status_code == 403
    assert client.get("/metrics").status_code == 403
    assert Viewer(client, adam).role() == ""
    assert client.post("/gates/start-it/unleash").status_code == 302
    assert not AuditRow.objects.filter(action="gate.open").exists()
    assert signed_in("olga").get("/gates/").status_code == 200
    Authenticator.objects.create(user=adam, type=Authenticator.Type.TOTP, data={"secret": "x"})
    assert client.get("/gates/").status_code == 200
    assert Viewer(client, adam).role() == "admin"
    assert olga.pk


def test_a_token_makes_no_other_token(client: Client) -> None:
    adam = person("adam", "admin")
    parent = create_token(Actor.of(adam), "parent", scope=Scope.ACT, role="admin", owner=adam, days=1)
    service = create_token(ADAM, "deploys", scope=Scope.ACT, role="admin")
    before = WorkerToken.objects.count()
    for token in (parent, service):
        for body in (
            {"name": "child", "scope": "read", "days": 365, "own": True},
            {"name": "child", "scope": "act", "role": "admin", "days": 3650},
            {"name": "child", "scope": "worker"},
        ):
            answer = client.post(
                "/api/v1/tokens", body, content_type="application/json", headers={"Authorization": f"Bearer {token}"}
            )  # fmt: skip
            assert answer.status_code in (403, 409), answer.content.decode()
        actor = tokens.actor_of_token(token)
        assert actor is not None
        with pytest.raises(Denied, match="cannot create tokens"):
            create_token(actor, "child", scope=Scope.WORKER)
    assert WorkerToken.objects.count() == before
    assert AuditRow.objects.filter(action__startswith="token.create", outcome="denied").count() >= 6
