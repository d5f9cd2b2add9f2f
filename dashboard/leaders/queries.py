"""Who led an election when, read from storage when somebody asks. Blocking functions for threads."""

from __future__ import annotations

from typing import NamedTuple

from coordinator.bounds import one_line
from coordinator.config import check_name
from coordinator.errors import KennelError
from coordinator.leadership.azure import list_terms
from coordinator.leadership.terms import TermRecord
from dashboard.hub.runtime import look, storage


class NewestTerms(NamedTuple):
    """The terms of an election, newest first; `problem` says why they are missing, or from before."""

    rows: tuple[TermRecord, ...] = ()
    problem: str = ""


def newest(election: str, limit: int = 50) -> NewestTerms:
    """The newest terms; one request."""
    try:
        check_name("election", election)
        seen = look(f"terms {election} {limit}", _read, election, limit)
    except KennelError as error:
        return NewestTerms(problem=str(error))
    except ValueError as error:  # a value in a row that the SDK cannot decode
        return NewestTerms(problem=f"The terms are unreadable: {one_line(str(error))}")
    return NewestTerms(tuple(seen.value or ()), seen.problem)


async def _read(election: str, limit: int) -> list[TermRecord]:
    return await list_terms(storage(), election, limit=limit)
