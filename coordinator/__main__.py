"""``python -m coordinator``: run a worker, and steer a fleet from the shell."""

from __future__ import annotations

import asyncio
import getpass
import importlib
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from coordinator import logs
from coordinator.cli import remote
from coordinator.cli.batch import prune
from coordinator.cli.doctor import doctor
from coordinator.cli.ids import ids
from coordinator.cli.queue import queue
from coordinator.cli.scale import scale
from coordinator.client import Client
from coordinator.errors import KennelError
from coordinator.gates.gate import Gate
from coordinator.storage import Storage
from coordinator.worker import Worker

T = TypeVar("T")
PATIENCE_SECONDS = 1.5


class _Commands(click.Group):
    """Kennel's own errors end a command with one line and exit code 1, never with a trace."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except KennelError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Commands)
@click.option("--log-level", default="info", show_default=True, help="debug, info, warning or error.")
@click.option("--log-json", is_flag=True, help="One JSON object per line.")
@click.option(
    "--api",
    envvar="KENNEL_API_URL",
    show_envvar=True,
    help="Address of the dashboard: release, leash and queue commands act through its API, as the token's owner.",
)
@click.option(
    "--api-token",
    envvar="KENNEL_API_TOKEN",
    show_envvar=True,
    help="Token of the API. Prefer the environment variable.",
)
@click.pass_context
def main(
    context: click.Context, log_level: str, log_json: bool, api: str | None, api_token: str | None
) -> None:
    """Kennel: gates, order numbers, leaders and queues over an Azure Storage account."""
    logs.configure(level=log_level, as_json=log_json)
    remote.use_api(context, api, api_token)


@main.command()
@click.argument("target", metavar="MODULE:WORKER")
def run(target: str) -> None:
    """Run the worker that MODULE defines, until SIGTERM or Ctrl-C."""
    asyncio.run(load(target).run())


@main.command()
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


@main.command()
@click.argument("gate")
@click.option("--by", help="Who closes it (default: you).")
@click.option("--reason", required=True, help="Reason, shown to everybody.")
def leash(gate: str, by: str | None, reason: str) -> None:
    """Close GATE: workers finish what they hold and take nothing new."""
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
    click.echo(f"{name} is {state.state} (epoch {state.epoch})")


main.add_command(doctor)
main.add_command(ids)
main.add_command(prune)
main.add_command(queue)
main.add_command(scale)


def load(target: str) -> Worker:
    """The worker named ``MODULE:NAME``; the working directory is searched first, as with ``python -m``."""
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise click.BadParameter(
            f"{target!r}: name a module and a worker in it, such as examples.orders:worker"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and module_name.startswith(error.name):
            raise click.BadParameter(
                f"there is no module {error.name!r} here; run from the folder that holds it"
            ) from error
        raise
    worker = getattr(module, name, None)
    if not isinstance(worker, Worker):
        raise click.BadParameter(f"{module_name} has no Worker called {name!r}")
    return worker


def _with_storage(action: Callable[[Storage], Awaitable[T]]) -> T:
    async def act() -> T:
        async with Storage.from_env() as storage:
            acting = asyncio.ensure_future(action(storage))
            if not (await asyncio.wait([acting], timeout=PATIENCE_SECONDS))[0]:
                click.echo("Storage has not answered yet; still trying.", err=True)
            return await acting

    return asyncio.run(act())


__all__ = ["load", "main"]

if __name__ == "__main__":
    main()
