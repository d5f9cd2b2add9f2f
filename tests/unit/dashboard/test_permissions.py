"""Promises about who may do what."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import AnonymousUser, Group, User

from dashboard.core import permissions


@pytest.mark.parametrize("action", sorted(permissions.ACTIONS))
@pytest.mark.parametrize("role", ["", "viewer", "operator", "admin"])
def test_a_role_may_do_what_lower_roles_may_and_no_more(role: str, action: str) -> None:
    order = ["", "viewer", "operator", "admin"]
    expected = order.index(role) >= order.index(permissions.ACTIONS[action])
    assert permissions.role_may(role, action) is expected


def test_what_changes_anything_but_their_own_tokens_is_out_of_a_viewers_reach() -> None:
    allowed = {action for action in permissions.ACTIONS if permissions.role_may("viewer", action)}
    assert allowed == {
        "page.view",
        "wallboard.view",
        "audit.export",
        "sequence.statement",
        "session.end_own",
        "token.create_own",
        "token.revoke_own",
    }


def test_an_unlisted_action_or_role_may_do_nothing() -> None:
    assert not permissions.role_may("admin", "gate.explode")
    assert not permissions.role_may("owner", "page.view")


def test_nobody_signed_in_has_no_role() -> None:
    assert permissions.role_of(AnonymousUser()) == ""


@pytest.mark.django_db
def test_the_highest_group_counts_and_an_inactive_user_has_no_role() -> None:
    user = User.objects.create_user("x")
    assert permissions.role_of(user) == ""
    for name, expected in (("viewer", "viewer"), ("admin", "admin"), ("operator", "admin")):
        user.groups.add(Group.objects.get(name=name))
        assert permissions.role_of(User.objects.get(pk=user.pk)) == expected
    user.is_active = False
    user.save()
    assert permissions.role_of(User.objects.get(pk=user.pk)) == ""
