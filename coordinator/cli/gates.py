"""``python -m coordinator release`` and ``leash``."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from coordinator.cli import remote
from coordinator.client import Client
from coordinator.errors import absent
from coordinator.gates.gate import Gate
from coordinator.storage import Storage

T = TypeVar("T")
PATIENCE_SECONDS = 1.5


@click.command()
@click.argument("gate")
@click.option("--by", help="Who opens it (default: you).")
@click.option("--reason", default="", help="Reason, shown to everybody.")
def release(gate: str, by: str | None, reason: str) -> None:
    """Open GATE: waiting workers pass."""
    _change(
        gate,
        by,
        lambda client: client.open_gate(gate, reason=reason),
        lambda stored, who: stored.open(by=who, reason=reason),
    )


@click.command()
@click.argument("gate")
@click.option("--by", help="Who closes it (default: you).")
@click.option("--reason", required=True, help="Reason, shown to everybody.")
def leash(gate: str, by: str | None, reason: str) -> None:
    """Close GATE: workers finish the messages in flight and take no new ones."""
    _change(
        gate,
        by,
        lambda client: client.close_gate(gate, reason=reason),
        lambda stored, who: stored.close(by=who, reason=reason),
    )


def _change(
    name: str,
    by: str | None,
    through_api: Callable[[Client], Any],
    on_storage: Callable[[Gate, str], Awaitable[Any]],
) -> None:
    """Open or close a gate through the API if it is set, else in storage, and print what it is now."""
    if (client := remote.api()) is not None:
        remote.refuse_by(by)
        state = through_api(client)
    else:
        who = by or getpass.getuser()
        state = _with_storage(lambda storage: on_storage(storage.gate(name), who))
        if not state.epoch:  # closed already, as every gate that nobody opened yet: nothing is stored
            raise absent("gate", name)
    click.echo(f"{name} is {state.state} (epoch {state.epoch})")


def _with_storage(action: Callable[[Storage], Awaitable[T]]) -> T:
    async def act() -> T:
        async with Storage.from_env() as storage:
            acting = asyncio.ensure_future(action(storage))
            if not (await asyncio.wait([acting], timeout=PATIENCE_SECONDS))[0]:
                click.echo("Storage has not answered yet; still trying.", err=True)
            return await acting

    return asyncio.run(act())
