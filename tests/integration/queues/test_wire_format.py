"""The page on the wire format: its schema is that of the code and of what Kennel stores, and its JavaScript program works."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import re
import subprocess
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from coordinator import Storage
from coordinator.config import StorageConfig
from coordinator.queues.queue import Queue
from coordinator.queues.settling import RetryPolicy
from coordinator.testing.azurite import find_node
from scripts import wire_schema
from tests.support.readme import PROJECT

PAGE = (PROJECT / "docs" / "wire-format.md").read_text()
[PROGRAM] = re.findall(r"^```js\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
SCHEMA = json.loads(wire_schema.TARGET.read_text())
MAIN = """
import { KennelQueue } from "./kennel.mjs";
import { readFileSync } from "node:fs";
const [options, word] = process.argv.slice(2);
const texts = JSON.parse(readFileSync("texts.json"));
const queue = new KennelQueue(JSON.parse(options));
const found = [];
if (word === "write") await queue.write(...texts);
else if (word === "read") for (const text of texts) found.push(await queue.read(text));
else while (await queue.take((item) => found.push(item)));
console.log(JSON.stringify(found));
"""


class Order(msgspec.Struct):
    number: int
    name: str


class Program:
    """The page's program, on one queue."""

    def __init__(self, folder: Path, storage: Storage, connection_string: str, queue: str) -> None:
        (folder / "kennel.mjs").write_text(PROGRAM)
        (folder / "main.mjs").write_text(MAIN)
        (folder / "node_modules").symlink_to(PROJECT / "node_modules")
        parts = dict(part.split("=", 1) for part in connection_string.rstrip(";").split(";"))
        self._folder = folder
        self._options = {
            "account": parts["AccountName"],
            "key": parts["AccountKey"],
            "name": queue,
            "queues": parts["QueueEndpoint"].rstrip("/"),
            "blobs": parts["BlobEndpoint"].rstrip("/"),
            "prefix": storage.config.prefix,
        }

    async def __call__(self, word: str, *texts: Any) -> Any:
        node = find_node()
        assert node is not None
        (self._folder / "texts.json").write_text(json.dumps(texts))
        command = [str(node), "main.mjs", json.dumps(self._options), word]
        done = await asyncio.to_thread(
            subprocess.run,
            command,
            capture_output=True,
            text=True,
            cwd=self._folder,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
async def storage(connection_string: str, storage_prefix: str) -> AsyncIterator[Storage]:
    async with Storage.from_connection_string(
        connection_string, config=StorageConfig(prefix=storage_prefix)
    ) as storage:
        yield storage


@pytest.fixture
def queue(storage: Storage, storage_prefix: str) -> Queue[Order]:
    return storage.queue(f"{storage_prefix}wire", type=Order)


@pytest.fixture
def program(tmp_path: Path, storage: Storage, connection_string: str, queue: Queue[Order]) -> Program:
    return Program(tmp_path, storage, connection_string, queue.name)


def check(name: str, value: Any) -> None:
    """Raises if the value is not what the schema calls by that name."""
    Draft202012Validator({**SCHEMA, "$ref": f"#/$defs/{name}"}).validate(value)


def noise(length: int) -> str:
    return random.Random(length).randbytes(length).hex()


async def receive(queue: Queue[Order], count: int) -> list[Order]:
    """What a listener of Kennel hands to its handler."""
    got: list[Order] = []
    done = asyncio.Event()

    async def handle(order: Order) -> None:
        got.append(order)
        if len(got) >= count:
            done.set()

    listener = queue.listener(handle)
    running = asyncio.create_task(listener.run())
    await asyncio.wait_for(done.wait(), 30)
    await listener.stop(10)
    await running
    return sorted(got, key=lambda order: order.number)


# --- the schema ---------------------------------------------------------------------------------------------------------


def test_the_schema_of_the_page_is_that_of_the_code() -> None:
    assert wire_schema.TARGET.read_text() == wire_schema.text(), "run scripts/wire_schema.py"
    Draft202012Validator.check_schema(SCHEMA)
    assert set(re.findall(r"`([A-Z]\w+)`", PAGE.split("\n## ")[0])) <= set(SCHEMA["$defs"])


async def test_messages_and_claims_are_what_the_schema_says(storage: Storage, queue: Queue[Order]) -> None:
    for name in ("small", "x" * 70_000, noise(70_000)):
        await queue.put(Order(1, name), traceparent="00-" + "1" * 32 + "-" + "2" * 16 + "-01")
    envelopes = [json.loads(each.text) for each in await queue.peek()]
    for envelope in envelopes:
        check("Envelope", envelope)
    forms = [{"items", "z", "claim"} & set(envelope) for envelope in envelopes]
    assert sorted(map(sorted, forms)) == [["claim"], ["items"], ["z"]]
    [claim] = [envelope["claim"]["name"] for envelope in envelopes if "claim" in envelope]
    check("ClaimMetadata", await metadata(storage, "claims", f"{queue.name}/{claim}"))


async def test_a_poison_record_is_what_the_schema_says(queue: Queue[Order]) -> None:
    await queue.put_text("no order")
    listener = queue.listener(print)
    running = asyncio.create_task(listener.run())
    poison = queue.poison
    async with asyncio.timeout(30):
        while not (found := await poison.peek()):
            await asyncio.sleep(0.05)
    await listener.stop(5)
    await running
    envelope = json.loads(found[0].text)
    check("Envelope", envelope)
    [record] = envelope["items"]
    check("PoisonRecord", record)
    assert record["text"] == "no order"


async def metadata(storage: Storage, container: str, blob: str) -> Mapping[str, str]:
    client = storage.aio.blobs.get_blob_client(storage.config.container(container), blob)
    found: Mapping[str, str] = (await client.get_blob_properties()).metadata
    return found


async def test_gates_counters_and_leases_are_what_the_schema_says(storage: Storage) -> None:
    gate = storage.gate("sale")
    await gate.open(by="olga", reason="tickets ☂", share=0.5)
    blob = storage.aio.blobs.get_blob_client(storage.config.container("gates"), "sale")
    content = await (await blob.download_blob()).readall()
    check("GateState", json.loads(content))
    assert (await blob.get_blob_properties()).metadata["gate"].encode() == content

    numbers = storage.sequence("orders", range_size=10)
    await asyncio.to_thread(numbers.next_id)
    counter = await metadata(storage, "sequences", "orders")
    check("CounterMetadata", counter)
    for name, field in (("Grants", "kennel_grants"), ("Owners", "kennel_owners")):
        entries = json.loads(counter[field])
        assert len(entries) == 1
        check(name, entries)
    await asyncio.to_thread(numbers.close)

    stop = asyncio.Event()

    async def lead(term: Any) -> None:
        check("LeaseMetadata", await metadata(storage, "leases", "month-end"))
        stop.set()

    election = storage.election("month-end", identity="node ü")
    running = asyncio.create_task(election.run(lead))
    await asyncio.wait_for(stop.wait(), 30)
    running.cancel()
    await asyncio.wait([running])
    assert stop.is_set()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Envelope", {"kennel": 0}),
        ("Envelope", {"kennel": 1, "size": -1}),
        ("GateState", {"state": "ajar"}),
        ("GateState", {"by": "a\x00b"}),
        ("CounterMetadata", {"kennel_next": "-1", "kennel_grants": "[]", "kennel_owners": "[]"}),
        ("Grants", [[1, 2]]),
        ("LeaseMetadata", {"holder": "a"}),
    ],
)
def test_what_kennel_refuses_does_not_fit_the_schema(name: str, value: Any) -> None:
    with pytest.raises(Exception, match=r"is not|less than|does not match|too short|required"):
        check(name, value)


