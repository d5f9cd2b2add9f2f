"""One batch or saga as its page shows it: read when the page is, from storage. Blocking functions for threads."""

from __future__ import annotations

from typing import NamedTuple

from coordinator.errors import KennelError, NotFound
from coordinator.pipelines.azure import batch_control
from coordinator.pipelines.status import BatchStatus
from coordinator.tables import progress as steps
from coordinator.tables.azure import read_saga
from coordinator.tables.progress import Progress
from dashboard.hub.runtime import look, storage

FAILURES = 50


class FailedItem(NamedTuple):
    """An item that failed. Not the item itself: it may hold what not everybody may see."""

    position: int  # `index` is a method of tuples
    error: str


class BatchDetail(NamedTuple):
    """A batch with its first failures; `more` if there are others. `problem` says what is missing."""

    status: BatchStatus | None = None
    failures: tuple[FailedItem, ...] = ()
    more: bool = False
    problem: str = ""


class SagaDetail(NamedTuple):
    """A saga with its history, the newest first. `problem` says what is missing."""

    progress: Progress | None = None
    problem: str = ""


def batch(pipeline: str, name: str) -> BatchDetail:
    """Three requests, and one for each chunk with failures."""
    try:
        seen = look(f"batch {pipeline} {name}", _batch, pipeline, name)
    except NotFound:
        return BatchDetail(problem=f"Batch {name} of {pipeline} does not exist.")
    except KennelError as error:
        return BatchDetail(problem=str(error))
    return (seen.value or BatchDetail())._replace(problem=seen.problem)


async def _batch(pipeline: str, name: str) -> BatchDetail:
    control = await batch_control(storage(), pipeline, name)
    status = await control.status(name)
    failures: list[FailedItem] = []
    if status.items_failed:
        async for failure in control.failures(name):
            if len(failures) == FAILURES:
                return BatchDetail(status, tuple(failures), more=True)
            failures.append(FailedItem(failure.index, failure.error))
    return BatchDetail(status, tuple(failures))


def saga(name: str, key: str) -> SagaDetail:
    """One request."""
    try:
        seen = look(f"saga {name} {key}", _saga, name, key)
    except NotFound:
        return SagaDetail(problem=f"Saga {name} with key {key} does not exist.")
    except KennelError as error:
        return SagaDetail(problem=str(error))
    return SagaDetail(seen.value, seen.problem)


async def _saga(name: str, key: str) -> Progress:
    return await read_saga(storage(), name, key)


def stuck_step(name: str, key: str) -> str:
    """The step that this saga is stuck on and that can be marked as undone; "" if there is none. One request."""
    found = saga(name, key).progress
    return "" if found is None else steps.stuck_step(found)
