"""One worker, put together and taken apart again, on Azurite."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import msgspec
import pytest

from coordinator import Storage, Worker
from coordinator.errors import AccessDenied, ConfigurationError
from coordinator.leadership.every import Run
from coordinator.leadership.term import Term
from coordinator.sequences.ledger import open_book


class Job(msgspec.Struct):
    number: int


@pytest.fixture
def environ(connection_string: str, storage_prefix: str) -> dict[str, str]:
    return {"AZURE_STORAGE_CONNECTION_STRING": connection_string, "KENNEL_PREFIX": storage_prefix}


@asynccontextmanager
async def running(worker: Worker):
    task = asyncio.create_task(worker.run())
    try:
        yield task
    finally:
        worker.stop()
        await asyncio.wait_for(task, 30)


async def until(ready, seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not ready():
            await asyncio.sleep(0.02)


async def test_a_worker_waits_at_its_gate_works_and_gives_its_numbers_back(environ):
    worker = Worker("test", environ=environ)
    name = f"jobs-{worker.instance[:8]}"
    gate, numbers = worker.gate("start-now"), worker.sequence("things", range_size=50)
    done: list[int] = []

    @worker.listen(name, gate=gate, tasks=range(1, 4))
    async def handle(job: Job) -> None:
        done.append(await numbers.next_id_async())

    async with Storage.from_env(environ) as storage:
        await storage.queue(name, type=Job).put(Job(1), Job(2), Job(3))
        async with running(worker):
            await until(lambda: worker.state().gates[0].waiting)
            assert done == []
            await storage.gate("start-now").open(by="olga")
            await until(lambda: len(done) == 3)
            await until(lambda: worker.state().listeners[0].done >= 1)
    report = open_book(Storage.from_env(environ), "things").verify()
    assert report.is_ok
    assert (report.used, report.returned) == (3, 47)


async def test_a_drained_worker_takes_nothing_until_it_is_resumed(environ):
    worker = Worker("test", environ=environ)
    name = f"jobs-{worker.instance[:8]}"
    done: list[int] = []

    @worker.listen(name, tasks=range(1, 3))
    def handle(job: Job) -> None:
        done.append(job.number)

    async with Storage.from_env(environ) as storage, running(worker):
        queue = storage.queue(name, type=Job)
        await queue.put(Job(1))
        await until(lambda: done == [1])
        worker.drain()
        await queue.put(Job(2))
        await asyncio.sleep(1.0)
        assert done == [1]
        worker.resume()
        await until(lambda: done == [1, 2])


async def test_one_of_two_workers_leads_and_the_other_takes_over_when_it_stops(environ):
    led: list[str] = []

    def made(name: str) -> Worker:
        worker = Worker(name, environ=environ, identity=name)

        @worker.lead("month-end")
        async def lead(term: Term) -> None:
            led.append(term.holder)
            await asyncio.Event().wait()

        return worker

    first, second = made("first"), made("second")
    async with running(second) as _:
        await until(lambda: led == ["second"])
        async with running(first):
            await asyncio.sleep(0.5)
            second.stop()
            await until(lambda: led == ["second", "first"])


async def test_a_scheduled_task_runs_once_for_each_moment(environ):
    runs: list[float] = []
    worker = Worker("test", environ=environ)

    @worker.every("1s", lead="nightly")
    async def tick(run: Run) -> None:
        runs.append(run.scheduled_at)

    async with running(worker):
        await until(lambda: len(runs) >= 2)
    assert len(set(runs)) == len(runs)
    assert all(moment == int(moment) for moment in runs)


async def test_a_wrong_credential_ends_the_worker_with_the_reason(environ):
    wrong = environ["AZURE_STORAGE_CONNECTION_STRING"].replace("AccountKey=Eby8", "AccountKey=AAAA")
    worker = Worker("test", environ=environ | {"AZURE_STORAGE_CONNECTION_STRING": wrong})

    @worker.lead("month-end")
    async def lead(term: Term) -> None: ...

    with pytest.raises(AccessDenied):
        await asyncio.wait_for(worker.run(), 30)


def test_a_hub_without_a_token_is_refused_at_once(environ):
    with pytest.raises(ConfigurationError, match="KENNEL_WORKER_TOKEN"):
        Worker("test", environ=environ | {"KENNEL_HUB_URL": "ws://127.0.0.1:1/"})
