"""Overview: the fleet at a glance."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from dashboard.core.guard import requires
from dashboard.core.views import show


@require_safe
@requires("page.view")
def overview(request: HttpRequest) -> HttpResponse:
    return show(request, "overview/overview.html", "overview")
