"""Cost: requests and money, and what polling would have cost."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from dashboard.pages.common import show
from dashboard.permissions import requires


@require_safe
@requires("page.view")
def cost(request: HttpRequest) -> HttpResponse:
    return show(request, "cost.html", "cost")
