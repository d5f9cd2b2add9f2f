"""Who is let in where: every address of the URLconf, as nobody, as each role. A new address fails until it is listed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.contrib.sessions.models import Session
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse
from django.utils import timezone

from dashboard.access.team_actions import add_rule
from dashboard.core import permissions as scoping
from dashboard.core import tokens
from dashboard.core.audit import Denied
from dashboard.core.dispatch import by_name
from dashboard.core.permissions import ACTIONS, Actor, role_may
from dashboard.models import AuditRow, Scope, WorkerToken

pytestmark = pytest.mark.django_db

PUBLIC = {
    "healthz", "readyz", "api-unknown", "account_login", "account_logout",
    "kiosk", "mfa_authenticate", "openid_connect_login", "openid_connect_callback", "socialaccount_login_cancelled",
}  # fmt: skip
# One's own second factor: for everybody who is signed in, with a role or without.
OWN = {
    "password", "account_reauthenticate", "mfa_index", "mfa_reauthenticate", "mfa_activate_totp", "mfa_deactivate_totp",
    "mfa_view_recovery_codes", "mfa_generate_recovery_codes", "mfa_download_recovery_codes",
}  # fmt: skip
READ = {
    "overview", "cost", "batches", "scaling", "tv", "help", "search", "ledger-csv", "audit-csv", "gates", "queues", "queue", "workers", "worker", "leaders", "sequences", "audit", "history", "table", "metrics",
    "gate-opening",
    "access", "alerts", "saved-views", "throughput", "throughput-figures",
}  # fmt: skip
# name of the address → (arguments, action) for everything that changes something
ACTS: list[tuple[str, dict[str, Any], str]] = [
    ("gates", {}, "gate.create"),
    ("gate-unleash", {"name": "start-it"}, "gate.open"),
    ("gate-leash", {"name": "start-it"}, "gate.close"),
    ("queues", {}, "queue.create"),
    ("queue-do", {"name": "orders-in", "verb": "put"}, "queue.put"),
    ("queue-do", {"name": "orders-in", "verb": "requeue"}, "queue.requeue"),
    ("queue-do", {"name": "orders-in", "verb": "clear"}, "queue.clear"),
    ("queue-do", {"name": "orders-in", "verb": "delete"}, "queue.delete"),
    ("queue-rule", {"name": "orders-in"}, "queue.rule"),
    ("queue-messages", {"name": "orders-in"}, "queue.peek"),
    ("queue-messages-retry", {"name": "orders-in"}, "queue.requeue"),
    ("queue-poison", {"name": "orders-in"}, "queue.peek"),
    ("queue-poison-read", {"name": "orders-in"}, "queue.peek"),
    ("queue-poison-message", {"name": "orders-in", "message_id": "m-1"}, "queue.peek"),
    ("queue-poison-abort", {"name": "orders-in", "number": 1}, "queue.abort"),
    ("queue-messages-delete", {"name": "orders-in"}, "queue.delete_messages"),
    ("gates-unleash", {}, "gate.open"),
    ("gates-leash", {}, "gate.close"),
    ("gates-undo", {}, "gate.open"),
    ("queues-requeue", {}, "queue.requeue"),
    ("queues-clear", {}, "queue.clear"),
    ("workers-drain", {}, "worker.drain"),
    ("workers-resume", {}, "worker.resume"),
    ("workers-stop", {}, "worker.stop"),
    ("batch-retry", {"pipeline": "billing", "batch": "night"}, "batch.retry"),
    ("batch-cancel", {"pipeline": "billing", "batch": "night"}, "batch.cancel"),
    ("saga-retry", {"saga": "trip", "key": "t-1"}, "saga.retry"),
    ("saga-repair", {"saga": "trip", "key": "t-1"}, "saga.repair"),
    ("scaling-policy", {"pool": "orders"}, "scaling.policy"),
    ("cost-prices", {}, "cost.prices"),
    ("sequence-statement", {}, "sequence.statement"),
    ("worker-do", {"instance": "i-1", "verb": "drain"}, "worker.drain"),
    ("worker-do", {"instance": "i-1", "verb": "resume"}, "worker.resume"),
    ("worker-do", {"instance": "i-1", "verb": "stop"}, "worker.stop"),
    ("leader-step-down", {"name": "month-end"}, "leader.step_down"),
    ("leader-break", {"name": "month-end"}, "leader.break"),
    ("alert-rule-new", {}, "alert.rule"),
    ("alert-rule", {"rule": "deep-queues"}, "alert.rule"),
    ("alert-rule-delete", {"rule": "deep-queues"}, "alert.rule"),
    ("alert-silence", {"rule": "deep-queues"}, "alert.silence"),
    ("alert-silence-end", {"silence": 7}, "alert.silence"),
    ("alert-acknowledge", {"alert": 7}, "alert.acknowledge"),
    ("alert-channel", {}, "alert.channel"),
    ("alert-channel-delete", {"channel": "ops-mail"}, "alert.channel"),
    ("alert-channel-test", {"channel": "ops-mail"}, "alert.test"),
    ("token-create", {}, "token.create_own"),
    ("token-revoke", {"token": 7}, "token.revoke_own"),
    ("person-add", {}, "person.add"),
    ("person-role", {}, "person.role"),
    ("person-disable", {}, "person.disable"),
    ("person-enable", {}, "person.enable"),
    ("person-reset-password", {}, "person.reset_password"),
    ("person-reset-factor", {}, "person.reset_factor"),
    ("sessions-end", {}, "session.end_own"),
    ("session-end", {"session": 7}, "session.end_own"),
    ("team-rule", {}, "team.rule"),
    ("team-rule-remove", {"rule": 7}, "team.rule"),
    ("team-member", {}, "team.member"),
]
ARGUMENTS = {
    "gate-opening": {"name": "start-it"},
    "queue": {"name": "orders-in"},
    "worker": {"instance": "i-1"},
    "table": {"name": "queues", "form": "csv"},
}
ROLES = ("", "viewer", "operator", "admin")


def _names(resolver: URLResolver) -> Iterator[str]:
    for entry in resolver.url_patterns:
        if isinstance(entry, URLResolver) and entry.namespace == "api":
            continue  # its matrix is made from its schema: test_api_matrix.py
        elif isinstance(entry, URLResolver):
            yield from _names(entry)
        elif isinstance(entry, URLPattern):
            yield entry.name or str(entry.pattern)


def _sign_in(client: Client, role: str) -> None:
    user = User.objects.create_user(f"user-{role or 'none'}")
    if role:
        user.groups.add(Group.objects.get(name=role))
    client.force_login(user)


def test_every_address_is_in_the_matrix() -> None:
    listed = PUBLIC | OWN | READ | {name for name, _, _ in ACTS}
    assert set(_names(get_resolver())) == listed


def test_every_action_of_the_matrix_is_a_known_one() -> None:
    assert {action for _, _, action in ACTS} <= set(ACTIONS)


@pytest.mark.parametrize("name", sorted(READ))
def test_pages_are_for_those_with_a_role(client: Client, name: str) -> None:
    path = reverse(name, kwargs=ARGUMENTS.get(name))
    anonymous = client.get(path)
    assert anonymous.status_code in (302, 401)
    if anonymous.status_code == 302:
        assert anonymous["Location"].startswith(reverse("account_login"))
    _sign_in(client, "")
    assert client.get(path).status_code == 403


@pytest.mark.parametrize("name", sorted(OWN))
def test_ones_own_second_factor_is_for_nobody_who_is_not_signed_in(client: Client, name: str) -> None:
    for answer in (client.get(reverse(name)), client.post(reverse(name))):
        assert answer.status_code == 302
        assert answer["Location"].startswith(reverse("account_login"))


def test_nobody_can_sign_up() -> None:
    for path in ("/accounts/signup/", "/accounts/password/reset/", "/accounts/email/"):
        assert Client().get(path).status_code == 404


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    ("name", "arguments", "action"), ACTS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_an_action_is_denied_below_its_role_and_the_attempt_is_in_the_audit(
    client: Client, name: str, arguments: dict[str, Any], action: str, role: str
) -> None:
    path = reverse(name, kwargs=arguments)
    anonymous = client.post(path)
    assert anonymous.status_code == 302
    assert anonymous["Location"].startswith(reverse("account_login"))
    if role_may(role, action):
        return  # what is allowed is tried with real parts in the integration tests
    _sign_in(client, role)
    assert client.post(path, {"name": "start-it", "typed": "orders-in"}).status_code == 403
    row = AuditRow.objects.get()
    assert (row.action, row.outcome, row.actor) == (action, "denied", f"user-{role or 'none'}")


@pytest.mark.parametrize(
    ("name", "arguments", "action"), ACTS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_no_action_is_done_without_the_form_token(name: str, arguments: dict[str, Any], action: str) -> None:
    client = Client(enforce_csrf_checks=True)
    _sign_in(client, "admin")
    assert client.post(reverse(name, kwargs=arguments)).status_code == 403
    assert not AuditRow.objects.exists()


@pytest.mark.parametrize(
    ("name", "arguments", "action"),
    # "Leash everything" names nothing: each gate that the fleet has is decided by itself.
    [
        act
        for act in ACTS
        if act[2].partition(".")[0] in scoping.KINDS and act[0] not in ("gates-leash", "gates-undo")
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_operator_of_another_team_is_denied_what_a_rule_covers(
    client: Client, name: str, arguments: dict[str, str], action: str
) -> None:
    for kind in scoping.KINDS:
        add_rule(Actor("adam", "admin"), "payments", kind, "*", "operator")
    _sign_in(client, "operator")
    answer = client.post(
        reverse(name, kwargs=arguments), {"name": "start-it", "typed": "orders-in", "reason": "x"}
    )
    # What the form names instead of the address is looked at by the action, and told on the page it leads back to.
    assert answer.status_code == (403 if arguments or not role_may("operator", action) else 302)
    row = AuditRow.objects.get(actor="user-operator")
    assert (row.action, row.outcome) == (action, "denied")


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("action", sorted(ACTIONS))
def test_a_frame_is_denied_below_its_role_and_to_other_teams(action: str, role: str) -> None:
    options = {"reason": "x", "body": "{}"}
    if not role_may(role, action):
        with pytest.raises(Denied):
            by_name(Actor("x", role), action, "orders-in", options)
        assert [(row.actor, row.outcome) for row in AuditRow.objects.all()] == [("x", "denied")]
    elif action.partition(".")[0] in scoping.KINDS and role != "admin":
        for kind in scoping.KINDS:
            add_rule(Actor("adam", "admin"), "payments", kind, "orders-*", "operator")
        with pytest.raises(Denied):
            by_name(Actor("x", role, teams=frozenset({"shipping"})), action, "orders-in", options)
        assert [row.outcome for row in AuditRow.objects.filter(actor="x")] == ["denied"]


def test_a_session_that_has_expired_is_nobody(client: Client) -> None:
    _sign_in(client, "admin")
    assert client.get(reverse("access")).status_code == 200
    for session in Session.objects.all():
        session.expire_date = timezone.now() - timedelta(seconds=1)
        session.save()
    assert client.get(reverse("access")).status_code == 302
    for name, arguments, _action in ACTS:
        assert client.post(reverse(name, kwargs=arguments)).status_code == 302
    assert not AuditRow.objects.exists()


def _token(state: str) -> str:
    if state == "unknown":
        return "ks_made_up_0123456789_0123456789"
    owner = User.objects.create_user("gone") if state == "of nobody" else None
    past = timezone.now() - timedelta(seconds=1) if state == "expired" else None
    scope = Scope.WORKER if state == "for workers" else Scope.READ
    token = tokens.create(state, scope=scope, owner=owner, expires_at=past)
    if state == "revoked":
        WorkerToken.objects.update(revoked_at=timezone.now())
    return token


@pytest.mark.parametrize("state", ["valid", "unknown", "expired", "revoked", "for workers", "of nobody"])
@pytest.mark.parametrize("name", ["metrics", "api:fleet", "api:attention", "api:history"])
def test_a_token_reads_only_while_it_is_valid_and_for_reading(client: Client, name: str, state: str) -> None:
    answer = client.get(reverse(name), headers={"authorization": f"Bearer {_token(state)}"})
    assert (answer.status_code == 401) is (state != "valid")


def test_a_token_opens_no_page_and_no_form(client: Client) -> None:
    token = tokens.create("service", scope=Scope.ACT, role="admin")
    headers = {"authorization": f"Bearer {token}"}
    assert client.get(reverse("access"), headers=headers).status_code == 302
    assert client.post(reverse("queue-do", args=["orders-in", "clear"]), headers=headers).status_code == 302
