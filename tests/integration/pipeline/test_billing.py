"""The billing night: processes killed, requests broken, and the sum right to the cent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


def billing(*words: str, timeout_seconds: float) -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AZURE_STORAGE")}
    finished = subprocess.run(
        [sys.executable, "-m", "examples.billing", "--chaos", *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-4000:]
    result: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return result


def check(result: dict[str, Any], transactions: int) -> None:
    assert result["actual_cents"] == result["expected_cents"] > transactions, result
    assert (result["counted"], result["reports"], result["failed"]) == (transactions, 1, 0), result
    assert set(result["killed"]) == {"initiator", "controller", "processor"}, result
    assert result["faults"] > 0, result


@pytest.mark.timeout(110)
def test_killed_and_hindered_a_batch_is_equal_to_the_cent() -> None:
    words = ("--transactions", "5000", "--chunk-items", "50", "--work-ms", "2", "--kill-every", "1")
    check(billing(*words, timeout_seconds=100), 5000)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2])
def test_killed_and_hindered_a_large_batch_is_equal_to_the_cent(seed: int) -> None:
    words = ("--transactions", "100000", "--chunk-items", "250", "--work-ms", "1", "--kill-every", "2")
    result = billing(*words, "--seed", str(seed), timeout_seconds=590)
    check(result, 100_000)
    assert result["kills"] >= 8, result
