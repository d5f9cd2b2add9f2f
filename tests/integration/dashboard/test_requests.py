"""What strangers may send to a running dashboard: bodies without end, heads and bodies that never come to one."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import psutil
import pytest
import requests

from dashboard.core.serving import BODY_SECONDS, HEAD_SECONDS, MAX_HEAD_BYTES
from tests.support.dashboard import Dashboard, Person

ADDRESSES = [
    "/healthz",
    "/readyz",
    "/",
    "/accounts/login/",
    "/api/v1/fleet",
    "/metrics",
    "/nothing",
    "/audit.csv",
]
MOST = 256 * 1024


async def talk(dashboard: Dashboard, *parts: bytes, seconds: float = 60.0) -> tuple[bytes, float]:
    """Send these, then wait; what was answered until the dashboard closed the connection, and after how long."""
    reader, writer = await asyncio.open_connection("127.0.0.1", dashboard.port)
    began = time.monotonic()
    answer = b""
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        async with asyncio.timeout(seconds):
            answer = await reader.read()
    except ConnectionError:
        pass
    finally:
        writer.close()
    return answer, time.monotonic() - began


def head(path: str, *headers: str, method: str = "POST") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *headers, "", ""]).encode()


def spooled(dashboard: Dashboard) -> list[str]:
    """Temporary files that the process holds."""
    assert dashboard.process is not None
    opened = psutil.Process(dashboard.process.pid).open_files()
    return [each.path for each in opened if Path(each.path).parent == Path("/tmp")]


@pytest.mark.parametrize("path", ADDRESSES)
async def test_a_body_that_is_too_large_is_refused_by_its_length_before_it_is_read(
    dashboard: Dashboard, path: str
) -> None:
    answer, _ = await talk(dashboard, head(path, f"Content-Length: {MOST + 1}"))
    assert answer.startswith(b"HTTP/1.1 413"), answer
    assert b"256 KiB" in answer


@pytest.mark.parametrize("path", ADDRESSES)
async def test_a_body_without_a_length_is_refused_at_the_byte_that_is_one_too_many(
    dashboard: Dashboard, path: str
) -> None:
    chunk = b"%x\r\n" % 65536 + b"x" * 65536 + b"\r\n"
    answer, _ = await talk(dashboard, head(path, "Transfer-Encoding: chunked"), *[chunk] * 4, b"1\r\nx\r\n")
    assert answer.startswith(b"HTTP/1.1 413"), answer
    assert spooled(dashboard) == []


async def test_the_api_refuses_with_a_problem(dashboard: Dashboard) -> None:
    answer = await asyncio.to_thread(
        requests.post, f"{dashboard.url}/api/v1/queues", data=b"x" * (MOST + 1), timeout=20
    )
    assert (answer.status_code, answer.headers["Content-Type"]) == (413, "application/problem+json")
    assert answer.json()["title"] == "Too large"


async def test_what_is_small_enough_passes(dashboard: Dashboard) -> None:
    with Person(dashboard, "olga") as olga:
        answer = await asyncio.to_thread(olga.post, "/gates/not-too-large/unleash", {"reason": "x" * 200})
        assert answer.ok


async def test_half_sent_requests_end(dashboard: Dashboard) -> None:
    """A head that is not whole, one that comes a byte at a time, a second one behind an answer, and half a body."""

    async def drip() -> tuple[bytes, float]:
        reader, writer = await asyncio.open_connection("127.0.0.1", dashboard.port)
        began = time.monotonic()
        writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
        try:
            while time.monotonic() - began < 60 and not reader.at_eof():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.25)
        except ConnectionError:
            pass
        writer.close()
        return b"", time.monotonic() - began

    nothing, half, second, dripped, body = await asyncio.gather(
        talk(dashboard),
        talk(dashboard, b"GET / HTTP/1.1\r\nHost: 127"),
        talk(dashboard, head("/healthz", method="GET"), b"GET /healthz HTTP/1.1\r\nHo"),
        drip(),
        talk(dashboard, head("/accounts/login/", "Content-Length: 100"), b"username="),
    )
    for answer, seconds in (nothing, half, dripped):
        assert answer == b""
        assert seconds < HEAD_SECONDS + 20
    assert second[0].startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 408" in body[0]
    assert body[1] < BODY_SECONDS + 20


async def test_a_head_without_end_is_cut_off(dashboard: Dashboard) -> None:
    more = b"X-Long: " + b"x" * 1000 + b"\r\n"
    answer, seconds = await talk(
        dashboard, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n", *[more] * (4 * MAX_HEAD_BYTES // 1000)
    )
    assert answer == b""
    assert seconds < HEAD_SECONDS


async def test_a_head_that_comes_at_once_is_bounded_too(dashboard: Dashboard) -> None:
    long = b"X-Long: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n"
    answer, _ = await talk(dashboard, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n" + long)
    assert answer == b""
    most = b"X-Long: " + b"x" * (MAX_HEAD_BYTES - 200) + b"\r\nConnection: close\r\n\r\n"
    answer, _ = await talk(dashboard, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n" + most)
    assert answer.startswith(b"HTTP/1.1 200")
