"""Single sign-on: which user an identity of the OpenID Connect provider is.

Guarantees that nobody gets a user by signing in: an administrator makes it. At the first time the user is found by the
claim named in the settings; from then on by the provider's unchanging identifier alone, so that a name given to
somebody else later opens nothing. With `KENNEL_OIDC_GROUPS` the provider's groups are the role, at each sign-in: the
highest that one of them gives, and none without one of them. Teams stay as they are here.
"""

from __future__ import annotations

import json
from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.models import SocialAccount
from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.db import transaction
from django.http import HttpRequest
from django.shortcuts import render

from dashboard.core import audit
from dashboard.core.middleware import request_id_var
from dashboard.core.permissions import ROLES, Actor
from dashboard.models import AuditOutcome

PROVIDER = "sso"


class Accounts(DefaultAccountAdapter):  # type: ignore[misc]
    """Nobody signs up; being signed in needs no announcement."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False

    def add_message(
        self, request: HttpRequest, level: int, message_template: str | None = None, *args: Any, **more: Any
    ) -> None:
        if message_template not in ("account/messages/logged_in.txt", "account/messages/logged_out.txt"):
            super().add_message(request, level, message_template, *args, **more)


class SocialAdapter(DefaultSocialAccountAdapter):  # type: ignore[misc]
    """Maps the provider's identities to users."""

    def is_open_for_signup(self, request: HttpRequest, sociallogin: Any) -> bool:
        return False

    def pre_social_login(self, request: HttpRequest, sociallogin: Any) -> None:
        data = sociallogin.account.extra_data
        claims = {**data.get("id_token", {}), **data.get("userinfo", {})}
        if sociallogin.is_existing:
            if not sociallogin.user.is_active:
                self._refuse(request, sociallogin.user.get_username(), "is not active")
            _take_role(sociallogin.user, claims)
            return
        name = str(claims.get(settings.OIDC["claim"]) or "")
        user = get_user_model().objects.filter(username=name, is_active=True).first() if name else None
        if user is None:
            self._refuse(request, name, "has no user here")
        elif SocialAccount.objects.filter(user=user).exists():
            self._refuse(request, name, "is already somebody else's name")
        else:
            sociallogin.connect(request, user)
            _take_role(user, claims)

    def _refuse(self, request: HttpRequest, name: str, why: str) -> None:
        actor = Actor(
            name[:150] or "nobody", "", str(request.META.get("REMOTE_ADDR") or ""), request_id_var.get()
        )
        audit.denied(actor, "sign_in", actor.name, reason=f"single sign-on: {why}")
        raise ImmediateHttpResponse(render(request, "accounts/refused.html", {"name": name}, status=403))


def role_from(claims: dict[str, Any]) -> str:
    """The highest role that the groups in these claims give; "" for none."""
    data = claims.get(settings.OIDC["groups_claim"])
    groups = data if isinstance(data, list) else [data]
    roles = {settings.OIDC["groups"].get(group) for group in groups if isinstance(group, str)}
    return next((role for role in reversed(ROLES) if role in roles), "")


def _take_role(user: Any, claims: dict[str, Any]) -> None:
    """Give the role that the provider's groups give, and take every other; nothing if the settings map no groups."""
    if not settings.OIDC["groups"]:
        return
    role = role_from(claims)
    had = sorted(user.groups.filter(name__in=ROLES).values_list("name", flat=True))
    if had == ([role] if role else []):
        return
    actor = Actor("single sign-on", "", "", request_id_var.get())
    row = audit.intent(actor, "role.set", user.get_username(), before=json.dumps(had))
    with transaction.atomic():
        user.groups.remove(*Group.objects.filter(name__in=ROLES))
        if role:
            user.groups.add(Group.objects.get(name=role))
    audit.settle(row, AuditOutcome.DONE, after=json.dumps([role] if role else []))
