"""A worker whose jobs take `JOB_SECONDS`, one `async def` and one `def`; each leaves a file in `JOB_FOLDER` when it ends."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from coordinator import Worker

SECONDS = float(os.environ.get("JOB_SECONDS", "45"))
FOLDER = Path(os.environ.get("JOB_FOLDER", "."))
QUEUE = os.environ.get("JOB_QUEUE", "jobs")

worker = Worker("jobs")


@worker.listen(f"{QUEUE}-async")
async def waits(name: str) -> None:
    (FOLDER / f"{name}.begun").touch()
    await asyncio.sleep(SECONDS)
    (FOLDER / f"{name}.ended").touch()


@worker.listen(f"{QUEUE}-def")
def blocks(name: str) -> None:
    (FOLDER / f"{name}.begun").touch()
    time.sleep(SECONDS)
    (FOLDER / f"{name}.ended").touch()
