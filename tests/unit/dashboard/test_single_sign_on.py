"""The provider's groups as roles."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from pytest_django import Settings

from dashboard.accounts.single_sign_on import _take_role, role_from
from dashboard.models import AuditRow

GROUPS = {"kennel-admins": "admin", "ops": "operator", "a=b": "viewer"}


@pytest.fixture(autouse=True)
def mapped(settings: Settings) -> None:
    settings.OIDC = {**settings.OIDC, "groups": GROUPS, "groups_claim": "groups"}


@pytest.mark.parametrize(
    ("told", "role"),
    [
        (["ops"], "operator"),
        (["ops", "kennel-admins"], "admin"),
        ("a=b", "viewer"),
        ([], ""),
        (None, ""),
        (["OPS", "admin", "operator"], ""),
        ([["ops"], {"ops": 1}, 7], ""),
        ({"ops": "ops"}, ""),
    ],
)
def test_the_highest_role_of_the_groups_counts_and_none_without_one(told: Any, role: str) -> None:
    assert role_from({"groups": told}) == role


@pytest.mark.django_db
def test_the_role_follows_the_groups_at_each_sign_in_and_teams_stay() -> None:
    olga = User.objects.create_user("olga")
    olga.groups.add(Group.objects.get(name="admin"), Group.objects.create(name="payments"))
    for groups, role in ((["ops"], "operator"), (["ops"], "operator"), ([], "")):
        _take_role(olga, {"groups": groups})
        names = set(olga.groups.values_list("name", flat=True))
        assert names == {"payments"} | ({role} if role else set())
    rows = AuditRow.objects.filter(action="role.set", outcome="done").order_by("pk")
    assert [(row.target, row.before, row.after) for row in rows] == [
        ("olga", '["admin"]', '["operator"]'),
        ("olga", '["operator"]', "[]"),
    ]


@pytest.mark.django_db
def test_without_a_map_roles_are_given_here_alone(settings: Settings) -> None:
    settings.OIDC = {**settings.OIDC, "groups": {}}
    olga = User.objects.create_user("olga")
    olga.groups.add(Group.objects.get(name="operator"))
    _take_role(olga, {"groups": ["kennel-admins"]})
    assert [group.name for group in olga.groups.all()] == ["operator"]
