"""A socket whose frames come in a burst leaves the event loop to others between two of them."""

from __future__ import annotations

import asyncio
from typing import Any

from channels.exceptions import StopConsumer

from dashboard.hub.socket import Socket


class Listening(Socket):
    heard: list[str]

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        self.heard.append(text_data or "")

    async def websocket_disconnect(self, message: dict[str, Any]) -> None:
        raise StopConsumer


async def test_others_have_a_turn_after_each_frame_of_a_burst() -> None:
    arrived: list[dict[str, Any]] = [{"type": "websocket.receive", "text": str(n)} for n in range(20)]
    arrived.append({"type": "websocket.disconnect", "code": 1000})
    heard: list[str] = []
    turns: list[int] = []

    async def receive() -> dict[str, Any]:
        return arrived.pop(0)

    async def send(message: dict[str, Any]) -> None:
        pass

    async def other() -> None:
        while True:
            turns.append(len(heard))
            await asyncio.sleep(0)

    socket = Listening()
    socket.heard = heard
    beside = asyncio.create_task(other())
    await socket({"type": "websocket"}, receive, send)
    beside.cancel()
    assert len(heard) == 20
    assert set(range(1, 20)) <= set(turns)
