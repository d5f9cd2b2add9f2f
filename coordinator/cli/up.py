"""``kennel up``: everything that a project needs on this machine."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import click

from coordinator.cli.dashboard import MISSING, is_installed
from coordinator.cli.processes import spawn, stop_signals
from coordinator.testing.azurite import (
    SERVICES,
    Azurite,
    AzuriteError,
    find_azurite,
    install_azurite,
    next_free_port,
)

ACCOUNT = ("AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT_URL")
EMULATOR_PORTS = dict(zip(SERVICES, (10000, 10001, 10002), strict=True))
OF_A_DASHBOARD = ("KENNEL_HUB_URL", "KENNEL_WORKER_TOKEN", "KENNEL_API_URL", "KENNEL_API_TOKEN")
START_SECONDS = 60.0


@click.command()
@click.argument("target", metavar="[MODULE:WORKER]", default="worker:worker")
@click.option(
    "--port", type=click.IntRange(1, 65535), default=8000, show_default=True, help="Port of the dashboard."
)
@click.option(
    "--processes", type=click.IntRange(1, 256), default=1, show_default=True, help="How many workers."
)
@click.option("--without-dashboard", is_flag=True, help="Start the emulator and the worker alone.")
def up(target: str, port: int, processes: int, without_dashboard: bool) -> None:
    """Start the storage emulator, the dashboard and a worker for the project in this folder.

    The worker is MODULE:WORKER, worker:worker by default, and restarts when its code changes. Data stays in the folder
    .kennel. The emulator is left out if the environment names a storage account. Ctrl-C ends all.
    """
    if not without_dashboard and not is_installed():
        raise click.ClickException(f"{MISSING}, or use --without-dashboard")
    state = Path(".kennel").resolve()
    state.mkdir(mode=0o700, exist_ok=True)
    with ExitStack() as running, stop_signals() as stop:
        environ = _clean() | _account(running, state)
        terminal = {name: environ[name] for name in (*ACCOUNT, "KENNEL_PREFIX") if name in environ}
        if not without_dashboard:
            tokens = {
                "KENNEL_FIRST_WORKER_TOKEN": _token(state / "worker-token", "kw_"),
                "KENNEL_FIRST_API_TOKEN": _token(state / "api-token", "ks_"),
            }
            web = next_free_port(port)
            if web != port:
                click.echo(f"Port {port} is taken by another program; the dashboard uses {web} instead.")
            _start_dashboard(running, stop, state, environ | tokens, web)
            environ["KENNEL_HUB_URL"] = f"ws://127.0.0.1:{web}/ws/workers/"
            environ["KENNEL_WORKER_TOKEN"] = tokens["KENNEL_FIRST_WORKER_TOKEN"]
            # Through the API, a release is pushed to the workers at once.
            terminal["KENNEL_API_URL"] = f"http://127.0.0.1:{web}"
            terminal["KENNEL_API_TOKEN"] = tokens["KENNEL_FIRST_API_TOKEN"]
        _keep_private(
            state / "env", "".join(f"export {name}='{value}'\n" for name, value in terminal.items())
        )
        click.echo(f"In another terminal, run first:  . {os.path.relpath(state)}/env")
        click.echo(f"Starting {target}, which restarts when its code changes. Ctrl-C ends everything.")
        command = [
            sys.executable,
            "-m",
            "coordinator",
            "run",
            target,
            "--reload",
            "--processes",
            str(processes),
        ]
        worker = spawn(command, environ)
        running.callback(_end, worker)
        while not stop.wait(0.2):
            if worker.poll() is not None:
                raise click.ClickException(f"the worker ended with code {worker.returncode}")


def _clean() -> dict[str, str]:
    """This environment, without what belongs to another dashboard."""
    return {name: value for name, value in os.environ.items() if name not in OF_A_DASHBOARD}


def _account(running: ExitStack, state: Path) -> dict[str, str]:
    """The storage account that the environment names, else an emulator."""
    if named := {name: os.environ[name] for name in ACCOUNT if os.environ.get(name)}:
        click.echo(f"Storage: the account of {next(iter(named))}")
        return named
    try:
        script = find_azurite(Path.cwd(), state)
        if script is None:
            click.echo("Installing the storage emulator (Azurite) into .kennel, once …")
            script = install_azurite(state)
        emulator = Azurite(location=state / "azurite", ports=EMULATOR_PORTS, script=script)
        emulator.start()
    except AzuriteError as error:
        raise click.ClickException(
            f"{error}; or set AZURE_STORAGE_CONNECTION_STRING to use a storage account"
        ) from error
    running.callback(emulator.stop)
    click.echo(f"Storage: the emulator, with its data in {os.path.relpath(state)}/azurite")
    return {ACCOUNT[0]: emulator.connection_string}


def _start_dashboard(
    running: ExitStack, stop: threading.Event, state: Path, environ: dict[str, str], port: int
) -> None:
    log = state / "dashboard.log"
    with log.open("wb") as output:
        command = [
            sys.executable,
            "-m",
            "coordinator",
            "dashboard",
            "--state",
            str(state),
            "--port",
            str(port),
        ]
        process = spawn(command, environ, output)
    running.callback(_end, process)
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + START_SECONDS
    while not _answers(f"{url}/healthz"):
        if process.poll() is not None or time.monotonic() > deadline:
            said = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise click.ClickException(f"the dashboard did not start:\n{said}")
        if stop.wait(0.1):
            raise click.Abort
    name, _, password = (
        (state / "first-admin").read_text().strip().partition(" ")
        if (state / "first-admin").is_file()
        else ("", "", "")
    )
    click.echo(f"Dashboard: {url}" + (f"   sign in as {name} with {password}" if name else ""))


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2.0):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _token(file: Path, prefix: str) -> str:
    if not file.is_file():
        _keep_private(file, f"{prefix}{secrets.token_urlsafe(32)}\n")
    return file.read_text().strip()


def _keep_private(file: Path, text: str) -> None:
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as opened:
        opened.write(text)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
    process.wait()
