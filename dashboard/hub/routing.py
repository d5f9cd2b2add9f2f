"""Sockets: workers show a token, browsers a session and an origin of ours."""

from __future__ import annotations

from typing import Any

from channels.auth import AuthMiddlewareStack
from channels.routing import URLRouter
from django.urls import path

from dashboard.hub.operators import OperatorConsumer
from dashboard.hub.origins import same_origin
from dashboard.hub.socket import abortable
from dashboard.hub.workers import WorkerConsumer

_workers: Any = WorkerConsumer.as_asgi()  # type: ignore[no-untyped-call]
_operators: Any = OperatorConsumer.as_asgi()  # type: ignore[no-untyped-call]

sockets = abortable(
    URLRouter(
        [
            path("ws/workers/", _workers),
            path("ws/operators/", same_origin(AuthMiddlewareStack(_operators))),
        ]
    )
)
