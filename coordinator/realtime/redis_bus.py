"""A `Bus` over Redis pub/sub, for fleets that have a Redis and no dashboard. Needs the extra `redis`."""

from __future__ import annotations

import logging
import uuid
from typing import Any

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from coordinator.backoff import Backoff
from coordinator.clock import SYSTEM_CLOCK, Clock
from coordinator.realtime.bus import RESYNC, LocalBus, Notification

log = logging.getLogger(__name__)

RECONNECT = Backoff(base_seconds=0.2, cap_seconds=3.0)
ALIVE_SECONDS = 5.0


class RedisBus(LocalBus):
    """Hints through one Redis channel.

    Guarantees: a hint reaches this process's subscribers at once and those of each connected process at most once;
    `RESYNC` comes whenever the connection does or goes; a silent connection is noticed within 10 s. Not guaranteed:
    that any hint arrives. A program that can write there can wake a fleet, and let it pass a gate until each worker compares the push
    with storage (`GateConfig.verify_seconds`), unless the gates have `trust_push=False`.

    `url`: as redis-py takes it, ``redis://HOST:6379``; `channel`: the same for all processes of one fleet.
    Run `run()` as a task for as long as hints are wanted.
    """

    def __init__(self, url: str, *, channel: str = "kennel", clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__()
        self._redis = Redis.from_url(
            url,
            socket_timeout=ALIVE_SECONDS,
            socket_connect_timeout=ALIVE_SECONDS,
            health_check_interval=ALIVE_SECONDS,
        )
        self._channel = channel
        self._clock = clock
        self._connected = False
        self._here = uuid.uuid4().hex

    @property
    def is_connected(self) -> bool:
        return self._connected

    async def publish(self, hint: Notification) -> None:
        self.deliver(hint)
        try:
            await self._redis.publish(self._channel, msgspec.json.encode((self._here, hint)))
        except (RedisError, OSError) as error:
            log.info("Notification %s reached this process only: %s", hint.topic, type(error).__name__)

    async def run(self) -> None:
        """Connect, listen, reconnect with jitter, until cancelled."""
        attempt = 0
        try:
            while True:
                try:
                    async with self._redis.pubsub() as channel:
                        await channel.subscribe(self._channel)
                        while True:
                            # A turn without a message makes redis-py ask the server whether it is there.
                            message = await channel.get_message(timeout=ALIVE_SECONDS / 5)
                            if message is not None:
                                attempt = 0
                                self._take(message)
                except (RedisError, OSError) as error:
                    log.info("Redis is unreachable: %s", type(error).__name__)
                finally:
                    self._set_connected(False)
                await self._clock.sleep(RECONNECT.delay(attempt))
                attempt += 1
        finally:
            await self._redis.aclose()

    def _take(self, message: dict[str, Any]) -> None:
        if message["type"] == "subscribe":
            self._set_connected(True)
        elif message["type"] == "message":
            try:
                origin, hint = msgspec.json.decode(message["data"], type=tuple[str, Notification])
            except msgspec.DecodeError as error:
                log.warning("Ignored a message on %s that is not a notification: %s", self._channel, error)
                return
            if origin != self._here:
                self.deliver(hint)

    def _set_connected(self, connected: bool) -> None:
        if connected != self._connected:
            self._connected = connected
            self.deliver(Notification(RESYNC))


__all__ = ["RedisBus"]
