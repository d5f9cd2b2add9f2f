"""The one place where it is decided whether somebody may do something: views, API, sockets and commands ask here."""

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
from dashboard.core.errors import Denied
from dashboard.core.permissions import ACTIONS, FRESH, WANTS_FACTOR, role_may
from dashboard.core.teams import owning_teams

CONFIRM_PATH = "/accounts/confirm/"


def decide(actor: Actor, action: str, target: str = "") -> str:
    """Why the actor may not do this to that; "" if they may. Decided once for each actor."""
    key = (action, target)
    if key not in actor.decisions:
        actor.decisions[key] = _why_not(actor, action, target)
    return actor.decisions[key]


def permit(actor: Actor, action: str, target: str, *, reason: str = "") -> None:
    """Raise `Denied`, and write it to the audit, unless the actor may do this to that by a recent enough sign-in."""
    why = decide(actor, action, target)
    if not why and action in FRESH and not actor.fresh:
        why = f"Your sign-in is too old for this action: confirm it at {CONFIRM_PATH}, then try again."
    if why:
        audit.denied(actor, action, target, reason=reason)
        raise Denied(why)


def actor_of(request: HttpRequest) -> Actor:
    """Who acts by this request."""
    if not hasattr(request, "kennel_actor"):
        request.kennel_actor = Actor.from_request(request)  # type: ignore[attr-defined]
    actor: Actor = request.kennel_actor  # type: ignore[attr-defined]
    return actor


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
                messages.warning(
                    request, "Your role requires two-factor authentication. Set it up to continue."
                )
                return redirect("mfa_activate_totp")
            target = str(next(iter(kwargs.values()), ""))
            actor = actor_of(request)
            if not decide(actor, action, target):
                if action in FRESH and not actor.fresh:
                    after = reverse(back) if back else request.path
                    return redirect(f"{reverse('account_reauthenticate')}?{urlencode({'next': after})}")
                return view(request, *args, **kwargs)
            if action != "page.view":
                audit.denied(actor, action, target)
            return render(
                request,
                "403.html",
                {"action": action, "needed": ACTIONS[action], "role": actor.role},
                status=403,
            )

        guarded.kennel_action = action  # type: ignore[attr-defined]
        return guarded

    return decorate


def _why_not(actor: Actor, action: str, target: str) -> str:
    if role_may(actor.role, action, target, actor.teams, lambda: actor.rules):
        return ""
    if not actor.role:
        return f"{actor.name} has no role; ask an administrator for one."
    owners = owning_teams(action.partition(".")[0], target, actor.rules)
    team = f", in the team {' or '.join(owners)} that {target} belongs to" if owners else ""
    return f"{actor.name} ({actor.role}) may not do this: {action} needs the role {ACTIONS.get(action, 'nobody')}{team}."
