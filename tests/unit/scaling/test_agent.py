"""The agent on a table in memory, with a driver that only remembers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from coordinator.errors import LeadershipLost, StorageUnreachable
from coordinator.realtime.bus import Hint, LocalBus
from coordinator.scaling.agent import ScalingAgent
from coordinator.scaling.decision import Observation
from coordinator.scaling.drivers import DryRunDriver
from coordinator.scaling.history import ScalingHistory
from coordinator.scaling.policy import ScalingPolicy
from coordinator.tables.table import Table
from coordinator.testing.clock import ManualClock
from coordinator.testing.tables import MemoryTableStore

BOOT_SECONDS = 5.0
POLICY = ScalingPolicy(
    maximum=10,
    target_seconds=60,
    boot_seconds=BOOT_SECONDS,
    instance_per_second=10,
    cooldown_seconds=120,
    idle_seconds=30,
)


@dataclass
class Tenure:
    epoch: int = 1
    is_over: bool = False

    def check(self, *, needs_seconds: float = 0.0) -> None:
        if self.is_over:
            raise LeadershipLost("the term is over")


class Killed(BaseException):
    """The process ends here."""


class Pool:
    """A queue's depth, a driver, and what agents share."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.table = Table(MemoryTableStore("scaling", clock=self.clock))
        self.driver = DryRunDriver()
        self.depth: int | None = 0

    async def observe(self, actual: int) -> Observation:
        return Observation(self.clock.time(), actual, self.depth, 0, most_per_second=0.0)

    def agent(self, **options: Any) -> ScalingAgent:
        """As another process has it: nothing shared but storage and the pool itself."""
        return ScalingAgent(
            "billing",
            self.driver,
            policy=POLICY,
            observe=self.observe,
            history=ScalingHistory(self.table, "billing"),
            identity="node",
            clock=self.clock,
            **options,
        )


@pytest.fixture
def pool() -> Pool:
    return Pool()


async def test_the_pool_follows_its_load_and_every_change_is_recorded(pool: Pool) -> None:
    agent = pool.agent()
    for depth, pause in ((0, 200), (3000, 30), (0, 120), (0, 200), (600, 200)):
        pool.depth = depth
        await agent.step(Tenure())
        await pool.clock.advance(pause)
    assert pool.driver.asked == [6, 0, 2]
    records = await agent.history.changes()
    assert [(each.previous, each.wanted, each.by) for each in records] == [
        (0, 2, "node"),
        (6, 0, "node"),
        (0, 6, "node"),
    ]
    assert "3000 to do" in records[2].reason
    assert records[2].seen.visible == 3000


async def test_an_agent_killed_in_mid_scale_is_followed_without_a_flap(pool: Pool) -> None:
    """Killed between its record and the driver's call: the successor carries out what was recorded, and holds it."""
    first, second = pool.agent(), pool.agent()
    pool.depth = 3000

    async def die(wanted: int) -> None:
        raise Killed

    scale, pool.driver.scale = pool.driver.scale, die  # type: ignore[method-assign]
    with pytest.raises(Killed):
        await first.step(Tenure(epoch=1))
    pool.driver.scale = scale  # type: ignore[method-assign]
    pool.depth = 0  # and now there seems to be nothing to do
    await second.step(Tenure(epoch=2))
    assert pool.driver.asked == [6], "those asked for a moment ago were not started, or given up at once"
    await pool.clock.advance(BOOT_SECONDS)
    await second.step(Tenure(epoch=2))
    assert pool.driver.asked == [6, 0]


async def test_an_agent_whose_term_is_over_changes_nothing(pool: Pool) -> None:
    first, second = pool.agent(), pool.agent()
    await first.step(Tenure(epoch=1))
    await second.step(Tenure(epoch=2))
    pool.depth = 3000
    with pytest.raises(LeadershipLost, match="term 2 has decided"):
        await first.step(Tenure(epoch=1))
    with pytest.raises(LeadershipLost):
        await second.step(Tenure(epoch=2, is_over=True))
    assert pool.driver.asked == []


async def test_instances_that_died_are_replaced(pool: Pool) -> None:
    agent = pool.agent()
    pool.depth = 3000
    await agent.step(Tenure())
    pool.driver.asked.append(2)  # four of six are gone
    await agent.step(Tenure())
    assert pool.driver.asked == [6, 2, 6]
    assert len(await agent.history.changes()) == 1


async def test_what_cannot_be_seen_changes_nothing_and_the_agent_goes_on(pool: Pool) -> None:
    agent = pool.agent()
    broken = True

    async def observe(actual: int) -> Observation:
        if broken:
            raise StorageUnreachable("away")
        return await pool.observe(actual)

    agent._observe = observe
    pool.depth = 3000
    leading = asyncio.create_task(agent.lead(Tenure()))
    await pool.clock.advance(50)
    assert pool.driver.asked == []
    broken = False
    await pool.clock.advance(15)
    leading.cancel()
    assert pool.driver.asked == [6]


async def test_a_driver_that_fails_is_asked_again_next_turn(pool: Pool) -> None:
    """What the machine refuses (no memory, no file) is an `OSError`: the agent goes on."""
    agent = pool.agent()
    scale, refused = pool.driver.scale, 0

    async def refuse(wanted: int) -> None:
        nonlocal refused
        refused += 1
        raise OSError(12, "Cannot allocate memory")

    pool.driver.scale = refuse  # type: ignore[method-assign]
    pool.depth = 3000
    leading = asyncio.create_task(agent.lead(Tenure()))
    await pool.clock.advance(31)
    assert refused >= 2 and not leading.done()
    pool.driver.scale = scale  # type: ignore[method-assign]
    await pool.clock.advance(15)
    leading.cancel()
    assert pool.driver.asked == [6]
    assert len(await agent.history.changes()) == 1, "the same wish was recorded as several changes"