# --- the program --------------------------------------------------------------------------------------------------------


def test_the_program_has_sixty_lines_at_most() -> None:
    assert len(PROGRAM.splitlines()) <= 60


async def test_javascript_reads_every_form_that_kennel_writes(
    storage: Storage, queue: Queue[Order], program: Program
) -> None:
    orders = [Order(1, "Zoë <&> ☂\r\n\uffff"), Order(2, "x" * 70_000), Order(3, noise(70_000)), Order(4, "b")]
    for order in orders[:3]:
        await queue.put(order)
    await queue.put_text(json.dumps({"number": 4, "name": "b"}))
    got = await program("take")
    assert sorted(got, key=lambda order: order["number"]) == [msgspec.to_builtins(order) for order in orders]
    assert await queue.depth() == 0
    container = storage.aio.blobs.get_container_client(storage.config.container("claims"))
    assert [blob.name async for blob in container.list_blobs(name_starts_with=f"{queue.name}/")] == []


async def test_javascript_reads_messages_partly_done_wrapped_and_of_others(program: Program) -> None:
    texts = {
        '{"kennel":1,"id":"a","left":[2,0],"items":["x","y","z"]}': ["z", "x"],
        '{"kennel":1,"id":"a","begun":0,"raw":"{\\"number\\":1}"}': [{"number": 1}],
        base64.b64encode(b'{"kennel":1,"id":"a","items":[1]}').decode(): [1],
        base64.b64encode(b'{"number":2}').decode(): [{"number": 2}],
        "plain words": ["plain words"],
        "17": [17],
    }
    read = await program("read", *texts)
    assert [each["items"] for each in read] == list(texts.values())


