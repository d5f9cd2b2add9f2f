"""Release by polling a flag (S2)."""

from __future__ import annotations

from coordinator.backoff import TRANSIENT
from coordinator.blocking import Portal, call_blocking
from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.errors import ConfigurationError, GateTimeout
from coordinator.gates.flag import GlobalFlag


class PollingRelease:
    """Holds its callers until a flag is set, by looking at it again and again (S2).

    Guarantees that `wait` returns at most one interval and one request after the flag was set, whenever the node
    started. Does not notice a flag that was set and cleared between two looks. Costs one request an interval.

    `interval_seconds`: time from one look to the next, 2.5 by default; smaller releases sooner and costs more
    (1,440 requests an hour at 2.5). An unreachable or busy store is asked again at the next interval; every other
    storage error is raised. `portal`: for `wait_blocking`, `lambda: storage.portal`.
    """

    def __init__(
        self,
        flag: GlobalFlag,
        *,
        interval_seconds: float = 2.5,
        clock: Clock = SYSTEM_CLOCK,
        portal: Portal | None = None,
    ) -> None:
        if not 0 < interval_seconds <= 86_400:
            raise ConfigurationError(
                f"interval_seconds must be positive and at most a day, got {interval_seconds}"
            )
        self._flag = flag
        self._interval = interval_seconds
        self._clock = clock
        self._portal = portal

    async def wait(self, timeout: float | None = None) -> None:
        """Return when the flag is set; raises `GateTimeout` after `timeout` seconds."""
        started = self._clock.monotonic()
        while not await self._is_set():
            pause = self._interval
            if timeout is not None:
                pause = min(pause, started + timeout - self._clock.monotonic())
                if pause <= 0:
                    raise GateTimeout(f"the flag was not set within {timeout:g} s")
            await self._clock.sleep(pause)

    def wait_blocking(self, timeout: float | None = None) -> None:
        """`wait` for threads."""
        call_blocking(self._portal, "wait_blocking", "await release.wait()", self.wait, timeout)

    async def _is_set(self) -> bool:
        try:
            return await self._flag.get_flag()
        except TRANSIENT:
            return False
