"""Promises of the tokens of people and services."""

from __future__ import annotations

import io
from datetime import timedelta

import pytest
from django.contrib.auth.models import Group, User
from django.core.management import CommandError, call_command
from django.utils import timezone

from dashboard.access.token_actions import create_token, revoke_token
from dashboard.core import tokens
from dashboard.core.audit import ActionFailed, Denied
from dashboard.core.permissions import Actor
from dashboard.models import AuditRow, Scope, WorkerToken

pytestmark = pytest.mark.django_db

ADAM = Actor("adam", "admin")


def person(name: str, *groups: str) -> User:
    user = User.objects.create_user(name)
    for group in groups:
        user.groups.add(Group.objects.get_or_create(name=group)[0])
    return user


def own(user: User, scope: str = Scope.ACT, role: str = "operator") -> str:
    return create_token(Actor.of(user), "my script", scope=scope, days=30, owner=user, role=role)


def test_a_personal_token_acts_as_its_owner_with_the_lesser_of_both_roles() -> None:
    olga = person("olga", "operator", "payments")
    token = own(olga)
    assert token.startswith("kp_")
    actor = tokens.actor_of_token(token, address="10.0.0.1", request_id="r-1")
    assert actor == Actor("olga", "operator", "10.0.0.1", "r-1", frozenset({"payments"}))
    olga.groups.set([Group.objects.get(name="viewer")])
    assert tokens.actor_of_token(token) == Actor("olga", "viewer")
    olga.groups.set([Group.objects.get(name="admin")])
    assert tokens.actor_of_token(token) == Actor("olga", "operator")


def test_a_personal_token_opens_nothing_once_its_owner_has_no_role_or_is_gone() -> None:
    olga = person("olga", "operator")
    token = own(olga)
    olga.is_active = False
    olga.save()
    assert tokens.actor_of_token(token) is None
    assert tokens.check(token, Scope.READ) is None
    olga.delete()
    assert not WorkerToken.objects.exists()


def test_a_token_to_read_is_a_viewer_at_most_and_one_that_acts_may_read() -> None:
    olga = person("olga", "operator")
    reading, acting = own(olga, Scope.READ), own(olga)
    seen = tokens.actor_of_token(reading)
    assert seen is not None
    assert seen.role == "viewer"
    assert tokens.check(acting, Scope.READ) is not None
    assert tokens.check(reading, Scope.ACT) is None
    assert tokens.check(acting) is None, "no token of a program opens the workers' socket"


def test_a_service_acts_as_itself_under_a_name_that_no_person_can_have() -> None:
    Group.objects.create(name="payments")
    token = create_token(ADAM, "deploys", scope=Scope.ACT, role="operator", team="payments")
    assert token.startswith("ks_")
    actor = tokens.actor_of_token(token)
    assert actor == Actor("service deploys", "operator", teams=frozenset({"payments"}))
    with pytest.raises(Exception, match="valid username"):
        User(username=actor.name, password="x").full_clean()


def test_expired_revoked_and_workers_tokens_act_as_nobody() -> None:
    old = tokens.create(
        "old", scope=Scope.ACT, role="admin", expires_at=timezone.now() - timedelta(seconds=1)
    )
    revoked = create_token(ADAM, "revoked", scope=Scope.ACT, role="admin")
    revoke_token(ADAM, WorkerToken.objects.get(name="revoked").pk)
    worker = create_token(ADAM, "fleet")
    for token in (old, revoked, worker, "ks_made_up_0123456789_0123456789", ""):
        assert tokens.actor_of_token(token) is None


def test_people_make_and_revoke_their_own_and_no_others() -> None:
    vera, olga = person("vera", "viewer"), person("olga", "operator")
    own(vera, Scope.READ, "")
    own(olga)
    with pytest.raises(Denied):
        create_token(Actor.of(vera), "as olga", scope=Scope.READ, days=1, owner=olga)
    with pytest.raises(Denied):
        revoke_token(Actor.of(vera), WorkerToken.objects.get(owner=olga).pk)
    revoke_token(Actor.of(vera), WorkerToken.objects.get(owner=vera).pk)
    denied = AuditRow.objects.filter(outcome="denied").values_list("actor", "action")
    assert list(denied) == [("vera", "token.create"), ("vera", "token.revoke")]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"scope": "everything", "days": 1}, "not for 'everything'"),
        ({"scope": "act", "role": "admin", "days": 1}, "cannot exceed your own role"),
        ({"scope": "act", "role": "owner", "days": 1}, "not 'owner'"),
        ({"scope": "act", "days": 1}, "needs a role"),
        ({"scope": "act", "role": "operator"}, "must expire"),
        ({"scope": "act", "role": "operator", "days": 367}, "up to 366"),
        ({"scope": "worker", "days": 1}, "have no owner"),
        ({"scope": "read", "days": 1, "team": "nobody"}, "Team 'nobody' does not exist"),
    ],
)
def test_a_token_that_cannot_be_is_answered_with_why(wanted: dict[str, object], said: str) -> None:
    olga = person("olga", "operator")
    with pytest.raises(ActionFailed, match=said):
        create_token(Actor.of(olga), "mine", owner=olga, **wanted)  # type: ignore[arg-type]
    assert not WorkerToken.objects.exists()


def test_the_use_of_a_token_is_noted_to_the_minute() -> None:
    token = create_token(ADAM, "deploys", scope=Scope.ACT, role="operator")
    assert WorkerToken.objects.get().last_used_at is None
    tokens.actor_of_token(token)
    first = WorkerToken.objects.get().last_used_at
    tokens.actor_of_token(token)
    assert first is not None
    assert WorkerToken.objects.get().last_used_at == first


def test_the_command_line_makes_tokens_of_services_too() -> None:
    Group.objects.create(name="payments")
    out = io.StringIO()
    call_command(
        "worker_token",
        "create",
        "deploys",
        "--scope",
        "act",
        "--role",
        "operator",
        "--team",
        "payments",
        stdout=out,
    )
    actor = tokens.actor_of_token(out.getvalue().split()[-1])
    assert actor == Actor("service deploys", "operator", teams=frozenset({"payments"}))
    with pytest.raises(CommandError, match="needs a role"):
        call_command("worker_token", "create", "deploys", "--scope", "act")
