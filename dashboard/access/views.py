"""Access: who one is here and where one is signed in, tokens, and teams with what only they act on."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib import messages
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboard.access import people_actions, queries, team_actions, token_actions
from dashboard.accounts import sessions
from dashboard.core.audit import ActionFailed, Denied
from dashboard.core.permissions import KINDS, NEW, RANK, ROLES, decide
from dashboard.models import Scope, TeamRule
from dashboard.pages.views import act, actor_of, confirm, is_confirmed, requires, show, text


@require_safe
@requires("page.view")
def access(request: HttpRequest) -> HttpResponse:
    return _page(request)


@require_POST
@never_cache
@requires("token.create_own")
def create_token(request: HttpRequest) -> HttpResponse:
    """Make a token: one's own, or (`kind` service, worker or kiosk) another, for administrators. Its secret is in this answer alone."""
    kind, role = text(request, "kind"), text(request, "role")
    scope = Scope.READ if role in ("", "viewer") else Scope.ACT
    if kind in ("worker", "kiosk"):
        scope, role = Scope(kind), ""
    try:
        made = token_actions.create_token(
            actor_of(request),
            text(request, "name"),
            scope=scope,
            days=_days(text(request, "days", 8)),
            owner=None if kind in ("service", "worker", "kiosk") else request.user,
            role=role,
            team=text(request, "team") if kind == "service" else "",
            allowance=_claims(request) if kind == "worker" else None,
        )
    except ActionFailed as error:
        status = 403 if isinstance(error, Denied) else 422
        messages.error(request, str(error))
        return _page(request, status=status)
    screen = f"{request.build_absolute_uri(reverse('kiosk'))}#{made}" if scope == Scope.KIOSK else ""
    return _page(request, made=made, screen=screen)


@require_http_methods(["GET", "HEAD", "POST"])
@requires("token.revoke_own")
def revoke_token(request: HttpRequest, token: int) -> HttpResponse:
    """Asks for the typed name, then ends the token. Those of others are for administrators."""
    back = reverse("access")
    found = next((each for each in queries.tokens() if each.id == token), None)
    name = found.name if found is not None else ""
    if (found is None and request.method == "POST") or is_confirmed(request, name):
        return act(
            request,
            lambda actor: token_actions.revoke_token(actor, token),
            f"{name} has been revoked.",
            back=back,
        )
    mine = found is not None and found.owner == request.user.get_username()
    if found is None or found.state != "valid" or not (mine or not decide(actor_of(request), "token.revoke")):
        raise Http404(token)
    return confirm(
        request,
        name,
        title=f"Revoke {name}?",
        verb="Revoke",
        consequences=(
            "Requests with this token are refused from now on.",
            "Connections opened with it are closed within seconds.",
            "A revoked token cannot be restored; create a new one.",
        ),
        back=back,
    )


def _with_password(request: HttpRequest, make: Callable[[], str], user: str) -> HttpResponse:
    """The page with a first password: it is in this answer alone."""
    try:
        return _page(request, password=make(), person=user)
    except ActionFailed as error:
        messages.error(request, str(error))
        return _page(request, status=403 if isinstance(error, Denied) else 422)


@require_POST
@never_cache
@requires("person.add")
def add_person(request: HttpRequest) -> HttpResponse:
    """Make an account."""
    user, role = text(request, "user", 150), text(request, "role")
    return _with_password(request, lambda: people_actions.add_person(actor_of(request), user, role), user)


@require_POST
@never_cache
@requires("person.reset_password")
def reset_password(request: HttpRequest) -> HttpResponse:
    """A new first password for somebody who forgot theirs."""
    user = text(request, "user", 150)
    return _with_password(request, lambda: people_actions.reset_password(actor_of(request), user), user)


@require_POST
@requires("person.role")
def set_role(request: HttpRequest) -> HttpResponse:
    user, role = text(request, "user", 150), text(request, "role")
    return act(
        request,
        lambda actor: people_actions.set_role(actor, user, role),
        f"{user} is now {role}.",
        back=reverse("access"),
    )


@require_POST
@requires("person.disable")
def disable(request: HttpRequest) -> HttpResponse:
    user = text(request, "user", 150)
    return act(
        request,
        lambda actor: people_actions.set_active(actor, user, active=False),
        f"{user} is disabled and signed out everywhere.",
        back=reverse("access"),
    )


