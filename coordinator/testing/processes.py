"""A bench that mistreats real processes: kill -9, SIGSTOP and SIGCONT, restart; and collects what each durably did.

    bench = ProcessBench(lambda place, record: [sys.executable, "-m", "my.worker", str(record)], workers=8, folder=folder, seed=7)
    with bench:
        while bench.recorded_bytes < wanted:
            bench.mistreat()
    for record in bench.records(): ...

A worker appends to its record with single `os.write` calls: what was written survives the process's death.
Every start has a record of its own. Chance comes from the seed alone; `bench.actions` says what was done, in order.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self


@dataclass
class ProcessRun:
    """One start of one worker. `ended` is how: "" while it runs, "killed", or its exit code as text."""

    place: int
    record: Path
    process: subprocess.Popen[bytes]
    ended: str = ""

    @property
    def pid(self) -> int:
        return self.process.pid


class ProcessBench:
    """Keeps `workers` processes running, whatever it does to them; ends every one of them on leaving.

    command: the command line for a place (0 … workers − 1) and the path of its record.
    env: added to this process's environment.  seed: decides whom `mistreat` picks and how.
    """

    def __init__(
        self,
        command: Callable[[int, Path], Sequence[str]],
        *,
        workers: int,
        folder: Path,
        seed: int,
        env: Mapping[str, str] | None = None,
        ask_seconds: float = 20.0,
    ) -> None:
        self._command, self._folder, self._env = command, folder, {**os.environ, **(env or {})}
        self._workers, self._ask_seconds = workers, ask_seconds
        self._rng = random.Random(seed)
        self.seed = seed
        self.runs: list[ProcessRun] = []
        self.actions: list[str] = []
        self._stopped: dict[int, float] = {}

    def __enter__(self) -> Self:
        for place in range(self._workers):
            self.start(place)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
        for run in self.running():
            self.kill(run, restart=False)

    def start(self, place: int) -> ProcessRun:
        """Start a worker at a place."""
        record = self._folder / f"record-{place}-{len(self.runs)}"
        process = self.launch(self._command(place, record), self._folder / f"{record.name}.log", self._env)
        run = ProcessRun(place, record, process)
        self.runs.append(run)
        return run

    def launch(self, command: Sequence[str], log: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start a process whose words go to `log`; override it to start yours otherwise."""
        with log.open("wb") as words:
            return subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=words, stderr=words)

    def running(self) -> list[ProcessRun]:
        """The runs that have not ended; one that ended by itself is noted with its exit code."""
        for run in self.runs:
            if not run.ended and (code := run.process.poll()) is not None:
                run.ended = str(code)
        return [run for run in self.runs if not run.ended]

    def kill(self, run: ProcessRun, *, restart: bool = True) -> None:
        """kill -9, and start another in its place."""
        with contextlib.suppress(ProcessLookupError):
            run.process.send_signal(signal.SIGKILL)
        run.process.wait()
        run.ended = run.ended or "killed"
        self._stopped.pop(run.pid, None)
        if restart:
            self.start(run.place)

    def stop(self, run: ProcessRun, seconds: float) -> None:
        """SIGSTOP; `mistreat`, `wake` and `finish` wake it once the time is over."""
        run.process.send_signal(signal.SIGSTOP)
        self._stopped[run.pid] = time.monotonic() + seconds

    def wake(self, *, everybody: bool = False) -> None:
        """SIGCONT to whoever has been stopped for long enough."""
        for pid, until in list(self._stopped.items()):
            if everybody or time.monotonic() >= until:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
                del self._stopped[pid]

    def mistreat(self, *, kill: float = 0.3, stop: float = 0.4, longest_stop_seconds: float = 1.0) -> str:
        """Once: kill one, stop one, or leave them alone, by chance. Returns what was done."""
        self.wake()
        able = [run for run in self.running() if run.pid not in self._stopped]
        if not able:
            return "nobody there"
        chance, victim = self._rng.random(), self._rng.choice(able)
        if chance < kill:
            self.kill(victim)
            done = f"killed {victim.pid} at place {victim.place}"
        elif chance < kill + stop:
            seconds = self._rng.uniform(0.05, longest_stop_seconds)
            self.stop(victim, seconds)
            done = f"stopped {victim.pid} at place {victim.place} for {seconds:.2f} s"
        else:
            done = "left them alone"
        self.actions.append(done)
        return done

    def finish(self) -> list[ProcessRun]:
        """SIGTERM to all and wait; returns the runs that failed, or did not end in time.

        A run that the signal met before it had a handler for it has not failed."""
        self.wake(everybody=True)
        for run in self.running():
            run.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + self._ask_seconds
        for run in self.running():
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.process.wait(max(0.0, deadline - time.monotonic()))
        late = self.running()
        for run in late:
            self.kill(run, restart=False)
        return [
            run for run in self.runs if run.ended not in ("0", "killed", f"-{signal.SIGTERM.value}")
        ] + late

    @property
    def recorded_bytes(self) -> int:
        """How much all runs have written so far."""
        return sum(run.record.stat().st_size for run in self.runs if run.record.exists())

    def records(self) -> Iterator[tuple[ProcessRun, bytes]]:
        """What each run durably did."""
        for run in self.runs:
            yield run, run.record.read_bytes() if run.record.exists() else b""

    def log(self, run: ProcessRun) -> str:
        """What a run said."""
        return (self._folder / f"{run.record.name}.log").read_text(errors="replace")
