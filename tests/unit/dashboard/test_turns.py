"""While a page is drawn or an act is done, one token's sockets get a share of the event loop, however many they are."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.testing.clock import ManualClock
from dashboard.core.middleware import WithoutSockets
from dashboard.core.permissions import USUAL
from dashboard.hub import runtime, workers
from dashboard.hub.routing import people_first
from dashboard.hub.runtime import Runtime
from dashboard.hub.socket import MOST_CALM_SECONDS, SHARE, Admissions, TokenThrottle, Turns
from dashboard.hub.workers import WorkerConsumer

COST = 0.01


async def frames(
    turns: Turns, clock: ManualClock, token: int, number: int, taken: list[tuple[int, float]]
) -> None:
    for _ in range(number):
        await turns.wait(token)
        taken.append((token, clock.monotonic()))
        turns.took(token, COST)


async def test_nobody_waits_while_nobody_goes_first() -> None:
    clock, taken = ManualClock(), []
    turns = Turns(clock=clock)
    await asyncio.gather(*(frames(turns, clock, 1, 10, taken) for _ in range(100)))
    assert len(taken) == 1000


async def test_a_hundred_sockets_of_one_token_get_the_share_of_one_and_another_token_its_own() -> None:
    clock, taken = ManualClock(), []
    turns = Turns(clock=clock)
    with turns.goes_first():
        loud = [asyncio.create_task(frames(turns, clock, 1, 100, taken)) for _ in range(100)]
        quiet = asyncio.create_task(frames(turns, clock, 2, 5, taken))
        for _ in range(200):
            await clock.advance(0.01)
        assert quiet.done()
        used = COST * sum(token == 1 for token, _ in taken)
        assert used == pytest.approx(2.0 * SHARE, rel=0.1)
    await asyncio.gather(*loud)
    assert len(taken) == 10_005, "when nobody goes first any more, all that waited goes"


async def test_the_frames_of_one_socket_wait_between_those_of_others() -> None:
    clock = ManualClock()
    turns, order = Turns(clock=clock), []

    async def send(name: str) -> None:
        for _ in range(3):
            await turns.wait(1)
            order.append(name)
            turns.took(1, COST)

    with turns.goes_first():
        sockets = [asyncio.create_task(send(name)) for name in "abc"]
        for _ in range(100):
            await clock.advance(0.01)
        await asyncio.gather(*sockets)
    # The first goes at once, and then stands in line before the others have come.
    assert "".join(order) == "aabcabcbc"


async def test_a_page_of_a_listing_waits_for_what_goes_first_but_not_for_long() -> None:
    clock = ManualClock()
    turns = Turns(clock=clock)
    await turns.calm()
    with turns.goes_first():
        page = asyncio.create_task(turns.calm())
        await clock.advance(MOST_CALM_SECONDS / 2)
        assert not page.done()
    await page
    with turns.goes_first():
        late = asyncio.create_task(turns.calm())
        await clock.advance(MOST_CALM_SECONDS)
        await late


@pytest.fixture
def running() -> Any:
    used = Runtime()
    runtime.use(used)
    yield used
    runtime.use(None)


@pytest.mark.parametrize(
    ("path", "first"), [("/gates/", 1), ("/api/v1/gates", 1), ("/healthz", 0), ("/metrics", 0)]
)
async def test_requests_go_first_but_for_those_of_machines_that_look_in(
    running: Runtime, path: str, first: int
) -> None:
    seen = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        seen.append(running.turns.under_way)

    await people_first(inner)({"type": "http", "path": path}, None, None)
    assert (seen, running.turns.under_way) == ([first], 0)


@pytest.mark.django_db  # a consumer ends with a look at the connections of its thread
async def test_new_sockets_and_frames_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    async def checked(token: str) -> tuple[int, Any]:
        return 7, USUAL

    class Noted(Turns):
        async def wait(self, token: int | None) -> None:
            noted.append(("wait", token))

        def took(self, token: int | None, seconds: float) -> None:
            noted.append(("took", token))

    noted: list[tuple[str, int | None]] = []
    used = SimpleNamespace(
        admissions=Admissions(),
        token_throttle=TokenThrottle(),
        is_running=True,
        consumers=set(),
        sockets=None,
        turns=Noted(),
    )
    monkeypatch.setattr(workers, "current", lambda: used)
    monkeypatch.setattr(workers, "_checked", checked)
    arrived = [
        {"type": "websocket.connect"},
        {"type": "websocket.receive", "text": "{"},
        {"type": "websocket.disconnect", "code": 1000},
    ]

    async def receive() -> dict[str, Any]:
        return arrived.pop(0)

    async def send(message: dict[str, Any]) -> None: ...

    scope = {"type": "websocket", "headers": [(b"authorization", b"Bearer kw")]}
    await WorkerConsumer()(scope, receive, send)
    assert noted == [("wait", 7), ("took", 7)] * 2


async def test_sockets_that_come_all_at_once_come_in_one_after_the_other() -> None:
    clock, entered = ManualClock(), []
    throttle = TokenThrottle(per_second=100, at_once=5, clock=clock)

    async def enter() -> None:
        await throttle.enter(1)
        entered.append(clock.monotonic())

    began = clock.monotonic()
    coming = [asyncio.create_task(enter()) for _ in range(205)]
    await clock.advance(0.0)
    assert len(entered) == 5
    await throttle.enter(2)  # another token's sockets do not wait
    await clock.advance(1.0)
    assert len(entered) == pytest.approx(105, abs=1)
    await clock.advance(1.5)
    assert all(each.done() for each in coming)
    assert max(entered) - began == pytest.approx(2.0)
    async with asyncio.timeout(10):
        await enter()
    assert entered[-1] == clock.monotonic()


def test_sockets_that_open_and_close_write_no_lines() -> None:
    quiet = WithoutSockets()
    said = [
        '%s - "WebSocket %s" [accepted]',
        "connection open",
        "connection closed",
        "connection rejected (%d %s)",
    ]
    records = [logging.LogRecord("uvicorn.error", logging.INFO, "", 0, each, (), None) for each in said]
    assert [quiet.filter(record) for record in records] == [False, False, False, True]
