"""``python -m coordinator queue …``"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import click
import msgspec

from coordinator.cli import remote
from coordinator.queues import requeue
from coordinator.queues.azure import AzureQueue, list_queues
from coordinator.queues.queue import Queue, QueueConfig
from coordinator.queues.requeue import Moved
from coordinator.queues.sweeping import sweep as sweep_claims
from coordinator.storage import Storage


@click.group()
def queue() -> None:
    """Put, look at and empty queues. Items are JSON, one a line."""


def _with_storage(action: Callable[[Storage], Awaitable[Any]]) -> Any:
    async def act() -> Any:
        async with Storage.from_env() as storage:
            return await action(storage)

    return asyncio.run(act())


def _confirm(what: str, name: str, yes: bool) -> None:
    if not yes and click.prompt(f"{what} Type the queue's name to go on") != name:
        raise click.ClickException("that is not its name; nothing was done")


@queue.command()
@click.argument("name")
@click.option("--delay", default=0.0, help="Seconds before listeners see them.")
@click.option("--ttl", default=-1.0, help="Seconds until they vanish (-1: never).")
@click.option("--batch", default=50, show_default=True, help="Most items in one message.")
def put(name: str, delay: float, ttl: float, batch: int) -> None:
    """Put each line of standard input, one JSON item a line, into NAME."""

    async def act(storage: Storage) -> int:
        target: Queue[Any] = storage.queue(name, config=QueueConfig(items_per_message=batch))
        items: list[Any] = []
        total = 0
        for number, line in enumerate(sys.stdin, 1):
            if not line.strip():
                continue
            try:
                items.append(msgspec.json.decode(line))
            except msgspec.DecodeError as error:
                if items:
                    await target.put(*items, delay=delay, ttl=ttl)
                raise click.ClickException(
                    f"line {number} is not JSON ({error}); the {total + len(items)} items before it were put"
                ) from error
            if len(items) == batch * 8:
                await target.put(*items, delay=delay, ttl=ttl)
                total += len(items)
                items = []
                click.echo(f"\r{total} items", err=True, nl=False)
        if items:
            await target.put(*items, delay=delay, ttl=ttl)
        return total + len(items)

    click.echo(f"\r{_with_storage(act)} items put into {name}", err=True)


@queue.command()
@click.argument("name")
@click.option("--count", default=32, show_default=True, type=click.IntRange(1, 32))
def peek(name: str, count: int) -> None:
    """Print visible messages of NAME, one JSON object a line, without taking them."""
    for message in _with_storage(lambda storage: storage.queue(name).peek(count)):
        click.echo(msgspec.json.encode(message).decode())


@queue.command()
@click.argument("name")
def count(name: str) -> None:
    """Print about how many messages NAME holds, invisible ones included."""
    click.echo(_with_storage(lambda storage: storage.queue(name).depth()))


@queue.command()
@click.argument("name")
def create(name: str) -> None:
    """Make the queue NAME."""
    if (client := remote.api()) is not None:
        client.create_queue(name)
        click.echo(f"{name} is there")
        return
    made = _with_storage(lambda storage: storage.queue(name).create())
    click.echo(f"{name} {'made' if made else 'was there already'}")


@queue.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Don't ask.")
def clear(name: str, yes: bool) -> None:
    """Remove every message of NAME."""
    _confirm(f"This removes every message of {name}.", name, yes)
    if (client := remote.api()) is not None:
        client.clear_queue(name)
    else:
        _with_storage(lambda storage: storage.queue(name).clear())
    click.echo(f"{name} is empty")


@queue.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Don't ask.")
def delete(name: str, yes: bool) -> None:
    """Remove the queue NAME with its messages."""
    _confirm(f"This removes {name} with all its messages.", name, yes)
    if (client := remote.api()) is not None:
        client.delete_queue(name)
    else:
        _with_storage(lambda storage: storage.queue(name).delete())
    click.echo(f"{name} is gone")


@queue.command("list")
def list_() -> None:
    """Print the queues of the account, with about how many messages each holds."""

    async def act(storage: Storage) -> list[tuple[str, int]]:
        return [(name, await AzureQueue(storage, name).count()) for name in await list_queues(storage)]

    for name, depth in _with_storage(act):
        click.echo(f"{depth:>9}  {name}")


def _progress(moved: int) -> None:
    if moved % 100 == 0:
        click.echo(f"\r{moved} messages", err=True, nl=False)


def _others(moved: Moved) -> None:
    """What became of those that were not moved."""
    if moved.repeated:
        click.echo(f"{moved.repeated} were there twice and came back once", err=True)
    if moved.in_doubt:
        click.echo(
            f"{moved.in_doubt} are in doubt: they may be at both places and be handled twice", err=True
        )
    if moved.left:
        click.echo(f"{moved.left} stay where they are:", err=True)
        for reason in moved.reasons:
            click.echo(f"  {reason}", err=True)


@queue.command()
@click.argument("source")
@click.argument("target")
@click.option("--limit", type=click.IntRange(min=1), help="At most so many messages (default: all).")
def move(source: str, target: str, limit: int | None) -> None:
    """Move messages from SOURCE to TARGET as they are. Each is put before it is removed."""
    if source == target:
        raise click.ClickException("source and target are the same queue")

    async def act(storage: Storage) -> Moved:
        return await requeue.move(
            storage.queue(source), storage.queue(target), limit=limit, progress=_progress
        )

    moved = _with_storage(act)
    click.echo(f"\r{moved} messages moved from {source} to {target}")
    _others(moved)


@queue.command("requeue-poison")
@click.argument("name")
@click.option("--limit", type=click.IntRange(min=1), help="At most so many messages (default: all).")
def requeue_poison(name: str, limit: int | None) -> None:
    """Put what is in NAME's poison queue back into NAME, with its history."""
    if (client := remote.api()) is not None:
        if limit is not None:
            raise click.UsageError("--limit cannot be given with the API: it puts all of them back")
        moved = client.requeue_poison(name)
        click.echo(f"{moved} messages are back in {name}")
        _others(moved)
        return

    async def act(storage: Storage) -> Moved:
        return await requeue.requeue_poison(storage.queue(name), limit=limit, progress=_progress)

    moved = _with_storage(act)
    click.echo(f"\r{moved} messages are back in {name}")
    _others(moved)


@queue.command()
@click.argument("name")
def sweep(name: str) -> None:
    """Remove the large payloads of NAME that no message needs any more, those of the last day excepted."""
    swept = _with_storage(lambda storage: sweep_claims(storage.queue(name)))
    click.echo(f"{swept.removed} payloads removed")
    if swept.unknown:
        click.echo(
            f"{swept.unknown} that never expire stay: the queue holds more than can be looked through; "
            "sweep again when it and its poison queue are short",
            err=True,
        )