async def test_javascript_reads_a_poison_record_and_the_message_in_it(
    queue: Queue[Order], tmp_path: Path, storage: Storage, connection_string: str, program: Program
) -> None:
    await queue.put(Order(1, noise(70_000)))

    async def refuse(order: Order) -> None:
        raise ValueError("no")

    listener = queue.listener(refuse, retries=RetryPolicy(attempts=1))
    running = asyncio.create_task(listener.run())
    async with asyncio.timeout(30):
        while not (found := await queue.poison.peek()):
            await asyncio.sleep(0.05)
    await listener.stop(5)
    await running
    [read] = await program("read", found[0].text)
    [record] = read["items"]
    assert record["reason"] == "no"
    [inner] = await program("read", record["text"])
    assert inner["items"] == [{"number": 1, "name": noise(70_000)}]


async def test_kennel_reads_every_form_that_javascript_writes(
    storage: Storage, queue: Queue[Order], program: Program
) -> None:
    names = ["Zoë <&> ☂\r\n\uffff", "<" * 70_000, noise(70_000)]
    large = storage.queue(f"{queue.name}-first", type=str)
    await large.put(noise(70_000))  # makes the container of large payloads
    await queue.create()
    for number, name in enumerate(names, 1):
        await program("write", {"number": number, "name": name})
    forms = [set(json.loads(each.text)) & {"items", "z", "claim"} for each in await queue.peek()]
    assert sorted(map(sorted, forms)) == [["claim"], ["items"], ["z"]]
    for peeked in await queue.peek():
        check("Envelope", json.loads(peeked.text))
    assert await receive(queue, 3) == [Order(number, name) for number, name in enumerate(names, 1)]
    await large.clear()


async def test_a_queue_without_envelopes_is_put_as_the_page_shows(
    storage: Storage, connection_string: str, storage_prefix: str
) -> None:
    [code] = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    scope: dict[str, Any] = {}
    exec(code, scope)  # noqa: S102 - the page's own example
    await scope["notify"](storage)
    emails = storage.queue("emails", type=str, envelope=False, base64=True)
    try:
        [sent] = await emails.peek()
        assert base64.b64decode(sent.text) == b"Your order has been shipped."
        assert sent.items == ("Your order has been shipped.",)
    finally:
        await emails.delete()
