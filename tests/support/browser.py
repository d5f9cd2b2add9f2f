"""The Chromium that tests and screenshots use: the machine's own, else Playwright's, else the system's package.

python -m tests.support.browser             prints where it is
python -m tests.support.browser --install   fetches one if there is none
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

# The shell without a window first: it needs a third less processor time for the same pages.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FETCHED_NAMES = ("chrome", "headless_shell", "chrome-headless-shell", "Chromium", "Google Chrome for Testing")
ROOT = Path(__file__).resolve().parents[2]
BROWSERS = ROOT / ".kennel" / "browsers"
LAUNCH_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
REMEDY = "install Chromium, or run `make browser`"


def find_chromium() -> Path | None:
    """On PATH, else the one that `--install` put into this clone."""
    for name in NAMES:
        found = shutil.which(name)
        if found:
            return Path(found)
    fetched = [
        path for path in BROWSERS.glob("chromium*/**/*") if path.name in FETCHED_NAMES and path.is_file()
    ]
    return next((path for path in sorted(fetched) if _runs(path)), None)


def _runs(program: Path) -> bool:
    """A fetched browser may lack libraries of the system."""
    return subprocess.run([program, "--version"], capture_output=True).returncode == 0


def install_chromium() -> Path | None:
    """Playwright's own into this clone, else the system's package if we are root and there is apt-get."""
    attempts: list[tuple[str, list[list[str]]]] = [
        (
            "Playwright's Chromium",
            [[sys.executable, "-m", "playwright", "install", "--only-shell", "chromium"]],
        )
    ]
    if os.geteuid() == 0 and shutil.which("apt-get"):
        attempts += [
            (f"the system's {package}", [["apt-get", "update"], ["apt-get", "install", "-y", package]])
            for package in ("chromium-headless-shell", "chromium")
        ]
    env = {**os.environ, "PLAYWRIGHT_BROWSERS_PATH": str(BROWSERS), "DEBIAN_FRONTEND": "noninteractive"}
    for name, commands in attempts:
        print(f"Installing {name} for the tests ...", flush=True)
        for command in commands:
            done = subprocess.run(command, env=env, capture_output=True, text=True, errors="replace")
            if done.returncode != 0:
                print(
                    "  that failed: " + " | ".join((done.stderr or done.stdout).split("\n")[-4:]), flush=True
                )
                break
        else:
            found = find_chromium()
            if found:
                return found
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description="Where Chromium is; fetches one if asked.")
    parser.add_argument("--install", action="store_true", help="fetch one if there is none")
    install = parser.parse_args().install
    found = find_chromium() or (install_chromium() if install else None)
    if found:
        print(f"Chromium for the tests: {found}")
        return 0
    print(f"No Chromium: browser tests will be skipped, and fail with CI=true. To have one, {REMEDY}.")
    from .parts import in_ci

    return 1 if in_ci() or not install else 0


if __name__ == "__main__":
    sys.exit(main())
