"""Free TCP ports on this machine."""

from __future__ import annotations

import contextlib
import secrets
import socket
import time

LOOPBACK = "127.0.0.1"


# Below those that the system gives to outgoing connections: a client of another test would take the port meanwhile.
CHOICE = range(12_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Ports free at this moment, all different. Who can, binds port 0 instead: another process may be quicker."""
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        while len(found) < count:
            port = secrets.choice(CHOICE)
            with contextlib.suppress(OSError):
                stack.enter_context(socket.socket()).bind((LOOPBACK, port))
                found.append(port)
        return found


def free_port() -> int:
    return free_ports(1)[0]


def listens(port: int, *, timeout_seconds: float = 0.5) -> bool:
    try:
        with socket.create_connection((LOOPBACK, port), timeout=timeout_seconds):
            return True
    except OSError:
        return False


def wait_until_listening(port: int, *, timeout_seconds: float) -> bool:
    deadline = time.monotonic() + timeout_seconds
    while not listens(port):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
