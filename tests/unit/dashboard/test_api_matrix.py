"""Who may do what through the API: every operation of its schema, as each role, by session and by token."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from django.contrib.auth.models import Group, User
from django.core.cache import caches
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils import timezone

from dashboard.access.team_actions import add_rule
from dashboard.api.v1.api import api
from dashboard.core import permissions as scoping
from dashboard.core import tokens
from dashboard.core.permissions import ACTIONS, Actor, role_may
from dashboard.models import AuditRow, Scope, WorkerToken

pytestmark = pytest.mark.django_db

ROLES = ("", "viewer", "operator", "admin")
# What has no doors: the schema, and the address that tells that there is nothing here.
OPEN = {"openapi-json", "api-root"}
VALUES = {
    "{name}": "orders-in",
    "{instance}": "i-1",
    "{pool}": "orders",
    "{token_id}": "7",
    "{alert_id}": "7",
    "{pipeline}": "billing",
    "{batch}": "batch-1",
    "{saga}": "billing",
    "{key}": "order-1",
    "{number}": "1",
}


class Operation(NamedTuple):
    """One cell's address."""

    method: str
    path: str
    action: str


def _operations() -> Iterator[Operation]:
    for path, methods in api.get_openapi_schema(path_prefix="/api/v1/")["paths"].items():
        for method, told in methods.items():
            for mark, value in VALUES.items():
                path = path.replace(mark, value)
            yield Operation(method.upper(), path, told["x-kennel-action"])


OPERATIONS = list(_operations())
WRITES = [each for each in OPERATIONS if each.method != "GET"]


@pytest.fixture(autouse=True)
def _fresh_limits() -> None:
    caches["default"].clear()


def _call(client: Client, operation: Operation, **headers: str) -> Any:
    # A key that cannot be one stops whoever is let in right before the act, which is tried with real parts elsewhere.
    headers = {"Idempotency-Key": "not a key", **headers}
    return client.generic(
        operation.method, operation.path, b"{}", content_type="application/json", headers=headers
    )


def _sign_in(client: Client, role: str) -> None:
    user = User.objects.create_user("somebody")
    if role:
        user.groups.add(Group.objects.get(name=role))
    client.force_login(user)


def test_every_address_of_the_api_is_an_operation_of_its_schema() -> None:
    resolver = next(
        entry
        for entry in get_resolver().url_patterns
        if isinstance(entry, URLResolver) and entry.namespace == "api"
    )
    names = {entry.name for entry in resolver.url_patterns if isinstance(entry, URLPattern)}
    told = api.get_openapi_schema(path_prefix="/api/v1/")["paths"].values()
    operations = {each["operationId"].replace("_", "-") for methods in told for each in methods.values()}
    assert names - OPEN == operations
    assert all("{" not in operation.path for operation in OPERATIONS)


def test_every_action_on_the_fleet_has_an_operation() -> None:
    elsewhere = {"token.create", "token.revoke"}  # asked for by the act itself: whose token it is
    kinds = {"gate", "queue", "worker", "leader", "token", "scaling", "batch", "saga", "cost", "alert"}
    wanted = {action for action in ACTIONS if action.partition(".")[0] in kinds}
    assert wanted - {operation.action for operation in OPERATIONS} - elsewhere == set()


def test_nobody_is_let_in(client: Client) -> None:
    for operation in OPERATIONS:
        refused = _call(client, operation)
        assert (refused.status_code, refused["Content-Type"]) == (401, "application/problem+json"), operation
        assert refused["WWW-Authenticate"] == 'Bearer realm="kennel"'
    assert not AuditRow.objects.exists()


@pytest.mark.parametrize("role", ROLES)
def test_a_session_may_what_its_role_may(client: Client, role: str) -> None:
    _sign_in(client, role)
    for operation in OPERATIONS:
        _judge(_call(client, operation), operation, role, "somebody")


@pytest.mark.parametrize("role", ROLES[1:])
def test_a_token_may_what_its_role_may(client: Client, role: str) -> None:
    token = tokens.create("ci", scope=Scope.ACT, role=role)
    for operation in OPERATIONS:
        _judge(_call(client, operation, Authorization=f"Bearer {token}"), operation, role, "service ci")


@pytest.mark.parametrize("state", ["expired", "revoked", "for workers", "of nobody", "made up"])
def test_a_token_that_opens_nothing_is_nobody(client: Client, state: str) -> None:
    past = timezone.now() - timedelta(seconds=1) if state == "expired" else None
    scope = Scope.WORKER if state == "for workers" else Scope.ACT
    owner = User.objects.create_user("gone") if state == "of nobody" else None
    token = tokens.create("ci", scope=scope, role="admin", expires_at=past, owner=owner)
    if state == "revoked":
        WorkerToken.objects.update(revoked_at=timezone.now())
    if state == "made up":
        token = "ks_made_up_0123456789_0123456789"
    for operation in OPERATIONS:
        refused = _call(client, operation, Authorization=f"Bearer {token}")
        assert refused.status_code == 401, operation
    assert not AuditRow.objects.exists()


def test_a_token_for_reading_is_a_viewer_at_most(client: Client) -> None:
    token = tokens.create("prometheus", scope=Scope.READ, role="admin")
    for operation in OPERATIONS:
        answer = _call(client, operation, Authorization=f"Bearer {token}")
        _judge(answer, operation, "viewer", "service prometheus")


def test_a_session_without_the_csrf_token_changes_nothing() -> None:
    client = Client(enforce_csrf_checks=True)
    _sign_in(client, "admin")
    for operation in WRITES:
        refused = _call(client, operation)
        assert (refused.status_code, "X-CSRFToken" in refused.json()["detail"]) == (403, True), operation
    assert not AuditRow.objects.exists()


def test_an_operator_of_another_team_is_denied(client: Client) -> None:
    for kind in scoping.KINDS:
        add_rule(Actor("adam", "admin"), "payments", kind, "orders-*", "operator")
    team = Group.objects.create(name="shipping")
    token = tokens.create("ci", scope=Scope.ACT, role="operator", team=team)
    scoped = [
        each for each in WRITES if each.action.partition(".")[0] in scoping.KINDS and "orders-in" in each.path
    ]
    for operation in scoped:
        assert _call(client, operation, Authorization=f"Bearer {token}").status_code == 403, operation
    denied = [(row.action, row.outcome) for row in AuditRow.objects.filter(actor="service ci").order_by("id")]
    assert denied == [(operation.action, "denied") for operation in scoped]
    assert len(scoped) >= 8


def _judge(answer: Any, operation: Operation, role: str, actor: str) -> None:
    rows = [(row.action, row.outcome, row.actor) for row in AuditRow.objects.all()]
    AuditRow.objects.all().delete()
    if role_may(role, operation.action):
        allowed = (200, 404, 422, 503) if operation.method == "GET" else (400, 422)
        assert answer.status_code in allowed, (operation, answer.content)
        assert rows == [], operation
        return
    assert (answer.status_code, answer["Content-Type"]) == (403, "application/problem+json"), operation
    assert rows == ([] if operation.action == "page.view" else [(operation.action, "denied", actor)])
