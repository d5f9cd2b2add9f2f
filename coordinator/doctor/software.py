"""Is what is installed new enough?"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from coordinator.doctor.findings import Finding

PACKAGE = "kennel-coordinator"
SOURCE = Path(__file__).resolve().parents[2] / "pyproject.toml"


def declared() -> list[str]:
    """What the package says it needs, such as ``aiohttp>=3.10``; read from the clone if it is not installed."""
    try:
        lines = requires(PACKAGE) or []
    except PackageNotFoundError:
        if not SOURCE.is_file():
            return []
        lines = tomllib.loads(SOURCE.read_text())["project"]["dependencies"]
    return [line for line in lines if ";" not in line]


def check(
    installed: Callable[[str], str],
    python: tuple[int, ...] = sys.version_info[:3],
    needed: Sequence[str] | None = None,
) -> Iterator[Finding]:
    """Python and the libraries that Kennel needs; `installed` returns a package's version, `needed` the version it must have."""
    running = ".".join(map(str, python))
    if python < (3, 11):
        yield Finding("python", "fault", f"Python {running}", "Run Kennel with Python 3.11 or newer.")
    else:
        yield Finding("python", "ok", f"Python {running}")
    wrong = []
    needed = declared() if needed is None else needed
    for line in needed:
        name, _, oldest = line.partition(">=")
        try:
            found = installed(name)
        except PackageNotFoundError:
            wrong.append((f"{name} is not installed", f"{name}>={oldest}"))
            continue
        if _numbers(found) < _numbers(oldest):
            wrong.append((f"{name} {found} is older than {oldest}", f"{name}>={oldest}"))
    if not needed:
        yield Finding("libraries", "skipped", "the list of what is needed did not come with this copy")
    elif wrong:
        wanted = " ".join(f"'{requirement}'" for _, requirement in wrong)
        problems = "; ".join(problem for problem, _ in wrong)
        yield Finding("libraries", "fault", problems, f"Run: python -m pip install --upgrade {wanted}")
    else:
        yield Finding("libraries", "ok", f"all {len(needed)} are new enough")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])
