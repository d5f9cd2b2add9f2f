"""The bench that mistreats processes: what it does to them, and what it notes of their ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from coordinator.testing.processes import ProcessBench, ProcessRun

POLITE = "trap 'exit 0' TERM; printf x >> {record}; while :; do sleep 0.02; done"
FAILING = "printf y >> {record}; echo something is wrong; exit 3"
STUBBORN = "trap '' TERM; printf z >> {record}; while :; do sleep 0.02; done"


def shell(program: str) -> Callable[[int, Path], Sequence[str]]:
    return lambda place, record: ["/bin/sh", "-c", program.format(record=record)]


def until(ready: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.005)


def is_stopped(run: ProcessRun) -> bool:
    return psutil.Process(run.pid).status() == psutil.STATUS_STOPPED


def test_a_killed_process_is_replaced_and_both_records_are_kept(tmp_path: Path) -> None:
    with ProcessBench(shell(POLITE), workers=2, folder=tmp_path, seed=1) as bench:
        until(lambda: bench.recorded_bytes == 2)
        victim = bench.running()[0]
        bench.kill(victim)
        until(lambda: bench.recorded_bytes == 3)
        assert victim.ended == "killed" and not psutil.pid_exists(victim.pid)
        assert [run.place for run in bench.running()] == [1, 0]
        assert bench.finish() == [], "to be killed or asked to end is no failure"
    assert [content for _, content in bench.records()] == [b"x", b"x", b"x"]
    assert not bench.running()


def test_a_process_that_fails_by_itself_is_named_with_what_it_said(tmp_path: Path) -> None:
    bench = ProcessBench(shell(FAILING), workers=1, folder=tmp_path, seed=1)
    with bench:
        until(lambda: not bench.running())
        assert bench.mistreat() == "nobody there"
        (failed,) = bench.finish()
    assert failed.ended == "3"
    assert bench.log(failed) == "something is wrong\n"


def test_a_process_that_does_not_end_in_time_is_killed_and_named(tmp_path: Path) -> None:
    bench = ProcessBench(shell(STUBBORN), workers=1, folder=tmp_path, seed=1, ask_seconds=0.2)
    with bench:
        until(lambda: bench.recorded_bytes)
        (late,) = bench.finish()
    assert late.ended == "killed" and not psutil.pid_exists(late.pid)


def test_a_stopped_process_is_woken_when_its_time_is_over(tmp_path: Path) -> None:
    with ProcessBench(shell(POLITE), workers=1, folder=tmp_path, seed=1) as bench:
        until(lambda: bench.recorded_bytes)
        (run,) = bench.running()
        bench.stop(run, 60.0)
        until(lambda: is_stopped(run))
        bench.wake()
        assert is_stopped(run), "its time is not over"
        bench.stop(run, 0.0)
        bench.wake()
        until(lambda: not is_stopped(run))


def test_the_seed_decides_who_is_killed_and_each_is_replaced(tmp_path: Path) -> None:
    def victims(name: str, seed: int) -> list[str]:
        folder = tmp_path / name
        folder.mkdir()
        with ProcessBench(shell(POLITE), workers=3, folder=folder, seed=seed) as bench:
            done = [bench.mistreat(kill=1.0) for _ in range(6)]
            assert bench.actions == done and len(bench.running()) == 3
        assert [run.ended for run in bench.runs].count("killed") >= 6
        return [what.split(" at ")[1] for what in done]

    first = victims("first", 7)
    assert victims("second", 7) == first
    assert victims("third", 8) != first


def test_whoever_is_stopped_is_left_alone_until_all_are(tmp_path: Path) -> None:
    with ProcessBench(shell(POLITE), workers=2, folder=tmp_path, seed=1) as bench:
        assert bench.mistreat(kill=0, stop=0) == "left them alone"
        told = [bench.mistreat(kill=0, stop=1, longest_stop_seconds=600) for _ in range(3)]
        assert [what.split()[0] for what in told] == ["stopped", "stopped", "nobody"]
        assert {what.partition("place ")[2][0] for what in told[:2]} == {"0", "1"}
        assert bench.finish() == [], "they are woken before they are asked to end"


def test_an_error_in_the_block_leaves_no_process_behind(tmp_path: Path) -> None:
    bench = ProcessBench(shell(STUBBORN), workers=2, folder=tmp_path, seed=1)

    def fail() -> None:
        with bench:
            until(lambda: bench.recorded_bytes == 2)
            os.kill(bench.runs[0].pid, signal.SIGSTOP)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not any(psutil.pid_exists(run.pid) for run in bench.runs)
