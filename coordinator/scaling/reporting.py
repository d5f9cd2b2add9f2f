"""A worker of a pool reports to the pool's scaling agent, through a table, with or without a hub."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from coordinator.clock import Clock
from coordinator.errors import StorageError
from coordinator.scaling.reports import IDLE_FRESH_SECONDS, WorkerReport

_log = logging.getLogger("coordinator.scaling")

REPORT_SECONDS = 10.0

MakeReports = Callable[[], Sequence[WorkerReport]]
SaveReport = Callable[[WorkerReport], Awaitable[None]]


class PoolReporter:
    """Stores the reports of one worker every ten seconds while anything changes, six times an hour while nothing does.

    Lossy by design: what storage does not take is said again by the next report, whose totals count from the start.
    """

    def __init__(self, make: MakeReports, save: SaveReport, *, clock: Clock) -> None:
        self._make, self._save, self._clock = make, save, clock
        self._saved: dict[str, WorkerReport] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.step()
            await self._clock.sleep(REPORT_SECONDS)

    async def step(self, *, leaving: bool = False) -> None:
        """Store what has changed since it was last stored."""
        for report in self._make():
            if leaving:
                report = msgspec.structs.replace(report, leaving=True)
            elif not self._is_news(report):
                continue
            try:
                await self._save(report)
            except StorageError as error:
                _log.info(
                    "The report on %s was not stored: %s; the next report includes it", report.queue, error
                )
                return
            self._saved[report.queue] = report

    def _is_news(self, report: WorkerReport) -> bool:
        saved = self._saved.get(report.queue)
        if saved is None or report.in_flight or saved.in_flight or report.done != saved.done:
            return True
        return report.at - saved.at >= IDLE_FRESH_SECONDS * 2 / 3
