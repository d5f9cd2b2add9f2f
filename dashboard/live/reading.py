"""The few requests that one look at the storage account takes: one for each kind of thing, one for each queue."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, NamedTuple, TypeVar

from channels.db import database_sync_to_async
from msgspec.structs import replace

from coordinator.config import check_name
from coordinator.errors import ConfigurationError, KennelError, NotFound
from coordinator.leadership.azure import LeaderListing
from coordinator.queues.azure import list_queues
from coordinator.sequences.azure import CounterListing
from coordinator.storage import Storage
from dashboard.live.fleet import Depth, LeaderView, SequenceView
from dashboard.live.ledger import owners_of_each, settle, unsettled
from dashboard.live.presence import Presence

T = TypeVar("T")

POISON = "-poison"
AT_ONCE = 8
BUDGET = 24
PEEK_SECONDS = 5.0
LEDGER_SECONDS = 1.0
GRANTS_SHOWN = 20


class Result(NamedTuple):
    """What a reading gave, or why it gave nothing."""

    value: Any = None
    error: KennelError | TimeoutError | None = None


async def attempt(read: Callable[[], Awaitable[T]], seconds: float) -> Result:
    """Read, at most that long; errors of storage are reported, not raised."""
    try:
        async with asyncio.timeout(seconds):
            return Result(await read())
    except (KennelError, TimeoutError) as error:
        return Result(None, error)


async def leaders(listing: LeaderListing, at: float) -> tuple[LeaderView, ...]:
    """All elections."""
    return tuple(
        LeaderView(
            name=info.name,
            holder=info.holder if info.is_held else "",
            epoch=info.epoch,
            lease=info.lease_state,
            since=info.since or None,
            as_of=at,
            problem=info.problem,
        )
        for info in await listing.read()
    )


async def sequences(counters: CounterListing, presence: Presence, at: float) -> tuple[SequenceView, ...]:
    """All counters with their newest grants, and what the ledger says of those whose owner is gone."""
    found = await counters.read()
    grants = {
        info.name: info.counter.grants[: -GRANTS_SHOWN - 1 : -1] if info.counter is not None else ()
        for info in found
    }
    owners = owners_of_each(presence, grants)
    try:
        async with asyncio.timeout(LEDGER_SECONDS):
            # In a thread of its own: the one that looks up workers' tokens may have a crowd before it.
            recent = await database_sync_to_async(settle, thread_sensitive=False)(grants, owners)
    except TimeoutError:
        recent = unsettled(grants, owners)
    return tuple(
        SequenceView(
            info.name, next_number=info.next, recent=recent[info.name], problem=info.problem, as_of=at
        )
        for info in found
    )


async def queue_names(storage: Storage) -> tuple[str, ...]:
    """All queues, poison queues included: one request."""
    return tuple(name for name in await list_queues(storage) if _is_ours(name))


def _is_ours(name: str) -> bool:
    """Whether Kennel could have made a queue of that name; the account may hold others."""
    try:
        check_name("queue", name.removesuffix(POISON))
    except ConfigurationError:
        return False
    return True


async def depth_of(storage: Storage, name: str) -> int | None:
    """The approximate count: one request. None if the queue is gone."""
    try:
        return int(await storage.queue(name).depth())
    except NotFound:
        return None


async def oldest_of(storage: Storage, name: str) -> float | None:
    """When the message at the front was put: one request. None if none is visible."""
    front = await storage.queue(name).transport.peek(1)
    return front[0].inserted_at if front else None


def choose(
    names: Collection[str], known: Mapping[str, Depth], busy: Collection[str], budget: int
) -> list[str]:
    """Which queues to read now: all if the budget allows, else most of it for busy ones, the longest unread first."""
    if len(names) <= budget:
        return sorted(names)

    def age(name: str) -> tuple[float, str]:
        row = known.get(name)
        return (row.as_of or 0.0) if row is not None else 0.0, name

    first = sorted((name for name in names if name in busy), key=age)[: budget * 3 // 4]
    rest = sorted((name for name in names if name not in first), key=age)
    return [*first, *rest[: budget - len(first)]]


async def depths(
    storage: Storage,
    names: Collection[str],
    known: Mapping[str, Depth],
    *,
    at: float,
    seconds: float,
    busy: Collection[str] = (),
    budget: int = BUDGET,
) -> tuple[tuple[Depth, ...], Result]:
    """The depth of each queue, its poison queue beside it. A queue that could not or need not be read keeps its old row."""
    every = set(names)
    # A poison queue whose queue is gone is shown as itself: its messages must not be forgotten.
    work = {name for name in every if not (name.endswith(POISON) and name.removesuffix(POISON) in every)}
    limit = asyncio.Semaphore(AT_ONCE)
    failed = Result()

    async def one(name: str) -> Result:
        async with limit:
            return await attempt(lambda: depth_of(storage, name), seconds)

    async def row(name: str) -> Depth:
        nonlocal failed
        poison = name + POISON
        if poison in every:
            main, bad = await asyncio.gather(one(name), one(poison))
        else:
            main, bad = await one(name), Result(0)
        if main.error is not None or bad.error is not None:
            failed = main if main.error is not None else bad
            return known.get(name) or Depth(name, None, None, None)
        before = known.get(name)
        fresh = Depth(name, main.value, bad.value, at)
        if not main.value:
            return fresh
        if before is not None and at - before.peeked_at < PEEK_SECONDS:
            return replace(fresh, oldest_at=before.oldest_at, peeked_at=before.peeked_at)
        async with limit:
            front = await attempt(lambda: oldest_of(storage, name), seconds)
        return replace(fresh, oldest_at=front.value, peeked_at=at)

    chosen = choose(work, known, busy, budget)
    read = {depth.name: depth for depth in await asyncio.gather(*(row(name) for name in chosen))}
    rows = (read.get(name) or known.get(name) or Depth(name, None, None, None) for name in sorted(work))
    return tuple(rows), failed
