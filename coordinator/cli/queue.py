"""``python -m coordinator queue …``"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import click
import msgspec

from coordinator.cli import remote
from coordinator.client import Client, PoisonActRecord
from coordinator.errors import absent
from coordinator.queues import requeue
from coordinator.queues.azure import AzureQueue, list_queues
from coordinator.queues.queue import PeekedMessage, Queue, QueueConfig, existing_depth
from coordinator.queues.requeue import Moved
from coordinator.queues.sweeping import sweep as sweep_claims
from coordinator.storage import Storage

_POLL_SECONDS = 0.5


@click.group()
def queue() -> None:
    """Send, view and clear messages. Items are JSON, one per line."""


def _with_storage(action: Callable[[Storage], Awaitable[Any]]) -> Any:
    async def act() -> Any:
        async with Storage.from_env() as storage:
            return await action(storage)

    return asyncio.run(act())


async def _done(name: str, act: Awaitable[bool]) -> None:
    """An operator's act on a queue that does not exist has failed: the name may be mistyped."""
    if not await act:
        raise absent("queue", name)


def _confirm(what: str, name: str, yes: bool) -> None:
    if not yes and click.prompt(f"{what} Type the name of the queue to confirm") != name:
        raise click.ClickException("the name does not match; nothing changed")


@queue.command()
@click.argument("name")
@click.option("--delay", default=0.0, help="Seconds until listeners see the messages.")
@click.option("--ttl", default=-1.0, help="Seconds until the messages expire (-1: never).")
@click.option("--batch", default=50, show_default=True, help="Maximum items in one message.")
def put(name: str, delay: float, ttl: float, batch: int) -> None:
    """Send each line of standard input to NAME as one JSON item."""

    async def act(storage: Storage) -> int:
        target: Queue[Any] = storage.queue(name, config=QueueConfig(items_per_message=batch))
        items: list[Any] = []
        total = 0
        for number, line in enumerate(sys.stdin.buffer, 1):
            if not line.strip():
                continue
            try:
                items.append(msgspec.json.decode(line))
            except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
                if items:
                    await target.put(*items, delay=delay, ttl=ttl)
                raise click.ClickException(
                    f"line {number} is not JSON ({error}); sent the {total + len(items)} items before it"
                ) from error
            if len(items) == batch * 8:
                await target.put(*items, delay=delay, ttl=ttl)
                total += len(items)
                items = []
                click.echo(f"\r{total} items", err=True, nl=False)
        if items:
            await target.put(*items, delay=delay, ttl=ttl)
        return total + len(items)

    click.echo(f"\rSent {_with_storage(act)} items to {name}", err=True)


@queue.command()
@click.argument("name")
@click.option("--count", default=32, show_default=True, type=click.IntRange(1, 32))
def peek(name: str, count: int) -> None:
    """Print visible messages of NAME, one JSON object per line. Peeks only; attempts are unaffected."""

    async def act(storage: Storage) -> list[PeekedMessage[Any]]:
        target: Queue[Any] = storage.queue(name)
        messages = await target.peek(count)
        if not messages:
            await existing_depth(target)
        return messages

    for message in _with_storage(act):
        click.echo(msgspec.json.encode(message).decode())


@queue.command()
@click.argument("name")
def count(name: str) -> None:
    """Print the approximate number of messages in NAME, including invisible ones."""

    async def act(storage: Storage) -> int:
        target: Queue[Any] = storage.queue(name)
        return await existing_depth(target)

    click.echo(_with_storage(act))


@queue.command()
@click.argument("name")
def create(name: str) -> None:
    """Create the queue NAME."""
    if (client := remote.api()) is not None:
        client.create_queue(name)
        click.echo(f"Queue {name} exists")
        return
    created = _with_storage(lambda storage: storage.queue(name).create())
    click.echo(f"Created {name}" if created else f"Queue {name} already exists")


@queue.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def clear(name: str, yes: bool) -> None:
    """Remove every message of NAME."""
    _confirm(f"This removes every message of {name}.", name, yes)
    if (client := remote.api()) is not None:
        client.clear_queue(name)
    else:
        _with_storage(lambda storage: _done(name, storage.queue(name).clear()))
    click.echo(f"Cleared {name}")


@queue.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def delete(name: str, yes: bool) -> None:
    """Remove the queue NAME with its messages."""
    _confirm(f"This removes {name} with all its messages.", name, yes)
    if (client := remote.api()) is not None:
        client.delete_queue(name)
    else:
        _with_storage(lambda storage: _done(name, storage.queue(name).delete()))
    click.echo(f"Deleted {name}")


