"""Is what is installed new enough?"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError

from coordinator.doctor.findings import Finding

OLDEST = {
    "aiohttp": "3.10",
    "anyio": "4.4",
    "azure-core": "1.31",
    "azure-data-tables": "12.5",
    "azure-identity": "1.17",
    "azure-storage-blob": "12.23",
    "azure-storage-queue": "12.12",
    "click": "8.1",
    "croniter": "6.0",
    "msgspec": "0.18.6",
    "psutil": "5.9",
    "requests": "2.32",
    "urllib3": "2.0",
    "websockets": "14.0",
    "yarl": "1.9",
}
"""The oldest supported versions, as the package declares them."""


def check(
    installed: Callable[[str], str], python: tuple[int, ...] = sys.version_info[:3]
) -> Iterator[Finding]:
    """Python and the libraries that Kennel stands on; `installed` tells a package's version."""
    running = ".".join(map(str, python))
    if python < (3, 11):
        yield Finding("python", "fault", f"Python {running}", "Run Kennel with Python 3.11 or newer.")
    else:
        yield Finding("python", "ok", f"Python {running}")
    wrong = []
    for name, oldest in OLDEST.items():
        try:
            found = installed(name)
        except PackageNotFoundError:
            wrong.append((f"{name} is not installed", f"{name}>={oldest}"))
            continue
        if _numbers(found) < _numbers(oldest):
            wrong.append((f"{name} {found} is older than {oldest}", f"{name}>={oldest}"))
    if wrong:
        wanted = " ".join(f"'{requirement}'" for _, requirement in wrong)
        problems = "; ".join(problem for problem, _ in wrong)
        yield Finding("libraries", "fault", problems, f"Run: python -m pip install --upgrade {wanted}")
    else:
        yield Finding("libraries", "ok", f"all {len(OLDEST)} are new enough")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])
