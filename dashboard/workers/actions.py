"""What workers are asked to do."""

from __future__ import annotations

import json
import uuid
from typing import Any, cast

from coordinator.realtime import protocol
from dashboard.core.audit import ActionFailed, audited
from dashboard.core.permissions import Actor
from dashboard.hub.runtime import call, current

COMMANDS = ("drain", "resume", "stop")


def worker_command(actor: Actor, instance: str, verb: str, *, reason: str = "") -> None:
    """Ask a worker to drain, resume or stop. Needs its socket: a worker that only polls cannot be asked."""
    if verb not in COMMANDS:
        raise ActionFailed(f"A worker command is drain, resume or stop, not {verb[:40]!r}.")
    entry = current().presence.entries.get(instance)
    name = entry.hello.worker if entry is not None else instance
    with audited(actor, f"worker.{verb}", name, reason) as act:
        command = protocol.Command(verb=cast(Any, verb), id=command_id(actor), by=actor.name)
        if not call(current().commands.send, instance, command):
            raise ActionFailed(f"Worker {name} is not connected; nothing was sent.")
        act.after = json.dumps({"sent": verb})


def command_id(actor: Actor) -> str:
    """What a command is known by: the id of the request that asked for it, as in the audit."""
    return actor.request_id or uuid.uuid4().hex
