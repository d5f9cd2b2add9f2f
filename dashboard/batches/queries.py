"""One batch or saga as its page shows it: read when the page is, from storage. Blocking functions for threads."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from coordinator.errors import KennelError, NotFound
from coordinator.pipelines.azure import batch_control
from coordinator.pipelines.status import BatchStatus
from coordinator.tables.azure import read_saga
from coordinator.tables.progress import Progress
from dashboard.core.storage import call, storage

FAILURES = 50
READ_SECONDS = 6.0


class Failure(NamedTuple):
    """An item that failed. Not the item itself: it may hold what not everybody may see."""

    position: int  # `index` is a method of tuples
    error: str


class BatchDetail(NamedTuple):
    """A batch with its first failures; `more` if there are others. `problem` says what is missing."""

    status: BatchStatus | None = None
    failures: tuple[Failure, ...] = ()
    more: bool = False
    problem: str = ""


class SagaDetail(NamedTuple):
    """A saga with its history, the newest first. `problem` says what is missing."""

    progress: Progress | None = None
    problem: str = ""


def batch(pipeline: str, name: str) -> BatchDetail:
    """Three requests, and one for each chunk with failures."""
    try:
        return call(_batch, pipeline, name)
    except NotFound:
        return BatchDetail(problem=f"There is no batch {name} of {pipeline}.")
    except (KennelError, TimeoutError) as error:
        return BatchDetail(problem=str(error) or "storage did not answer in time")


async def _batch(pipeline: str, name: str) -> BatchDetail:
    async with asyncio.timeout(READ_SECONDS):
        control = await batch_control(storage(), pipeline, name)
        status = await control.status(name)
        failures: list[Failure] = []
        if status.items_failed:
            async for failure in control.failures(name):
                if len(failures) == FAILURES:
                    return BatchDetail(status, tuple(failures), more=True)
                failures.append(Failure(failure.index, failure.error))
        return BatchDetail(status, tuple(failures))


def saga(name: str, key: str) -> SagaDetail:
    """One request."""
    try:
        return SagaDetail(call(_saga, name, key))
    except NotFound:
        return SagaDetail(problem=f"There is no saga {name} with the key {key}.")
    except (KennelError, TimeoutError) as error:
        return SagaDetail(problem=str(error) or "storage did not answer in time")


async def _saga(name: str, key: str) -> Progress:
    async with asyncio.timeout(READ_SECONDS):
        return await read_saga(storage(), name, key)
