"""How many modules a press of *Unleash* crosses: as few as docs/architecture.md says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from coordinator.testing.azurite import Azurite
from tests.support.dashboard import PROJECT, Dashboard

PATH_LIMIT, ALL_LIMIT = 25, 36


def test_a_press_of_unleash_crosses_few_modules(
    azurite: Azurite, tmp_path: Path, storage_prefix: str
) -> None:
    dashboard = Dashboard(tmp_path, azurite.connection_string, storage_prefix).prepare()
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.unleash_path"],
        env=dashboard.env,
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    found = json.loads(done.stdout.splitlines()[-1])
    path, every = set(found["path"]), set(found["path"]) | set(found["drawing"])
    assert {"coordinator.gates.gate", "dashboard.live.releases"} <= path, "the trace noted something else"
    assert len(path) <= PATH_LIMIT, " ".join(sorted(path))
    assert len(every) <= ALL_LIMIT, " ".join(sorted(every))
