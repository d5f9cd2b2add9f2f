"""A demo that runs: its process ids are in a file beside its data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from dashboard.demo.stack import Stack


def publish(stack: Stack) -> None:
    """Write what runs now, whole or not at all."""
    file = stack.folder / "running.json"
    content = msgspec.json.encode(
        stack.describe()["pids"]
        | {
            "names": {part.name: part.pid for part in stack.workers} | stack.pool_pids(),
            "storage": stack.azurite.connection_string,
        }
    )
    if not file.exists() or file.read_bytes() != content:
        fresh = file.with_suffix(".new")
        fresh.touch(mode=0o600)
        fresh.write_bytes(content)
        fresh.replace(file)


def forget(stack: Stack) -> None:
    """The demo ends: nothing is to be commanded any more."""
    (stack.folder / "running.json").unlink(missing_ok=True)


def note_new_worker(stack: Stack) -> None:
    """Start the worker that `add-worker` asked for."""
    stack.say(f"{stack.add_worker().name} joins.")


def running_in(folder: Path) -> dict[str, Any] | None:
    """The process ids of the demo that runs in `folder`; None if none does."""
    try:
        running: dict[str, Any] = msgspec.json.decode((folder / "running.json").read_bytes())
        os.kill(running["demo"], 0)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return running
