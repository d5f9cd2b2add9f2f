"""What somebody who means harm sends as a worker, and puts into storage: valid, at the bounds and beyond them."""

from __future__ import annotations

import asyncio
import json
import os
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import websockets
from azure.core.exceptions import AzureError

from coordinator.realtime import protocol
from coordinator.storage import Storage
from tests.support.dashboard import TOKEN, BareWorker, Dashboard

GATE = "on-sale"
NUMBERS = (0, 1, -1, 1.5, 10**15, 10**15 + 1, 2**63 - 1, 2**63, 10**30, 10**400, 1e300, -1e300, "1", None, [])
TEXTS = (
    "",
    "a",
    "orders-in",
    "a/b",
    "..",
    "a\nb",
    "\x00",
    "ü😀",
    "x" * 128,
    "x" * 129,
    "<b>",
    "'; drop",
    7,
    None,
)
GARBAGE = (
    *(b"", b"{", b"null", b"[]", b'"x"', b"\xff\xfe", b"0", b"-1", b"9" * 400, b"1e300", b"x" * 100_000),
    *(b'{"epoch": 1' + b"0" * 400 + b"}", b'{"epoch": -1}', b'{"epoch": 1, "state": "ajar"}'),
    *(b'{"epoch": 1, "state": "open", "until": 1e300}', b'{"epoch": 1, "changed_at": -5}'),
    *(b'{"epoch": 1, "state": "open", "by": "\\u0000"}', b"[" * 5000),
)
METADATA = (
    *({}, {"epoch": "abc"}, {"epoch": "-1"}, {"epoch": "9" * 300}, {"epoch": "1", "since": "inf"}),
    *(
        {"epoch": "1", "since": "1e300"},
        {"gate": "{"},
        {"gate": '{"epoch": 1, "until": 1e300}'},
        {"holder": "%00"},
    ),
    *({"kennel_next": "x"}, {"kennel_next": "9" * 100}, {"grants": "???"}),
)


def frame(rng: random.Random, hello: dict[str, Any]) -> str:
    """A frame: valid, at the bounds, or beyond them."""
    number, text = rng.choice(NUMBERS), rng.choice(TEXTS)
    state = {
        "gates": [{"name": text, "epoch": number, "offset_seconds": number}],
        "listeners": [{"queue": text, "done": number, "reason": text}],
        "elections": [{"name": text, "role": text, "epoch": number, "remaining_seconds": number}],
        "sequences": [{"name": text, "last": number, "per_second": number}],
        "requests": {str(text): number},
        "queue_requests": {str(text): number},
        "queue_traffic": {f"{text}/bytes_sent": number},
        "memory_bytes": number,
    }
    some = dict(rng.sample(sorted(state.items()), rng.randrange(1, 4)))
    whole: dict[str, Any] = rng.choice(
        [
            {"type": "state", "state": some},
            {"type": "state", "state": {"requests": {f"made-up-{rng.randrange(10**6)}": 1 for _ in range(200)}}},
            {"type": "state", "state": {"gates": [{"name": f"g-{rng.randrange(10**6)}"} for _ in range(200)]}},
            {"type": "receipt", "gate": rng.choice([GATE, text]), "epoch": number, "source": "push",
             "delay_seconds": number, "passed_at": number},
            {"type": "receipt", "gate": GATE, "epoch": 10**15, "source": "push", "delay_seconds": 0.1,
             "passed_at": 1e9},
            {"type": "announce", "hint": {"topic": f"gate:{GATE}", "epoch": 10**15}},
            {"type": "announce", "hint": {"topic": f"queue:{text}", "size": number}},
            hello | {rng.choice(["pid", "started_at", "version"]): number},
            hello | {rng.choice(["worker", "instance", "host", "software"]): text},
        ]
    )  # fmt: skip
    return json.dumps(whole)