@require_POST
@requires("person.enable")
def enable(request: HttpRequest) -> HttpResponse:
    user = text(request, "user", 150)
    return act(
        request,
        lambda actor: people_actions.set_active(actor, user, active=True),
        f"{user} is enabled.",
        back=reverse("access"),
    )


@require_POST
@requires("person.reset_factor")
def reset_second_factor(request: HttpRequest) -> HttpResponse:
    user = text(request, "user", 150)
    return act(
        request,
        lambda actor: people_actions.reset_second_factor(actor, user),
        f"Two-factor authentication of {user} is reset.",
        back=reverse("access"),
    )


@require_POST
@requires("session.end_own")
def end_session(request: HttpRequest, session: int) -> HttpResponse:
    """Sign one browser out; those of others are for administrators."""
    return act(
        request,
        lambda actor: people_actions.end_session(actor, session),
        "Session ended. Its open pages stop within seconds.",
        back=reverse("access"),
    )


@require_POST
@requires("session.end_own")
def end_sessions(request: HttpRequest) -> HttpResponse:
    """Sign somebody out everywhere, oneself in all other browsers."""
    user = text(request, "user") or request.user.get_username()
    own = user == request.user.get_username()
    return act(
        request,
        lambda actor: people_actions.end_sessions(
            actor, user, but=str(request.session.session_key) if own else ""
        ),
        "You are signed out everywhere else." if own else f"{user} is signed out everywhere.",
        back=reverse("access"),
    )


@require_POST
@requires("team.rule")
def add_rule(request: HttpRequest) -> HttpResponse:
    team, kind, pattern, role = (text(request, name) for name in ("team", "kind", "pattern", "role"))
    return act(
        request,
        lambda actor: team_actions.add_rule(actor, team, kind, pattern, role),
        f"Resources matching {pattern} now belong to {team}.",
        back=reverse("access"),
    )


@require_POST
@requires("team.rule")
def remove_rule(request: HttpRequest, rule: int) -> HttpResponse:
    return act(
        request,
        lambda actor: team_actions.remove_rule(actor, rule),
        "Rule removed. Resources without a rule follow the roles.",
        back=reverse("access"),
    )


@require_POST
@requires("team.member")
def set_member(request: HttpRequest) -> HttpResponse:
    """Add a user to a team, or with `leave` remove one."""
    team, user, leave = text(request, "team"), text(request, "user"), bool(text(request, "leave"))
    return act(
        request,
        lambda actor: team_actions.set_member(actor, team, user, member=not leave),
        f"Removed {user} from {team}." if leave else f"Added {user} to {team}.",
        back=reverse("access"),
    )


def _claims(request: HttpRequest) -> dict[str, str]:
    given = {name: text(request, name) for name in ("workers", "gates", "queues", "connections")}
    return {name: value for name, value in given.items() if value}


def _page(
    request: HttpRequest,
    *,
    made: str = "",
    screen: str = "",
    password: str = "",
    person: str = "",
    status: int = 200,
) -> HttpResponse:
    actor = actor_of(request)
    everything = not decide(actor, "token.create")
    name = request.user.get_username()
    answer = show(
        request,
        "access/access.html",
        "access",
        live=False,
        status=status,
        made=made,
        screen=screen,
        password=password,
        person=person,
        accounts=queries.people() if everything else (),
        sessions=sessions.listed(
            None if everything else request.user, current=str(request.session.session_key)
        ),
        tokens=queries.tokens(None if everything else name),
        rules=TeamRule.objects.select_related("team").order_by("kind", "pattern", "team__name"),
        teams=Group.objects.exclude(name__in=ROLES).prefetch_related("user_set").order_by("name"),
        people=get_user_model().objects.filter(is_active=True).order_by("username") if everything else (),
        everything=everything,
        new_token=NEW,
        own_teams=sorted(actor.teams),
        roles=[each for each in ROLES if RANK[each] <= RANK[actor.role]],
        all_roles=ROLES,
        kinds=KINDS,
    )
    answer["Cache-Control"] = "no-store"
    return answer


def _days(written: str) -> float | None:
    try:
        return float(written) if written else None
    except ValueError:
        return -1.0  # refused with the bounds
