"""The gates as storage is known to hold them: as last sampled, and as written since."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.epochs import COUNTED
from coordinator.gates.state import GateState
from dashboard.hub.backplane import Backplane

log = logging.getLogger(__name__)

DAY_SECONDS = 86_400.0


class Peak(NamedTuple):
    """The highest epoch of a gate; `since` when storage was found to have a lower one (wall clock), None if it has not."""

    epoch: int
    since: float | None


class KnownGates:
    """The newest confirmed state of each gate, shared with the other processes.

    Storage is the truth also when an epoch went back (a backup was restored, or the gate was deleted): `went_back` has
    the highest epoch seen and the moment, and each function in `on_back` is called with the gate and its epoch.
    The highest epochs outlive the process by `remember` and `take_unsaved`; those above `COUNTED` were forged and are
    no measure of anything.
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
        self._back_since: dict[str, float] = {}
        self._unsaved: set[str] = set()
        self.peaks_due = asyncio.Event()
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
        # What follows a forged epoch may have begun again below it.
        if known is None or known.epoch <= state.epoch or known.epoch > COUNTED:
            now = self._clock.time()
            self._note_epoch(state.name, state.epoch, now)
            self._states[state.name] = state
            self._confirmed[state.name] = now
            self.version += 1

    def _note_epochs(self, states: Mapping[str, GateState], problems: Mapping[str, str]) -> None:
        now = self._clock.time()
        for name, state in states.items():
            self._note_epoch(name, state.epoch, now)
        for name in self._peaks.keys() - states.keys() - problems.keys():
            self._note_epoch(name, 0, now)
        for name, (epoch, since) in list(self.went_back.items()):
            # A gate that was deleted and is not used any more is no news after a day. Its highest epoch is kept.
            if name not in states and now - since > DAY_SECONDS:
                del self.went_back[name]
                log.info("The gate %s, last at epoch %d, is shown no more", name, epoch)

    def _note_epoch(self, name: str, epoch: int, now: float) -> None:
        peak = self._peaks.get(name, 0)
        known = self._states.get(name)
        if epoch >= peak:
            if peak < epoch <= COUNTED or name in self._back_since:
                self._save(name)
            if epoch <= COUNTED:
                self._peaks[name] = epoch
            for kept in (self.went_back, self._back_since, self._last_epochs):
                kept.pop(name, None)
            if known is not None and known.epoch > max(epoch, COUNTED):
                self._tell_back(name, epoch)
        elif self._last_epochs.get(name) != epoch:
            self._last_epochs[name] = epoch
            self.went_back[name] = (peak, self._back_since.setdefault(name, now))
            self._save(name)
            log.warning(
                "The epoch of gate %s went back from %d to %d: storage was restored?",
                name,
                peak,
                epoch,
                extra={"action": "epoch_back", "resource": name, "epoch": epoch},
            )
            self._tell_back(name, epoch)

    def _tell_back(self, name: str, epoch: int) -> None:
        for call in self.on_back:
            call(name, epoch)

    # --- the highest epochs ---------------------------------------------------------------------------------------

    def peak(self, gate: str) -> int:
        """The highest epoch of a gate that was ever seen: the next change goes above it."""
        return self._peaks.get(gate, 0)

    def remember(self, peaks: Mapping[str, Peak]) -> None:
        """Take in what was seen before this process began: `take_unsaved` of an earlier one."""
        for name, (epoch, since) in peaks.items():
            if epoch <= self._peaks.get(name, 0):
                continue
            self._peaks[name] = epoch
            if since is not None:
                self._back_since[name] = since
                if self._clock.time() - since > DAY_SECONDS:
                    self._last_epochs[name] = 0  # still deleted it is no news

    def take_unsaved(self) -> dict[str, Peak]:
        """The highest epochs that changed since this was last called; `peaks_due` is set when there are any."""
        names, self._unsaved = self._unsaved, set()
        self.peaks_due.clear()
        return {
            name: Peak(self._peaks[name], self._back_since.get(name)) for name in names if name in self._peaks
        }

    def put_back(self, unsaved: Iterable[str]) -> None:
        """They could not be saved: `take_unsaved` gives them again."""
        self._unsaved.update(unsaved)
        self.peaks_due.set()

    def _save(self, name: str) -> None:
        self.put_back((name,))
