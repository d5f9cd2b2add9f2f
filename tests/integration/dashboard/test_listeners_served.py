"""What the dashboard does for running listeners: a rule changed on its page is followed, work put in silence is told."""

from __future__ import annotations

import asyncio
import html
import re

from coordinator import Storage, Worker
from coordinator.config import StorageConfig
from coordinator.queues.listener import QueueListener
from coordinator.queues.polling import IdleBackoff
from tests.support.dashboard import TOKEN, Dashboard, Person, audit_of, until

# Far below the minute after which a worker with a hub would look for itself: the hint must have come through.
FOLLOWED_WITHIN_SECONDS = 25


async def test_a_rule_changed_on_the_page_changes_the_tasks_of_a_running_worker_and_the_page_says_why(
    dashboard: Dashboard,
) -> None:
    name, storage = f"{dashboard.prefix}slow-work", _storage(dashboard)
    release = asyncio.Event()

    async def handler(item: int) -> None:
        await release.wait()

    queue = storage.queue(name, type=int)
    for number in range(8):
        await queue.put(*range(number * 5, number * 5 + 5))
    listener = queue.listener(handler, tasks=range(31))
    worker = _worker(dashboard, storage, "slow-1")
    worker.add(listener)
    running = asyncio.create_task(worker.run())
    try:
        with Person(dashboard, "olga") as olga:
            await _until_page_agrees(olga, name, listener, tasks=10)
            await _change(olga, name, kind="steps", beyond="23")
            await _until_page_agrees(olga, name, listener, tasks=23)
            assert listener.status().reason.startswith("23 tasks: depth 8 (≥ 0)")
            await _change(olga, name, kind="steps", beyond="99")
            await _until_page_agrees(olga, name, listener, tasks=30)
            assert listener.status().reason.endswith("limited to 0–30 (calculated 99)")
            await _change(olga, name, kind="own")
            await _until_page_agrees(olga, name, listener, tasks=10)
    finally:
        release.set()
        worker.stop()
        await running
    rows = [row for row in audit_of(dashboard) if row["target"] == name and row["action"] == "queue.rule"]
    assert [row["outcome"] for row in rows if row["outcome"] != "intent"] == ["done"] * 3


async def test_a_message_put_without_a_hub_wakes_a_listener_that_sleeps(dashboard: Dashboard) -> None:
    """By itself it would look after five and a half minutes."""
    name, storage = f"{dashboard.prefix}silent", _storage(dashboard)
    got = asyncio.Event()

    async def handler(item: int) -> None:
        got.set()

    listener = storage.queue(name, type=int).listener(handler, idle=IdleBackoff(maximum_seconds=0.2))
    worker = _worker(dashboard, storage, "sleeper-1")
    worker.add(listener)
    running = asyncio.create_task(worker.run())
    try:
        await until(lambda: listener.sources[0].asleep and listener.state == "idle", seconds=30)
        async with _storage(dashboard) as elsewhere:
            await elsewhere.queue(name, type=int).put(1)
        async with asyncio.timeout(90):
            await got.wait()
    finally:
        worker.stop()
        await running


def _storage(dashboard: Dashboard) -> Storage:
    return Storage.from_connection_string(
        dashboard.connection_string, config=StorageConfig(prefix=dashboard.prefix)
    )


def _worker(dashboard: Dashboard, storage: Storage, identity: str) -> Worker:
    environ = {"KENNEL_HUB_URL": dashboard.hub_url, "KENNEL_WORKER_TOKEN": TOKEN}
    return Worker("test", identity=identity, storage=storage, environ=environ, stop_seconds=1)


async def _change(person: Person, queue: str, **fields: str) -> None:
    page = f"/queues/{queue}/"
    answer = await asyncio.to_thread(person.post, f"{page}rule", fields, page=page)
    assert answer.status_code == 200, answer.text[:2000]


async def _until_page_agrees(person: Person, queue: str, listener: QueueListener[int], *, tasks: int) -> None:
    """The worker wants that many tasks, and the page tells so in the worker's own words."""
    page = ""

    async def agrees() -> bool:
        nonlocal page
        page = html.unescape((await asyncio.to_thread(person.get, f"/queues/{queue}/")).text)
        row = re.search(r'<th scope="row"><a [^>]*>slow-1</a></th>(.*?)</tr>', page, re.DOTALL)
        cells = re.findall(r"<td[^>]*>(.*?)</td>", row[1]) if row else []
        status = listener.status()
        return status.wanted_tasks == tasks and cells[1:] == [str(tasks), status.reason]

    for _ in range(FOLLOWED_WITHIN_SECONDS * 5):
        if await agrees():
            return
        await asyncio.sleep(0.2)
    said = re.search(r"<caption>How many.*?</table>", page, re.DOTALL)
    raise AssertionError(f"{listener.status()} is not what the page says: {said and said[0]}")
