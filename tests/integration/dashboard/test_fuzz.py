"""Promises about hostile frames: each closes its socket or is answered with a reason, and the hub goes on."""

from __future__ import annotations

import asyncio
import json
import random

import psutil
import pytest
import websockets

from coordinator import protocol
from coordinator.protocol import Hello, State, WorkerState
from tests.support.dashboard import TOKEN, BareWorker, Dashboard, Person, until

FRAMES = 150


def _mangled(rng: random.Random, sample: str) -> str:
    """A frame with something wrong somewhere."""
    kind = rng.randrange(6)
    cut = rng.randrange(len(sample))
    if kind == 0:
        return sample[:cut]
    if kind == 1:
        return sample[:cut] + rng.choice(["\x00", "}", '"', "[" * 500, "\ud7ff", "1e999"]) + sample[cut:]
    if kind == 2:
        return json.dumps(
            rng.choice([None, 0, [], "x", {"type": 3}, {"type": "state"}, {"type": "hint"}, {}])
        )
    if kind == 3:
        return sample.replace('"type":"hello"', '"type":"welcome"')
    if kind == 4:
        return sample.replace('"version":1', f'"version":{rng.choice(["-1", "1e400", "[]", "99"])}')
    return "".join(chr(rng.randrange(1, 0xD7FF)) for _ in range(rng.randrange(1, 200)))


async def _closes_with_a_reason(dashboard: Dashboard, frame: str, first: str) -> None:
    async with websockets.connect(
        dashboard.hub_url,
        additional_headers={"Authorization": f"Bearer {TOKEN}"},
        max_size=None,
        compression=None,
    ) as socket:
        if first:
            await socket.send(first)
        await socket.send(frame)
        async with asyncio.timeout(10):
            with pytest.raises(websockets.ConnectionClosed):  # noqa: PT012 - a welcome may come first
                while True:
                    await socket.recv()
        assert socket.close_code in (protocol.CLOSE_MALFORMED, protocol.CLOSE_FORBIDDEN)
        assert socket.close_reason


async def test_mangled_frames_of_workers_close_their_socket_and_cost_no_memory(dashboard: Dashboard) -> None:
    rng = random.Random(7)
    worker = BareWorker(dashboard, "fuzz")
    hello = protocol.encode(worker.hello())
    state = protocol.encode(State(WorkerState()))
    assert dashboard.process is not None
    process = psutil.Process(dashboard.process.pid)
    grown = []
    for _ in range(3):
        for _ in range(FRAMES // 3):
            mangled = _mangled(rng, hello)
            first = hello if rng.random() < 0.5 else ""
            if _is_fine(mangled, bool(first)):
                mangled = state + "x"
            await _closes_with_a_reason(dashboard, mangled, first)
        grown.append(process.memory_info().rss)
    assert grown[-1] - grown[0] < 8 * 2**20, grown
    async with BareWorker(dashboard, "sound") as sound:
        await until(lambda: sound.heard)


async def test_mangled_frames_of_browsers_close_their_socket_or_are_answered(dashboard: Dashboard) -> None:
    rng = random.Random(8)
    sample = json.dumps({"action": "unleash", "target": "fuzzed-gate", "share": 1, "reason": "x"})
    with Person(dashboard, "vera") as vera:
        for _ in range(40):
            frame = _mangled(rng, sample)
            async with vera.socket("other") as socket:
                await socket.send(frame)
                async with asyncio.timeout(10):
                    try:
                        while '"ok": false' not in str(await socket.recv()):
                            pass
                    except websockets.ConnectionClosed:
                        assert socket.close_code == protocol.CLOSE_MALFORMED
                        assert socket.close_reason
        assert vera.get("/healthz").json() == {"ok": True}


def _is_fine(frame: str, after_hello: bool) -> bool:
    """Whether the hub would rightly take it."""
    try:
        message = protocol.decode_from_worker(frame)
    except protocol.ProtocolViolation:
        return False
    return not (after_hello and isinstance(message, Hello))
