"""The ASGI application: ``uvicorn dashboard.asgi:application --lifespan on``."""

from __future__ import annotations

import os
from functools import partial

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
django.setup(set_prefix=False)

from channels.routing import ProtocolTypeRouter  # noqa: E402

from dashboard.core.handler import Handler  # noqa: E402
from dashboard.core.serving import bounded, guard_heads  # noqa: E402
from dashboard.hub.background import lifespan  # noqa: E402
from dashboard.hub.routing import people_first, sockets  # noqa: E402
from dashboard.hub.socket import guard_fragments  # noqa: E402
from dashboard.queues import bulk_acts  # noqa: E402

guard_heads()
guard_fragments()

application = ProtocolTypeRouter(
    {
        "http": people_first(bounded(Handler())),
        "websocket": sockets,
        "lifespan": partial(lifespan, also={"bulk-acts": bulk_acts.go_on}),
    }
)
