"""The guard of views: who may not is answered, and written to the audit, before the view runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib import messages
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import urlencode

from dashboard.audit import log as audit
from dashboard.core.actor import Actor
from dashboard.core.permissions import ACTIONS, FRESH, IS_FRESH, WANTS_FACTOR, may, role_of


def requires(
    action: str, *, back: str = ""
) -> Callable[[Callable[..., HttpResponse]], Callable[..., HttpResponse]]:
    """Decorate a view: the signed-in user must be allowed `action` on the view's first named argument.

    Nobody signed in: to the sign-in page. Denied: written to the audit (page views excepted) and answered with 403. What
    destroys and an old sign-in: to the page that asks for the password once more, and from there to `back` (the name of
    an address; default: this one).
    """
    if action not in ACTIONS:
        raise KeyError(f"{action!r} is not in permissions.ACTIONS")

    def decorate(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
        @wraps(view)
        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if not request.user.is_authenticated:
                return redirect_to_login(request.get_full_path())
            if getattr(request.user, WANTS_FACTOR, False):
                messages.warning(request, "Your role needs a second factor: set it up to go on.")
                return redirect("mfa_activate_totp")
            target = str(next(iter(kwargs.values()), ""))
            if may(request.user, action, target):
                if action in FRESH and not getattr(request.user, IS_FRESH, False):
                    after = reverse(back) if back else request.path
                    return redirect(f"{reverse('account_reauthenticate')}?{urlencode({'next': after})}")
                return view(request, *args, **kwargs)
            if action != "page.view":
                audit.denied(Actor.from_request(request), action, target)
            return render(
                request,
                "403.html",
                {"action": action, "needed": ACTIONS[action], "role": role_of(request.user)},
                status=403,
            )

        guarded.kennel_action = action  # type: ignore[attr-defined]
        return guarded

    return decorate
