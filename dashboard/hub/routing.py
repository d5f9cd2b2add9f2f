"""Requests, which go before workers' frames, and sockets: workers show a token, browsers a session and an origin of ours.

Guarantees that scheme, host and port of the origin must all be ours, as Django asks of forms: a page of another port of this
machine, or of the same name without TLS, opens nothing. A client that sends no origin is no browser and is refused, too.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from channels.auth import AuthMiddlewareStack
from channels.routing import URLRouter
from channels.security.websocket import WebsocketDenier
from django.conf import settings
from django.http.request import split_domain_port, validate_host
from django.urls import path
from django.utils.http import is_same_domain

from dashboard.hub.operators import OperatorConsumer
from dashboard.hub.runtime import current
from dashboard.hub.socket import abortable
from dashboard.hub.workers import WorkerConsumer

MACHINES = ("/healthz", "/readyz", "/metrics", "/static/")


def people_first(inner: Any) -> Any:
    """The application within; while it answers, workers' frames take turns, unless a machine only looks in."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"].startswith(MACHINES):
            await inner(scope, receive, send)
            return
        with current().turns.goes_first():
            await inner(scope, receive, send)

    return application


def same_origin(inner: Any) -> Any:
    """The application within, for connections that a page of ours opens."""

    async def application(scope: Any, receive: Any, send: Any) -> Any:
        headers = dict(scope.get("headers", ()))
        origin = headers.get(b"origin", b"").decode("latin-1")
        host = headers.get(b"host", b"").decode("latin-1")
        proto = headers.get(b"x-forwarded-proto", b"").decode("latin-1")
        # Behind a proxy that ends TLS: as SECURE_PROXY_SSL_HEADER has it for pages.
        is_secure = scope.get("scheme") == "wss" or (settings.HTTPS and proto == "https")
        if is_ours(origin, host, is_secure=is_secure):
            return await inner(scope, receive, send)
        return await WebsocketDenier()(scope, receive, send)

    return application


def is_ours(origin: str, host: str, *, is_secure: bool) -> bool:
    """Whether a page of this origin may connect to this host."""
    domain, _port = split_domain_port(host)
    own = f"{'https' if is_secure else 'http'}://{host}"
    if origin == own and validate_host(domain, settings.ALLOWED_HOSTS):
        return True
    return origin != "null" and any(_matches(origin, trusted) for trusted in settings.CSRF_TRUSTED_ORIGINS)


def _matches(origin: str, trusted: str) -> bool:
    if "*" not in trusted:
        return origin == trusted
    try:
        given, pattern = urlsplit(origin), urlsplit(trusted)
    except ValueError:
        return False
    return given.scheme == pattern.scheme and is_same_domain(given.netloc, pattern.netloc.lstrip("*"))


_workers: Any = WorkerConsumer.as_asgi()  # type: ignore[no-untyped-call]
_operators: Any = OperatorConsumer.as_asgi()  # type: ignore[no-untyped-call]
sockets = abortable(
    URLRouter(
        [path("ws/workers/", _workers), path("ws/operators/", same_origin(AuthMiddlewareStack(_operators)))]
    )
)
