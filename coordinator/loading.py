"""Finding the worker that a module defines."""

from __future__ import annotations

import importlib
import os
import sys

from coordinator.errors import ConfigurationError
from coordinator.worker import Worker


def load_worker(target: str) -> Worker:
    """The worker named ``MODULE:NAME``; the working directory is searched first, as with ``python -m``.

    Raises `ConfigurationError` if there is none.
    """
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise ConfigurationError(
            f"{target!r}: name a module and a worker in it, such as examples.orders:worker"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and module_name.startswith(error.name):
            raise ConfigurationError(
                f"there is no module {error.name!r} here; run this in the folder that contains it"
            ) from error
        raise
    worker = getattr(module, name, None)
    if not isinstance(worker, Worker):
        raise ConfigurationError(f"{module_name} has no Worker called {name!r}")
    return worker
