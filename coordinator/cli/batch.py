"""``python -m coordinator prune``."""

from __future__ import annotations

import asyncio

import click

from coordinator.pipelines.retention import Pruned
from coordinator.pipelines.retention import prune as forget
from coordinator.storage import Storage


@click.command()
@click.option(
    "--days",
    type=click.FloatRange(min=0.05),
    required=True,
    help="Delete what ended more than this many days ago.",
)
@click.option("--dry-run", is_flag=True, help="Count only; delete nothing.")
def prune(days: float, dry_run: bool) -> None:
    """Delete batches and sagas that ended long ago, and old scaling decisions. Keeps reports."""

    async def act() -> Pruned:
        async with Storage.from_env() as storage:
            return await forget(storage, older_than_seconds=days * 86_400, dry_run=dry_run)

    done = asyncio.run(act())
    verb = "Would delete" if dry_run else "Deleted"
    click.echo(f"{verb} {done.batches} batches, {done.sagas} sagas and {done.changes} scaling changes")
