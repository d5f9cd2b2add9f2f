"""The parts of the demo and the order in which they start and stop."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from coordinator.scaling.local import LocalProcessDriver
from coordinator.scaling.policy import ScalingPolicy, encode_policy
from coordinator.testing.azurite import SERVICES, Azurite, next_free_port
from dashboard.demo import parts
from dashboard.demo.parts import DemoProcess

PROJECT = Path(__file__).resolve().parents[2]
GATE = "start-order-processing"
QUEUE = "orders-in"
SEQUENCE = "orders"
POOL = "orders"
WORKER = (sys.executable, "-m", "coordinator", "--log-json", "run", "examples.orders:worker")
TASKS, WORK_SECONDS = 10, 0.5  # of a worker that is scaled: 20 orders a second
RESTART_HUB_AFTER_SECONDS = 5.0
STORY = {"shop-1": "examples.shop", "shop-2": "examples.shop", "nightly": "examples.nightly"}
NIGHTS = {"NIGHTLY_TRANSACTIONS": "3000", "NIGHTLY_EVERY_SECONDS": "300", "NIGHTLY_WORK_SECONDS": "0.04"}
"""A batch every five minutes that takes about one."""
USERS = {"vera": "viewer", "olga": "operator", "adam": "admin"}


class DemoFailed(RuntimeError):
    """A part of the demo did not start or do its work; the text says which and quotes its last lines."""


class User(msgspec.Struct):
    name: str
    password: str
    role: str


class Credentials(msgspec.Struct):
    """What the demo made up on its first start and keeps in its folder, readable by its owner alone."""

    users: list[User]
    worker_token: str
    secret_key: str

    @classmethod
    def load(cls, file: Path) -> Credentials:
        """Read them, or make and keep new ones."""
        if file.exists():
            return msgspec.json.decode(file.read_bytes(), type=cls)
        made = cls(
            users=[User(name, secrets.token_urlsafe(9), role) for name, role in USERS.items()],
            worker_token=f"kw_{secrets.token_urlsafe(32)}",
            secret_key=secrets.token_urlsafe(48),
        )
        file.touch(mode=0o600)
        file.write_bytes(msgspec.json.encode(made))
        return made


@dataclass
class Stack:
    """Azurite, the dashboard, workers and a producer, with their data in `folder`.

    `port` is the wanted port of the dashboard, None for any free one. `hub=False` starts workers that only poll.
    `scale_to` above 0: a scaling agent keeps the workers, up to so many; they are then slow enough to be in demand.
    `story`: the dashboard has a week of history and a guided tour, and `start_story` adds workers that move every page.
    `say` gets progress in plain words.
    """

    folder: Path
    say: Callable[[str], None]
    port: int | None = None
    storage_ports: tuple[int, int, int] | None = None
    is_temporary: bool = False
    hub: bool = True
    scale_to: int = 0
    story: bool = False
    agent: DemoProcess | None = None
    storytellers: list[DemoProcess] = field(default_factory=list)
    dashboard: DemoProcess | None = None
    producer: DemoProcess | None = None
    workers: list[DemoProcess] = field(default_factory=list)
    _hub_down_since: float | None = None
    _fewest: int = 0

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.credentials = Credentials.load(self.folder / "credentials.json")
        self.azurite = Azurite(
            location=None if self.is_temporary else self.folder / "azurite",
            ports=dict(zip(SERVICES, self.storage_ports, strict=True)) if self.storage_ports else None,
        )
        wanted = 8000 if self.port is None else self.port
        self.web_port = _any_free_port() if self.port is None else next_free_port(wanted)
        if self.port is not None and self.web_port != wanted:
            self.say(
                f"Port {wanted} is taken by another program; the dashboard uses {self.web_port} instead."
            )

    # --- addresses ----------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.web_port}"

    @property
    def hub_url(self) -> str:
        return f"ws://127.0.0.1:{self.web_port}/ws/workers/"

    @property
    def orders_database(self) -> Path:
        return self.folder / "orders.sqlite3"

    def environment(self, *, worker: str = "") -> dict[str, str]:
        """The environment of a part; workers get no secret of the dashboard."""
        env = {key: value for key, value in os.environ.items() if not key.startswith(("KENNEL_", "AZURE_"))}
        env |= {
            "AZURE_STORAGE_CONNECTION_STRING": self.azurite.connection_string,
            "PYTHONPATH": str(PROJECT),
            "PYTHONUNBUFFERED": "1",
            "ORDERS_DATABASE": str(self.orders_database),
            "ORDERS_WORK_SECONDS": str(WORK_SECONDS if self.scale_to else 0),
            "ORDERS_TASKS": str(TASKS if self.scale_to else 50),
        }
        if worker:
            env["KENNEL_WORKER_NAME"] = worker
            if self.hub:
                env |= {"KENNEL_HUB_URL": self.hub_url, "KENNEL_WORKER_TOKEN": self.credentials.worker_token}
        else:
            env |= {
                "DATABASE_URL": f"sqlite:///{self.folder / 'dashboard.sqlite3'}",
                "KENNEL_SECRET_KEY": self.credentials.secret_key,
                "ALLOWED_HOSTS": "127.0.0.1,localhost",
                "KENNEL_TOUR": "1" if self.story else "",
            }
        return env

    # --- starting -----------------------------------------------------------------------------------------------

    def start(self, *, workers: int) -> None:
        """Start storage, dashboard and workers; returns when the page answers. The gate is closed.

        Where the ports of storage are known, the dashboard starts beside it: both take a second to load their programs.
        """
        self.say("Starting the storage emulator and the dashboard …")
        with ThreadPoolExecutor(1) as beside:
            if self.storage_ports:
                self.azurite.reserve_ports()
                for service, (wanted, got) in self.azurite.moved.items():
                    self.say(
                        f"Port {wanted} is taken by another program; {service} storage uses {got} instead."
                    )
            storage = beside.submit(self.azurite.start)
            if not self.storage_ports:
                storage.result()
            self._launch_dashboard(prepare=True)
            storage.result()
        self._wait_for_dashboard()
        self.say(f"Starting {workers} workers …")
        if self.scale_to:
            self._fewest = workers
            self._start_agent()
        else:
            for _ in range(workers):
                self.add_worker()

    def start_dashboard(self) -> None:
        """Start the dashboard again and wait until it answers."""
        self._launch_dashboard(prepare=False)
        self._wait_for_dashboard()

    def _launch_dashboard(self, *, prepare: bool) -> None:
        """Start its process. With `prepare`, the same process first prepares database and storage."""
        if prepare:
            command = ["manage.py", "prepare_demo", str(self.folder / "credentials.json"), "--serve"]
            command += [str(self.web_port), *(["--past"] if self.story else [])]
        else:
            command = ["-m", "uvicorn", "dashboard.asgi:application", "--host", "127.0.0.1"]
            command += ["--port", str(self.web_port), "--lifespan", "on", "--no-access-log"]
        self.dashboard = parts.start(
            "dashboard", [sys.executable, *command], env=self.environment(), folder=self.folder, cwd=PROJECT
        )

    def _wait_for_dashboard(self) -> None:
        deadline = time.monotonic() + 60
        while not _answers(f"{self.url}/healthz"):
            if self.dashboard is None or not self.dashboard.is_running or time.monotonic() > deadline:
                said = self.dashboard.tail() if self.dashboard else ""
                raise DemoFailed(f"the dashboard did not start:\n{said}")
            time.sleep(0.02)

    def _start_agent(self) -> None:
        policy = ScalingPolicy(
            minimum=self._fewest,
            maximum=self.scale_to,
            target_seconds=10,
            boot_seconds=2,
            instance_per_second=TASKS / WORK_SECONDS,
            slots=TASKS,
            step_seconds=4,
            cooldown_seconds=20,
        )
        command = [sys.executable, "-m", "coordinator", "--log-json", "scale", POOL]
        command += ["--queue", QUEUE, "--gate", GATE, "--policy", encode_policy(policy), "--every", "2"]
        command += ["--state", str(self.folder / "pool"), "--drain-at-end", "--", *WORKER]
        env = self.environment(worker="scaling-agent")
        self.agent = parts.start("scaling-agent", command, env=env, folder=self.folder, cwd=PROJECT)

    @property
    def _pool(self) -> LocalProcessDriver:
        return LocalProcessDriver(POOL, WORKER, state=self.folder / "pool")

    def pool_pids(self) -> dict[str, int]:
        """The workers that the scaling agent keeps, by name."""
        return self._pool.pids() if self.scale_to else {}

    def add_worker(self) -> DemoProcess:
        """Start one more worker, beside those that a scaling agent keeps."""
        name = f"{'extra' if self.scale_to else POOL}-{len(self.workers) + 1}"
        part = parts.start(name, WORKER, env=self.environment(worker=name), folder=self.folder, cwd=PROJECT)
        self.workers.append(part)
        return part

    def start_story(self) -> None:
        """Start what moves every page: a ticket shop of two workers, and the worker of the billing batches."""
        for name, module in STORY.items():
            command = [sys.executable, "-m", "coordinator", "--log-json", "run", f"{module}:worker"]
            env = self.environment(worker=name) | NIGHTS
            self.storytellers.append(parts.start(name, command, env=env, folder=self.folder, cwd=PROJECT))

    def start_producer(
        self, *, orders: int, first: int = 1, every_seconds: float = 0.0, wave: int = 0
    ) -> DemoProcess:
        """Start filling the queue; with `wave`, so many more at once every now and then."""
        command = [sys.executable, "-m", "examples.orders", "--orders", str(orders)]
        command += ["--first", str(first), "--every", str(every_seconds), "--wave", str(wave)]
        self.producer = parts.start(
            "producer", command, env=self.environment(worker="producer"), folder=self.folder, cwd=PROJECT
        )
        return self.producer

    # --- running ------------------------------------------------------------------------------------------------

    def supervise(self) -> None:
        """One look at the parts: what ended is started again, as an init system would; the dashboard after a while."""
        if self.agent is not None and not self.agent.is_running:
            self.say("The scaling agent ended; another takes over what it kept.")
            self._start_agent()
        if self.dashboard is None or self.dashboard.is_running:
            return
        if self._hub_down_since is None:
            self._hub_down_since = time.monotonic()
            self.say(f"The dashboard ended; starting it again in {RESTART_HUB_AFTER_SECONDS:.0f} s.")
        elif time.monotonic() - self._hub_down_since >= RESTART_HUB_AFTER_SECONDS:
            self._hub_down_since = None
            try:
                self.start_dashboard()
                self.say("The dashboard is back.")
            except DemoFailed as error:
                self.say(str(error))

    def describe(self) -> dict[str, Any]:
        """What a script needs to use the stack."""
        return {
            "url": self.url,
            "users": [msgspec.to_builtins(user) for user in self.credentials.users],
            "connection_string": self.azurite.connection_string,
            "hub_url": self.hub_url,
            "worker_token": self.credentials.worker_token,
            "pids": {
                "azurite": self.azurite.pid,
                "dashboard": self.dashboard.pid if self.dashboard else None,
                "workers": [part.pid for part in self.workers],
                "agent": self.agent.pid if self.agent else None,
                "producer": self.producer.pid if self.producer and self.producer.is_running else None,
                "demo": os.getpid(),
            },
            "folder": str(self.folder),
        }

    def stop(self) -> None:
        """End every part, those that use others first. Harmless when repeated."""
        for part in [*self.workers, *self.storytellers, *filter(None, [self.agent])]:
            if part.is_running:
                part.process.send_signal(signal.SIGTERM)
        if self.agent is not None:
            self.agent.stop(60.0)
            asyncio.run(self._pool.close())  # whom an agent left behind that was killed
        for part in [
            *filter(None, [self.producer]),
            *self.storytellers,
            *self.workers,
            *filter(None, [self.dashboard]),
        ]:
            part.stop()
        self.azurite.stop()


def _any_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2.0):
            return True
    except (urllib.error.URLError, OSError):
        return False
