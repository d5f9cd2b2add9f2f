"""What all pages share: showing a page, and answering an action in the way the browser asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any
from urllib.parse import urlsplit

from django.contrib import messages
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.template.loader import get_template, render_to_string
from django.urls import reverse
from django.utils.http import urlencode

from dashboard.accounts import kiosks
from dashboard.core import audit
from dashboard.core import permissions as teams
from dashboard.core.audit import ActionFailed
from dashboard.core.pages import registry
from dashboard.core.permissions import ACTIONS, FRESH, WANTS_FACTOR, Actor, decide
from dashboard.live import fragments
from dashboard.pages import queries as selectors

MAX_QUERY = 2000
WALLBOARD = "wallboard.view"


def show(
    request: HttpRequest,
    template: str,
    page: str,
    *,
    live: bool = True,
    query: str = "",
    status: int = 200,
    **more: Any,
) -> HttpResponse:
    """A page with all its regions at this moment. `query` is what the live regions depend on."""
    fleet = selectors.fleet()
    context = fragments.context_of(page, fleet, actor_of(request).role, query, permissions_of(request))
    context |= {"live": live, "live_query": query, **more}
    return HttpResponse(fragments.draw(get_template(template), context, request), status=status)  # type: ignore[arg-type]


def act(
    request: HttpRequest, action: Callable[[Actor], object], done: str, *, back: str, page: str = ""
) -> HttpResponse:
    """Do one action and report how it went: as changed regions to htmx, else by a message on the page it came from."""
    problem = ""
    try:
        action(actor_of(request))
    except ActionFailed as error:
        problem = str(error)
    if problem:
        messages.error(request, problem)
    else:
        messages.success(request, done)
    htmx = getattr(request, "htmx", None)
    if not htmx:
        return redirect(back)
    query = urlsplit(htmx.current_url or "").query[:MAX_QUERY]
    page = page if page in registry().by_name else "other"
    notice = render_to_string("live/common.html#notice", {"oob": True}, request)
    state = fragments.render_all(
        page, selectors.fleet(), actor_of(request).role, query, permissions_of(request)
    )
    return HttpResponse(f"{notice}\n{state}")


def is_confirmed(request: HttpRequest, phrase: str) -> bool:
    """Whether the form of `confirm` was sent with the phrase typed."""
    return request.method == "POST" and text(request, "typed") == phrase


def confirm(
    request: HttpRequest,
    phrase: str,
    *,
    title: str,
    verb: str,
    consequences: Sequence[str],
    back: str,
    names: Sequence[str] = (),
) -> HttpResponse:
    """The page that lists what an act does and asks to type `phrase`; `names` are sent again with the answer.

    422 and the reason if something else was typed.
    """
    # The first request for several names is a post, too.
    wrong = request.method == "POST" and ("typed" in request.POST or not names)
    return show(
        request,
        "core/confirm.html",
        "other",
        live=False,
        status=422 if wrong else 200,
        name=phrase,
        title=title,
        verb=verb,
        consequences=consequences,
        back=back,
        ticked=names,
        problem="The name does not match. Nothing changed." if wrong else "",
    )


def permissions_of(request: HttpRequest) -> teams.Permissions:
    """What the signed-in person may do where, to show it."""
    actor = actor_of(request)
    return teams.permissions_of(actor.role, actor.teams)


def cards_query(request: HttpRequest) -> str:
    """What the live cards of a page depend on: `q` is part of a name, `after` the place to continue."""
    # A blob's name has at most 1,024 characters.
    return query_of(q=request.GET.get("q", "")[:1024], after=request.GET.get("after", "")[:1026])


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

    Nobody signed in: to the sign-in page; a screen sees what `WALLBOARD` allows. Denied: written to the audit (page views excepted) and answered with 403. What
    destroys and an old sign-in: to the page that asks for the password once more, and from there to `back` (the name of
    an address; default: this one).
    """
    if action not in ACTIONS:
        raise KeyError(f"{action!r} is not in permissions.ACTIONS")

    def decorate(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
        @wraps(view)
        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if not request.user.is_authenticated:
                if action != WALLBOARD or kiosks.token_of(request.session) is None:
                    return redirect_to_login(request.get_full_path())
                screen = kiosks.actor_of(request)
                if screen is None:
                    return redirect("kiosk")
                request.kennel_actor = screen  # type: ignore[attr-defined]
                return view(request, *args, **kwargs)
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
            if action not in ("page.view", WALLBOARD):
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


# No database and no page can hold them.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def text(request: HttpRequest, name: str, limit: int = 200) -> str:
    """A field of the form, trimmed."""
    return _UNSTORABLE.sub(" ", request.POST.get(name, "")).strip()[:limit]


_GROUPED = re.compile(r"[0-9]{1,3}(,[0-9]{3})+")


def whole_number(value: str) -> int | None:
    """A number as people type it, with or without spaces or commas between thousands; None for anything else."""
    digits = "".join(value.split()).replace("\N{NARROW NO-BREAK SPACE}", "")
    if _GROUPED.fullmatch(digits):
        digits = digits.replace(",", "")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 19 else None


def query_of(**values: object) -> str:
    """A query string of those values that say something."""
    return urlencode({key: str(value) for key, value in values.items() if value not in (None, "")})
