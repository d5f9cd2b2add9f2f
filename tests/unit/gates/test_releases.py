"""S2 and S3 as the sources describe them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from coordinator.errors import AccessDenied, ConfigurationError, GateTimeout, StorageUnreachable
from coordinator.gates.releases import ListeningRelease, PollingRelease
from coordinator.realtime.bus import RESYNC, LocalBus, Notification
from coordinator.testing.clock import ManualClock
from coordinator.testing.gates import MemoryFlag


async def test_polling_frees_everybody_within_one_interval_whenever_they_came() -> None:
    clock, flag = ManualClock(), MemoryFlag()
    release = PollingRelease(flag, clock=clock)
    early = [asyncio.ensure_future(release.wait()) for _ in range(5)]
    await clock.advance(100)
    await flag.set_flag(True)
    await clock.advance(2.5)
    assert all(task.done() for task in early)
    await release.wait()


async def test_polling_looks_every_2_5_seconds() -> None:
    clock, looks = ManualClock(), 0

    class Counting(MemoryFlag):
        async def get_flag(self) -> bool:
            nonlocal looks
            looks += 1
            return await super().get_flag()

    waiting = asyncio.ensure_future(PollingRelease(Counting(), clock=clock).wait())
    await clock.advance(25)
    waiting.cancel()
    assert looks == 11


async def test_polling_survives_an_unreachable_store_and_tells_a_wrong_credential() -> None:
    clock, errors = ManualClock(), [StorageUnreachable("cut"), StorageUnreachable("cut"), AccessDenied("403")]

    class Failing(MemoryFlag):
        async def get_flag(self) -> bool:
            raise errors.pop(0)

    waiting = asyncio.ensure_future(PollingRelease(Failing(), clock=clock).wait())
    await clock.advance(4)
    assert not waiting.done()
    await clock.advance(2)
    with pytest.raises(AccessDenied):
        waiting.result()


async def test_polling_ends_at_its_timeout() -> None:
    clock = ManualClock()
    waiting = asyncio.ensure_future(PollingRelease(MemoryFlag(), clock=clock).wait(6))
    await clock.advance(6.1)
    with pytest.raises(GateTimeout, match="within 6 s"):
        waiting.result()


def test_polling_needs_a_positive_interval() -> None:
    with pytest.raises(ConfigurationError, match="interval_seconds"):
        PollingRelease(MemoryFlag(), interval_seconds=0)


async def test_an_event_frees_all_who_listen_and_not_those_who_come_after() -> None:
    clock, bus = ManualClock(), LocalBus()
    release = ListeningRelease(bus, "go", clock=clock)
    waiting = [asyncio.ensure_future(release.wait()) for _ in range(5)]
    await clock.settle()
    await release.release()
    await asyncio.gather(*waiting)
    late = asyncio.ensure_future(release.wait(100))
    await clock.advance(99)
    assert not late.done()
    await clock.advance(2)
    with pytest.raises(GateTimeout, match="no release of go"):
        late.result()


async def test_an_event_may_come_from_any_thread_and_a_reconnect_is_no_event() -> None:
    bus = LocalBus()
    waiting = asyncio.ensure_future(ListeningRelease(bus, "go").wait(30))
    await asyncio.sleep(0)
    bus.deliver(Notification(RESYNC))
    bus.deliver(Notification("release:stop"))
    await asyncio.sleep(0)
    assert not waiting.done()
    thread = threading.Thread(target=bus.deliver, args=(Notification("release:go"),))
    thread.start()
    await waiting
    thread.join()
