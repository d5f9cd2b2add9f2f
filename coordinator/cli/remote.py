"""Which way a command acts: through the dashboard's API if it was told where that is, else on storage itself."""

from __future__ import annotations

from typing import Any

import click

from coordinator.client import Client


def use_api(context: click.Context, url: str | None, token: str | None) -> None:
    """Keep a client for the commands below if both are given."""
    if bool(url) != bool(token):
        missing = "KENNEL_API_TOKEN" if url else "KENNEL_API_URL"
        raise click.UsageError(f"{missing} is missing: set both to use the API, or neither")
    if url and token:
        client = Client(url, token)
        context.call_on_close(client.close)
        context.obj = client


def api() -> Client | None:
    """The client that the command line was started with, if any."""
    found: Any = click.get_current_context().find_object(Client)
    return found if isinstance(found, Client) else None


def refuse_by(by: str | None) -> None:
    """Who acts through the API is told by the token."""
    if by is not None:
        raise click.UsageError("--by cannot be used with the API: the token identifies you")
