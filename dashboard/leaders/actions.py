"""What leaders are asked to do, or forced to."""

from __future__ import annotations

import json

from coordinator.config import check_name
from coordinator.leadership.azure import break_lease as force
from coordinator.realtime import protocol
from dashboard.core.audit import ActionFailed, audited
from dashboard.core.permissions import Actor
from dashboard.hub.runtime import call, current
from dashboard.workers.actions import command_id


def step_down(actor: Actor, election: str, *, reason: str = "") -> None:
    """Ask the leader of an election to step down; a standby takes over."""
    with audited(actor, "leader.step_down", election, reason) as act:
        holders = [
            instance
            for instance, entry in list(current().presence.entries.items())
            if entry.connected
            and any(e.name == election and e.role == "leader" for e in entry.state.elections)
        ]
        if not holders:
            raise ActionFailed(f"No connected worker leads {election}; force-release its lease instead.")
        for instance in holders:
            command = protocol.Command(verb="step_down", id=command_id(actor), target=election, by=actor.name)
            call(current().commands.send, instance, command)
        act.after = json.dumps({"asked": len(holders)})


def break_lease(actor: Actor, election: str, *, reason: str = "") -> None:
    """Take the lease from its holder by force. Its epoch is raised, so that fenced writes of the old leader fail."""
    with audited(actor, "leader.break", election, reason) as act:
        check_name("election", election)
        call(_break, election, actor.name)
        act.after = json.dumps({"lease": "broken"})


async def _break(election: str, by: str) -> None:
    await force(current().storage, election, by)
    current().look_again()
