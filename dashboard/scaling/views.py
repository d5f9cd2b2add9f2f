"""Scaling: how many instances each pool should have, how many it has, and why; the policy."""

from __future__ import annotations

import re

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from dashboard.pages import queries as selectors
from dashboard.pages.views import act, query_of, requires, show, text
from dashboard.scaling import actions
from dashboard.scaling import queries as agents

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@require_safe
@requires("page.view")
def scaling(request: HttpRequest) -> HttpResponse:
    asked = request.GET.get("pool", "")[:63]
    if asked and not NAME.fullmatch(asked):
        raise Http404(asked)
    pools = selectors.fleet().work.pools
    name = asked or (pools[0].name if pools else "")
    policy, problem = agents.policy_of(name) if name else ("", "")
    query = query_of(pool=asked)
    return show(
        request,
        "scaling/scaling.html",
        "scaling",
        query=query,
        name=name,
        policy=policy,
        policy_problem=problem,
    )


@require_POST
@requires("scaling.policy")
def policy(request: HttpRequest, pool: str) -> HttpResponse:
    return act(
        request,
        lambda actor: actions.store_policy(
            actor, pool, text(request, "policy", 8000), reason=text(request, "reason")
        ),
        f"Policy saved. The agent of {pool} applies it in its next cycle.",
        back=f"{reverse('scaling')}?{query_of(pool=pool)}",
    )
