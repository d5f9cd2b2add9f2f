"""Free TCP ports on this machine."""

from __future__ import annotations

import contextlib
import socket
import time

LOOPBACK = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Ports free at this moment, all different. Who can, binds port 0 instead: another process may be quicker."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((LOOPBACK, 0))
        return [one.getsockname()[1] for one in sockets]


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
