"""``python -m coordinator run``."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys

import click

from coordinator.worker import Worker


@click.command()
@click.argument("target", metavar="MODULE:WORKER")
def run(target: str) -> None:
    """Run the worker that MODULE defines, until SIGTERM or Ctrl-C."""
    asyncio.run(load(target).run())


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
