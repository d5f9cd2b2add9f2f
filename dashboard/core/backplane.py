"""The connection between dashboard processes: one subscription to the channel layer for each process, nothing without Redis."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from channels.layers import get_channel_layer

from coordinator.clock import SYSTEM_CLOCK, Clock

log = logging.getLogger(__name__)

GROUP = "fleet"
SILENT_SECONDS = 5.0
BEAT_SECONDS = 1.0
PATIENCE_SECONDS = 2.0
SHORT_PATIENCE_SECONDS = 0.2

Handler = Callable[[str, bytes], None]


class Backplane:
    """Sends to all other processes and hears from them. A lossy line: what matters is in storage or is sent again.

    `process_id` names this process. Without a channel layer it is silent and never degraded.
    """

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.process_id = uuid.uuid4().hex[:12]
        self.clock = clock
        self._handlers: defaultdict[str, list[Handler]] = defaultdict(list)
        self._layer: Any = None
        self._tasks: list[asyncio.Task[None]] = []
        self._heard_self = 0.0
        self._down_since: float | None = None

    @property
    def is_shared(self) -> bool:
        """True if there is a layer to share with other processes."""
        return self._layer is not None

    @property
    def down_since(self) -> float | None:
        """Since when (wall clock) the layer carries nothing; None while it does, or if there is none."""
        return self._down_since

    def on(self, kind: str, handler: Handler) -> None:
        """Call `handler(process_id, body)` for each message of that kind from another process."""
        self._handlers[kind].append(handler)

    async def start(self) -> None:
        self._layer = get_channel_layer("fleet")
        if self._layer is None:
            return
        self._heard_self = self.clock.monotonic()
        self._tasks = [
            asyncio.create_task(self._listen(), name="link-listen"),
            asyncio.create_task(self._beat(), name="link-beat"),
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self._layer is not None:
            try:
                async with asyncio.timeout(2.0):
                    await self._layer.flush()
            except Exception as error:
                log.info("The channel layer could not be left: %s", type(error).__name__)
            self._layer = None

    async def publish(self, kind: str, body: bytes) -> None:
        """Send to all other processes. Never raises for want of a connection."""
        if self._layer is None:
            return
        message = {"type": "link", "home": self.process_id, "kind": kind, "body": body}
        # Whoever presses a button must not wait long for a line that is known to be down.
        patience = PATIENCE_SECONDS if self._down_since is None or kind == "beat" else SHORT_PATIENCE_SECONDS
        try:
            async with asyncio.timeout(patience):
                await self._layer.group_send(GROUP, message)
        except Exception as error:
            # The layer's drivers raise errors of many libraries; the line being down is the one verdict on all.
            self._went_down(error)

    async def _beat(self) -> None:
        while True:
            await self.publish("beat", b"")
            await self.clock.sleep(BEAT_SECONDS)
            if self.clock.monotonic() - self._heard_self > SILENT_SECONDS:
                self._went_down(None)

    async def _listen(self) -> None:
        while True:
            try:
                channel = await self._layer.new_channel()
                await self._layer.group_add(GROUP, channel)
                while True:
                    self._take(await self._layer.receive(channel))
            except asyncio.CancelledError:
                raise
            except Exception as error:
                self._went_down(error)
                await self.clock.sleep(1.0)

    def _take(self, message: dict[str, Any]) -> None:
        if message.get("home") == self.process_id:
            self._heard_self = self.clock.monotonic()
            if self._down_since is not None:
                log.info("The channel layer is back")
                self._down_since = None
            return
        for handler in self._handlers.get(str(message.get("kind")), ()):
            try:
                handler(message["home"], message["body"])
            except Exception:
                log.exception(
                    "A message of kind %s from another process was not understood", message.get("kind")
                )

    def _went_down(self, error: BaseException | None) -> None:
        if self._down_since is None:
            self._down_since = self.clock.time()
            log.warning(
                "The channel layer is away: %s", type(error).__name__ if error else "nothing comes through"
            )
