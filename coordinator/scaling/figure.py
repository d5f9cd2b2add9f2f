"""The figure that KEDA's metrics-api scaler reads, over HTTP."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable

from aiohttp import web

from coordinator.errors import ConfigurationError, StorageError
from coordinator.scaling.azure import ScalingFigure

ReadFigure = Callable[[str], Awaitable[ScalingFigure | None]]


def figure_app(read: ReadFigure, *, token: str, max_age_seconds: float = 120.0) -> web.Application:
    """``GET /scaling/{pool}`` answers ``{"wanted": 3, "age_seconds": 4.2}`` to whoever bears `token`.

    A figure older than `max_age_seconds` is refused with 503, as is one that cannot be read: KEDA then keeps what there is
    (``fallback``) rather than follow an agent that is gone. 404 for a pool nobody ever decided on. Each request costs one
    of storage. `read` is ``lambda pool: read_figure(storage, pool)``; serve it with `aiohttp.web`.
    """
    if not token or max_age_seconds <= 0:
        raise ConfigurationError("figure_app needs a token, which scrapers send, and max_age_seconds above 0")

    async def answer(request: web.Request) -> web.Response:
        given = request.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            return web.json_response({"error": "a bearer token is needed"}, status=401)
        try:
            figure = await read(request.match_info["pool"])
        except ConfigurationError as error:
            return web.json_response({"error": str(error)}, status=404)
        except StorageError as error:
            return web.json_response({"error": str(error)}, status=503)
        if figure is None:
            return web.json_response({"error": "nothing was ever decided for this pool"}, status=404)
        if figure.age_seconds > max_age_seconds:
            text = f"the figure is {figure.age_seconds:.0f} s old: no agent runs"
            return web.json_response({"error": text}, status=503)
        return web.json_response(
            {"wanted": figure.wanted, "age_seconds": round(max(0.0, figure.age_seconds), 3)}
        )

    app = web.Application()
    app.router.add_get("/scaling/{pool}", answer)
    return app
