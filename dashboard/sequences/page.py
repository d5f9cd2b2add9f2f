"""The Sequences page as the registry knows it."""

from __future__ import annotations

from django.http import QueryDict

from dashboard.core.csv import moment
from dashboard.core.pages import Badge, ExportTable, Page, attributes
from dashboard.live.fleet import Fleet, SequenceView
from dashboard.live.view_models import CARDS, Cards, cards


def pressing_sequences(fleet: Fleet) -> list[SequenceView]:
    """Sequences in trouble first."""
    return sorted(fleet.sequences, key=_sequence_place)


def _sequence_place(sequence: SequenceView) -> str:
    return f"{int(not sequence.problem)}:{sequence.name}"


def found_sequences(fleet: Fleet, query: QueryDict, limit: int = CARDS) -> Cards[SequenceView]:
    """The sequences that the query asks for, those in trouble first."""
    return cards(pressing_sequences(fleet), _sequence_place, query, limit)


PAGES = (
    Page(
        "sequences",
        ("sequences",),
        "Sequences",
        "s",
        (Badge("sequence_problems", "wrong", "red"),),
        context={
            "found_sequences": found_sequences,
            "pressing_sequences": lambda fleet, query: pressing_sequences(fleet),
        },
        tables={
            "sequences": ExportTable(
                lambda fleet, query: pressing_sequences(fleet),
                {
                    "sequence": lambda each: each.name,
                    **attributes("next_number per_second runway_seconds owners problem"),
                    "as_of": lambda each: moment(each.as_of),
                },
            )
        },
    ),
)
