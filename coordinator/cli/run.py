"""``python -m coordinator run``."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import click

from coordinator.cli.processes import Supervisor
from coordinator.errors import ConfigurationError
from coordinator.loading import load_worker
from coordinator.worker import Worker


@click.command()
@click.argument("target", metavar="MODULE:WORKER")
@click.option(
    "--processes", type=click.IntRange(1, 256), default=1, show_default=True, help="How many workers."
)
@click.option(
    "--reload", is_flag=True, help="Restart when a Python file in this folder changes; for development."
)
@click.pass_context
def run(context: click.Context, target: str, processes: int, reload: bool) -> None:
    """Run the worker that MODULE defines, until SIGTERM or Ctrl-C.

    With several processes, a process that ends with an error is started again. All receive the signal to stop, and the command
    waits for all of them.
    """
    if processes == 1 and not reload:
        asyncio.run(load(target).run())
        return
    if not reload:
        load(target)  # what cannot run is said once, not by each process again and again
    flags = context.parent.params if context.parent else {}
    command = [sys.executable, "-m", "coordinator", "--log-level", flags.get("log_level", "info")]
    command += ["--log-json"] if flags.get("log_json") else []
    supervisor = Supervisor(
        [*command, "run", target], processes, name=os.environ.get("KENNEL_WORKER_NAME", "")
    )
    supervisor.run(watched=Path.cwd() if reload else None)


def load(target: str) -> Worker:
    """The worker named ``MODULE:NAME``."""
    try:
        return load_worker(target)
    except ConfigurationError as error:
        raise click.BadParameter(str(error)) from error
