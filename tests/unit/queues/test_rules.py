"""How many tasks a queue deserves, by tables; and a rule changed while a listener runs."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.errors import ConfigurationError
from coordinator.queues.rules import (
    QueueLoad,
    ScalingRule,
    Steps,
    TargetLatency,
    decide,
    decode_rule,
    encode_rule,
)
from coordinator.realtime.bus import LocalBus
from coordinator.testing.clock import ManualClock
from coordinator.testing.queues import MemoryRules, memory_queue

ALLOWED = range(101)


@pytest.mark.parametrize(
    ("depth", "tasks"), [(0, 10), (99, 10), (100, 50), (999, 50), (1000, 100), (10**6, 100)]
)
def test_the_steps_of_the_default_rule(depth: int, tasks: int) -> None:
    assert decide(Steps(), QueueLoad(waiting=depth), allowed=ALLOWED).tasks == tasks


@pytest.mark.parametrize(
    ("measured", "tasks", "why"),
    [
        (QueueLoad(480, service_seconds=2.1), 17, "17 tasks: 480 waiting × 2.1 s each ÷ target 60 s"),
        (QueueLoad(0), 0, "0 tasks: 0 waiting × 1 s each (assumed) ÷ target 60 s"),
        (QueueLoad(1, service_seconds=0.001), 1, "1 tasks: 1 waiting × 0.001 s each ÷ target 60 s"),
        (
            QueueLoad(0, arrival_per_second=4, service_seconds=2),
            8,
            "8 tasks: 0 waiting × 2 s each ÷ target 60 s + 4/s arriving",
        ),
        (QueueLoad(10**6, service_seconds=1), 100, "limited to 0–100"),
        (QueueLoad(480, tasks=5, service_seconds=2.1, since_up_seconds=1), 5, "last step up 1.0 s ago"),
        (QueueLoad(0, tasks=9, service_seconds=1, since_down_seconds=3), 9, "last step 3.0 s ago"),
        (QueueLoad(0, in_flight=4, tasks=9, service_seconds=1), 4, "4 in flight"),
        (QueueLoad(None, tasks=9), 9, "depth unknown"),
    ],
)
def test_the_target_rule_and_its_explanation(measured: QueueLoad, tasks: int, why: str) -> None:
    decision = decide(TargetLatency(60), measured, allowed=ALLOWED)
    assert decision.tasks == tasks
    assert why in decision.reason


def test_the_listeners_own_bounds_hold_and_are_told() -> None:
    decision = decide(Steps(), QueueLoad(5000), allowed=range(2, 21))
    assert (decision.tasks, decision.reason) == (
        20,
        "20 tasks: depth 5000 (≥ 1000); limited to 2–20 (calculated 100)",
    )


@pytest.mark.parametrize("rule", [Steps(), Steps(((5, 0),), 1), TargetLatency(0.5, minimum=1)])
def test_a_rule_survives_its_stored_form(rule: ScalingRule) -> None:
    assert decode_rule(encode_rule(rule)) == rule


@pytest.mark.parametrize(
    "text",
    ["", "7", '{"type":"magic"}', '{"type":"target","seconds":0}', '{"type":"steps","steps":[[9,1],[5,2]]}', '{"type":"steps","step":[]}'],
)  # fmt: skip
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        decode_rule(text)


@pytest.mark.parametrize("hinted", [True, False], ids=["with a hint", "by polling"])
async def test_a_rule_changed_by_an_operator_changes_the_running_tasks_within_5_s(hinted: bool) -> None:
    clock, bus = ManualClock(), LocalBus()
    rules = MemoryRules((lambda: bus) if hinted else None)
    queue = memory_queue("work", type=int, clock=clock, bus=lambda: bus, rules=rules)
    release = asyncio.Event()

    async def handler(item: int) -> None:
        await release.wait()

    for number in range(40):
        await queue.put(number)
    listener = queue.listener(handler, tasks=range(51))
    running = asyncio.create_task(listener.run())
    await clock.advance(10)
    assert listener.active_tasks == 10
    await rules.write("work", Steps((), 37), by="olga")
    await clock.advance(0.5 if hinted else 5)
    assert listener.active_tasks == 37
    assert listener.status().reason == "37 tasks: depth 40 (≥ 0)"
    await rules.remove("work")
    await clock.advance(0.5 if hinted else 5)
    assert listener.status().wanted_tasks == 10
    release.set()
    stopping = asyncio.create_task(listener.stop(5))
    await clock.advance(10)
    await stopping
    await running
