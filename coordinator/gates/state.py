"""The states of a gate and every change between them: no I/O, no clock.

    from \\ change   open          open(at=later)   close      extend
    closed          open          armed            –          refused
    armed           open          armed, newly     closed     until
    open            – or wider    refused          closed     until

Each change makes a new epoch; "–" changes nothing and keeps the epoch. `open` never takes an opening away from
anybody: a smaller share or a later time for a gate that is open is refused. An armed gate is open from `not_before`
on, and every opening ends at `until`, by the clock alone, without a further change.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

import msgspec

from coordinator.bounds import (
    LAST_MOMENT,
    MAX_COUNT,
    Count,
    LongText,
    Moment,
    Nonce,
    Share,
    Text,
    is_moment,
    plainly,
)
from coordinator.errors import ConfigurationError, GateCorrupt, GateMoved

Phase = Literal["closed", "armed", "open"]
When = float | datetime

MAX_BY = 100
MAX_REASON = 500
MAX_BYTES = 16 * 1024
REMEMBERED = 8
LATE_SECONDS = 60.0
"""How long ago the time of an opening may be: a slow answer, or a clock that is off, and no slip of the year."""


class GateState(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A gate as stored. Times are seconds since 1970 by the storage service's clock.

    Attributes:
        name: The gate.
        epoch: Grows with each change; 0 for a gate that was never stored.
        state: What was asked for: "closed", "armed" or "open". What holds at a moment is `phase(state, now)`.
        changed_at: When it was changed.
        not_before: When an armed gate opens.
        until: When it closes by itself; None for never.
        share: The part of the fleet let through; 1.0 is all.
        by: Who changed it.
        reason: Why.
        recent: The nonces of the newest changes, own nonce first: a writer whose answer was lost recognises its
            change by them.
    """

    name: Text = ""
    epoch: Count = 0
    state: Phase = "closed"
    changed_at: Moment = 0.0
    not_before: Moment | None = None
    until: Moment | None = None
    share: Share = 1.0
    by: LongText = ""
    reason: LongText = ""
    recent: Annotated[tuple[Nonce, ...], msgspec.Meta(max_length=64)] = ()

    @property
    def opened_at(self) -> float:
        """When this opening began or begins."""
        return self.changed_at if self.not_before is None else self.not_before


@dataclass(frozen=True)
class GateConfig:
    """How often a gate reads storage.

    Attributes:
        poll_seconds: Pause between two reads while no notification can be expected (no hub, or cut off), default 2.5. Each pause
            is 0.8 to 1.0 of it. Smaller releases sooner and costs more.
        push_poll_seconds: Pause while notifications arrive, default 60, each 1.0 to 1.1 of it: the safety net under a push that
            went silent.
        confirm_seconds: How long before a scheduled opening the gate is read once more, default 2.
        write_seconds: How long `open` and `close` go on trying, default 15.
        verify_seconds: Within this time a state that was pushed is compared with storage, default 60. Each process does so at a
            moment of its own, not before the first second: so a release does not make a fleet read one blob at once.
        trust_push: Whether a worker uses the state that a push brings, default True. False: it reads the gate before it passes,
            for fleets whose hub or Redis others could write to.
    """

    poll_seconds: float = 2.5
    push_poll_seconds: float = 60.0
    confirm_seconds: float = 2.0
    write_seconds: float = 15.0
    verify_seconds: float = 60.0
    trust_push: bool = True

    def __post_init__(self) -> None:
        for field in (
            "poll_seconds",
            "push_poll_seconds",
            "confirm_seconds",
            "write_seconds",
            "verify_seconds",
        ):
            if not 0 < getattr(self, field) <= 3600:
                raise ConfigurationError(
                    f"{field} must be above 0 and at most 3600, got {getattr(self, field)}"
                )


@dataclass(frozen=True)
class Release:
    """A pass through a gate.

    Attributes:
        gate: The gate.
        epoch: Its epoch.
        source: What let the worker through: "open" (it was open when the worker came), "push", "poll", or "clock" (an
            opening at a set time).
        delay_seconds: From the opening to the pass, by wall clocks.
        passed_at: When the worker passed, in seconds since 1970.
        request_id: Of the dashboard's request that opened it, if push carried it: it finds the press in the audit
            log.
    """

    gate: str
    epoch: int
    source: str
    delay_seconds: float
    passed_at: float
    request_id: str = ""


