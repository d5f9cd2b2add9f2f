"""What release 0.1 wrote, as it wrote it: every later release reads it, and writes nothing that 0.1 could not read.

Fields may be added. One that is renamed, retyped or dropped breaks a fleet in the middle of its upgrade, and fails here.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from coordinator.gates import state as gates
from coordinator.queues import envelope as envelopes
from coordinator.realtime import protocol

STATE = (
    '{"gates":[{"name":"sale","state":"closed","epoch":4,"waiting":true,"passed_epoch":3}],"listeners":[{"queue":'
    '"orders-in","active_tasks":3,"total_tasks":10,"wanted_tasks":5,"in_hand":7,"done":1200,"failed":4,"poisoned":1,'
    '"stale_receipts":2,"oldest_seconds":12.5,"state":"running","reason":"depth 700"}],"elections":[{"name":"month-end",'
    '"role":"leader","epoch":9,"remaining_seconds":11.5}],"sequences":[{"name":"orders","first":1001,"last":2000,'
    '"last_issued":1400,"issued":400,"per_second":88.5,"runway_seconds":6.75,"conflicts":2,"grants":3}],"requests":'
    '{"queue.GetMessages":41},"cpu_seconds":3.25,"memory_bytes":73400320}'
)
FROM_WORKER = (
    '{"type":"hello","version":1,"worker":"billing-1","instance":"0f3c","host":"node-7","pid":4711,'
    f'"started_at":1763700000.5,"software":"kennel 0.1.0","prefix":"kennel-","state":{STATE}}}',
    f'{{"type":"state","state":{STATE}}}',
    '{"type":"receipt","gate":"sale","epoch":4,"source":"push","delay_seconds":0.03,"passed_at":1763700100.25}',
    '{"type":"announce","hint":{"topic":"queue:orders-in","size":512,"origin":"billing-1"}}',
)
FROM_HUB = (
    '{"type":"welcome","version":1,"heartbeat_seconds":1.0,"server_time":1763700000.75}',
    '{"type":"hint","hint":{"topic":"gate:sale","epoch":4}}',
    '{"type":"command","verb":"step_down","id":"c1","target":"month-end","by":"olga"}',
)
GATES = (
    '{"name":"sale","epoch":4,"state":"open","changed_at":1763700000.5,"share":0.1,"by":"olga","reason":"doors open",'
    '"recent":["a1","b2"]}',
    '{"name":"sale","epoch":5,"state":"armed","changed_at":1763700000.5,"not_before":1763703600.0,"until":1763707200.0,'
    '"by":"olga"}',
)
ITEMS = [{"item": "ticket", "cents": 4200}, {"item": "poster", "cents": 900}]
PACKED = "eJyLrlbKLEnNVbJSKslMzk4tUdJRSk7NKylWsjIxMjCo1YFLF+QXl6QWIaQtgbKxAHaPE8U="
ENVELOPES = (
    '{"kennel":1,"id":"0f3c","at":1763700000.5,"by":"billing-1","schema":2,"traceparent":"00-1-2-01",'
    f'"items":{json.dumps(ITEMS)}}}',
    f'{{"kennel":1,"id":"0f3c","at":1763700000.5,"size":62,"z":"{PACKED}"}}',
    '{"kennel":1,"id":"0f3c","at":1763700000.5,"size":900000,"claim":{"name":"orders-in/0f3c","bytes":1200}}',
)
MAPS = {"requests"}
"""Objects whose keys are data."""


def within(old: Any, new: Any) -> bool:
    """Whether everything in `old` is in `new`, in the same place and the same."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(key in new and within(old[key], new[key]) for key in old)
    if isinstance(old, list):
        return isinstance(new, list) and len(old) == len(new) and all(map(within, old, new))
    return bool(old == new) and type(old) is type(new)


def from_the_future(value: Any, name: str = "") -> Any:
    """The same with a field that nobody knows yet in every object."""
    if isinstance(value, dict):
        grown = {key: from_the_future(entry, key) for key, entry in value.items()}
        return grown if name in MAPS else grown | {"unheard_of": {"really": [1]}}
    if isinstance(value, list):
        return [from_the_future(entry) for entry in value]
    return value


@pytest.mark.parametrize("frame", FROM_WORKER, ids=lambda frame: json.loads(frame)["type"])
def test_frames_of_workers_of_0_1_are_understood_and_still_written(frame: str) -> None:
    message = protocol.decode_from_worker(frame)
    assert within(json.loads(frame), json.loads(protocol.encode(message)))
    assert protocol.decode_from_worker(json.dumps(from_the_future(json.loads(frame)))) == message


@pytest.mark.parametrize("frame", FROM_HUB, ids=lambda frame: json.loads(frame)["type"])
def test_frames_of_the_hub_of_0_1_are_understood_and_still_written(frame: str) -> None:
    message = protocol.decode_from_hub(frame)
    assert within(json.loads(frame), json.loads(protocol.encode(message)))
    assert protocol.decode_from_hub(json.dumps(from_the_future(json.loads(frame)))) == message


@pytest.mark.parametrize("text", GATES, ids=["open", "armed"])
def test_gates_of_0_1_are_understood_and_still_written(text: str) -> None:
    state = gates.decode("sale", text)
    assert within(json.loads(text), json.loads(gates.encode(state)))
    assert gates.decode("sale", json.dumps(from_the_future(json.loads(text)))) == state


@pytest.mark.parametrize("text", ENVELOPES, ids=["inline", "packed", "claim"])
def test_messages_of_0_1_are_understood_and_still_written(text: str) -> None:
    envelope = envelopes.decode(text)
    assert within(json.loads(text), json.loads(envelopes.encode(envelope)))
    grown = envelopes.decode(json.dumps(json.loads(text) | {"unheard_of": 1}))
    assert grown.id == envelope.id
    if envelope.claim is None:
        assert [json.loads(bytes(item)) for item in envelopes.inline_items(grown)] == ITEMS


def test_a_change_of_the_format_would_be_found() -> None:
    assert not within({"epoch": 4}, {"epoche": 4})
    assert not within({"epoch": 4}, {"epoch": "4"})
    assert not within({"gates": [{"name": "a"}]}, {"gates": []})
    assert within({"gates": [{"name": "a"}]}, {"gates": [{"name": "a", "more": 1}], "more": 2})
