"""Looking after what is in hand: handlers that take too long, and messages that nothing acts on."""

from __future__ import annotations

import asyncio
import logging

from coordinator.clock import Clock
from coordinator.queues.leases import End, LeaseManager
from coordinator.queues.running import Run, Runner

_log = logging.getLogger("coordinator.queues")
_LOOK_SECONDS = 30.0
_LONG_SECONDS = 600.0
_OBEY_SECONDS = 10.0


class Overseer:
    """Ends calls that are past their time-out, names those that take long, gives back what nothing acts on.

    The last should never happen; it is what keeps a fault of this library from holding a message for ever.
    """

    def __init__(self, name: str, runner: Runner, leases: LeaseManager, *, clock: Clock) -> None:
        self._name, self._runner, self._leases, self._clock = name, runner, leases, clock
        self._never = asyncio.Event()

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self._clock.wait(self._never, await self.step())

    async def step(self) -> float:
        """One look; seconds until the next."""
        now = self._clock.monotonic()
        pauses = [self._look_at(run, now) for run in list(self._runner.running)]
        await self._free_what_is_stuck()
        pause = _LOOK_SECONDS if self._runner.timeout is None else min(_LOOK_SECONDS, self._runner.timeout)
        return max(0.01, min([pause, *pauses]))

    def _look_at(self, run: Run, now: float) -> float:
        """End or name a call; seconds until it should be looked at again."""
        timeout, taken = self._runner.timeout, now - run.started_at
        if run.cancelled_at is not None:
            if now - run.cancelled_at >= _OBEY_SECONDS:
                self._let_go(run, taken)
            return _OBEY_SECONDS
        if timeout is not None:
            if taken < timeout:
                return timeout - taken
            self._runner.time_out(run, now)
            return _OBEY_SECONDS
        if now - run.warned_at >= max(_LONG_SECONDS, run.warned_at - run.started_at):
            run.warned_at = now
            _log.warning(
                "Handler %s of %s has run for %.0f min on one message; give it a time-out (timeout=) if that is too long",
                self._runner.name,
                self._name,
                taken / 60,
                extra={"action": "long", "resource": self._name},
            )
        return _LOOK_SECONDS

    def _let_go(self, run: Run, taken: float) -> None:
        """A coroutine that goes on although it was cancelled: at least others can have its message."""
        for delivery in {unit.delivery for unit in run.units}:
            if delivery.held:
                self._leases.drop(delivery, End.ABANDONED)
                delivery.lose("its time-out passed")
                _log.error(
                    "Handler %s of %s ignores the end of its time-out and runs for %.0f s; its message goes to others",
                    self._runner.name,
                    self._name,
                    taken,
                    extra={"action": "give-back", "resource": self._name},
                )

    async def _free_what_is_stuck(self) -> None:
        for delivery in self._leases:
            if delivery.hands > 0:
                delivery.idle_looks = 0
                continue
            delivery.idle_looks += 1
            if delivery.idle_looks > 1:
                _log.error(
                    "Nothing works on a held message of %s (a fault in this library, please report it); it is given back",
                    self._name,
                    extra={"action": "give-back", "resource": self._name},
                )
                await delivery.settler.give_back(delivery)
                self._leases.drop(delivery, End.ABANDONED)