_decoder = msgspec.json.Decoder(GateState)


class _Remains(msgspec.Struct, frozen=True, gc=False):
    """What a damaged gate may still hold."""

    epoch: Count = 0


_remains = msgspec.json.Decoder(_Remains)


def encode(state: GateState) -> str:
    """The stored form: JSON in ASCII, so that it also fits a metadata header.

    Raises `ConfigurationError` for what could not be read again: text with control characters, for one.
    """
    text = json.dumps(msgspec.to_builtins(state), separators=(",", ":"))
    try:
        _decoder.decode(text)
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"gate {state.name}: {plainly(error)}") from error
    return text


def decode(name: str, text: str | bytes, etag: str = "") -> GateState:
    """Read the stored form; raises `GateCorrupt` naming the fault. Unknown fields are ignored."""
    try:
        if len(text) > MAX_BYTES:
            raise msgspec.DecodeError(f"{len(text)} bytes; a gate has at most {MAX_BYTES}")
        state = _decoder.decode(text)
        return state if state.name == name else msgspec.structs.replace(state, name=name)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise GateCorrupt(
            f"gate {name}: the blob does not hold a gate ({plainly(error)}). Nobody passes; close the gate to repair it",
            gate=name,
            etag=etag,
            epoch=_remaining_epoch(text),
        ) from error


def _remaining_epoch(text: str | bytes) -> int:
    try:
        return _remains.decode(text[:MAX_BYTES]).epoch
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0


def phase(state: GateState, now: float) -> Phase:
    """What the gate is at that moment."""
    if state.state == "closed" or (state.until is not None and now >= state.until):
        return "closed"
    if state.not_before is not None and now < state.not_before:
        return "armed"
    return "open"


def rollout_bucket(gate: str, identity: str) -> float:
    """The fixed place of a worker in [0, 1) before this gate: a share lets through all places below it."""
    digest = hashlib.sha256(f"{gate}\0{identity}".encode()).digest()
    return int.from_bytes(digest[:8]) / 2**64


def admits(state: GateState, identity: str, now: float) -> bool:
    """Whether this worker may pass at that moment."""
    return phase(state, now) == "open" and (
        state.share >= 1 or rollout_bucket(state.name, identity) < state.share
    )


def next_moment(state: GateState, now: float) -> float | None:
    """When the clock alone will change the phase; None if it will not."""
    if state.state == "closed":
        return None
    moments = [moment for moment in (state.not_before, state.until) if moment is not None and moment > now]
    return min(moments, default=None)


def seconds_of(name: str, when: When | None) -> float | None:
    """A moment as seconds since 1970.

    Raises `ConfigurationError` for a datetime without a time zone, and for what is no moment of the years 1970 to 9998.
    """
    if when is None:
        return None
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise ConfigurationError(f"{name} has no time zone: give an aware datetime or seconds since 1970")
        when = when.timestamp()
    if not is_moment(when):
        hint = "; seconds, not milliseconds?" if is_number(when) and 0 < when <= 1000 * LAST_MOMENT else ""
        raise ConfigurationError(
            f"{name} must be an aware datetime or seconds since 1970, in the years 1970 to 9998, got {_shown(when)}{hint}"
        )
    return float(when)


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: object) -> str:
    """For a message; Python refuses to write out integers of thousands of digits."""
    return "a huge number" if isinstance(value, int) and value.bit_length() > 100 else repr(value)


def next_epoch(epoch: int) -> int:
    """The epoch after this one. None can follow the largest that can be stored: then counting begins again."""
    return epoch + 1 if epoch < MAX_COUNT else 1


def raised(state: GateState, epoch: int) -> GateState:
    """The same change with an epoch above `epoch`, too."""
    return state if state.epoch > epoch else msgspec.structs.replace(state, epoch=epoch + 1)


