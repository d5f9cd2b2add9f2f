"""Who is let in where: every address of the URLconf, as nobody, as each role. A new address fails until it is listed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse

from dashboard.models import AuditRow
from dashboard.permissions import ACTIONS, role_may

pytestmark = pytest.mark.django_db

PUBLIC = {"healthz", "readyz", "login", "logout"}
READ = {
    "overview", "cost", "scaling", "tv", "help", "search", "ledger-csv", "audit-csv", "gates", "queues", "queue", "workers", "leaders", "sequences", "audit", "history", "metrics",
    "api-fleet", "api-attention", "api-history",
}  # fmt: skip
# name of the address → (arguments, action) for everything that changes something
ACTS: list[tuple[str, dict[str, str], str]] = [
    ("gates", {}, "gate.create"),
    ("gate-unleash", {"name": "start-it"}, "gate.open"),
    ("gate-leash", {"name": "start-it"}, "gate.close"),
    ("queues", {}, "queue.create"),
    ("queue-do", {"name": "orders-in", "verb": "put"}, "queue.put"),
    ("queue-do", {"name": "orders-in", "verb": "requeue"}, "queue.requeue"),
    ("queue-do", {"name": "orders-in", "verb": "clear"}, "queue.clear"),
    ("queue-do", {"name": "orders-in", "verb": "delete"}, "queue.delete"),
    ("queue-rule", {"name": "orders-in"}, "queue.rule"),
    ("scaling-policy", {"pool": "orders"}, "scaling.policy"),
    ("worker-do", {"instance": "i-1", "verb": "drain"}, "worker.drain"),
    ("worker-do", {"instance": "i-1", "verb": "resume"}, "worker.resume"),
    ("worker-do", {"instance": "i-1", "verb": "stop"}, "worker.stop"),
    ("leader-step-down", {"name": "month-end"}, "leader.step_down"),
    ("leader-break", {"name": "month-end"}, "leader.break"),
]
ARGUMENTS = {"queue": {"name": "orders-in"}}
ROLES = ("", "viewer", "operator", "admin")


def _names(resolver: URLResolver) -> Iterator[str]:
    for entry in resolver.url_patterns:
        if isinstance(entry, URLResolver):
            yield from _names(entry)
        elif isinstance(entry, URLPattern):
            yield entry.name or str(entry.pattern)


def _sign_in(client: Client, role: str) -> None:
    user = User.objects.create_user(f"user-{role or 'none'}")
    if role:
        user.groups.add(Group.objects.get(name=role))
    client.force_login(user)


def test_every_address_is_in_the_matrix() -> None:
    listed = PUBLIC | READ | {name for name, _, _ in ACTS}
    assert set(_names(get_resolver())) == listed


def test_every_action_of_the_matrix_is_a_known_one() -> None:
    assert {action for _, _, action in ACTS} <= set(ACTIONS)


@pytest.mark.parametrize("name", sorted(READ))
def test_pages_are_for_those_with_a_role(client: Client, name: str) -> None:
    path = reverse(name, kwargs=ARGUMENTS.get(name))
    anonymous = client.get(path)
    assert anonymous.status_code in (302, 401)
    if anonymous.status_code == 302:
        assert anonymous["Location"].startswith(reverse("login"))
    _sign_in(client, "")
    assert client.get(path).status_code == 403


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    ("name", "arguments", "action"), ACTS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_an_action_is_denied_below_its_role_and_the_attempt_is_in_the_audit(
    client: Client, name: str, arguments: dict[str, str], action: str, role: str
) -> None:
    path = reverse(name, kwargs=arguments)
    anonymous = client.post(path)
    assert anonymous.status_code == 302
    assert anonymous["Location"].startswith(reverse("login"))
    if role_may(role, action):
        return  # what is allowed is tried with real parts in the integration tests
    _sign_in(client, role)
    assert client.post(path, {"name": "start-it", "typed": "orders-in"}).status_code == 403
    row = AuditRow.objects.get()
    assert (row.action, row.outcome, row.actor) == (action, "denied", f"user-{role or 'none'}")


@pytest.mark.parametrize(
    ("name", "arguments", "action"), ACTS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_no_action_is_done_without_the_form_token(name: str, arguments: dict[str, str], action: str) -> None:
    client = Client(enforce_csrf_checks=True)
    _sign_in(client, "admin")
    assert client.post(reverse(name, kwargs=arguments)).status_code == 403
    assert not AuditRow.objects.exists()
