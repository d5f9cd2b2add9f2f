"""Signing in, with a lock-out that grows: guessing passwords and codes is slow, and seen in the audit.

Guarantees that after five wrong tries for a name from one address the next one waits, for 15 s, then twice as long
each time, up to 15 min; and that one address gets no more than 30 wrong tries in a row over all names. The right
password is not looked at while locked. Does not lock a name for other addresses: nobody can lock out an operator.
Wrong codes of the second factor count for the person, from wherever: who gets to try them knows the password.
Single sign-on counts nothing here: its provider does.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any

from allauth.account.internal.flows.login import perform_password_login
from allauth.account.models import Login
from allauth.account.views import ReauthenticateView
from allauth.mfa.base.views import AuthenticateView
from allauth.mfa.base.views import ReauthenticateView as ReauthenticateByCodeView
from django.conf import settings
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.http import urlencode

from dashboard import audit
from dashboard.actions import Actor
from dashboard.middleware import request_id_var
from dashboard.models import SignInTries
from dashboard.single_sign_on import PROVIDER

FREE_TRIES = 5
FREE_TRIES_OF_ADDRESS = 30
FIRST_LOCK_SECONDS = 15.0
LONGEST_LOCK_SECONDS = 900.0
FORGET_SECONDS = 3600.0

Keys = tuple[tuple[str, int], ...]


def lock_seconds(tries: int, free: int) -> float:
    """How long to wait after so many wrong tries."""
    if tries < free:
        return 0.0
    return min(LONGEST_LOCK_SECONDS, FIRST_LOCK_SECONDS * 2.0 ** min(tries - free, 20))


class Locked:
    """A form view behind the lock: `keys` is what its wrong tries count for, `who` the name for the audit."""

    request: HttpRequest

    def keys(self) -> Keys:
        raise NotImplementedError

    def who(self) -> str:
        raise NotImplementedError

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        waits = max(_locked_for(key) for key, _ in self.keys())
        if waits <= 0:
            answer: HttpResponse = super().post(request, *args, **kwargs)  # type: ignore[misc]
            return answer
        seconds = max(1, round(waits))
        response = self.unbound(seconds)
        response.status_code = 429
        response["Retry-After"] = str(seconds)
        return response

    def unbound(self, seconds: int) -> HttpResponse:
        """The page with a form that has not looked at what was sent."""
        view: Any = self
        form = view.get_form_class()(**{**view.get_form_kwargs(), "data": None, "files": None})
        answer: HttpResponse = view.render_to_response(
            view.get_context_data(form=form, locked_seconds=seconds)
        )
        return answer

    def form_valid(self, form: Any) -> HttpResponse:
        SignInTries.objects.filter(key=self.keys()[0][0]).delete()
        answer: HttpResponse = super().form_valid(form)  # type: ignore[misc]
        return answer

    def form_invalid(self, form: Any) -> HttpResponse:
        for key, free in self.keys():
            _count(key, free)
        name = self.who()
        audit.denied(Actor(name, "", address_of(self.request), request_id_var.get()), "sign_in", name)
        answer: HttpResponse = super().form_invalid(form)  # type: ignore[misc]
        return answer


class SignIn(Locked, LoginView):
    """Name and password; then the second factor, for those who have one."""

    redirect_authenticated_user = True

    def keys(self) -> Keys:
        """This name from this address, and this address."""
        name, address = str(self.request.POST.get("username", "")).strip().lower(), address_of(self.request)
        return (_key(name, address), FREE_TRIES), (_key("", address), FREE_TRIES_OF_ADDRESS)

    def who(self) -> str:
        return str(self.request.POST.get("username", ""))[:150] or "nobody"

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        SignInTries.objects.filter(key=self.keys()[0][0]).delete()
        user = form.get_user()
        login = Login(user=user, redirect_url=self.get_success_url())
        answer: HttpResponse = perform_password_login(self.request, {"username": user.get_username()}, login)
        return answer

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        context = super().get_context_data(**kwargs)
        if settings.OIDC["url"]:
            url = reverse("openid_connect_login", args=[PROVIDER])
            asked = urlencode({"next": self.get_redirect_url()}) if self.get_redirect_url() else ""
            context |= {"sso_name": settings.OIDC["name"], "sso_url": f"{url}?{asked}"}
        return context


class SecondFactor(Locked, AuthenticateView):  # type: ignore[misc]
    """A code of the authenticator, or a recovery code, after the right password."""

    def keys(self) -> Keys:
        return ((_key(f"code of {self.stage.login.user.pk}", ""), FREE_TRIES),)

    def who(self) -> str:
        return str(self.stage.login.user.get_username())

    def unbound(self, seconds: int) -> HttpResponse:
        self.auth_form = self.get_form_class()(user=self.stage.login.user)
        context = {**self.get_context_data(), "locked_seconds": seconds}
        answer: HttpResponse = self.render_to_response(context)
        return answer


class ConfirmPassword(Locked, ReauthenticateView):  # type: ignore[misc]
    """The password once more, before the second factor is changed."""

    def keys(self) -> Keys:
        return ((_key(self.who().lower(), address_of(self.request)), FREE_TRIES),)

    def who(self) -> str:
        return str(self.request.user.get_username())


class ConfirmCode(Locked, ReauthenticateByCodeView):  # type: ignore[misc]
    """A code once more, before the second factor is changed."""

    def keys(self) -> Keys:
        return ((_key(f"code of {self.request.user.pk}", ""), FREE_TRIES),)

    def who(self) -> str:
        return str(self.request.user.get_username())


def address_of(request: HttpRequest) -> str:
    return str(request.META.get("REMOTE_ADDR") or "")


def _key(name: str, address: str) -> str:
    # A digest, because people type passwords into the field for names.
    return hashlib.sha256(f"{name}\0{address}".encode()).hexdigest()


def _locked_for(key: str) -> float:
    row = SignInTries.objects.filter(key=key).first()
    return row.locked_until - time.time() if row is not None else 0.0


def _count(key: str, free: int) -> None:
    now = time.time()
    with transaction.atomic():
        SignInTries.objects.filter(last_at__lt=now - FORGET_SECONDS).delete()
        row, _ = SignInTries.objects.select_for_update().get_or_create(key=key, defaults={"last_at": now})
        row.tries += 1
        row.last_at = now
        row.locked_until = now + lock_seconds(row.tries, free)
        row.save()
