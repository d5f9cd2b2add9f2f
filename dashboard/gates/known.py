"""The gates as storage is known to hold them: as last sampled, and as written since."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import msgspec

from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.gates.state import GateState
from dashboard.hub.backplane import Backplane

log = logging.getLogger(__name__)

DAY_SECONDS = 86_400.0


class KnownGates:
    """The newest confirmed state of each gate, shared with the other processes.

    Storage is the truth also when an epoch went back (a backup was restored, or the gate was deleted): `went_back` has
    the highest epoch seen and the moment, and each function in `on_back` is called with the gate and its epoch.
    """

    def __init__(self, backplane: Backplane, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.version = 0
        self.went_back: dict[str, tuple[int, float]] = {}
        self.on_back: list[Callable[[str, int], None]] = []
        self._backplane, self._clock = backplane, clock
        self._states: dict[str, GateState] = {}
        self._confirmed: dict[str, float] = {}  # when a gate was read or written by itself, wall clock
        self._peaks: dict[str, int] = {}
        self._last_epochs: dict[str, int] = {}
        backplane.on("gate", self._changed_elsewhere)

    def get(self, name: str) -> GateState | None:
        """The gate as last read or written; None if it is not known to exist."""
        return self._states.get(name)

    def all(self) -> tuple[GateState, ...]:
        """All gates by name."""
        return tuple(self._states[name] for name in sorted(self._states))

    async def changed(self, state: GateState) -> None:
        """A gate as just read or written: shown at once, not at the next sample."""
        self._change(state)
        await self._backplane.publish("gate", msgspec.msgpack.encode(state))

    def sampled(
        self, found: tuple[GateState, ...], problems: Mapping[str, str], as_of: float | None
    ) -> tuple[GateState, ...]:
        """Take a reading of all gates; returns what storage holds: that, but for what was written after it began."""
        states = {state.name: state for state in found}
        for name, known in self._states.items():
            since = self._confirmed.get(name, 0.0) - (as_of or 0.0)
            if since >= 0 and known.epoch > (states[name].epoch if name in states else 0):
                states[name] = known
        if as_of is not None:
            self._note_epochs(states, problems)
        self._states = states
        self._confirmed = {name: at for name, at in self._confirmed.items() if name in states}
        return self.all()

    def _changed_elsewhere(self, process_id: str, body: bytes) -> None:
        self._change(msgspec.msgpack.decode(body, type=GateState))

    def _change(self, state: GateState) -> None:
        known = self._states.get(state.name)
        if known is None or known.epoch <= state.epoch:
            now = self._clock.time()
            self._states[state.name] = state
            self._confirmed[state.name] = now
            self._note_epoch(state.name, state.epoch, now)
            self.version += 1

    def _note_epochs(self, states: Mapping[str, GateState], problems: Mapping[str, str]) -> None:
        now = self._clock.time()
        for name, state in states.items():
            self._note_epoch(name, state.epoch, now)
        for name in self._peaks.keys() - states.keys() - problems.keys():
            self._note_epoch(name, 0, now)
        for name, (epoch, since) in list(self.went_back.items()):
            # A gate that was deleted and is not used any more is no news after a day.
            if name not in states and now - since > DAY_SECONDS:
                del self.went_back[name], self._peaks[name]
                log.info("The gate %s, last at epoch %d, is forgotten", name, epoch)

    def _note_epoch(self, name: str, epoch: int, now: float) -> None:
        peak = self._peaks.get(name, 0)
        if epoch >= peak:
            self._peaks[name] = epoch
            self.went_back.pop(name, None)
        elif name not in self.went_back or self._last_epochs.get(name) != epoch:
            self._last_epochs[name] = epoch
            self.went_back[name] = (peak, now)
            log.warning(
                "The epoch of gate %s went back from %d to %d: storage was restored?",
                name,
                peak,
                epoch,
                extra={"action": "epoch_back", "resource": name, "epoch": epoch},
            )
            for call in self.on_back:
                call(name, epoch)
