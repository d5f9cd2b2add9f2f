"""What others offer for unique numbers, from one thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from coordinator.testing.sequences import memory_generator
from tests.support.postgres import running_postgres
from tests.support.redis import running_redis


def peers(seconds: float, range_size: int) -> dict[str, Any]:
    """Numbers per second from one thread; what cannot be installed here says so."""
    result: dict[str, Any] = {}
    with memory_generator(range_size=range_size) as ids:
        result["kennel next_id"] = _rate(ids.next_id, seconds)
    try:
        with running_postgres() as url, connected(url) as connection:
            for cache in (1, 1000):
                connection.execute(f"CREATE SEQUENCE numbers_{cache} CACHE {cache}")
                query = f"SELECT nextval('numbers_{cache}')"
                result[f"PostgreSQL nextval, CACHE {cache}"] = _rate(
                    lambda q=query: connection.execute(q).fetchone(), seconds
                )
    except ImportError as error:
        result["PostgreSQL"] = f"not installable here: {error}"
    try:
        import redis

        with running_redis() as url, redis.Redis.from_url(url) as client:
            result["Redis INCRBY"] = _rate(lambda: client.incrby("numbers", 1), seconds)
    except ImportError as error:
        result["Redis"] = f"not installable here: {error}"
    try:
        from snowflake import SnowflakeGenerator

        snowflakes = SnowflakeGenerator(1)
        result["snowflake-id"] = _rate(lambda: next(snowflakes), seconds)
    except ImportError as error:
        result["snowflake-id"] = f"not installable here: {error}"
    try:
        import uuid_utils

        result["UUIDv7 (uuid-utils)"] = _rate(uuid_utils.uuid7, seconds)
    except ImportError as error:
        result["UUIDv7"] = f"not installable here: {error}"
    return result


def connected(url: str) -> Any:
    """A connection, once the server has started up."""
    import psycopg

    for _ in range(100):
        try:
            return psycopg.connect(url, autocommit=True)
        except psycopg.OperationalError:
            time.sleep(0.1)
    return psycopg.connect(url, autocommit=True)


def _rate(program: Callable[[], Any], seconds: float) -> int:
    """Calls per second from one thread; a generator that has no number yet (None) is asked again."""
    until = time.perf_counter() + seconds
    got = 0
    while time.perf_counter() < until:
        for _ in range(100):
            got += program() is not None
    return round(got / seconds)
