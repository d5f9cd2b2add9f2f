"""How many changes to the pure rules the tests notice: mutmut's mutants, by module; run by `make mutation`.

A rule is code without I/O and without a clock. Ends with exit code 1 below 90 %, and lists what survived; what is left is
explained in tests/mutation/survivors.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WANTED = 0.9
# Of the two last, only what is pure.
RULES = (
    "coordinator.gates.state.*",
    "coordinator.queues.envelope.*",
    "coordinator.scaling.decision.*",
    "coordinator.sequences.grants.*",
    "coordinator.tables.progress.*",
    "coordinator.pipelines.aggregating.x_*",
    "coordinator.queues.settling.x*RetryPolicy*",
)
KILLED, SURVIVED, UNTESTED = "killed", "survived", "untested"


def outcome(exit_code: int | None) -> str:
    if exit_code in (0, None):
        return SURVIVED
    return UNTESTED if exit_code == 33 else KILLED


def main() -> int:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(ROOT / ".venv" / "bin" / "mutmut"), "run", *sys.argv[1:], *RULES]
    subprocess.run(command, cwd=ROOT, env=environment, check=False)
    found: dict[str, Counter[str]] = {}
    left = []
    for path in sorted((ROOT / "mutants").glob("coordinator/**/*.meta")):
        module = ".".join(path.relative_to(ROOT / "mutants").with_suffix("").with_suffix("").parts)
        for name, exit_code in json.loads(path.read_text())["exit_code_by_key"].items():
            if exit_code is not None:
                result = outcome(exit_code)
                found.setdefault(module, Counter())[result] += 1
                if result != KILLED:
                    left.append(f"{result}: {name}")
    print(*left, sep="\n")
    for module, counts in found.items():
        print(
            f"{module:36} {counts[KILLED]:5} of {counts.total():5} killed: {counts[KILLED] / counts.total():.1%}"
        )
    if not found:
        print("no mutant was tried; see what mutmut says above")
        return 1
    total = sum(found.values(), Counter[str]())
    score = total[KILLED] / total.total()
    print(f"{'mutation score':36} {total[KILLED]:5} of {total.total():5} killed: {score:.1%}")
    return 0 if score >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
