"""``kennel dashboard``: hands over to the package `kennel-dashboard`, which the library does not know."""

from __future__ import annotations

import importlib.util
import runpy
import sys

import click

MISSING = "the dashboard is not installed: pip install 'kennel-coordinator[dashboard]'"


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}, add_help_option=False
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def dashboard(arguments: tuple[str, ...]) -> None:
    """Start the web dashboard, or run one of its commands. `--help` lists the options."""
    if not is_installed():
        raise click.ClickException(MISSING)
    sys.argv = ["kennel dashboard", *arguments]
    runpy.run_module("dashboard", run_name="__main__", alter_sys=True)


def is_installed() -> bool:
    """Whether Kennel's dashboard can be imported here."""
    try:
        return importlib.util.find_spec("dashboard.asgi") is not None
    except ImportError:
        return False
