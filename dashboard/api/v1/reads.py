"""What is reported: the fleet in one, attention, history, sequences with their ledger, the audit; cost, and its prices."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from django.http import HttpRequest, HttpResponse
from ninja import Query, Router

from coordinator.cost import Prices
from dashboard.api.v1 import responses as answering
from dashboard.api.v1.bodies import Cursor, FleetLimit, Limit, Name, NewPrices, Number, Presence, Search, Text
from dashboard.api.v1.operations import actor_of, acts, reads
from dashboard.api.v1.problems import Refusal
from dashboard.api.v1.schema import described, page_of
from dashboard.audit.queries import AuditView
from dashboard.audit.queries import audit as audit_rows
from dashboard.core import prices as pricing
from dashboard.core.prices import PriceSettings
from dashboard.cost import actions
from dashboard.live import spending as cost
from dashboard.live.fleet import Attention, Fleet, GrantView, Headline, SequenceView
from dashboard.live.view_models import matching
from dashboard.pages import queries as selectors
from dashboard.sequences import queries as ledger_queries

router = Router(tags=["records"])

LONGEST_SECONDS = 31 * 86400.0
Seconds = Annotated[float, Query(ge=1, le=LONGEST_SECONDS, allow_inf_nan=False)]


class Look(msgspec.Struct, frozen=True):
    """What an operator should look at now."""

    taken_at: float
    headline: Headline
    attention: tuple[Attention, ...]


class Points(msgspec.Struct, frozen=True):
    """A series, oldest first: pairs of a moment (seconds since 1970) and a value; a null value is a gap."""

    series: str
    points: tuple[tuple[float | None, ...], ...]


class FleetPage(Fleet, frozen=True):
    """Everything at one moment; of the workers those that were asked for. `next` is the cursor of the page after it."""

    next: str | None = None


@router.get("/fleet", **reads(FleetPage, "fleet", tagged=True))
def fleet(
    request: HttpRequest,
    q: Search = "",
    presence: Presence = "",
    cursor: Cursor = "",
    limit: FleetLimit = None,
) -> HttpResponse:
    """Everything the pages show; null means unknown, moments are seconds since 1970.

    Of the workers those whose name, host or queue has `q` in it, in pages of `limit`; without a limit all of them.
    """
    now = selectors.fleet()
    if not (q or presence or cursor) and limit is None:
        return answering.state(request, now)
    found = list(matching(now, q, presence))
    most = len(found) if limit is None else limit
    page = answering.page(found, lambda each: each.instance, cursor=cursor, limit=most)
    rest = {name: getattr(now, name) for name in Fleet.__struct_fields__ if name != "workers"}
    return answering.state(request, {**rest, "workers": page["items"], "next": page["next"]})


@router.get("/attention", **reads(Look, "attention", tagged=True))
def attention(request: HttpRequest) -> HttpResponse:
    """The conditions that need attention now; an empty list if there are none."""
    now = selectors.fleet()
    return answering.state(request, Look(now.taken_at, now.headline, now.attention))


@router.get("/history", **reads(Points, "history"))
def history(request: HttpRequest, series: Search, seconds: Seconds = 3600.0) -> HttpResponse:
    """``?series=depth:orders-in&seconds=3600``: points, oldest first; a null value is a gap."""
    points = selectors.history(series, seconds)
    return answering.answer(Points(series, tuple((point.at, point.value) for point in points)))


@router.get("/sequences", **reads(page_of(SequenceView), "sequences", tagged=True))
def sequences(request: HttpRequest, cursor: Cursor = "", limit: Limit = 100) -> HttpResponse:
    """All sequences by name: counter, rate, runway, newest ranges."""
    return answering.state(
        request,
        answering.page(selectors.fleet().sequences, lambda each: each.name, cursor=cursor, limit=limit),
    )


@router.get("/sequences/{name}", **reads(SequenceView, "sequence", missing=True, tagged=True))
def sequence(request: HttpRequest, name: Name) -> HttpResponse:
    """One sequence."""
    found = answering.found(selectors.fleet().sequences, lambda each: each.name, name, "sequence")
    return answering.state(request, found)


@router.get("/sequences/{name}/ledger", **reads(page_of(GrantView), "ledger", missing=True, storage=True))
def ledger(
    request: HttpRequest,
    name: Name,
    number: Number | None = None,
    owner: Search = "",
    cursor: Cursor = "",
    limit: Limit = 100,
) -> HttpResponse:
    """Who was granted which numbers, newest first: all, the range that holds `number`, or those of an owner."""
    account = ledger_queries.account(name)
    page = ledger_queries.ledger(
        name, account, before=_before(cursor), number=number, owner=owner, limit=limit
    )
    if page.problem == "unused":
        return _page((), None)
    if page.problem == "unread":
        raise Refusal(404, f"the ledger of {name} has not been read, or there is no such sequence")
    if page.problem:
        raise Refusal(503, page.problem)
    return _page(page.rows, page.next)


@router.get("/cost", **reads(described(cost.Bill), "cost"))
def what_it_costs(request: HttpRequest) -> HttpResponse:
    """Requests and money by operation."""
    pricing.refresh()
    return answering.answer(cost.current(selectors.fleet()))


@router.get("/cost/prices", **reads(PriceSettings, "prices"))
def prices(request: HttpRequest) -> HttpResponse:
    """The current prices and daily budget, and who stored them; `by` "": those of the environment."""
    return answering.answer(pricing.refresh())


@router.put("/cost/prices", **acts(PriceSettings, "set_prices", action="cost.prices"))
def set_prices(request: HttpRequest, body: NewPrices) -> HttpResponse:
    """Save prices and a daily budget; all processes use them within seconds."""
    wanted = PriceSettings(Prices(**body.prices.model_dump()), body.per_day)
    return answering.answer(actions.set_prices(actor_of(request), wanted, reason=body.reason))


@router.delete("/cost/prices", **acts(PriceSettings, "reset_prices", action="cost.prices"))
def reset_prices(request: HttpRequest, reason: Text = "") -> HttpResponse:
    """Back to the prices and the budget of the environment."""
    return answering.answer(actions.reset_prices(actor_of(request), reason=reason))


@router.get("/audit", **reads(page_of(AuditView), "audit"))
def audit(request: HttpRequest, q: Search = "", cursor: Cursor = "", limit: Limit = 100) -> HttpResponse:
    """The audit, newest first; `q` as on the page: the start of actor, action or target, an outcome, a request id."""
    page = audit_rows(q=q, before=_before(cursor), limit=limit)
    return _page(page.rows, page.next)


def _before(cursor: str) -> int | None:
    if not cursor:
        return None
    if not (cursor.isascii() and cursor.isdigit()) or len(cursor) > 18:
        raise Refusal(400, "cursor must be the `next` of the page before")
    return int(cursor)


def _page(rows: tuple[Any, ...], following: int | None) -> HttpResponse:
    return answering.answer({"items": rows, "next": None if following is None else str(following)})
