"""Overview, wallboard, help: the fleet at a glance, from across the room, and what it all means."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from dashboard.pages.views import requires, show
from dashboard.throughput.queries import sparks


@require_safe
@requires("page.view")
def overview(request: HttpRequest) -> HttpResponse:
    return show(request, "overview/overview.html", "overview", sparks=sparks())


@require_safe
@requires("page.view")
def tv(request: HttpRequest) -> HttpResponse:
    return show(request, "overview/tv.html", "tv")


@require_safe
@requires("page.view")
def help_page(request: HttpRequest) -> HttpResponse:
    return show(request, "overview/help.html", "help")
