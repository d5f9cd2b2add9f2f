"""Promises about teams and what they act on."""

from __future__ import annotations

import io
import re

import pytest
from django.contrib.auth.models import Group, User
from django.contrib.sessions.backends.db import SessionStore
from django.core.management import CommandError, call_command
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.test.utils import CaptureQueriesContext

from dashboard.access.team_actions import add_rule, remove_rule, set_member
from dashboard.core import permissions
from dashboard.core import permissions as scoping
from dashboard.core.audit import ActionFailed, Denied, audited
from dashboard.core.dispatch import by_name
from dashboard.core.permissions import Actor, PermissionRule, Permissions, role_on
from dashboard.live import fragments
from dashboard.models import AuditRow, TeamRule
from dashboard.pages.views import actor_of, requires
from tests.unit.pages.fleets import full

ADAM = Actor("adam", "admin")
PAY = frozenset({"payments"})
RULES = (
    PermissionRule("payments", "queue", "pay-*", "operator"),
    PermissionRule("payments", "gate", "pay-*", "operator"),
    PermissionRule("audit", "queue", "pay-refunds", "viewer"),
    PermissionRule("night", "queue", "pay-refunds", "admin"),
)


@pytest.mark.parametrize(
    ("role", "teams", "kind", "name", "expected"),
    [
        ("operator", PAY, "queue", "pay-in", "operator"),
        ("operator", frozenset(), "queue", "pay-in", "viewer"),
        ("operator", frozenset({"other"}), "gate", "pay-start", "viewer"),
        ("operator", frozenset({"other"}), "gate", "start", "operator"),
        ("viewer", PAY, "queue", "pay-in", "operator"),
        ("viewer", PAY, "queue", "orders", "viewer"),
        ("viewer", PAY, "queue", "", "operator"),
        ("operator", PAY, "queue", "pay-in-poison", "operator"),
        ("operator", frozenset(), "queue", "pay-refunds-poison", "viewer"),
        ("operator", frozenset({"night"}), "queue", "pay-refunds", "admin"),
        ("operator", frozenset({"audit"}), "queue", "pay-refunds", "viewer"),
        ("operator", frozenset({"audit", "night"}), "queue", "pay-refunds", "admin"),
        ("admin", frozenset(), "queue", "pay-in", "admin"),
        ("", PAY, "queue", "pay-in", ""),
        ("owner", PAY, "queue", "pay-in", ""),
    ],
)
def test_what_a_rule_covers_belongs_to_its_team(
    role: str, teams: frozenset[str], kind: str, name: str, expected: str
) -> None:
    assert role_on(role, teams, kind, name, RULES) == expected


@pytest.mark.parametrize("role", scoping.ROLES)
def test_without_rules_roles_count_everywhere(role: str) -> None:
    assert role_on(role, PAY, "queue", "pay-in", ()) == role


@pytest.mark.django_db
def test_another_teams_operator_is_denied_by_every_act_on_gates_and_queues_and_told_whose_it_is() -> None:
    add_rule(ADAM, "payments", "gate", "pay-*", "operator")
    add_rule(ADAM, "payments", "queue", "pay-*", "operator")
    stranger = Actor("otto", "operator", teams=frozenset({"shipping"}))
    acts = [name for name in permissions.ACTIONS if name.partition(".")[0] in scoping.KINDS]
    assert len(acts) >= 9
    for action in acts:
        assert not permissions.role_may("operator", action, "pay-in", stranger.teams, scoping.all_rules), (
            action
        )
    for action in ("gate.open", "gate.close", "gate.create", "queue.create", "queue.put", "queue.requeue"):
        with pytest.raises(Denied, match="in the team payments"):
            by_name(stranger, action, "pay-in", {"body": "{}", "reason": "x"})
    rows = AuditRow.objects.filter(actor="otto")
    assert {row.outcome for row in rows} == {"denied"}
    assert rows.count() == 6


