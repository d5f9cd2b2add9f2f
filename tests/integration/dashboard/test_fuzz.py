"""Promises about hostile frames: each closes its socket or is answered with a reason, and the hub goes on."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Coroutine
from typing import Any

import psutil
import pytest
import websockets

from coordinator.realtime import protocol
from coordinator.realtime.protocol import Hello, State, WorkerState
from tests.support.dashboard import TOKEN, BareWorker, Dashboard, Person, until

AT_ONCE = 8
PATIENCE_SECONDS = 60


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
        # From many addresses of this machine: of one, sockets that break the rules come in slowly.
        local_addr=(f"127.0.{random.randrange(1, 250)}.1", 0),
        additional_headers={"Authorization": f"Bearer {TOKEN}"},
        max_size=None,
        compression=None,
    ) as socket:
        if first:
            await socket.send(first)
        await socket.send(frame)
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(websockets.ConnectionClosed):  # noqa: PT012 - a welcome may come first
                while True:
                    await socket.recv()
        assert socket.close_code in (protocol.CLOSE_MALFORMED, protocol.CLOSE_FORBIDDEN)
        assert socket.close_reason


async def test_500_mangled_frames_close_their_socket_or_are_answered_and_cost_no_memory(
    dashboard: Dashboard,
) -> None:
    await _fuzz(dashboard, workers_frames=390, browsers_frames=110)


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_10_000_mangled_frames_close_their_socket_or_are_answered_and_cost_no_memory(
    own_dashboard: Dashboard,
) -> None:
    await _fuzz(own_dashboard, workers_frames=7_500, browsers_frames=2_500)


async def _fuzz(dashboard: Dashboard, *, workers_frames: int, browsers_frames: int) -> None:
    """Both sockets, in three parts: after the first, memory stays where it is."""
    rng = random.Random(7)
    assert dashboard.process is not None
    process = psutil.Process(dashboard.process.pid)
    grown = []
    with Person(dashboard, "vera") as vera:
        for _ in range(3):
            await _at_once([_fuzz_worker(dashboard, rng) for _ in range(workers_frames // 3)])
            await _at_once([_fuzz_browser(vera, rng) for _ in range(browsers_frames // 3)])
            grown.append(process.memory_info().rss)
        assert grown[-1] - grown[0] < 8 * 2**20, grown
        assert vera.get("/healthz").json() == {"ok": True}
    async with BareWorker(dashboard, "sound") as sound:
        await until(lambda: sound.heard)
    assert "Traceback" not in dashboard.said()


async def _at_once(work: list[Coroutine[Any, Any, None]]) -> None:
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(each: Coroutine[Any, Any, None]) -> None:
        async with limit:
            await each

    await asyncio.gather(*(one(each) for each in work))


async def _fuzz_worker(dashboard: Dashboard, rng: random.Random) -> None:
    # A name of its own for each: a second socket of the same worker would close the first.
    hello = protocol.encode(BareWorker(dashboard, f"fuzz-{rng.randrange(10**9)}").hello())
    mangled, first = _mangled(rng, hello), hello if rng.random() < 0.5 else ""
    if _is_fine(mangled, bool(first)):
        mangled = protocol.encode(State(WorkerState())) + "x"
    await _closes_with_a_reason(dashboard, mangled, first)


async def _fuzz_browser(person: Person, rng: random.Random) -> None:
    frame = _mangled(
        rng, json.dumps({"action": "unleash", "target": "fuzzed-gate", "share": 1, "reason": "x"})
    )
    async with person.socket("other") as socket:
        await socket.send(frame)
        async with asyncio.timeout(PATIENCE_SECONDS):
            try:
                while '"ok": false' not in str(await socket.recv()):
                    pass
            except websockets.ConnectionClosed:
                assert socket.close_code == protocol.CLOSE_MALFORMED
                assert socket.close_reason


def _is_fine(frame: str, after_hello: bool) -> bool:
    """Whether the hub would rightly take it."""
    try:
        message = protocol.decode_from_worker(frame)
    except protocol.ProtocolViolation:
        return False
    return not (after_hello and isinstance(message, Hello))
