"""``kennel dashboard``: the dashboard for a project of your own, with all its data in one folder.

kennel dashboard                                  serves, after it has prepared the database
kennel dashboard worker_token create billing      any management command, on the same database
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import click
from django.core.management import execute_from_command_line


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--state",
    envvar="KENNEL_STATE_DIR",
    show_envvar=True,
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".kennel"),
    show_default=True,
    help="Folder of the database, the secret key and the first password.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def main(state: Path, host: str, port: int, command: tuple[str, ...]) -> None:
    """Start the web dashboard, or run one of its management COMMANDs (`help` lists them).

    The first start creates the folder, a secret key and an administrator, readable by you alone. Storage is set by
    AZURE_STORAGE_CONNECTION_STRING or AZURE_STORAGE_ACCOUNT_URL; a token in KENNEL_FIRST_WORKER_TOKEN is accepted from workers.
    """
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
    os.environ["KENNEL_STATE_DIR"] = str(state.resolve())
    if not os.environ.get("KENNEL_SECRET_KEY"):
        os.environ["KENNEL_SECRET_KEY"] = kept_secret(state / "secret-key")
    execute_from_command_line(
        ["kennel dashboard", *(command or ("serve", "--host", host, "--port", str(port)))]
    )


def kept_secret(file: Path) -> str:
    """The text of the file; a new file gets a random one, and only its owner may read it."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return file.read_text().strip()
    secret = secrets.token_urlsafe(48)
    with open(descriptor, "w") as opened:
        opened.write(secret + "\n")
    return secret


if __name__ == "__main__":
    main()