def repaired(name: str, epoch: int, *, now: float, nonce: str, by: str, reason: str = "") -> GateState:
    """A damaged gate, closed: what `close` makes of a blob that does not hold a gate."""
    return _changed(
        GateState(name=name, epoch=epoch), now=now, nonce=nonce, by=by, reason=reason, target="closed"
    )


def require_epoch(state: GateState, epoch: int | None) -> GateState:
    """The same state if it has that epoch, or if none is asked for; else raises `GateMoved`."""
    if epoch is not None and state.epoch != epoch:
        raise GateMoved(
            f"gate {state.name} is at epoch {state.epoch}, not {epoch}: it has changed; read it again",
            gate=state.name,
            epoch=state.epoch,
        )
    return state


def opened(
    state: GateState,
    *,
    now: float,
    nonce: str,
    by: str,
    reason: str = "",
    at: float | None = None,
    share: float = 1.0,
    until: float | None = None,
) -> GateState:
    """The state after `open`; the same object if nothing changes.

    A time `at` that has just passed opens at once; one that passed more than `LATE_SECONDS` ago is refused.
    """
    if not is_number(share) or not 0 < share <= 1:
        raise ConfigurationError(
            f"gate {state.name}: share must be above 0 and at most 1, got {_shown(share)}"
        )
    if at is not None and at < now - LATE_SECONDS:
        raise ConfigurationError(
            f"gate {state.name}: at is {now - at:.0f} s in the past; leave it out to open now"
        )
    later = at if at is not None and at > now else None
    _check_until(state, until, after=later or now)
    if phase(state, now) == "open":
        if later is not None:
            raise ConfigurationError(
                f"gate {state.name} is open; close it before you set a time for its opening"
            )
        if share < state.share:
            raise ConfigurationError(
                f"gate {state.name} is open for {state.share:.0%}; close it before you open it for {share:.0%}"
            )
        if share == state.share and until == state.until:
            return state
    return _changed(
        state,
        now=now,
        nonce=nonce,
        by=by,
        reason=reason,
        target="open" if later is None else "armed",
        not_before=later,
        until=until,
        share=share,
    )


def closed(state: GateState, *, now: float, nonce: str, by: str, reason: str = "") -> GateState:
    """The state after `close`; the same object if it is closed already."""
    if phase(state, now) == "closed":
        return state
    return _changed(state, now=now, nonce=nonce, by=by, reason=reason, target="closed")


def extended(
    state: GateState, *, now: float, nonce: str, by: str, reason: str = "", until: float | None
) -> GateState:
    """The state after `extend`: the opening ends at `until` instead, earlier or later; None means never by itself."""
    current = phase(state, now)
    if current == "closed":
        raise ConfigurationError(
            f"gate {state.name} is closed; there is no opening to extend, open it instead"
        )
    _check_until(state, until, after=max(now, state.opened_at))
    if until == state.until:
        return state
    return _changed(
        state,
        now=now,
        nonce=nonce,
        by=by,
        reason=reason,
        target=state.state,
        not_before=state.not_before,
        until=until,
        share=state.share,
    )


def _check_until(state: GateState, until: float | None, *, after: float) -> None:
    if until is not None and until <= after:
        raise ConfigurationError(f"gate {state.name}: until must be later than the opening and than now")


def _changed(
    state: GateState,
    *,
    now: float,
    nonce: str,
    by: str,
    reason: str,
    target: Phase,
    not_before: float | None = None,
    until: float | None = None,
    share: float = 1.0,
) -> GateState:
    if not by or len(by) > MAX_BY:
        raise ConfigurationError(f"gate {state.name}: by must have 1-{MAX_BY} characters")
    if len(reason) > MAX_REASON:
        raise ConfigurationError(
            f"gate {state.name}: the reason has {len(reason)} characters; at most {MAX_REASON}"
        )
    return GateState(
        name=state.name,
        epoch=next_epoch(state.epoch),
        state=target,
        changed_at=now,
        not_before=not_before,
        until=until,
        share=share,
        by=by,
        reason=reason,
        recent=(nonce, *state.recent)[:REMEMBERED],
    )
