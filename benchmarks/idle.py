"""What a worker costs that only waits, in a fleet of ten thousand: frames to and from its hub, and requests to storage.

    python benchmarks/idle.py [--workers 20] [--seconds 120] [--json]

Frames are counted: connections of workers as they are, to a bare hub that sets the interval of ten thousand workers. Requests are
counted over a simulated hour at a closed gate.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections import Counter
from pathlib import Path

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.protocol import Event

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from coordinator.gates.gate import Gate
from coordinator.realtime import protocol
from coordinator.realtime.bus import LocalBus
from coordinator.realtime.hub_client import HubConnection
from coordinator.testing.clock import ManualClock
from coordinator.testing.gates import MemoryGateStore
from dashboard.live.presence import pace_of

FLEET = 10_000
UVICORN_PING_SECONDS = 20.0


class Counting(ServerConnection):
    """The hub's end of a socket, which counts what comes by kind."""

    came: Counter[str] = Counter()

    def process_event(self, event: Event) -> None:
        if isinstance(event, Frame):
            self.came[Opcode(event.opcode).name.lower()] += 1
        super().process_event(event)


async def frames(workers: int, seconds: float) -> dict[str, float]:
    """For each worker and second, by kind."""

    async def hub(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.send(protocol.encode(protocol.Welcome(protocol.VERSION, pace_of(FLEET), time.time())))
        with contextlib.suppress(ConnectionClosed):
            async for _ in socket:
                pass

    def hello() -> protocol.Hello:
        gate = protocol.GateStatus("start", "closed", 1, waiting=True)
        state = protocol.WorkerState(gates=(gate,), cpu_seconds=time.process_time())
        return protocol.Hello(protocol.VERSION, "w", "i", "bench", 1, time.time(), "bench", "kennel-", state)

    async with serve(
        hub, "127.0.0.1", 0, create_connection=Counting, ping_interval=UVICORN_PING_SECONDS
    ) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        connections = [
            HubConnection(f"ws://127.0.0.1:{port}/", "t", hello=hello, on_command=lambda command: None)
            for _ in range(workers)
        ]
        running = [asyncio.create_task(connection.run()) for connection in connections]
        await asyncio.sleep(2 * pace_of(FLEET))
        Counting.came.clear()
        await asyncio.sleep(seconds)
        found = {kind: round(count / workers / seconds, 3) for kind, count in Counting.came.items()}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return found


class Fleet(LocalBus):
    """The bus of a worker of so large a fleet."""

    is_connected = True  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        hub = HubConnection("", "", hello=lambda: None, on_command=lambda command: None)  # type: ignore[arg-type,return-value]
        hub._heartbeat_seconds = pace_of(FLEET)
        self.seconds = hub.safety_poll_seconds

    @property
    def safety_poll_seconds(self) -> float:
        return self.seconds


async def requests() -> int:
    """Of one worker at a closed gate, in the second hour."""
    clock, bus = ManualClock(), Fleet()
    store = MemoryGateStore(clock=clock)
    waiting = asyncio.create_task(Gate(store, identity="w", bus=lambda: bus, clock=clock).wait())
    await clock.advance(3600)
    before = store.reads
    await clock.advance(3600)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    return store.reads - before


async def measure(workers: int, seconds: float) -> dict[str, object]:
    return {
        "fleet": FLEET,
        "frames_a_second": await frames(workers, seconds),
        "requests_an_hour_at_a_gate": await requests(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = asyncio.run(measure(options.workers, options.seconds))
    for name, value in found.items():
        print(f"{name:30} {value}")
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
