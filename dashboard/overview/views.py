"""Overview, wallboard, help: the fleet at a glance, from across the room, and what it all means."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_safe

from dashboard.accounts import kiosks
from dashboard.pages.views import requires, show, text
from dashboard.throughput.queries import sparks


@require_safe
@requires("page.view")
def overview(request: HttpRequest) -> HttpResponse:
    return show(request, "overview/overview.html", "overview", sparks=sparks())


@require_safe
@requires("wallboard.view")
def tv(request: HttpRequest) -> HttpResponse:
    return show(request, "overview/tv.html", "tv")


@require_http_methods(["GET", "HEAD", "POST"])
@sensitive_post_parameters("token")
def kiosk(request: HttpRequest) -> HttpResponse:
    """Where a screen shows its token: typed, or from behind the # of its address, which no server and no log sees."""
    is_screen = kiosks.token_of(request.session) is not None
    refused = request.method == "POST"
    if request.method == "POST":
        if kiosks.begin(request, text(request, "token")):
            return redirect("tv")
    elif is_screen and kiosks.actor_of(request) is not None:
        return redirect("tv")
    context = {"refused": refused, "ended": is_screen and not refused}
    return render(request, "overview/kiosk.html", context, status=403 if refused else 200)


@require_safe
@requires("page.view")
def help_page(request: HttpRequest) -> HttpResponse:
    return show(request, "overview/help.html", "help")