async def test_storage_away_holds_the_number_and_the_next_turn_decides_on(pool: Pool) -> None:
    agent = pool.agent()
    pool.depth = 3000
    leading = asyncio.create_task(agent.lead(Tenure()))
    await pool.clock.advance(1)
    record, pool.depth = agent.history.record, 9000

    async def away(*_: Any, **__: Any) -> None:
        raise StorageUnreachable("away")

    agent.history.record = away  # type: ignore[method-assign]
    await pool.clock.advance(60)
    assert pool.driver.asked == [6], "a change was made that nobody could record"
    agent.history.record = record  # type: ignore[method-assign]
    await pool.clock.advance(15)
    leading.cancel()
    assert pool.driver.asked == [6, 10]


async def test_a_policy_that_changes_meanwhile_counts_from_the_next_turn_on(pool: Pool) -> None:
    agent, policy = pool.agent(), POLICY

    async def in_force() -> ScalingPolicy:
        return policy

    agent._policy = in_force
    pool.depth = 3000
    leading = asyncio.create_task(agent.lead(Tenure()))
    await pool.clock.advance(1)
    policy = msgspec.structs.replace(POLICY, maximum=3)
    await pool.clock.advance(15)
    assert pool.driver.asked == [6, 3]
    await pool.clock.advance(300)
    leading.cancel()
    assert pool.driver.asked == [6, 3], "it flapped"


async def test_a_message_wakes_the_agent_of_an_empty_pool_within_a_second(pool: Pool) -> None:
    bus = LocalBus()
    agent = pool.agent(bus=lambda: bus, topics=["queue:work"])
    leading = asyncio.create_task(agent.lead(Tenure()))
    await pool.clock.advance(1)
    pool.depth = 1
    await bus.publish(Hint(topic="queue:work", size=1, due=pool.clock.time() + 3600))
    await pool.clock.advance(1)
    assert pool.driver.asked == [], "what is due in an hour woke it"
    await bus.publish(Hint(topic="queue:work", size=1))
    await pool.clock.advance(1)
    assert pool.driver.asked == [1]
    leading.cancel()


async def test_without_push_a_cold_start_waits_for_one_turn_at_most(pool: Pool) -> None:
    leading = asyncio.create_task(pool.agent().lead(Tenure()))
    await pool.clock.advance(1)
    pool.depth = 1
    await pool.clock.advance(13)
    assert pool.driver.asked == []
    await pool.clock.advance(1)
    assert pool.driver.asked == [1]
    leading.cancel()


async def test_announcements_that_the_pool_is_made_for_cause_no_further_turn(pool: Pool) -> None:
    bus, looks = LocalBus(), 0
    agent = pool.agent(bus=lambda: bus, topics=["queue:work"])

    async def observe(actual: int) -> Observation:
        nonlocal looks
        looks += 1
        return await pool.observe(actual)

    agent._observe = observe
    policy = msgspec.structs.replace(POLICY, minimum=1)
    agent._policy = policy
    leading = asyncio.create_task(agent.lead(Tenure()))
    await pool.clock.advance(20)
    looks = 0
    for _ in range(45):
        await pool.clock.advance(1)
        await bus.publish(Hint(topic="queue:work", size=5))
    assert looks == 3
    await bus.publish(Hint(topic="queue:work", size=500))
    await pool.clock.advance(1)
    assert looks == 4, "a burst waited for the turn"
    leading.cancel()


async def test_the_opening_of_a_gate_wakes_the_agent_of_a_pool_that_has_instances(pool: Pool) -> None:
    bus = LocalBus()
    agent = pool.agent(bus=lambda: bus, topics=["queue:work", "gate:start"])
    agent._policy = msgspec.structs.replace(POLICY, minimum=1)
    leading = asyncio.create_task(agent.lead(Tenure()))
    await pool.clock.advance(20)
    assert pool.driver.asked == [1]
    pool.depth = 3000
    await bus.publish(Hint(topic="gate:start"))
    await pool.clock.advance(1)
    leading.cancel()
    assert pool.driver.asked == [1, 6]


async def test_a_week_later_the_instances_are_ready_when_the_hour_begins(pool: Pool) -> None:
    """The day is recorded by one agent, and read by another."""
    hour, week = 3600.0, 7 * 86_400.0
    started = pool.clock.time() // 86_400 * 86_400 + 86_400 + 9 * hour
    await pool.clock.advance(started - pool.clock.time())
    agent, arrivals = pool.agent(), [0.0, 90_000.0]

    async def observe(actual: int) -> Observation:
        at, arrived = pool.clock.time(), arrivals.pop(0) if arrivals else 0.0
        return Observation(at, actual, 0, 0, most_per_second=0.0, idle_seconds=1e6, arrived=arrived)

    agent._observe = observe
    for _ in range(3):
        await agent.step(Tenure())
        await pool.clock.advance(hour - 1)
    await pool.clock.advance(86_400)
    await agent.step(Tenure())
    assert pool.driver.asked == [] and agent._usage is not None
    assert (await agent.history.latest()).usage == agent._usage  # type: ignore[union-attr]
    successor = pool.agent()
    successor._policy, successor._observe = msgspec.structs.replace(POLICY, forecast=True), observe
    wanted = []
    for at in (started - 60, started - 15, started + hour, started + 2 * hour):
        await pool.clock.advance(started + week + (at - started) - pool.clock.time())
        decision = await successor.step(Tenure(epoch=2))
        wanted.append((decision.wanted, "forecast" in decision.reason))
    assert wanted == [(0, False), (3, True), (0, False), (0, False)]
