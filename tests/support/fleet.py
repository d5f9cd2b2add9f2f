"""Starts `tests.support.nodes` and listens to it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]


@dataclass
class Fleet:
    """Node processes and all they told so far."""

    process: asyncio.subprocess.Process
    told: list[dict[str, Any]] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def events(self, kind: str, **like: Any) -> list[dict[str, Any]]:
        return [
            line
            for line in self.told
            if line["event"] == kind and all(line.get(key) == value for key, value in like.items())
        ]

    @property
    def pids(self) -> list[int]:
        return list(dict.fromkeys(line["pid"] for line in self.told))

    def signal(self, number: int) -> None:
        for pid in self.pids:
            os.kill(pid, number)

    async def until(self, ready: Callable[[], object], what: str, seconds: float = 90.0) -> None:
        """Wait until it is so, looking often; fails naming what did not come true."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not ready():
            if loop.time() > deadline:
                raise AssertionError(f"after {seconds:g} s it is still not true that {what}")
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await self._news.wait()

    async def listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.told.append(json.loads(line))
            self._news.set()

    async def stop(self) -> None:
        """Ask the nodes to end cleanly, and read their last words."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        await self.process.wait()


@asynccontextmanager
async def fleet(connection_string: str, prefix: str, what: str, **options: Any) -> AsyncIterator[Fleet]:
    """`async with fleet(…, "gate", count=50, gate="start") as nodes:`; they end with the block."""
    arguments = [
        part for key, value in options.items() for part in (f"--{key.replace('_', '-')}", str(value))
    ]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.support.nodes",
        what,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=PROJECT,
        env=os.environ | {"NODES_CONNECTION_STRING": connection_string, "NODES_PREFIX": prefix},
    )
    nodes = Fleet(process)
    listening = asyncio.create_task(nodes.listen())
    try:
        yield nodes
    finally:
        await nodes.stop()
        await listening
