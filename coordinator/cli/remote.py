"""Which way a command acts: through the dashboard's API if its address is given, else on storage itself."""

from __future__ import annotations

import click

from coordinator.client import Client


def api() -> Client | None:
    """The client of the API whose address and token the command line was started with, if any."""
    root = click.get_current_context().find_root()
    if isinstance(root.obj, tuple):
        root.obj = client = Client(*root.obj)
        root.call_on_close(client.close)
    return root.obj if isinstance(root.obj, Client) else None


def refuse_by(by: str | None) -> None:
    """Refuse `--by` for the API: the token says who acts."""
    if by is not None:
        raise click.UsageError("--by cannot be used with the API: the token identifies you")
