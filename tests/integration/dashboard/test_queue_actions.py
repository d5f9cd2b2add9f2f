"""Promises of what operators do to queues and gates, with real messages."""

from __future__ import annotations

import asyncio
import html
import random
import re
import secrets
import time
from collections.abc import Iterator
from typing import Any

import pytest

from coordinator.config import StorageConfig
from coordinator.queues.azure import BlobClaims
from coordinator.queues.envelope import PoisonRecord
from coordinator.storage import Storage
from coordinator.testing.azurite import Azurite
from tests.support.dashboard import Dashboard, Person, audit_of, until


@pytest.fixture(scope="module")
def dashboard(azurite: Azurite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """Shared by the tests of this module; sweeps every two seconds."""
    prefix, extra = f"t{secrets.token_hex(5)}-", {"KENNEL_SWEEP_HOURS": "0.0006"}
    folder = tmp_path_factory.mktemp("dashboard")
    with Dashboard(folder, azurite.connection_string, prefix, extra) as running:
        yield running


async def test_poison_goes_back_whole_and_put_clear_delete_do_what_they_say(dashboard: Dashboard) -> None:
    queue = f"{dashboard.prefix}orders"
    async with Storage.from_connection_string(dashboard.connection_string) as storage:
        orders = storage.queue(queue, dict)
        await orders.put({"order": 1}, {"order": 2}, {"order": 3})
        text = (await orders.peek())[0].text
        await orders.clear()
        await orders.poison.put(PoisonRecord(queue, "m-1", text, "no stock", [], 1.0, 2.0, 5, left=[1, 2]))
        with Person(dashboard, "adam") as adam:
            await until(lambda: _queue(adam, queue).get("poison") == 1, seconds=20)
            await _do(adam, queue, "requeue")
            assert [item for message in await orders.peek() for item in message.items] == [
                {"order": 2},
                {"order": 3},
            ]
            assert await orders.poison.depth() == 0
            await _do(adam, queue, "put", body='{"order": 4}')
            assert await orders.depth() == 2
            await until(lambda: _queue(adam, queue).get("oldest_seconds") is not None, seconds=20)
            await _do(adam, queue, "clear", typed=queue)
            assert await orders.depth() == 0
            await _do(adam, queue, "delete", typed=queue)
            await until(lambda: not _queue(adam, queue), seconds=20)
    rows = [row for row in audit_of(dashboard) if row["target"] == queue and row["outcome"] == "done"]
    assert [row["action"] for row in rows] == ["queue.requeue", "queue.put", "queue.clear", "queue.delete"]


async def test_one_poison_message_is_retried_another_deleted_and_the_others_stay(
    dashboard: Dashboard,
) -> None:
    name = f"{dashboard.prefix}chosen"
    page = f"/queues/{name}/messages"
    async with Storage.from_connection_string(dashboard.connection_string) as storage:
        queue = storage.queue(name, str)
        for item in "abcd":
            await queue.put(item)
            (message,) = await queue.take(1, visibility_seconds=60)
            await queue.poison.put(PoisonRecord(name, message.id, message.text, "no", [], 1.0, 2.0, 5))
            await queue.transport.delete(message.id, message.receipt)
        a, b, c, d = [message.id for message in await queue.poison.peek()]
        with Person(dashboard, "adam") as adam, Person(dashboard, "olga") as olga:
            shown = await asyncio.to_thread(olga.get, f"/queues/{name}/poison")
            assert all(f'value="{id}"' in shown.text for id in (a, b, c, d))
            assert "Delete" not in shown.text
            denied = await asyncio.to_thread(olga.post, f"{page}/delete", {"name": b, "typed": "delete 1"})
            assert denied.status_code == 403
            await asyncio.to_thread(olga.post, f"{page}/retry", {"name": a})
            assert [item for message in await queue.peek() for item in message.items] == ["a"]
            asked = await asyncio.to_thread(adam.post, f"{page}/delete", {"name": b})
            assert "delete 1" in asked.text
            assert await queue.poison.depth() == 3
            await asyncio.to_thread(adam.post, f"{page}/delete", {"name": b, "typed": "delete 1"})
            again = await asyncio.to_thread(adam.post, f"{page}/delete", {"name": b, "typed": "delete 1"})
            assert again.status_code < 400
        # They had only been peeked at, so all were looked through, each hidden for a second.
        while {message.id for message in await queue.poison.peek()} != {c, d}:
            await asyncio.sleep(0.1)
    rows = [
        (row["action"], row["outcome"])
        for row in audit_of(dashboard)
        if row["target"] == name and row["outcome"] != "intent"
    ]
    assert rows == [
        ("queue.delete_messages", "denied"),
        ("queue.requeue", "done"),
        ("queue.delete_messages", "done"),
        ("queue.delete_messages", "failed"),
    ]


async def test_leash_everything_closes_what_is_open_or_armed_after_the_typed_words(
    dashboard: Dashboard,
) -> None:
    prefix = f"all-{secrets.token_hex(3)}"
    config = StorageConfig(prefix=dashboard.prefix)
    async with Storage.from_connection_string(dashboard.connection_string, config=config) as storage:
        opened, armed, closed = [storage.gate(f"{prefix}-{name}") for name in ("open", "armed", "closed")]
        await opened.open(by="olga")
        await armed.open(by="olga", at=time.time() + 3600)
        await closed.open(by="olga")
        before = await closed.close(by="olga")
        with Person(dashboard, "olga") as olga, Person(dashboard, "vera") as vera:
            await until(lambda: f"{prefix}-armed" in olga.get("/several/gates/leash").text, seconds=20)
            asked = await asyncio.to_thread(olga.get, "/several/gates/leash")
            assert "2 gates will be closed" in asked.text
            assert f"{prefix}-closed" not in asked.text
            denied = await asyncio.to_thread(vera.post, "/several/gates/leash", {"typed": "leash everything"})
            assert denied.status_code == 403
            wrong = await asyncio.to_thread(olga.post, "/several/gates/leash", {"typed": "leash"})
            assert wrong.status_code == 422
            assert (await opened.read()).state == "open"
            await asyncio.to_thread(olga.post, "/several/gates/leash", {"typed": "leash everything"})
        assert [(await gate.read()).state for gate in (opened, armed)] == ["closed", "closed"]
        assert await closed.read() == before
    rows = [
        row for row in audit_of(dashboard) if row["target"].startswith(prefix) and row["outcome"] != "intent"
    ]
    assert {(row["action"], row["outcome"]) for row in rows} == {("gate.close", "done")}
    assert len(rows) == 2


async def test_leash_everything_is_undone_but_for_what_was_changed_since(dashboard: Dashboard) -> None:
    prefix = f"undo-{secrets.token_hex(3)}"
    config = StorageConfig(prefix=dashboard.prefix)
    async with Storage.from_connection_string(dashboard.connection_string, config=config) as storage:
        opened, armed, changed = [storage.gate(f"{prefix}-{name}") for name in ("open", "armed", "changed")]
        at, until_then = time.time() + 3600, time.time() + 7200
        await opened.open(by="olga", share=0.25, until=until_then)
        await armed.open(by="olga", at=at)
        await changed.open(by="olga")
        with Person(dashboard, "olga") as olga, Person(dashboard, "vera") as vera:

            def everything_is_seen() -> bool:
                page = olga.get("/several/gates/leash").text
                return all(f"{prefix}-{name}" in page for name in ("open", "armed", "changed"))

            await until(everything_is_seen, seconds=20)
            page = await asyncio.to_thread(
                olga.post, "/several/gates/leash", {"typed": "leash everything"}, page="/several/gates/leash"
            )
            undo = html.unescape(re.findall(r'href="(/several/gates/undo[^"]+)"', page.text)[0])
            await changed.open(by="adam")
            since = await changed.close(by="adam", reason="not this one")
            assert (await asyncio.to_thread(vera.get, undo)).status_code == 403
            asked = await asyncio.to_thread(olga.get, undo)
            assert f"{prefix}-armed opens " in asked.text
            assert "for 25% of workers" in asked.text
            done = await asyncio.to_thread(olga.post, undo, {"typed": "unleash again"}, page=undo)
            assert f"{prefix}-changed stays as it is." in done.text
            again = await asyncio.to_thread(olga.post, undo, {"typed": "unleash again"}, page=undo)
            assert "opened or armed again" not in again.text
            now = await opened.read()
            assert (now.state, now.share, now.until) == ("open", 0.25, until_then)
            now = await armed.read()
            assert (now.state, now.not_before) == ("armed", at)
            assert await changed.read() == since
            # The dashboard is shared with tests that count what is open.
            await asyncio.to_thread(olga.post, "/several/gates/leash", {"typed": "leash everything"})


async def test_messages_are_shown_to_operators_alone_escaped_and_bounded_and_stay_where_they_are(
    dashboard: Dashboard,
) -> None:
    name = f"{dashboard.prefix}looked-at"
    async with Storage.from_connection_string(dashboard.connection_string) as storage:
        queue = storage.queue(name, type=Any)
        await queue.put({"note": "<script>alert(1)</script>"}, {"order": 2})
        await queue.put({"noise": random.Random(1).randbytes(20_000).hex()})
        await queue.put({"packed": "y" * 200_000})
        await queue.put_text('"foreign & bare"')
        await queue.put_text('{"kennel":1,"id":"x","size":1000000000,"z":"eJw="}')
        await queue.put_text('{"kennel":1,"id":"x","at":1e300,"items":[1]}')
        await queue.put_text('{"kennel":1,"id":"x","size":-2,"z":"eJw="}')
        text = (await queue.peek())[0].text
        await queue.poison.put(PoisonRecord(name, "m-1", text, "no <b>stock</b>", [], 1.0, 2.0, 5))
        with Person(dashboard, "olga") as olga, Person(dashboard, "vera") as vera:
            page = await asyncio.to_thread(olga.get, f"/queues/{name}/messages")
            assert page.status_code == 200
            assert "no-store" in page.headers["Cache-Control"]
            assert "&lt;script&gt;alert(1)" in page.text
            assert "<script>alert(1)" not in page.text
            assert "foreign &amp; bare" in page.text
            assert "1,000,000,000 bytes, packed" in page.text
            assert len(page.text) < 60_000, "four messages of at most 4,000 characters, and the frame"
            poison = await asyncio.to_thread(olga.get, f"/queues/{name}/messages?of=poison")
            assert "no &lt;b&gt;stock" in poison.text
            (seen,) = await queue.poison.peek()
            one = await asyncio.to_thread(olga.get, f"/queues/{name}/poison/{seen.id}")
            assert "no &lt;b&gt;stock" in one.text
            assert "&lt;script&gt;alert(1)" in one.text
            denied = await asyncio.to_thread(vera.get, f"/queues/{name}/messages")
            assert denied.status_code == 403
            assert "alert(1)" not in denied.text
            nothing = await asyncio.to_thread(olga.get, f"/queues/{dashboard.prefix}not-there/messages")
            assert nothing.status_code == 200
        assert [message.dequeue_count for message in await queue.peek()] == [0] * 7
    rows = [row for row in audit_of(dashboard) if row["action"] == "queue.peek"]
    assert [(row["actor"], row["target"], row["outcome"]) for row in rows] == [("vera", name, "denied")]


async def test_the_process_that_leads_sweeps_by_itself_and_leaves_what_is_needed(
    dashboard: Dashboard,
) -> None:
    config = StorageConfig(prefix=dashboard.prefix)
    async with Storage.from_connection_string(dashboard.connection_string, config=config) as storage:
        name = f"{dashboard.prefix}large"
        queue, claims = storage.queue(name, type=str), BlobClaims(storage, name)
        now = storage.clock.time()
        (kept,) = await queue.put(random.Random(5).randbytes(100_000).hex())
        await claims.put("b" * 32, b"ended just now", expires_at=now - 60)
        await claims.put("c" * 32, b"written just now", expires_at=0.0)
        await claims.put("a" * 32, b"ended two days ago", expires_at=now - 2 * 86_400)
        await until(lambda: "Swept claims: 1 removed" in dashboard.said())
        assert kept.envelope.claim is not None
        left = {found for found, _, _ in await claims._all()}
        assert left == {kept.envelope.claim.name, "b" * 32, "c" * 32}


async def _do(person: Person, queue: str, verb: str, **fields: str) -> None:
    answer = await asyncio.to_thread(person.post, f"/queues/{queue}/{verb}", fields, page="/queues/")
    assert answer.status_code == 200, answer.text[:2000]


def _queue(person: Person, name: str) -> dict[str, object]:
    queues = person.get("/api/v1/fleet").json()["queues"]
    return next((queue for queue in queues if queue["name"] == name), {})
