"""The demo's scaling agent on the whole product: a burst, more workers with a reason, and fewer again; the leader stays."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import psutil
import pytest

from coordinator import LocalProcessDriver, Storage
from coordinator.leadership.azure import list_leaders
from coordinator.scaling.azure import scaling_history
from coordinator.scaling.history import ScalingRecord
from tests.support.stack import LiveStack, Visitor, live_stack, wait_until

pytestmark = pytest.mark.timeout(240)
T = TypeVar("T")


def pool_of(stack: LiveStack) -> LocalProcessDriver:
    """A look at the agent's processes; never used to change them."""
    return LocalProcessDriver("orders", ["true"], state=stack.folder / "pool")


def ask(stack: LiveStack, question: Callable[[Storage], Awaitable[T]]) -> T:
    async def act() -> T:
        async with Storage.from_connection_string(stack.connection_string) as storage:
            return await question(storage)

    time.sleep(0.3)  # each question makes connections of its own
    return asyncio.run(act())


def changes(stack: LiveStack) -> list[tuple[int, int, str]]:
    async def read(storage: Storage) -> list[tuple[int, int, str]]:
        found = await scaling_history(storage, "orders").changes()
        return [(each.previous, each.wanted, each.reason) for each in reversed(found)]

    return ask(stack, read)


def latest(stack: LiveStack) -> ScalingRecord | None:
    return ask(stack, lambda storage: scaling_history(storage, "orders").latest())


def leader_of_the_report(stack: LiveStack) -> tuple[str, int]:
    async def read(storage: Storage) -> tuple[str, int]:
        found = [each for each in await list_leaders(storage) if each.name == "daily-report" and each.is_held]
        return (found[0].holder, found[0].epoch) if found else ("", 0)

    return ask(stack, read)


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def put_in_force(visitor: Visitor, **policy: float) -> None:
    told = {"maximum": 3, "target_seconds": 10, "boot_seconds": 0, "instance_per_second": 20}
    told |= {"step_seconds": 1, "cooldown_seconds": 2, **policy}
    visitor.post("/scaling/orders/policy", policy=json.dumps(told), reason="a test")


def test_a_burst_adds_workers_with_a_reason_and_quiet_retires_all_but_the_leader() -> None:
    with live_stack(workers=1, orders=300, scale_to=3) as stack:
        pool = pool_of(stack)
        wait_until(lambda: pool.names() == ["orders-1"], "the fewest workers are there")
        wait_until(
            lambda: (now := latest(stack)) and "gate start-order-processing holds" in now.reason,
            "300 orders that wait for the gate are not taken for a burst",
        )
        visitor = stack.sign_in()
        put_in_force(visitor, minimum=1, target_seconds=1)  # no single worker is quick enough for that
        visitor.post("/gates/start-order-processing/unleash")
        wait_until(lambda: len(pool.names()) == 3, "the burst has brought two more")
        grown = next(each for each in changes(stack) if each[1] == 3)
        assert "to do at " in grown[2]
        wait_until(lambda: grown[2] in visitor.get("/scaling/?pool=orders").text, "the page says why", 30)

        put_in_force(visitor, minimum=3)
        first, epoch = wait_until(lambda: (now := leader_of_the_report(stack))[0] and now, "somebody leads")
        os.kill(pool.pids()[first], signal.SIGKILL)
        wait_until(lambda: leader_of_the_report(stack)[1] > epoch, "another term has begun")
        wait_until(lambda: len(pool.names()) == 3, "the dead worker was replaced")

        stack.wait_for_orders(300)
        second, _ = leader_of_the_report(stack)
        put_in_force(visitor, minimum=1)
        wait_until(lambda: pool.names() == [second], "all but the leader were retired")
        wait_until(lambda: list(pool.pids()) == [second], "they have drained and ended")
        assert leader_of_the_report(stack)[0] == second
        shrunk = changes(stack)[-1]
        assert (shrunk[1], shrunk[2].startswith("1 because")) == (1, True), shrunk
        assert stack.orders() == (300, 300)
        left = [stack.pids["agent"], *pool.pids().values()]
    assert not [pid for pid in left if lives(pid)], "the demo left processes behind"


@pytest.mark.slow
def test_an_agent_killed_is_started_again_and_its_workers_live_on() -> None:
    with live_stack(workers=2, orders=10, scale_to=3) as stack:
        pool = pool_of(stack)
        before = wait_until(lambda: len(pool.names()) == 2 and pool.pids(), "both workers are there")
        first = wait_until(lambda: latest(stack), "the agent has decided")
        stack.kill(stack.pids["agent"])
        second = wait_until(
            lambda: (now := latest(stack)) and now.epoch > first.epoch and now, "another agent decides"
        )
        assert second.wanted == 2
        assert pool.pids() == before
        pids = list(before.values())
    assert not [pid for pid in pids if lives(pid)], "the demo left workers behind"


@pytest.mark.slow
def test_a_demo_killed_with_9_leaves_nothing_behind() -> None:
    with live_stack(workers=2, orders=10, scale_to=3) as stack:
        pool = pool_of(stack)
        wait_until(lambda: len(pool.names()) == 2, "both workers are there")
        wait_until(lambda: latest(stack), "the agent has decided")
        parts = psutil.Process(stack.pids["demo"]).children(recursive=True)
        pids = {*pool.pids().values(), *(part.pid for part in parts)}
        stack.kill(stack.pids["demo"])
        wait_until(lambda: not [pid for pid in pids if lives(pid)], "workers and parts have ended", 90)
