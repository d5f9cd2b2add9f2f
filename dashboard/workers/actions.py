"""What workers are asked to do."""

from __future__ import annotations

import json
import uuid
from typing import Any, NamedTuple, cast

from coordinator.realtime import protocol
from dashboard.core.audit import ActionFailed, audited
from dashboard.core.permissions import Actor
from dashboard.hub.runtime import call, current


class Asked(NamedTuple):
    """A command for workers, as the pages offer it.

    `one` and `many` say that it was sent, to the worker {name} or to {n} workers. `while_draining`: only offered to workers
    that drain (True), that do not (False), or to all (None). With `consequences` it is confirmed first, by the name.
    `since` is the first version of the protocol that has the verb: workers of an older one are not sent it.
    """

    label: str
    one: str
    many: str
    hint: str = ""
    while_draining: bool | None = None
    consequences: tuple[str, ...] = ()
    since: int = 1


COMMANDS = {
    "drain": Asked(
        "Drain",
        "{name} finishes its current messages and takes no new ones.",
        "{n} workers finish their current messages and take no new ones.",
        "Finish messages in flight, take no new ones",
        while_draining=False,
    ),
    "resume": Asked("Resume", "{name} resumed.", "{n} workers resumed.", while_draining=True),
    "stop": Asked(
        "Stop",
        "{name} is stopping.",
        "{n} workers are stopping.",
        consequences=(
            "The worker finishes or returns its messages in flight; then its process ends.",
            "A standby takes over the elections it leads.",
            "This page cannot start it again; use the system that runs the workers.",
        ),
    ),
}
"""What workers can be asked, by the verb of the command; `dashboard.core.permissions.ACTIONS` says who may, as ``worker.VERB``."""


def worker_command(actor: Actor, instance: str, verb: str, *, reason: str = "") -> None:
    """Send a worker a command. Needs its socket: a worker that only polls cannot be asked."""
    if verb not in COMMANDS:
        raise ActionFailed(f"A worker command is {', '.join(COMMANDS)}, not {verb[:40]!r}.")
    entry = current().presence.entries.get(instance)
    name = entry.hello.worker if entry is not None else instance
    with audited(actor, f"worker.{verb}", name, reason) as act:
        if entry is not None and entry.hello.version < COMMANDS[verb].since:
            raise ActionFailed(
                f"Worker {name} runs an older release that does not know this command; nothing was sent."
            )
        command = protocol.Command(verb=cast(Any, verb), id=command_id(actor), by=actor.name)
        if not call(current().commands.send, instance, command):
            raise ActionFailed(f"Worker {name} is not connected; nothing was sent.")
        act.after = json.dumps({"sent": verb})


def command_id(actor: Actor) -> str:
    """What a command is known by: the id of the request that asked for it, as in the audit."""
    return actor.request_id or uuid.uuid4().hex
