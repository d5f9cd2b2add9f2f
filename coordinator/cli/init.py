"""``kennel init``: a project to start from."""

from __future__ import annotations

import os
import secrets
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path

import click

from coordinator.config import check_name

HIDDEN = {"gitignore": ".gitignore", "dockerignore": ".dockerignore"}


@click.command()
@click.argument("name")
def init(name: str) -> None:
    """Write a new project: a worker, a test, a Dockerfile and a compose file.

    The project is the new folder NAME, and its worker has that name, too.
    """
    check_name("project", name)
    folder = Path(name)
    if folder.exists():
        raise click.ClickException(f"{name} exists already; choose another name, or remove it")
    (folder / "wheels").mkdir(parents=True)
    (folder / "wheels" / ".gitkeep").touch()
    for file in files("coordinator.cli").joinpath("project").iterdir():
        if file.is_file():
            text = file.read_text().replace("PROJECT", name).replace("REQUIREMENT", requirement())
            # The ending ".in" keeps the project's modules from being Kennel's own.
            (folder / HIDDEN.get(file.name, file.name.removesuffix(".in"))).write_text(text)
    with open(os.open(folder / ".env", os.O_WRONLY | os.O_CREAT, 0o600), "w") as environment:
        environment.write(f"KENNEL_WORKER_TOKEN=kw_{secrets.token_urlsafe(32)}\n")
    click.echo(f"Created {name}. Next:  cd {name} && kennel up")


def requirement() -> str:
    """What the project's image installs: this version, with the dashboard."""
    try:
        return f"kennel-coordinator[dashboard]=={version('kennel-coordinator')}"
    except PackageNotFoundError:
        return "kennel-coordinator[dashboard]"
