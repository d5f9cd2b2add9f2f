"""Signing in, with a lock-out that grows: guessing passwords is slow, and seen in the audit.

Guarantees that after five wrong tries for a name from one address the next one waits, for 15 s, then twice as long
each time, up to 15 min; and that one address gets no more than 30 wrong tries in a row over all names. The right
password is not looked at while locked. Does not lock a name for other addresses: nobody can lock out an operator.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any

from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView
from django.db import transaction
from django.http import HttpRequest, HttpResponse

from dashboard import audit
from dashboard.actions import Actor
from dashboard.middleware import request_id_var
from dashboard.models import Outcome, SignInTries

FREE_TRIES = 5
FREE_TRIES_OF_ADDRESS = 30
FIRST_LOCK_SECONDS = 15.0
LONGEST_LOCK_SECONDS = 900.0
FORGET_SECONDS = 3600.0


def lock_seconds(tries: int, free: int) -> float:
    """How long to wait after so many wrong tries."""
    if tries < free:
        return 0.0
    return min(LONGEST_LOCK_SECONDS, FIRST_LOCK_SECONDS * 2.0 ** min(tries - free, 20))


class SignIn(LoginView):
    """Django's sign-in behind the lock."""

    redirect_authenticated_user = True

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        waits = max(_locked_for(key) for key, _ in self._keys(request))
        if waits <= 0:
            return super().post(request, *args, **kwargs)
        seconds = max(1, round(waits))
        form = self.get_form_class()(request)
        response = self.render_to_response(
            self.get_context_data(form=form, locked_seconds=seconds), status=429
        )
        response["Retry-After"] = str(seconds)
        return response

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        actor = self._actor(form)
        SignInTries.objects.filter(key=self._keys(self.request)[0][0]).delete()
        audit.outcome(audit.intent(actor, "sign_in", actor.name), Outcome.DONE)
        return super().form_valid(form)

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        for key, free in self._keys(self.request):
            _count(key, free)
        actor = self._actor(form)
        audit.denied(actor, "sign_in", actor.name)
        return super().form_invalid(form)

    def _actor(self, form: AuthenticationForm) -> Actor:
        name = form.get_user().get_username() if form.is_valid() else str(form.data.get("username", ""))[:150]
        return Actor(name or "nobody", "", _address(self.request), request_id_var.get())

    @staticmethod
    def _keys(request: HttpRequest) -> tuple[tuple[str, int], ...]:
        """What is counted: this name from this address, and this address."""
        name, address = str(request.POST.get("username", "")).strip().lower(), _address(request)
        return (_key(name, address), FREE_TRIES), (_key("", address), FREE_TRIES_OF_ADDRESS)


def _address(request: HttpRequest) -> str:
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
