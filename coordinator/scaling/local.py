"""Instances as processes of this machine."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from coordinator.errors import ConfigurationError
from coordinator.scaling.drivers import Jobs, Leaders, no_jobs, no_leaders, select_for_removal

_log = logging.getLogger("coordinator.scaling")
_MARK = "KENNEL_POOL_STATE"
DRAIN_SECONDS = 600.0


@dataclass(frozen=True)
class _Instance:
    name: str
    pid: int
    born: float
    draining_since: float = 0.0


class LocalProcessDriver:
    """Runs a command as often as desired, each process with its own ``KENNEL_WORKER_NAME`` (``{pool}-{n}``) and
    ``KENNEL_POOL``.

    Guarantees that an agent which takes over with the same `state` folder finds the processes that were started
    before, and that no other process is ever signalled (a process is known by its number *and* its birth). An
    instance that must go gets SIGTERM: a worker takes nothing new and ends with its longest job, but stops after
    `drain_seconds`.

    Does not guarantee that an instance which ended by itself is restarted before the next `scale`. Two drivers must
    not share a `state` folder at one time: run them under an election.

    Args:
        pool: The name of the pool.
        command: The command and its arguments.
        state: A folder for what the driver remembers.
        environ: The environment of the processes (default: that of this process).
        leaders: Returns the names that lead an election; they are stopped last.
        jobs: Returns how many jobs each runs; the idle are stopped first.
        drain_seconds: How long an instance may finish its jobs, which it gets as ``KENNEL_STOP_SECONDS`` (default
            600).
        kill_seconds: After that, seconds until it is killed (default 30).

    Raises:
        ConfigurationError: There is no command, or an option is out of bounds.

    Examples:
        >>> driver = LocalProcessDriver("billing", ["kennel", "run", "billing:worker"], state=Path("/var/lib/billing"))
    """

    def __init__(
        self,
        pool: str,
        command: Sequence[str],
        *,
        state: Path,
        environ: Mapping[str, str] | None = None,
        leaders: Leaders = no_leaders,
        jobs: Jobs = no_jobs,
        drain_seconds: float = DRAIN_SECONDS,
        kill_seconds: float = 30.0,
    ) -> None:
        if not command:
            raise ConfigurationError("a local pool needs a command to run")
        if not (drain_seconds > 0 and kill_seconds >= 0):
            raise ConfigurationError(
                f"drain_seconds must be above 0 and kill_seconds not below, got {drain_seconds} and {kill_seconds}"
            )
        self.pool = pool
        self._command = list(command)
        self._file = state / f"{pool}.json"
        self._environ = dict(os.environ if environ is None else environ)
        self._leaders = leaders
        self._jobs = jobs
        self._drain_seconds, self._kill_seconds = drain_seconds, kill_seconds
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    async def actual(self) -> int:
        """How many instances there are, those that are stopping excluded."""
        return sum(not each.draining_since for each in self._alive())

    async def scale(self, wanted: int) -> None:
        """Start or stop instances.

        Args:
            wanted: Desired number of instances.
        """
        alive = self._alive()
        staying = [each for each in alive if not each.draining_since]
        leaving = [each for each in alive if each.draining_since]
        for _ in range(wanted - len(staying)):
            taken = {each.name for each in (*staying, *leaving)}
            name = next(name for n in itertools.count(1) if (name := f"{self.pool}-{n}") not in taken)
            # Noted before it is born: if we die in between, the successor looks for it by its name.
            self._save([*staying, *leaving, _Instance(name, 0, 0.0)])
            staying.append(self._start(name))
            self._save([*staying, *leaving])
        if len(staying) > wanted:
            names = [each.name for each in staying]
            # Where all must go there is no choice, and storage may be gone already.
            leaders = await self._leaders() if wanted > 0 else set()
            jobs = await self._jobs() if wanted > 0 else {}
            going = set(select_for_removal(names, len(staying) - wanted, leaders, jobs))
            leaving += [
                _Instance(each.name, each.pid, each.born, time.time())
                for each in staying
                if each.name in going
            ]
            staying = [each for each in staying if each.name not in going]
        for each in leaving:
            overdue = each.draining_since + self._drain_seconds + self._kill_seconds < time.time()
            self._signal(each, signal.SIGKILL if overdue else signal.SIGTERM)
        self._save([*staying, *leaving])

    async def close(self) -> None:
        """Stop all, wait for them, and kill those that take too long."""
        await self.scale(0)
        if not await self._all_gone(self._drain_seconds + self._kill_seconds):
            for each in self._alive():
                self._signal(each, signal.SIGKILL)
            await self._all_gone(5.0)
        self._save([])

    async def _all_gone(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        for _ in iter(lambda: time.monotonic() < deadline and bool(self._alive()), False):
            await asyncio.sleep(0.02)
        return not self._alive()

    def names(self) -> list[str]:
        """The instances that run and are not stopping, the oldest first."""
        return [each.name for each in self._alive() if not each.draining_since]

    def pids(self) -> dict[str, int]:
        """The process of each, those that are stopping included."""
        return {each.name: each.pid for each in self._alive()}

    def _start(self, name: str) -> _Instance:
        child = subprocess.Popen(
            self._command,
            env={
                **self._environ,
                "KENNEL_WORKER_NAME": name,
                "KENNEL_POOL": self.pool,
                "KENNEL_STOP_SECONDS": str(self._drain_seconds),
                _MARK: str(self._file),
            },
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a signal to the agent's group is for the agent
        )
        self._children[child.pid] = child
        _log.info("Started %s", name, extra={"action": "scale", "resource": self.pool, "pid": child.pid})
        return _Instance(name, child.pid, psutil.Process(child.pid).create_time())

    def _alive(self) -> list[_Instance]:
        for child in self._children.values():
            child.poll()  # collects who has ended
        known = self._load()
        if any(not each.pid for each in known):
            known = [each if each.pid else self._found(each) for each in known]
        return [each for each in known if _process(each) is not None]

    def _found(self, noted: _Instance) -> _Instance:
        """An instance whose number nobody lived to note, known by what it was given."""
        for process in psutil.process_iter():
            try:
                environ = process.environ()
                if environ.get("KENNEL_WORKER_NAME") == noted.name and environ.get(_MARK) == str(self._file):
                    return _Instance(noted.name, process.pid, process.create_time())
            except psutil.Error:
                continue
        return noted

    def _signal(self, instance: _Instance, number: signal.Signals) -> None:
        process = _process(instance)
        if process is not None:
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:
                return

    def _load(self) -> list[_Instance]:
        try:
            return [_Instance(**each) for each in json.loads(self._file.read_text())]
        except FileNotFoundError:
            return []
        except (ValueError, TypeError) as error:
            raise ConfigurationError(
                f"{self._file} is damaged ({error}); remove it after its processes have ended"
            ) from error

    def _save(self, instances: Sequence[_Instance]) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps([each.__dict__ for each in instances]))
        new.replace(self._file)


def _process(instance: _Instance) -> psutil.Process | None:
    """The process, if it lives and is the one we started."""
    if not instance.pid:
        return None
    try:
        process = psutil.Process(instance.pid)
        if process.status() == psutil.STATUS_ZOMBIE or abs(process.create_time() - instance.born) > 0.01:
            return None
        return process
    except psutil.NoSuchProcess:
        return None
