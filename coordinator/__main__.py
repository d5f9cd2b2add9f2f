"""``python -m coordinator``: run a worker, and steer a fleet from the shell.

A command's module is imported when the command is called, so the help answers before the Azure SDK is loaded.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from typing import Any

import click

from coordinator import logs
from coordinator.errors import KennelError

# The module of each command in `coordinator.cli`, and the first sentence of its help.
COMMANDS = {
    "dashboard": ("dashboard", "Start the web dashboard, or run one of its commands."),
    "doctor": ("doctor", "Check settings, storage, rights, clock, versions and hub."),
    "ids": ("ids", "Order numbers: search, verify, export and repair the ledger of a sequence."),
    "init": ("init", "Write a new project: a worker, a test, a Dockerfile and a compose file."),
    "leash": ("gates", "Close GATE: workers finish the messages in flight and take no new ones."),
    "plan": (
        "plan",
        "Calculate what a load needs: accounts, queues, partitions, instances, requests and money.",
    ),
    "prune": (
        "batch",
        "Delete batches and sagas that ended long ago, and old scaling decisions.",
    ),
    "queue": ("queue", "Send, view and clear messages."),
    "release": ("gates", "Open GATE: waiting workers pass."),
    "run": ("run", "Run the worker that MODULE defines, until SIGTERM or Ctrl-C."),
    "up": ("up", "Start the storage emulator, the dashboard and a worker for the project in this folder."),
    "scale": ("scale", "Keep POOL as large as its policy asks for."),
}


_OUTPUT_LOST = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


class _Commands(click.Group):
    """Kennel's own errors end a command with one line and exit code 1, never with a trace."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"coordinator.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KennelError as error:
            raise click.ClickException(str(error)) from error
        except OSError as error:
            if error.errno not in _OUTPUT_LOST:
                raise
            # What is still in the buffer cannot be written at the end of the process, either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise click.ClickException(f"the output cannot be written: {error.strerror}") from error


@click.group(cls=_Commands)
@click.option(
    "--log-level",
    default="info",
    show_default=True,
    type=click.Choice(["debug", "info", "warning", "error", "critical"], case_sensitive=False),
    help="The least severe lines to log.",
)
@click.option("--log-json", is_flag=True, help="One JSON object per line.")
@click.option(
    "--api",
    envvar="KENNEL_API_URL",
    show_envvar=True,
    help="Address of the dashboard: release, leash and queue commands act through its API, as the token's owner.",
)
@click.option(
    "--api-token",
    envvar="KENNEL_API_TOKEN",
    show_envvar=True,
    help="Token of the API. Prefer the environment variable.",
)
@click.pass_context
def main(
    context: click.Context, log_level: str, log_json: bool, api: str | None, api_token: str | None
) -> None:
    """Kennel: gates, order numbers, leaders and queues over an Azure Storage account."""
    logs.configure(level=log_level, as_json=log_json)
    if bool(api) != bool(api_token):
        missing = "KENNEL_API_TOKEN" if api else "KENNEL_API_URL"
        raise click.UsageError(f"{missing} is missing: set both to use the API, or neither")
    if api and api_token:
        context.obj = (api, api_token)


__all__ = ["main"]

if __name__ == "__main__":
    main()
