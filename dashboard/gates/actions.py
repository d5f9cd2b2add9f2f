"""Opening, closing and making gates."""

from __future__ import annotations

import json
import time
from typing import Any

from coordinator.config import check_name
from coordinator.errors import AlreadyExists, PreconditionFailed, absent
from coordinator.gates.azure import BlobGateStore
from coordinator.gates.state import GateState, phase
from dashboard.core.audit import ActionFailed, audited
from dashboard.core.permissions import Actor
from dashboard.hub.runtime import call, current
from dashboard.live.releases import problem_of


def unleash(
    actor: Actor,
    gate: str,
    *,
    reason: str = "",
    at: float | None = None,
    share: float = 1.0,
    until: float | None = None,
    epoch: int | None = None,
) -> GateState:
    """Open a gate: now or `at` a moment (seconds since 1970), until a moment, for all or a share of the fleet.

    Opening what is open is harmless. With `epoch` only if the gate still has it when it is written. A moment that has
    passed is refused: it is a slip, and would release the fleet at once.
    """
    with audited(actor, "gate.open", gate, reason) as act:
        if problem := problem_of(at=at, until=until, now=time.time()):
            raise ActionFailed(f"Nothing changed. {problem}")
        act.before = _known(gate)
        state = call(_open, gate, actor.name, reason, at, share, until, epoch)
        act.after = _described(state)
    return state


def leash(actor: Actor, gate: str, *, reason: str = "", epoch: int | None = None) -> GateState:
    """Close a gate. Workers inside finish the messages in flight and take no new ones. `epoch` as for `unleash`.

    A gate that is not stored, and at which no worker waits, does not exist: closing it fails.
    """
    with audited(actor, "gate.close", gate, reason) as act:
        act.before = _known(gate)
        state = call(_close, gate, actor.name, reason, epoch)
        # Without a blob a gate is closed: that is news to nobody if workers wait there, and a slip if nobody knows the name.
        if not state.epoch and all(view.name != gate for view in current().fleet_state.fleet().gates):
            raise absent("gate", gate)
        act.after = _described(state)
    return state


def create_gate(actor: Actor, gate: str, *, reason: str = "") -> GateState:
    """Make a gate, closed, so that it can be opened before a worker ever waited at it."""
    with audited(actor, "gate.create", gate, reason) as act:
        check_name("gate", gate)
        state = call(_create, gate, actor.name, reason)
        act.after = _described(state)
    return state


async def _open(
    gate: str, by: str, reason: str, at: float | None, share: float, until: float | None, epoch: int | None
) -> GateState:
    runtime = current()
    stored, above = runtime.stored.gate(gate), runtime.gates.peak(gate)
    return await runtime.releases.release(
        gate,
        lambda: stored.open(by=by, reason=reason, at=at, share=share, until=until, epoch=epoch, above=above),
    )


async def _close(gate: str, by: str, reason: str, epoch: int | None) -> GateState:
    runtime = current()
    state = await runtime.stored.gate(gate).close(
        by=by, reason=reason, epoch=epoch, above=runtime.gates.peak(gate)
    )
    if state.epoch or runtime.gates.get(gate) is not None:
        await runtime.gates.changed(state)
    return state


async def _create(gate: str, by: str, reason: str) -> GateState:
    runtime = current()
    made = GateState(
        name=gate, epoch=runtime.gates.peak(gate) + 1, changed_at=time.time(), by=by, reason=reason
    )
    try:
        await BlobGateStore(runtime.storage, gate).write(made, "")
    except (AlreadyExists, PreconditionFailed) as error:
        raise ActionFailed(f"A gate named {gate} already exists.") from error
    await runtime.gates.changed(made)
    return made


def _known(gate: str) -> str:
    """The gate as last seen: reading it again would delay the release."""
    state = current().gates.get(gate)
    return _described(state) if state is not None else ""


def _described(state: GateState) -> str:
    fields: dict[str, Any] = {"state": phase(state, time.time()), "epoch": state.epoch}
    if state.not_before is not None:
        fields["not_before"] = state.not_before
    if state.until is not None:
        fields["until"] = state.until
    if state.share < 1:
        fields["share"] = state.share
    return json.dumps(fields)
