"""Parts of the library and of `coordinator.testing` that no larger test needs in full."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import sys
from contextvars import ContextVar
from functools import partial
from pathlib import Path

import aiohttp
import click
import pytest

from coordinator import Worker
from coordinator.azure.metering import Meter, Request
from coordinator.cli.run import load
from coordinator.clock import SYSTEM_CLOCK, call_later
from coordinator.doctor import hub, software
from coordinator.doctor.findings import Finding
from coordinator.errors import InvalidRequest, StorageUnreachable
from coordinator.logs import JsonFormatter
from coordinator.testing.clock import ManualClock
from coordinator.testing.faults import Fault, FaultyStore
from coordinator.testing.invariants import checked
from coordinator.testing.queue_service import QueueService
from coordinator.testing.queues import MemoryQueueTransport
from coordinator.testing.sequences import MemoryLedger, MemoryStore, memory_generator

# --- the command line, logs, metering, doctor -----------------------------------------------------------------------


def test_a_worker_is_found_in_the_working_directory_though_that_is_not_searched_yet(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "kennel_workers_of_a_test.py").write_text(
        "from coordinator import Worker\n"
        "worker = Worker('billing', environ={'AZURE_STORAGE_CONNECTION_STRING': 'UseDevelopmentStorage=true'})\n"
        "other = 7\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    found = load("kennel_workers_of_a_test:worker")
    assert isinstance(found, Worker) and found.name == "billing"
    with pytest.raises(click.BadParameter, match="has no Worker"):
        load("kennel_workers_of_a_test:other")


def test_a_log_line_without_an_error_has_no_trace_and_one_with_an_error_has() -> None:
    def line(**more: object) -> dict[str, object]:
        record = logging.LogRecord("kennel", logging.INFO, __file__, 1, "Opened %s", ("start",), None)
        vars(record).update(more)
        decoded: dict[str, object] = json.loads(JsonFormatter().format(record))
        return decoded

    plain = line(resource="start")
    assert (plain["message"], plain["level"], plain["resource"]) == ("Opened start", "info", "start")
    assert "trace" not in plain
    error = ValueError("no such gate")
    assert "ValueError: no such gate" in str(line(exc_info=(ValueError, error, None))["trace"])


def test_requests_of_more_queues_than_are_named_are_counted_as_the_rest() -> None:
    meter = Meter()
    for number, name in enumerate(("orders", "mail", "audit"), start=1):
        for _ in range(number * 10):
            meter.count(Request("queue", "GetMessages", name), bytes_sent=2)
    assert meter.by_queue(most=1) == {"audit": 30, "": 30}
    traffic = meter.traffic(most=1)
    assert (traffic["audit/bytes_sent"], traffic["/bytes_sent"]) == (60, 60)


async def test_the_doctor_warns_of_a_token_that_travels_unencrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fine(*_: object) -> Finding:
        return Finding("hub", "ok", "answers")

    monkeypatch.setattr(hub, "_greet", fine)
    monkeypatch.setattr(hub, "_health", fine)

    async def warnings(url: str) -> list[str]:
        found = await hub.check({"KENNEL_HUB_URL": url, "KENNEL_WORKER_TOKEN": "kw_x"}, "kennel-")
        return [each.found for each in found if each.verdict == "warning"]

    assert await warnings("ws://hub.example.com/ws/workers/") == [
        "the token travels to hub.example.com in the clear"
    ]
    assert await warnings("ws://127.0.0.1:8000/ws/workers/") == []
    assert await warnings("wss://hub.example.com/ws/workers/") == []


def test_the_doctor_checks_no_versions_of_what_was_copied_without_its_declaration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(software, "PACKAGE", "kennel-that-nobody-installed")
    assert any(line.startswith("aiohttp") for line in software.declared())
    monkeypatch.setattr(software, "SOURCE", tmp_path / "pyproject.toml")
    assert software.declared() == []


# --- coordinator.testing --------------------------------------------------------------------------------------------


async def test_an_invariant_that_breaks_between_two_awaits_fails_the_block_with_its_first_error() -> None:
    books = [0]

    def balanced() -> None:
        if books[0]:
            raise AssertionError(f"{books[0]} are missing")

    async def work() -> None:
        with checked(balanced):
            for count in (0, 1, 2, 0):
                books[0] = count
                await asyncio.sleep(0)

    with pytest.raises(AssertionError, match="1 are missing"):
        await work()


async def test_a_clock_says_so_when_the_code_under_test_never_comes_to_rest() -> None:
    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    spinning = asyncio.ensure_future(spin())
    with pytest.raises(RuntimeError, match="never comes to rest"):
        await ManualClock().settle()
    spinning.cancel()


@pytest.mark.parametrize("seconds", [-1.0, 7 * 86_400 + 1.0])
async def test_a_queue_in_memory_refuses_the_delays_that_the_service_refuses(seconds: float) -> None:
    transport = MemoryQueueTransport("orders")
    await transport.create()
    with pytest.raises(InvalidRequest) as refused:
        await transport.put("one", delay_seconds=seconds, ttl_seconds=60.0)
    assert (refused.value.status, refused.value.code) == (400, "OutOfRangeQueryParameterValue")


async def test_the_queue_service_lists_counts_and_refuses_as_a_service_does() -> None:
    service = QueueService()
    base = (await service.start()).split("QueueEndpoint=")[1].split(";")[0]
    try:
        async with aiohttp.ClientSession() as session:
            for name in ("orders", "orders-poison", "mail"):
                async with session.put(f"{base}/{name}") as made:
                    assert made.status == 201
            async with session.get(f"{base}/", params={"comp": "list", "prefix": "orders"}) as listed:
                text = await listed.text()
            assert text.count("<Queue>") == 2 and "<Name>orders-poison</Name>" in text
            async with session.post(f"{base}/orders") as refused:
                assert (refused.status, refused.headers["x-ms-error-code"]) == (400, "UnsupportedHttpVerb")
            async with session.get(f"{base}/orders", params={"comp": "requests"}) as counted:
                assert int(await counted.text()) > 0
    finally:
        await service.close()
    await service.close()


def test_rows_of_a_ledger_in_memory_end_at_the_limit() -> None:
    ledger = MemoryLedger()
    ids = memory_generator(store=MemoryStore(), ledger=ledger, range_size=1, max_range_size=1)
    for _ in range(5):
        ids.next_id()
    ids.close()
    first = list(ledger.rows(limit=2))
    assert [grant.first for grant in first] == [1, 2]
    assert len(list(ledger.rows())) >= 5
    assert list(ledger.rows(limit=0)) == []


def test_faults_of_a_store_that_blocks_delay_its_requests_and_its_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("coordinator.testing.faults.time.sleep", slept.append)
    inner = MemoryStore()
    store = FaultyStore(inner, hang_seconds=3.0)
    store.once(Fault("slow", delay_seconds=1.5, answer_delay_seconds=0.5), method="try_optimistic_write")
    assert store.try_optimistic_write("1", etag=None, metadata={}) and slept == [1.5, 0.5]
    store.once(Fault("hung", answer="hang"), method="get_data")
    with pytest.raises(StorageUnreachable):
        store.get_data()
    assert slept == [1.5, 0.5, 3.0]
    assert inner.get_data().data == "1"


# --- the clock ----------------------------------------------------------------------------------------------------------


def test_what_many_ask_for_at_one_time_shares_a_timer_and_none_comes_early() -> None:
    async def ask() -> tuple[list[str], int]:
        loop = asyncio.get_running_loop()
        before, began = len(loop._scheduled), loop.time()  # type: ignore[attr-defined]
        came: list[str] = []
        done = asyncio.Event()
        for name in "abc":
            call_later(SYSTEM_CLOCK, 0.05, partial(came.append, name))
        call_later(SYSTEM_CLOCK, 0.05, done.set)
        timers = len(loop._scheduled) - before  # type: ignore[attr-defined]
        await done.wait()
        assert loop.time() - began >= 0.05
        return came, timers

    for _ in range(2):  # another loop has timers of its own
        assert asyncio.run(ask()) == (["a", "b", "c"], 1)


def test_what_shares_a_timer_is_called_each_in_the_context_of_who_asked() -> None:
    who: ContextVar[str] = ContextVar("who", default="nobody")

    async def ask() -> list[str]:
        came: list[str] = []
        done = asyncio.Event()
        for name in "ab":
            who.set(name)
            call_later(SYSTEM_CLOCK, 0.02, lambda: came.append(who.get()))
        call_later(SYSTEM_CLOCK, 0.02, done.set)
        await done.wait()
        return came

    assert asyncio.run(ask()) == ["a", "b"]


def test_what_is_asked_for_later_has_a_timer_of_its_own() -> None:
    async def ask() -> list[str]:
        came: list[str] = []
        done = asyncio.Event()
        call_later(SYSTEM_CLOCK, 0.02, partial(came.append, "a"))
        call_later(SYSTEM_CLOCK, 60.0, partial(came.append, "never"))
        await asyncio.sleep(0.03)
        call_later(SYSTEM_CLOCK, 0.02, partial(came.append, "b"))
        call_later(SYSTEM_CLOCK, 0.02, done.set)
        await done.wait()
        return came

    assert asyncio.run(ask()) == ["a", "b"]


def test_an_endless_wait_ends_when_the_event_is_set() -> None:
    async def wait() -> bool:
        event = asyncio.Event()
        asyncio.get_running_loop().call_soon(event.set)
        return await SYSTEM_CLOCK.wait(event, math.inf)

    assert asyncio.run(wait())
