"""The Gates page as the registry knows it."""

from __future__ import annotations

from typing import Any

from django.http import QueryDict

from dashboard.core.csv import moment
from dashboard.core.dispatch import number_option
from dashboard.core.pages import Badge, ExportTable, Page, attributes, with_reason
from dashboard.core.permissions import Actor
from dashboard.gates import actions
from dashboard.live.fleet import Fleet, GateView
from dashboard.live.view_models import CARDS, Cards, cards, is_holding, is_unreadable


def pressing_gates(fleet: Fleet) -> list[GateView]:
    """Gates by how urgently they need an operator: those that hold workers, armed, open, closed, unreadable.

    Of the gates that hold workers, those in storage come first: any worker can claim to wait at a gate that nobody created.
    """
    return sorted(fleet.gates, key=_gate_place)


def _gate_place(gate: GateView) -> str:
    rank = 5 if is_unreadable(gate) else {"armed": 2, "open": 3}.get(gate.state, 4)
    if is_holding(gate):
        rank = 0 if gate.epoch or gate.problem else 1
    return f"{rank}:{gate.name}"


def found_gates(fleet: Fleet, query: QueryDict, limit: int = CARDS) -> Cards[GateView]:
    """The gates that the query asks for, the most urgent first."""
    return cards(pressing_gates(fleet), _gate_place, query, limit)


def _unleash(actor: Actor, gate: str, given: dict[str, Any]) -> Any:
    at, until, share = (number_option(given, name) for name in ("at", "until", "share"))
    return actions.unleash(
        actor,
        gate,
        reason=str(given.get("reason", "")),
        at=at,
        until=until,
        share=1.0 if share is None else share,
    )


PAGES = (
    Page(
        "gates",
        ("gates",),
        "Gates",
        "g",
        (Badge("held", "held", "amber"),),
        context={"pressing_gates": lambda fleet, query: pressing_gates(fleet), "found_gates": found_gates},
        tables={
            "gates": ExportTable(
                lambda fleet, query: pressing_gates(fleet),
                {
                    "gate": lambda each: each.name,
                    **attributes("state epoch by reason"),
                    "since": lambda each: moment(each.since),
                    "opens_at": lambda each: moment(each.not_before),
                    "closes_at": lambda each: moment(each.until),
                    **attributes("share"),
                    "waiting": lambda each: len(each.waiting),
                    **attributes("workers"),
                    "released": lambda each: each.release.passed if each.release else None,
                    "expected": lambda each: each.release.expected if each.release else None,
                    "p50_ms": lambda each: each.release.p50_ms if each.release else None,
                    "p99_ms": lambda each: each.release.p99_ms if each.release else None,
                    **attributes("problem"),
                },
            )
        },
        acts={
            "gate.open": _unleash,
            "unleash": _unleash,
            "gate.close": with_reason(actions.leash),
            "leash": with_reason(actions.leash),
            "gate.create": with_reason(actions.create_gate),
        },
    ),
)
