"""Taking back *Leash everything*: each gate is opened or armed again as it was, unless somebody has changed it since."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from coordinator.gates.state import GateState, next_epoch
from dashboard.core.audit import ActionFailed
from dashboard.core.permissions import Actor
from dashboard.gates.actions import unleash
from dashboard.live.releases import written
from dashboard.models import AuditOutcome, AuditRow

UNKNOWN = "stays closed: it was changed as it was leashed, so open it by hand"
REASON = "undo of leash everything"


class ClosedGate(NamedTuple):
    """A gate that one request closed: its `epoch` since then, and what it was before. Moments are seconds since 1970.

    `is_known`: whether it was closed as the dashboard knew it. If somebody changed it at that moment, nobody knows what it was.
    """

    name: str
    epoch: int
    is_known: bool
    opens_at: float | None
    until: float | None
    share: float

    @property
    def plan(self) -> str:
        """What opening it again does, in words."""
        if not self.is_known:
            return f"{self.name} {UNKNOWN}"
        opens = "opens again" if self.opens_at is None else f"opens {written(self.opens_at)}"
        closes = "" if self.until is None else f", closes {written(self.until)}"
        return f"{self.name} {opens}{closes}{'' if self.share == 1 else f', for {self.share:.0%} of workers'}"


def closed_by(request_id: str) -> list[ClosedGate]:
    """The gates that this request closed while they were open or armed, by name; as the audit has it."""
    rows = AuditRow.objects.filter(action="gate.close", outcome=AuditOutcome.DONE, request_id=request_id)
    found = {}
    for name, before, after in rows.order_by("pk").values_list("target", "before", "after"):
        was, now = _fields(before), _fields(after)
        if was.get("state") in ("open", "armed") and "epoch" in now:
            is_known = now["epoch"] == next_epoch(was["epoch"])
            opens_at = was.get("not_before") if was["state"] == "armed" else None
            found[name] = ClosedGate(
                name, now["epoch"], is_known, opens_at, was.get("until"), was.get("share", 1.0)
            )
    return sorted(found.values())


def reopen(actor: Actor, gate: ClosedGate) -> GateState:
    """Open or arm the gate as it was. Raises `ActionFailed` if it was changed since or meanwhile, or its time has passed."""
    if not gate.is_known:
        raise ActionFailed(f"{gate.name} {UNKNOWN}.")
    try:
        return unleash(
            actor,
            gate.name,
            reason=REASON,
            at=gate.opens_at,
            share=gate.share,
            until=gate.until,
            epoch=gate.epoch,
        )
    except ActionFailed as error:
        raise ActionFailed(f"{gate.name} stays as it is. {error}") from error


def _fields(described: str) -> dict[str, Any]:
    return dict(json.loads(described)) if described else {}
