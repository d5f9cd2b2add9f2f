"""Whether this process lives, and whether it can serve."""

from __future__ import annotations

from asgiref.sync import sync_to_async
from django.db import DatabaseError
from django.http import HttpRequest, JsonResponse

from dashboard.hub.runtime import current
from dashboard.models import AuditHead
from dashboard.pages import queries as selectors


async def healthz(request: HttpRequest) -> JsonResponse:
    """200 while the process answers and its own background work goes on; asks nothing of others.

    503 is for an orchestrator: nothing but a new start helps.
    """
    dead = current().loops.dead()
    return JsonResponse({"ok": not dead, **({"dead": dead} if dead else {})}, status=503 if dead else 200)


def _database_answers() -> bool:
    """Whether it has our tables, too: without them every page would fail."""
    try:
        return AuditHead.objects.filter(pk=1).exists()
    except DatabaseError:
        return False


async def readyz(request: HttpRequest) -> JsonResponse:
    """200 if the hub runs and the database answers. Storage that is away is reported, but doesn't make us unready:
    the pages say so, which is better than no pages. Why it is away is for those who may see the pages."""
    database = await sync_to_async(_database_answers)()
    running = current().is_running
    fleet = selectors.glance()
    body = {
        "ok": database and running,
        "database": database,
        "hub": running,
        "storage": fleet.storage.unreachable_since is None and fleet.storage.as_of is not None,
        "degraded": fleet.degraded,
    }
    return JsonResponse(body, status=200 if body["ok"] else 503)