def flood_from(port: int, prefix: str, seed: int, frames: int, crews: int) -> int:
    """Send so many, by so many sockets at once, from a process of its own; returns how many were closed for them.

    It steps back for the other processes: an attacker does so from another machine.
    """
    os.nice(10)
    dashboard = Dashboard(Path(), "", prefix, port=port)

    async def run() -> int:
        return sum(
            await asyncio.gather(
                *(
                    flood(dashboard, random.Random(seed + crew), frames // crews, f"hostile-{crew}")
                    for crew in range(crews)
                )
            )
        )

    return asyncio.run(run())


async def flood(dashboard: Dashboard, rng: random.Random, frames: int, crew: str) -> int:
    """Send so many, by as many sockets as that takes; returns how many were closed for them.

    The same ten processes connect again and again, now and then a new one: what is kept of those that have gone is
    bounded for each token, and would hide what else grows.
    """
    sent = closed = 0
    while sent < frames:
        name = f"{crew}-{rng.randrange(10)}"
        worker = BareWorker(dashboard, name)
        if rng.random() < 0.95:
            worker.instance = worker.secret = f"process-of-{name}"
        hello = json.loads(protocol.encode(worker.hello()))
        with suppress(websockets.WebSocketException, OSError):
            async with websockets.connect(
                dashboard.hub_url, additional_headers={"Authorization": f"Bearer {TOKEN}"}, compression=None
            ) as socket:
                if rng.random() < 0.9:
                    await socket.send(protocol.encode(worker.hello()))
                for _ in range(80):
                    sent += 1
                    await socket.send(frame(rng, hello))
                    if socket.state is not websockets.State.OPEN:
                        break
                await socket.close()
        closed += 1
    return closed


async def litter(storage: Storage, rng: random.Random, number: int) -> None:
    """Put so much garbage into each container and each table of Kennel's."""
    config = storage.config
    containers = [
        config.container(kind)
        for kind in ("gates", "leases", "sequences", "claims", "flags", "rules", "reports")
    ]
    tables = [
        config.table(kind)
        for kind in ("ledger", "terms", "batches", "batchparts", "bulk", "sagas", "scaling", "epochs", "runs")
    ]
    for each in containers:
        with suppress(AzureError):
            await storage.aio.blobs.create_container(each)
    for each in tables:
        with suppress(AzureError):
            await storage.aio.tables.create_table(each)
    limit = asyncio.Semaphore(8)

    async def blob(n: int, container: str) -> None:
        async with limit:
            name = f"odd-{n}" if n % 5 else f"odd/{n}"
            client = storage.aio.blobs.get_container_client(container)
            with suppress(AzureError, ValueError):
                await client.upload_blob(
                    name, rng.choice(GARBAGE), overwrite=True, metadata=dict(rng.choice(METADATA))
                )

    async def row(n: int, table: str) -> None:
        async with limit:
            odd = {
                field: rng.choice([0, -1, 2**31 - 1, 1e300, -1e300, "", "x", "\ud7ff", True])
                for field in ("state", "epoch", "changed_at", "started_at", "since", "first", "last", "at", "wanted", "source")
                if rng.random() < 0.8
            }  # fmt: skip
            values = {
                "PartitionKey": f"odd-{n % 9}",
                "RowKey": rng.choice(["a-latest", "saga-", ""]) + str(n),
                **odd,
            }
            with suppress(AzureError):
                await storage.aio.tables.get_table_client(table).upsert_entity(values)

    for n in range(number):
        await asyncio.gather(*(blob(n, each) for each in containers), *(row(n, each) for each in tables))


async def post_odd_messages(storage: Storage, rng: random.Random, number: int) -> None:
    texts = [
        *(
            '{"kennel":1,"at":1e300}',
            '{"kennel":1,"size":-2,"z":"eJw="}',
            '{"kennel":1,"size":-1,"z":"eJw="}',
        ),
        *("{", "\x7f", '{"kennel":1,"items":[1e999]}', '{"kennel":99}', '{"kennel":1,"id":7}', "W10="),
        *('{"kennel":1,"claim":{"name":"../x","bytes":-1}}', '{"kennel":1,"left":[-1]}', "[" * 5000),
    ]
    client = storage.aio.queues.get_queue_client("orders-in")
    with suppress(AzureError):
        await client.create_queue()
    limit = asyncio.Semaphore(8)

    async def one() -> None:
        async with limit:
            with suppress(AzureError):
                await client.send_message(rng.choice(texts))

    await asyncio.gather(*(one() for _ in range(number)))
