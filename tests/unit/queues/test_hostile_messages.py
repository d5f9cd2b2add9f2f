"""Whatever lies in a queue, no task dies of it, and all of it is in poison with its reason and its bytes."""

from __future__ import annotations

import asyncio
import base64
import functools
import gc
import logging
import random
import sys
import tracemalloc
import zlib
from typing import Any

import msgspec
import psutil
import pytest

from coordinator.queues.envelope import PoisonRecord
from coordinator.realtime.bus import LocalBus
from coordinator.testing.clock import ManualClock
from coordinator.testing.queues import MemoryQueueTransport, memory_queue

GOOD = '{"kennel":1,"id":"x","at":1.0,"items":[{"number":1,"name":"ü"}]}'


class Order(msgspec.Struct):
    number: int
    name: str


@functools.cache
def bomb(megabytes: int, *, says: int | None) -> str:
    """As bad as it gets within a message: about a thousand bytes out of each byte."""
    payload = b'["' + b"x" * (megabytes * 1024 * 1024) + b'"]'
    packed = base64.b64encode(zlib.compress(payload, 9)).decode()
    return msgspec.json.encode({"kennel": 1, "id": "x", "size": says or len(payload), "z": packed}).decode()


def hostile(rng: random.Random, count: int) -> list[str]:
    """Texts of every unkind sort; none of them is an order."""

    def characters(length: int) -> str:
        return rng.randbytes(length).decode("latin-1")

    def one() -> str:
        if not rng.randrange(400):
            return bomb(rng.choice((20, 44)), says=rng.choice((None, 1000, 40_000_000)))
        match rng.randrange(8):
            case 0:
                return characters(rng.randrange(1, 300))
            case 1:
                return base64.b64encode(rng.randbytes(rng.randrange(1, 300))).decode()
            case 2:
                return GOOD[: rng.randrange(1, len(GOOD) - 1)]
            case 3:
                depth = rng.choice((100, 10_000, 30_000))
                return rng.choice(
                    (
                        "[" * depth,
                        "[" * depth + "]" * depth,
                        '{"a":' * (depth // 5) + "1" + "}" * (depth // 5),
                    )
                )
            case 4:
                place = rng.randrange(len(GOOD) - 30)
                return GOOD[:place] + "\x00" + GOOD[place:]
            case 5:
                return f'{{"kennel":1,"id":"x","size":{rng.choice((0, 5, 10**18, -1))},"z":"{base64.b64encode(rng.randbytes(60)).decode()}"}}'
            case 6:
                name = rng.choice(("0" * 32, "../secret", "x", "a" * 5000))
                return f'{{"kennel":1,"id":"x","size":9,"claim":{{"name":"{name}","bytes":9}}}}'
            case _:
                return rng.choice(
                    (
                        '{"kennel":"one"}', '{"kennel":1,"items":7}', '{"kennel":1,"items":[1]}', "null", "{}", "[]", "",
                        '{"kennel":1,"id":"x","schema":-1,"items":[{}]}', '{"kennel":1,"left":[0],"items":[{"number":1}]}',
                        '{"number":"one","name":"x"}',
                    )
                )  # fmt: skip

    return [one() for _ in range(count)]


async def drain(texts: list[str], *, seconds: float = 3600) -> tuple[list[Any], list[PoisonRecord], int]:
    """What a listener makes of these messages: what its handler got, what is in poison, and how many tasks live."""
    clock, transports, bus = ManualClock(), dict[str, MemoryQueueTransport](), LocalBus()
    queue = memory_queue("work", type=Order, clock=clock, bus=lambda: bus, transports=transports)
    await queue.create()
    for text in texts:
        await transports["work"].put(text)
    got: list[Any] = []
    listener = queue.listener(got.append, tasks=range(4, 5))
    running = asyncio.create_task(listener.run())
    while await transports["work"].count():
        await clock.advance(1)
        await asyncio.sleep(0)
    alive = listener.active_tasks
    stopping = asyncio.create_task(listener.stop(1))
    while not stopping.done():
        await clock.advance(1)
        await asyncio.sleep(0.001)
    await running
    poison = queue.poison
    records = []
    while messages := await transports["work-poison"].get(32, visibility_seconds=600):
        for message in messages:
            _, items = await poison.open(message.text)
            records += [record for _, record in items if isinstance(record, PoisonRecord)]
    return got, records, alive


async def assert_all_are_in_poison(texts: list[str]) -> None:
    got, records, alive = await drain(texts)
    assert got == []
    assert sorted(record.text for record in records) == sorted(texts)
    assert all(record.reason and record.attempts == 1 for record in records)
    assert alive == 4


async def test_random_bytes_and_damaged_envelopes_are_all_in_poison_with_their_reason_and_bytes() -> None:
    await assert_all_are_in_poison(hostile(random.Random(5), 2_000))


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_100_000_hostile_messages_are_all_in_poison_and_leave_nothing_in_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR, "coordinator.queues")  # or pytest keeps a line for each
    process, held, kept = psutil.Process(), [], []
    for seed in range(50):
        await assert_all_are_in_poison(hostile(random.Random(seed), 2_000))
        gc.collect()
        held.append(process.memory_info().rss)
        kept.append(sys.getallocatedblocks())
    # The room of a few bombs may stay with the allocator, for each thread that unpacked one; the messages' may not.
    assert max(held) - held[0] < 192 * 1024 * 1024, held
    assert kept[-1] - kept[9] < 20_000, kept


@pytest.mark.parametrize("says", [None, 1000, 40_000_000], ids=["honest", "says little", "says less"])
async def test_a_zip_bomb_is_not_unpacked_beyond_what_is_allowed(says: int | None) -> None:
    text = bomb(44, says=says)
    assert len(text) <= 65_536
    tracemalloc.start()
    try:
        got, records, _ = await drain([text])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert got == []
    assert [record.text for record in records] == [text]
    assert peak < 200 * 1024 * 1024


async def test_good_messages_among_bad_ones_are_handled() -> None:
    bad = hostile(random.Random(6), 50)
    got, records, _ = await drain([*bad, GOOD, *bad])
    assert got == [Order(1, "ü")]
    assert len(records) == 100
