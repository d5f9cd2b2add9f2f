"""Does the dashboard's socket take this worker, and is the dashboard itself well?"""

from __future__ import annotations

import asyncio
import os
import socket
import time
import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import aiohttp
import websockets
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from coordinator.doctor.findings import Finding
from coordinator.errors import ProtocolViolation
from coordinator.realtime import protocol

OPEN_SECONDS = 5.0
MAKE_ONE = (
    "Create a token in the dashboard (manage.py worker_token create NAME) and set it in KENNEL_WORKER_TOKEN."
)


async def check(environ: Mapping[str, str], prefix: str) -> list[Finding]:
    """Connect as a worker would, say hello and goodbye; then ask the dashboard how it is."""
    url, token = environ.get("KENNEL_HUB_URL", ""), environ.get("KENNEL_WORKER_TOKEN", "")
    if not url:
        found = "KENNEL_HUB_URL is not set: workers poll (gates every 2.5 s), and operators see no workers"
        return [Finding("hub", "warning" if token else "skipped", found, "Set it to wss://HOST/ws/workers/.")]
    parts = urlsplit(url)
    if parts.scheme not in ("ws", "wss") or not parts.hostname:
        found = f"KENNEL_HUB_URL begins with {parts.scheme or 'nothing'}://, which is not a websocket address"
        return [Finding("hub", "fault", found, "Set it to wss://HOST/ws/workers/.")]
    if not token:
        return [Finding("hub", "fault", "KENNEL_HUB_URL is set but KENNEL_WORKER_TOKEN is not", MAKE_ONE)]
    findings = [await _greet(url, token, prefix)]
    if parts.scheme == "ws" and not _is_local(parts.hostname):
        found = f"the token travels to {parts.hostname} in the clear"
        findings.append(Finding("hub encryption", "warning", found, "Use wss:// behind a TLS proxy."))
    findings.append(await _health(url))
    return findings


async def _greet(url: str, token: str, prefix: str) -> Finding:
    host = urlsplit(url).netloc
    began = time.monotonic()
    try:
        async with asyncio.timeout(2 * OPEN_SECONDS):
            async with connect(
                url,
                additional_headers={"Authorization": f"Bearer {token}"},
                subprotocols=[Subprotocol(protocol.SUBPROTOCOL)],
                max_size=protocol.MAX_FRAME_BYTES,
                open_timeout=OPEN_SECONDS,
                close_timeout=1.0,
                compression=None,
            ) as connection:
                await connection.send(protocol.encode(_hello(prefix)))
                answer = protocol.decode_from_hub(await connection.recv())
    except websockets.InvalidStatus as error:
        return _refused(host, error.response.status_code)
    except websockets.ConnectionClosed as error:
        return _closed(error.rcvd.code if error.rcvd else 1006, error.rcvd.reason if error.rcvd else "")
    except ProtocolViolation as error:
        return Finding("hub", "fault", str(error), "Something else answers at KENNEL_HUB_URL: correct it.")
    except (websockets.WebSocketException, OSError, TimeoutError) as error:
        cure = "Start the dashboard, or correct KENNEL_HUB_URL. Meanwhile workers poll, and nothing is lost."
        return Finding("hub", "fault", f"no connection to {host} ({type(error).__name__})", cure)
    spoken = range(protocol.OLDEST, protocol.VERSION + 1)
    if not isinstance(answer, protocol.Welcome) or answer.version not in spoken:
        found = f"the dashboard does not speak protocol {protocol.VERSION}"
        return Finding("hub", "fault", found, "Bring dashboard and workers to the same release.")
    return Finding(
        "hub", "ok", f"{host} welcomed this worker within {(time.monotonic() - began) * 1000:.0f} ms"
    )


def _refused(host: str, status: int) -> Finding:
    if status in (401, 403):
        return Finding("hub", "fault", f"{host} refused the token ({status})", MAKE_ONE)
    if status in (404, 200, 301, 302, 307, 308):
        found = f"{host} has no workers' socket at that path ({status})"
        return Finding("hub", "fault", found, "Let KENNEL_HUB_URL end in /ws/workers/.")
    found = f"{host} answered {status}"
    return Finding("hub", "fault", found, "Look at the log of the dashboard, or of the proxy before it.")


def _closed(code: int, reason: str) -> Finding:
    found = f"the dashboard closed the connection: {reason or code}"
    cures = {
        protocol.CLOSE_UNAUTHORIZED: MAKE_ONE,
        protocol.CLOSE_FORBIDDEN: "Set the same KENNEL_PREFIX for dashboard and workers.",
        protocol.CLOSE_MALFORMED: "Bring dashboard and workers to the same release.",
    }
    return Finding("hub", "fault", found, cures.get(code, "Look at the log of the dashboard."))


async def _health(url: str) -> Finding:
    """What the dashboard says of its own parts: database, storage, the layer between its processes."""
    parts = urlsplit(url)
    scheme = "https" if parts.scheme == "wss" else "http"
    address = urlunsplit((scheme, parts.netloc, "/readyz", "", ""))
    timeout = aiohttp.ClientTimeout(total=OPEN_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=True) as session,
            session.get(address) as answer,
        ):
            body: dict[str, Any] = await answer.json(content_type=None)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        return Finding(
            "dashboard", "skipped", f"{address} did not report its health ({type(error).__name__})"
        )
    problems = [
        text
        for is_bad, text in (
            (not body.get("database", True), "its database does not answer"),
            (not body.get("hub", True), "its hub does not run"),
            (
                not body.get("storage", True),
                "it cannot read storage: its pages and its log say why",
            ),
            (bool(body.get("degraded")), f"degraded: {body.get('degraded')}"),
        )
        if is_bad
    ]
    if not problems:
        return Finding(
            "dashboard", "ok", "database, hub, storage and the layer between processes are healthy"
        )
    cure = "See the runbook in docs/dashboard.md; REDIS_URL, DATABASE_URL and the storage settings are the usual causes."
    return Finding("dashboard", "warning", "; ".join(problems), cure)


def _hello(prefix: str) -> protocol.Hello:
    """A worker that is about to stop, so that nobody misses it afterwards."""
    return protocol.Hello(
        version=protocol.VERSION,
        oldest=protocol.OLDEST,
        worker=f"doctor-{socket.gethostname()}",
        instance=uuid.uuid4().hex,
        host=socket.gethostname(),
        pid=os.getpid(),
        started_at=time.time(),
        software="kennel doctor",
        prefix=prefix,
        state=protocol.WorkerState(mode="stopping"),
    )


def _is_local(host: str) -> bool:
    return host in ("localhost", "127.0.0.1", "::1")
