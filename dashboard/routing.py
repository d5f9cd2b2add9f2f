"""Sockets: workers show a token, browsers a session and an origin of ours."""

from __future__ import annotations

from channels.auth import AuthMiddlewareStack
from channels.routing import URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.urls import path

from dashboard.hub.operators import OperatorConsumer
from dashboard.hub.workers import WorkerConsumer

sockets = URLRouter(
    [
        path("ws/workers/", WorkerConsumer.as_asgi()),
        path("ws/operators/", AllowedHostsOriginValidator(AuthMiddlewareStack(OperatorConsumer.as_asgi()))),
    ]
)