@pytest.mark.django_db
def test_rules_and_members_are_changed_by_administrators_and_audited_with_before_and_after() -> None:
    olga = User.objects.create_user("olga")
    with pytest.raises(Denied):
        add_rule(Actor("olga", "operator"), "payments", "gate", "*", "operator")
    add_rule(ADAM, "payments", "gate", "pay-*", "viewer")
    add_rule(ADAM, "payments", "gate", "pay-*", "operator", reason="they asked")
    row = AuditRow.objects.get(action="team.rule", reason="they asked", outcome="done")
    assert '"viewer"' in row.before
    assert '"operator"' in row.after
    set_member(ADAM, "payments", "olga", member=True)
    assert permissions.teams_of(User.objects.get(pk=olga.pk)) == PAY
    set_member(ADAM, "payments", "olga", member=False)
    assert permissions.teams_of(User.objects.get(pk=olga.pk)) == frozenset()
    remove_rule(ADAM, TeamRule.objects.get().pk)
    assert scoping.all_rules() == ()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (("admin", "gate", "*", "operator"), "admin is a role or looks like one"),
        (("a/b", "gate", "*", "operator"), "A team has a name"),
        (("payments", "leader", "*", "operator"), "not for 'leader'"),
        (("payments", "gate", "Pay *", "operator"), "A pattern is a name"),
        (("payments", "gate", "*", "owner"), "not 'owner'"),
    ],
)
def test_a_rule_that_cannot_be_is_answered_with_why(rule: tuple[str, str, str, str], said: str) -> None:
    with pytest.raises(ActionFailed, match=said):
        add_rule(ADAM, *rule)
    assert not TeamRule.objects.exists()


@pytest.mark.django_db
def test_the_command_line_keeps_teams_too() -> None:
    User.objects.create_user("olga")
    call_command("team", "allow", "payments", "queue", "pay-*")
    call_command("team", "join", "payments", "olga")
    out = io.StringIO()
    call_command("team", "list", stdout=out)
    assert "payments: operator of queue pay-*" in out.getvalue()
    assert Group.objects.get(name="payments").user_set.count() == 1
    with pytest.raises(CommandError, match="does not exist"):
        call_command("team", "join", "payments", "nobody")


def test_pages_offer_no_act_on_another_teams_gate_and_say_whose_it_is() -> None:
    rules = (PermissionRule("payments", "gate", "start", "operator"),)
    own, other = (
        fragments.render_each("gates", full(), "operator", permissions=Permissions("operator", teams, rules))[
            "gates"
        ]
        for teams in (PAY, frozenset({"shipping"}))
    )
    assert "/gates/start/leash" in own
    assert "/gates/start/leash" not in other
    assert "/gates/nightly/unleash" in other
    assert "operators of the team payments" in other


@pytest.mark.parametrize(("page", "region"), [("queues", "queues"), ("queue", "queue")])
def test_pages_of_queues_say_whose_each_is(page: str, region: str) -> None:
    def shown(*rules: PermissionRule) -> str:
        reach = Permissions("viewer", PAY, rules)
        return fragments.render_each(page, full(), "viewer", "name=orders-in", reach)[region].lower()

    assert re.search(
        "team(</dt><dd[^>]*>| )payments", shown(PermissionRule("payments", "queue", "orders-*", "operator"))
    )
    assert "team" not in shown(PermissionRule("payments", "queue", "pay-*", "operator"))


@pytest.mark.django_db
def test_the_rules_are_read_once_a_press(rf: RequestFactory) -> None:
    @requires("gate.open")
    def press(request: HttpRequest, name: str) -> HttpResponse:
        with audited(actor_of(request), "gate.open", name):
            return HttpResponse("opened")

    request = rf.post("/")
    user = User.objects.create_user("olga")
    user.groups.add(Group.objects.get(name="operator"))
    request.user, request.session = user, SessionStore()
    with CaptureQueriesContext(connection) as queries:
        assert press(request, name="start").content == b"opened"
    assert sum("dashboard_teamrule" in query["sql"] for query in queries.captured_queries) == 1
