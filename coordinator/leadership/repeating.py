"""Leading for as long as a worker runs: what happens when the task ends, or fails."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Any, Literal

from coordinator.backoff import Backoff
from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.errors import ConfigurationError, LeadershipLost
from coordinator.leadership.election import Election, LeaderTask
from coordinator.leadership.term import Term
from coordinator.leadership.working import run_task

Again = Literal["epoch", "campaign"]
OnError = Callable[[Exception, Term], Any]

RESTART = Backoff(base_seconds=2.0, cap_seconds=60.0)
_log = logging.getLogger("coordinator.leadership")


async def lead_on(
    election: Election,
    task: LeaderTask,
    *,
    again: Again = "epoch",
    on_error: OnError | None = None,
    restart: Backoff = RESTART,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Campaign, and run the task in each term that this node wins; until cancelled.

    `again`: when the task has ended by itself, "epoch" keeps the lead without work, so that the task runs once in each
    epoch: again only after a fail-over, on the next leader. "campaign" frees the lease, and whoever gets it runs the task
    at once.
    A task that raises frees the lease, so that another node may try; this one campaigns again after `restart`, a growing
    pause (up to a minute). `on_error(error, term)`, plain or async, is called first; what it raises is raised here. Errors of
    the campaign itself (a wrong credential, say) are raised.
    """
    if again not in ("epoch", "campaign"):
        raise ConfigurationError(f"election {election.name}: again must be epoch or campaign, got {again!r}")
    failures = 0

    async def lead(term: Term) -> bool:
        """Whether the task failed."""
        nonlocal failures
        try:
            await run_task(task, term, term)
        except LeadershipLost:
            raise
        except Exception as error:
            _log.exception(
                "The task of %s failed", election.name, extra={"action": "lead", "epoch": term.epoch}
            )
            if on_error is not None and inspect.isawaitable(answer := on_error(error, term)):
                await answer
            return True
        failures = 0
        if again == "epoch":
            await asyncio.Event().wait()  # until the term is over
        return False

    while True:
        if await election.run(lead):
            failures += 1
            await clock.sleep(restart.ceiling(failures - 1) * 0.5 + restart.delay(failures - 1) * 0.5)
