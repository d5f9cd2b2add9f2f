"""What workers and leaders are asked to do."""

from __future__ import annotations

import json
import uuid
from typing import Any, cast

from coordinator.config import check_name
from coordinator.leadership.azure import break_lease as force
from coordinator.realtime import protocol
from dashboard.core.audit import ActionFailed, audited
from dashboard.core.permissions import Actor
from dashboard.hub.runtime import call, current


def worker_command(actor: Actor, instance: str, verb: str, *, reason: str = "") -> None:
    """Ask a worker to drain, resume or stop. Needs its socket: a worker that only polls cannot be asked."""
    if verb not in ("drain", "resume", "stop"):
        raise ActionFailed(f"A worker command is drain, resume or stop, not {verb[:40]!r}.")
    entry = current().presence.entries.get(instance)
    name = entry.hello.worker if entry is not None else instance
    with audited(actor, f"worker.{verb}", name, reason) as act:
        command = protocol.Command(verb=cast(Any, verb), id=_id(actor), by=actor.name)
        if not call(current().command, instance, command):
            raise ActionFailed(f"Worker {name} is not connected; nothing was sent.")
        act.after = json.dumps({"sent": verb})


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
            command = protocol.Command(verb="step_down", id=_id(actor), target=election, by=actor.name)
            call(current().command, instance, command)
        act.after = json.dumps({"asked": len(holders)})


def _id(actor: Actor) -> str:
    """What a command is known by: the id of the request that asked for it, as in the audit."""
    return actor.request_id or uuid.uuid4().hex


def break_lease(actor: Actor, election: str, *, reason: str = "") -> None:
    """Take the lease from its holder by force. Its epoch is raised, so that fenced writes of the old leader fail."""
    with audited(actor, "leader.break", election, reason) as act:
        check_name("election", election)
        call(_break, election, actor.name)
        act.after = json.dumps({"lease": "broken"})


async def _break(election: str, by: str) -> None:
    await force(current().storage, election, by)
    current().look_again()
