"""Messages at the front of a queue, looked at without taking them."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from coordinator.queues.envelope import poison_name
from dashboard.core.guard import requires
from dashboard.core.views import show
from dashboard.queues import message_peek as peeking


@requires("queue.peek")
@require_safe
@never_cache
def messages(request: HttpRequest, name: str) -> HttpResponse:
    """`?of=poison` looks into the poison queue."""
    poison = request.GET.get("of") == "poison"
    look = peeking.look(name, poison=poison)
    return show(
        request,
        "queues/messages.html",
        "other",
        live=False,
        name=name,
        lies_in=poison_name(name) if poison else name,
        poison=poison,
        look=look,
        most=peeking.MOST_MESSAGES,
    )
