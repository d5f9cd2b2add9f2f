"""What the parts of scaling refuse, and what they do without the parts that are optional."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from coordinator.errors import ConfigurationError, LeadershipLost, PreconditionFailed
from coordinator.scaling.agent import ScalingAgent
from coordinator.scaling.decision import AgentState, Decision, Observation
from coordinator.scaling.drivers import DryRunDriver
from coordinator.scaling.figure import figure_app
from coordinator.scaling.history import ScalingHistory
from coordinator.scaling.local import LocalProcessDriver
from coordinator.scaling.observing import PoolObserver, QueueObserver
from coordinator.scaling.policy import ScalingPolicy
from coordinator.tables.table import Table
from coordinator.testing.clock import ManualClock
from coordinator.testing.queues import memory_queue
from coordinator.testing.tables import MemoryTableStore


async def read_nothing(*_: Any) -> Any:
    raise AssertionError("nothing is read")


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_an_agent_without_a_pause_between_its_turns_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigurationError, match=f"every_seconds must be positive, got {seconds}"):
        ScalingAgent(
            "billing",
            DryRunDriver(),
            policy=ScalingPolicy(),
            observe=read_nothing,
            history=ScalingHistory(Table(MemoryTableStore("scaling")), "billing"),
            every_seconds=seconds,
        )


@pytest.mark.parametrize("options", [{"token": ""}, {"token": "sesame", "max_age_seconds": 0.0}], ids=str)
def test_figures_that_anybody_may_read_or_that_are_always_too_old_are_refused(
    options: dict[str, Any],
) -> None:
    with pytest.raises(ConfigurationError, match="a token, which scrapers send, and max_age_seconds above 0"):
        figure_app(read_nothing, **options)


@pytest.mark.parametrize("options", [{"drain_seconds": 0.0}, {"kill_seconds": -1.0}], ids=str)
def test_a_pool_of_processes_without_time_to_drain_is_refused(
    options: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="drain_seconds must be above 0"):
        LocalProcessDriver("billing", ["worker"], state=tmp_path, **options)


def test_a_pool_without_a_queue_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="a pool needs at least one queue"):
        PoolObserver([])


def test_a_policy_that_is_idle_before_it_begins_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="idle_seconds"):
        ScalingPolicy(idle_seconds=-1.0)


async def test_a_dry_run_says_how_many_there_are_if_it_can_know() -> None:
    async def three() -> int:
        return 3

    live, blind = DryRunDriver(three), DryRunDriver()
    for driver in (live, blind):
        await driver.scale(7)
    assert (await live.actual(), live.asked) == (3, [7])
    assert await blind.actual() == 7


async def test_an_observer_without_a_gate_is_held_by_none() -> None:
    clock = ManualClock()
    queue = memory_queue("work", type=int, clock=clock)
    await queue.put(1)
    await clock.advance(40)
    seen = await QueueObserver(queue)(1)
    assert (seen.held_by, seen.visible) == ("", 1)
    assert seen.oldest_seconds == pytest.approx(40)


async def test_an_agent_beside_which_others_decide_each_time_gives_up_its_term() -> None:
    class Contended(MemoryTableStore):
        async def transact(self, operations: Any) -> list[str]:
            await self._request()
            raise PreconditionFailed("somebody wrote first", status=412)

        async def write(self, operation: Any) -> str:
            return (await self.transact([operation]))[0]

    store = Contended("scaling")
    history = ScalingHistory(Table(store), "billing")
    decision = Decision(3, "because", AgentState())
    with pytest.raises(LeadershipLost, match="another agent decides at the same time"):
        await history.record(decision, Observation(1.0, 0, 0, 0), previous=3, by="node", epoch=4)
    assert store.requests <= 10 and not store.rows


async def test_an_instance_that_was_noted_but_never_started_is_not_counted(tmp_path: Path) -> None:
    driver = LocalProcessDriver("billing", ["sleep", "60"], state=tmp_path)
    noted = [{"name": "billing-1", "pid": 0, "born": 0.0, "draining_since": 0.0}]
    (tmp_path / "billing.json").write_text(json.dumps(noted))
    assert await driver.actual() == 0
    assert driver.names() == [] and driver.pids() == {}


async def test_an_instance_that_stays_is_killed_when_the_pool_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = tmp_path / "started"
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"open({str(started)!r}, 'w').close(); time.sleep(60)"
    )
    driver = LocalProcessDriver(
        "billing",
        [sys.executable, "-S", "-c", stubborn],
        state=tmp_path,
        drain_seconds=0.05,
        kill_seconds=0.0,
    )
    await driver.scale(1)
    while not started.exists():
        await asyncio.sleep(0.01)
    signals: list[int] = []
    kill = driver._signal
    monkeypatch.setattr(
        driver, "_signal", lambda each, number: (signals.append(int(number)), kill(each, number))
    )
    await driver.close()
    assert signals == [15, 9]
    assert await driver.actual() == 0 and driver.pids() == {}
