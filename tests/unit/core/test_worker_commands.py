"""What a worker does when an operator asks it to, and how its end is reported."""

from __future__ import annotations

import contextvars
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator import Worker
from coordinator.realtime import protocol

ENVIRON = {"AZURE_STORAGE_CONNECTION_STRING": "UseDevelopmentStorage=true"}
HUB = {"KENNEL_HUB_URL": "ws://127.0.0.1:1/ws/workers/", "KENNEL_WORKER_TOKEN": "kw_0123456789_0123456789"}


class Listener:
    def __init__(self) -> None:
        self.did: list[str] = []

    def pause(self) -> None:
        self.did.append("pause")

    def resume(self) -> None:
        self.did.append("resume")


def test_it_drains_resumes_and_stops_when_asked_and_says_so_at_once() -> None:
    worker, listener = Worker("billing", environ=ENVIRON | HUB), Listener()
    worker.add(listener)  # type: ignore[arg-type]
    assert worker._hub is not None
    for verb, mode in (("drain", "draining"), ("resume", "running")):
        worker._hub._state_due = False
        worker._on_command(protocol.Command(verb, "r1", by="olga"))  # type: ignore[arg-type]
        assert worker.mode == mode
        assert worker._hub._state_due, "the dashboard is shown it now, not at the next heartbeat"
    assert listener.did == ["pause", "resume"]
    worker._on_command(protocol.Command("stop", "r2"))
    assert worker._stop.is_set()


def test_it_steps_down_from_the_election_that_was_named_or_from_all(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    worker, did = Worker("billing", environ=ENVIRON), list[tuple[str, str]]()
    for name in ("month-end", "nightly"):

        @worker.lead(name)
        async def task(term: Any) -> None: ...

    for election, _ in worker._elections:
        election.step_down = lambda reason, name=election.name: bool(did.append((name, reason)))  # type: ignore[method-assign,misc]
    worker._on_command(protocol.Command("step_down", "r1", target="nightly", by="olga"))
    assert did == [("nightly", "asked by olga")]
    worker._on_command(protocol.Command("step_down", "r2"))
    assert did[1:] == [("month-end", "asked by an operator"), ("nightly", "asked by an operator")]
    asked = [(entry.action, entry.request_id) for entry in caplog.records if hasattr(entry, "request_id")]
    assert asked == [("step_down", "r1"), ("step_down", "r2")]


def test_a_gate_of_one_name_is_one_gate() -> None:
    worker = Worker("billing", environ=ENVIRON)
    assert worker.gate("start") is worker.gate("start")
    assert worker.gate("start") is not worker.gate("other")


@pytest.mark.parametrize("request_id", ["", "req-7"])
def test_a_pass_is_logged_with_the_request_that_opened_the_gate(
    request_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    worker = Worker("billing", environ=ENVIRON)
    release: Any = SimpleNamespace(epoch=3, source="push", delay_seconds=0.1, request_id=request_id)
    gate = worker.gate("start")
    assert gate.on_pass is not None
    contextvars.Context().run(
        gate.on_pass, release
    )  # a dashboard in this process may log a request of its own
    (entry,) = [entry for entry in caplog.records if getattr(entry, "action", "") == "pass"]
    assert (entry.resource, entry.epoch) == ("start", 3)  # type: ignore[attr-defined]
    assert getattr(entry, "request_id", "") == request_id


async def test_a_sequence_that_cannot_return_its_numbers_does_not_hold_up_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker, closed = Worker("billing", environ=ENVIRON), list[str]()

    def broken() -> None:
        raise OSError("no network")

    sequences: dict[str, Any] = {
        "orders": SimpleNamespace(name="orders", close=broken),
        "bills": SimpleNamespace(name="bills", close=lambda: closed.append("bills")),
    }
    worker._sequences = sequences
    await worker._shutdown([])
    assert closed == ["bills"]
    assert "Sequence orders: unused numbers were not returned: no network" in caplog.text