@queue.command("list")
def list_() -> None:
    """Print the queues of the account, with the approximate number of messages in each."""

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
        click.echo(f"{moved.repeated} were duplicates, requeued once", err=True)
    if moved.in_doubt:
        click.echo(
            f"{moved.in_doubt} are in doubt: they may be in both queues and be handled twice", err=True
        )
    if moved.left:
        click.echo(f"{moved.left} stay in place:", err=True)
        for reason in moved.reasons:
            click.echo(f"  {reason}", err=True)


@queue.command()
@click.argument("source")
@click.argument("target")
@click.option("--limit", type=click.IntRange(min=1), help="Maximum number of messages (default: all).")
def move(source: str, target: str, limit: int | None) -> None:
    """Move messages from SOURCE to TARGET unchanged. Each is stored in TARGET before it is removed."""
    if source == target:
        raise click.ClickException("source and target are the same queue")

    async def act(storage: Storage) -> Moved:
        taken_from: Queue[Any] = storage.queue(source)
        moved = await requeue.move(taken_from, storage.queue(target), limit=limit, progress=_progress)
        if not moved and not moved.left:
            await existing_depth(taken_from)
        return moved

    moved = _with_storage(act)
    click.echo(f"\rMoved {moved} messages from {source} to {target}")
    _others(moved)


@queue.command()
@click.argument("name")
@click.option(
    "--read", is_flag=True, help="Read all messages first, each hidden for a second (default: the first 32)."
)
@click.option("--retry", metavar="KIND", help="Put all messages of this kind back to where they failed.")
@click.option("--delete", metavar="KIND", help="Delete all messages of this kind.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def poison(name: str, read: bool, retry: str | None, delete: str | None, yes: bool) -> None:
    """Print the kinds of failure in NAME's poison queue, through the API, and act on all messages of one."""
    if (client := remote.api()) is None:
        raise click.UsageError("this needs the dashboard: set KENNEL_API_URL and KENNEL_API_TOKEN")
    if read:
        _wait(client, name, client.read_poison(name))
    if retry:
        _wait(client, name, client.retry_poison(name, kind=retry))
    if delete:
        _confirm(f"This deletes all messages of kind {delete}.", name, yes)
        _wait(client, name, client.delete_poison(name, kind=delete))
    for each in client.poison(name):
        said = f"{each.error}: {each.reason}" if each.error else each.reason
        click.echo(f"{each.messages:>9}  {each.kind}  {said}  {each.handler}".rstrip())


def _wait(client: Client, name: str, act: PoisonActRecord) -> None:
    while act.outcome == "running":
        click.echo(f"\r{act.done} of {act.total}", err=True, nl=False)
        time.sleep(_POLL_SECONDS)
        act = next((each for each in client.poison_acts(name) if each.id == act.id), act)
    click.echo(f"\r{act.verb}: {act.done} messages {act.outcome}", err=True)
    if act.problem:
        click.echo(act.problem, err=True)


@queue.command("requeue-poison")
@click.argument("name")
@click.option("--limit", type=click.IntRange(min=1), help="Maximum number of messages (default: all).")
def requeue_poison(name: str, limit: int | None) -> None:
    """Requeue the messages of NAME's poison queue to NAME, with their history."""
    if (client := remote.api()) is not None:
        if limit is not None:
            raise click.UsageError("--limit cannot be used with the API, which requeues all messages")
        moved = client.requeue_poison(name)
        click.echo(f"Requeued {moved} messages to {name}")
        _others(moved)
        return

    async def act(storage: Storage) -> Moved:
        queue: Queue[Any] = storage.queue(name)
        moved = await requeue.requeue_poison(queue, limit=limit, progress=_progress)
        if not moved and not moved.left:
            await existing_depth(queue)
        return moved

    moved = _with_storage(act)
    click.echo(f"\rRequeued {moved} messages to {name}")
    _others(moved)


@queue.command()
@click.argument("name")
def sweep(name: str) -> None:
    """Remove large payloads of NAME that no message needs, except those of the last day."""
    swept = _with_storage(lambda storage: sweep_claims(storage.queue(name)))
    click.echo(f"Removed {swept.removed} payloads")
    if swept.unknown:
        click.echo(
            f"Kept {swept.unknown} payloads that never expire: the queue holds more messages than a sweep can check; "
            "sweep again when the queue and its poison queue are short",
            err=True,
        )
