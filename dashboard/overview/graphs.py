"""What the graphs draw: kept samples as columns of JSON."""

from __future__ import annotations

from typing import Any

import msgspec
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe

from dashboard.audit.queries import acts
from dashboard.pages import queries as selectors
from dashboard.pages.views import requires

MOST_SERIES = 12
LONGEST_SECONDS = 31 * 86_400.0
MOST_MARKS = 40
BEFORE = {"86400": 86_400.0, "604800": 604_800.0}
MARKED = (
    "gate.open",
    "gate.close",
    "queue.clear",
    "queue.requeue",
    "queue.delete",
    "queue.rule",
    "leader.break",
    "leader.step_down",
    "worker.drain",
    "worker.resume",
    "worker.stop",
    "scaling.policy",
)


@require_safe
@requires("wallboard.view")
def history(request: HttpRequest) -> HttpResponse:
    """{"now": s, "series": {name: [[moments], [values]]}, "marks": [{at, action, target, actor}]}; null is a gap.

    Where a value is the mean of several samples, two more columns have the least and the greatest of them. At most 12 series, the last `seconds`; the marks are what operators did in that time. With `before` (86400 or
    604800), "before" has the same series of so many seconds earlier, at the moments of today.
    """
    try:
        seconds = min(LONGEST_SECONDS, max(1.0, float(request.GET.get("seconds", "900"))))
    except ValueError:
        return JsonResponse({"error": "seconds must be a number"}, status=400)
    drawn = {}
    for name in request.GET.getlist("series")[:MOST_SERIES]:
        points = selectors.history(name, seconds)
        drawn[name] = [[point.at for point in points], [point.value for point in points]]
        if any(point.high is not None for point in points):
            drawn[name] += [
                [point.value if point.low is None else point.low for point in points],
                [point.value if point.high is None else point.high for point in points],
            ]
    now = selectors.fleet().taken_at
    said = {"now": now, "series": drawn, "marks": _marks(now - seconds)}
    if before := BEFORE.get(request.GET.get("before", "")):
        said["before"] = {
            name: [[point.at for point in points], [point.value for point in points]]
            for name in drawn
            if (points := selectors.earlier(name, seconds, before))
        }
    # Thousands of numbers: Django's own encoder takes three times as long.
    answer = HttpResponse(msgspec.json.encode(said), content_type="application/json")
    answer["Cache-Control"] = "no-store"
    return answer


def _marks(after: float) -> list[dict[str, Any]]:
    return [
        {"at": row.at, "action": row.action, "target": row.target, "actor": row.actor}
        for row in acts(MARKED, since=after, limit=MOST_MARKS)
    ]
