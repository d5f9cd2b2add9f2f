"""The Leaders page as the registry knows it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.http import Http404, QueryDict

from coordinator.config import check_name
from coordinator.errors import ConfigurationError
from dashboard.core.csv import moment
from dashboard.core.pages import Badge, ExportTable, Page, Unread, attributes, joined, with_reason
from dashboard.leaders import actions, queries
from dashboard.live.fleet import Fleet, LeaderView
from dashboard.live.view_models import CARDS, Cards, cards

OWN_ELECTION = "dashboard-sampler"


def pressing_leaders(fleet: Fleet) -> list[LeaderView]:
    """Elections without a leader first, the dashboard's own last."""
    return sorted(fleet.leaders, key=_leader_place)


def _leader_place(leader: LeaderView) -> str:
    return f"{2 * bool(leader.holder) + (leader.name == OWN_ELECTION)}:{leader.name}"


def found_leaders(fleet: Fleet, query: QueryDict, limit: int = CARDS) -> Cards[LeaderView]:
    """The elections that the query asks for, the most urgent first."""
    return cards(pressing_leaders(fleet), _leader_place, query, limit)


def _terms(fleet: Fleet, query: QueryDict) -> Iterable[Any]:
    election = query.get("election", "")[:63]
    try:
        check_name("election", election)
    except ConfigurationError as error:
        raise Http404(str(error)) from error
    found = queries.newest(election)
    if found.problem:
        raise Unread(found.problem)
    return found.rows


PAGES = (
    Page(
        "leaders",
        ("leaders",),
        "Leaders",
        "l",
        (Badge("leaderless", "vacant", "red"),),
        context={
            "pressing_leaders": lambda fleet, query: pressing_leaders(fleet),
            "found_leaders": found_leaders,
        },
        tables={
            "leaders": ExportTable(
                lambda fleet, query: pressing_leaders(fleet),
                {
                    "election": lambda each: each.name,
                    **attributes("holder epoch lease"),
                    "since": lambda each: moment(each.since),
                    "standing_by": lambda each: joined(each.standbys),
                    "as_of": lambda each: moment(each.as_of),
                    **attributes("problem"),
                },
            ),
            "terms": ExportTable(
                _terms,
                {
                    **attributes("epoch"),
                    "leader": lambda each: each.holder,
                    "from": lambda each: moment(each.since),
                    "to": lambda each: moment(each.ended),
                    **attributes("how"),
                },
            ),
        },
        acts={
            "leader.step_down": with_reason(actions.step_down),
            "leader.break": with_reason(actions.break_lease),
        },
    ),
)
