"""Stores in memory, faults, clocks and deaths, for tests of what is built on `coordinator`.

The names are imported when the first of them is asked for: every pytest of an environment loads the plugin that lies here, and
the demo starts the emulator; neither waits for the Azure SDK.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coordinator.testing.kills import Kills, kill_everywhere

__all__ = ["Kills", "kill_everywhere"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module("coordinator.testing.kills"), name)
    return value
