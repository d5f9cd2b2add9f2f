"""Each request of each primitive in turn is lost, late or refused: what was promised still holds.

Every cell enumerates the requests of its operation by itself (`for_each_request`), so a request that is added later is
covered. The cells run side by side, each behind a proxy of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from coordinator.config import StorageConfig
from coordinator.errors import NotFound, StorageBusy, StorageError, StorageUnreachable
from coordinator.gates.gate import GateConfig
from coordinator.leadership.azure import BlobLeaseStore
from coordinator.queues.azure import BlobClaims
from coordinator.sequences.ledger import open_book
from coordinator.storage import Storage
from coordinator.tables.operations import Insert
from coordinator.tables.optimistic import optimistic_update
from coordinator.testing.azurite import Azurite
from coordinator.testing.faults import (
    DROP_ANSWER,
    RESET_BEFORE,
    FaultProxy,
    Turn,
    answer_delayed,
    delayed,
    throttled,
)
from tests.support.azurite import started_azurite
from tests.support.reliability import Cell, Table

TIMEOUT_SECONDS = 1.0
AT_ONCE = 24
FAULTS = {
    "request lost": RESET_BEFORE,
    "answer lost": DROP_ANSWER,
    "answer later than the time-out": answer_delayed(1.4),
    "carried out after the time-out": delayed(1.4),
    "503 with Retry-After": throttled(1),
    "429 with Retry-After": throttled(1, status=429),
}


@dataclass
class Site:
    """One turn: `behind` is the storage whose requests fail within `turn`, `plain` the same without faults."""

    behind: Storage
    plain: Storage
    name: str
    turn: Turn

    @contextlib.asynccontextmanager
    async def failing(self):
        """For single requests, which are not repeated: the error says whether the request may have been carried out."""
        try:
            with self.turn:
                yield
        except (StorageUnreachable, StorageBusy) as error:
            if not (error.maybe_done or error.status == 429):
                raise AssertionError("the error denies that it may have been done") from error


# --- gates --------------------------------------------------------------------------------------------------------------


async def open_gate(site: Site) -> None:
    with site.turn:
        opened = await site.behind.gate(site.name).open(by="ann", reason="sale")
    stored = await site.plain.gate(site.name).read()
    assert (stored.epoch, stored.state, opened.epoch) == (1, "open", 1)


async def close_gate(site: Site) -> None:
    await site.plain.gate(site.name).open(by="ann")
    with site.turn:
        await site.behind.gate(site.name).close(by="ann")
    stored = await site.plain.gate(site.name).read()
    assert (stored.epoch, stored.state) == (2, "closed")


async def wait_at_gate(site: Site) -> None:
    gate = site.behind.gate(site.name, config=GateConfig(poll_seconds=0.1))
    with site.turn:
        waiting = asyncio.create_task(gate.wait())
        while gate.state is None:
            await asyncio.sleep(0.01)
        assert not waiting.done()
        await site.plain.gate(site.name).open(by="ann")
        assert (await waiting).epoch == 1


# --- sequences ----------------------------------------------------------------------------------------------------------


async def take_numbers(site: Site) -> None:
    orders = site.behind.sequence(site.name, range_size=5, max_range_size=5)
    numbers = []
    with site.turn:
        for _ in range(7):
            numbers.append(await orders.next_id_async())
        await orders.aclose()
    others = site.plain.sequence(site.name, range_size=5)
    numbers += [await others.next_id_async() for _ in range(20)]
    await others.aclose()
    report = await asyncio.to_thread(open_book(site.plain, site.name).verify)
    assert len(set(numbers)) == 27
    assert report.is_ok, report.summary


# --- leases -------------------------------------------------------------------------------------------------------------


async def acquire_lease(site: Site) -> None:
    mutex = site.behind.mutex(site.name, identity="ann")
    with site.turn:
        term = await mutex.acquire(timeout=30)
        assert term.held
        assert await site.plain.mutex(site.name, identity="bob").try_acquire() is None
    assert (await BlobLeaseStore(site.plain, site.name).read()).holder == "ann"
    await mutex.release()


async def renew_lease(site: Site) -> None:
    await BlobLeaseStore(site.plain, site.name).acquire(LEASE, 15)
    async with site.failing():
        await BlobLeaseStore(site.behind, site.name).renew(LEASE)
    await BlobLeaseStore(site.plain, site.name).renew(LEASE)
    assert await site.plain.mutex(site.name, identity="bob").try_acquire() is None


async def release_lease(site: Site) -> None:
    mutex = site.behind.mutex(site.name, identity="ann")
    term = await mutex.acquire(timeout=30)
    with site.turn:
        await mutex.release()
    assert not term.held
    successor = site.plain.mutex(site.name, identity="bob")
    assert (await successor.acquire(timeout=5)).epoch > term.epoch
    await successor.release()


# --- queues -------------------------------------------------------------------------------------------------------------


async def put_message(site: Site) -> None:
    with site.turn:
        await site.behind.queue(site.name).put("ticket")
    await delivered(site, "ticket", most=2)


async def get_messages(site: Site) -> None:
    queue = site.plain.queue(site.name)
    await queue.put("ticket")
    async with site.failing():
        await site.behind.queue(site.name).transport.get(32, visibility_seconds=1)
    await delivered(site, "ticket")


async def update_message(site: Site) -> None:
    queue = site.plain.queue(site.name)
    [kept] = await queue.put("ticket", visibility=1)
    async with site.failing():
        await site.behind.queue(site.name).transport.update(kept.id, kept.receipt, visibility_seconds=1)
    await delivered(site, "ticket")


async def delete_message(site: Site) -> None:
    queue = site.plain.queue(site.name)
    [kept] = await queue.put("ticket", visibility=1)
    is_deleted = False
    async with site.failing():
        await site.behind.queue(site.name).transport.delete(kept.id, kept.receipt)
        is_deleted = True
    if is_deleted:
        assert await queue.depth() == 0
    elif await queue.depth():
        await delivered(site, "ticket")


async def delivered(site: Site, item: object, *, most: int = 1) -> None:
    """The queue holds this item, at most so many times; waits until what is hidden is visible."""
    queue = site.plain.queue(site.name)
    while not (peeked := await queue.peek()):
        await asyncio.sleep(0.25)
    assert 1 <= await queue.depth() <= most
    assert {message.items for message in peeked} == {(item,)}
    assert len({queue.decode(message.text).id for message in peeked}) == 1


# --- payloads -----------------------------------------------------------------------------------------------------------

LARGE = os.urandom(60_000).hex()
LEASE = "6f4f0b2e-5f3c-4b3a-9c83-6f3a7a5f6a01"


async def put_large(site: Site) -> None:
    with site.turn:
        await site.behind.queue(site.name).put(LARGE)
    await delivered(site, LARGE, most=2)


async def get_large(site: Site) -> None:
    queue = site.plain.queue(site.name)
    [kept] = await queue.put(LARGE)
    async with site.failing():
        [(_, item)] = await site.behind.queue(site.name).items(kept.envelope)
        assert item == LARGE
    assert [item for _, item in await queue.items(kept.envelope)] == [LARGE]


async def delete_large(site: Site) -> None:
    queue = site.plain.queue(site.name)
    [kept] = await queue.put(LARGE)
    async with site.failing():
        await site.behind.queue(site.name).payloads.discard(kept.envelope)
    await queue.payloads.discard(kept.envelope)
    with pytest.raises(NotFound):
        await BlobClaims(site.plain, site.name).get(
            kept.envelope.claim.name, at_most=kept.envelope.claim.bytes
        )


# --- tables -------------------------------------------------------------------------------------------------------------

KEY = ("orders", "1")


async def insert_row(site: Site) -> None:
    table = await made_table(site)
    is_done = False
    async with site.failing():
        await site.behind.table(table.name).write(Insert(KEY, {"n": 1}))
        is_done = True
    rows = await table.top(9)
    assert [row.values for row in rows] == [{"n": 1}] or (rows == [] and not is_done)


async def update_row(site: Site) -> None:
    table = await made_table(site)
    await table.write(Insert(KEY, {"n": 1}))
    with site.turn:
        await optimistic_update(site.behind.table(table.name), KEY, lambda row: {"n": row["n"] + 1})
    assert (await table.read(KEY))["n"] == 2


async def transact_rows(site: Site) -> None:
    table = await made_table(site)
    is_done = False
    async with site.failing():
        await site.behind.table(table.name).transact([Insert(("orders", str(n)), {"n": n}) for n in range(3)])
        is_done = True
    assert len(await table.top(9)) in ((3,) if is_done else (0, 3))


async def scan_rows(site: Site) -> None:
    table = await made_table(site)
    await table.transact([Insert(("orders", str(n)), {"n": n}) for n in range(5)])
    with site.turn:
        found = [row["n"] async for row in site.behind.table(table.name).scan(page_size=2)]
    assert found == [0, 1, 2, 3, 4]


async def made_table(site: Site):
    name = site.name.replace("-", "")
    with contextlib.suppress(StorageError):
        await site.plain.aio.tables.create_table(name)
    return site.plain.table(name)


ONCE = "Done, and exactly once, whichever request failed"
SINGLE = "Done completely or not at all; the error's `maybe_done` says that it may have been done"
SUBJECTS: dict[str, tuple[Callable[[Site], Awaitable[None]], str]] = {
    "open a gate": (open_gate, ONCE),
    "close a gate": (close_gate, ONCE),
    "wait at a gate": (wait_at_gate, "The worker passes after the opening, never before"),
    "take order numbers": (take_numbers, "Each number is issued once; the ledger accounts for every one"),
    "acquire a lease": (acquire_lease, "Exactly one holder"),
    "renew a lease": (renew_lease, "The holder keeps the lease; a failed renewal is tried again"),
    "release a lease": (release_lease, "The next holder acquires it at once, with a higher epoch"),
    "send a message": (put_message, "Stored, perhaps twice, under one envelope id"),
    "get messages": (get_messages, "The message is visible again after its visibility timeout"),
    "renew a message": (update_message, "The message is visible again after its visibility timeout"),
    "delete a message": (delete_message, SINGLE),
    "put a payload too large for a message": (put_large, "Stored, perhaps twice, under one envelope id"),
    "get such a payload": (get_large, "The whole payload or an error; the message is still there"),
    "delete such a payload": (delete_large, "Deleting again is harmless"),
    "insert a row": (insert_row, SINGLE),
    "update a row": (update_row, ONCE),
    "write rows in a transaction": (transact_rows, SINGLE),
    "scan rows": (scan_rows, "Every row once, in order"),
}
TABLE = Table(
    "Requests",
    "Every request of the operation in turn meets the fault. *Time-out* is the client's: it gives up while the service acts.",
    tuple(Cell(fault, subject, outcome) for fault in FAULTS for subject, (_, outcome) in SUBJECTS.items()),
    order=60,
)
# What has the most requests begins first, or it is waited for alone.
CELLS = sorted(TABLE.cells, key=lambda cell: cell.subject != "take order numbers")


async def check(plain: Storage, connection_string: str, number: int, cell: Cell) -> int:
    """All turns of a cell; how many requests met the fault. What goes wrong names the turn."""
    operation, _ = SUBJECTS[cell.subject]
    met = 0
    with FaultProxy(connection_string) as proxy:
        behind = Storage.from_connection_string(proxy.connection_string, config=plain.config)
        async with behind:
            for turn in proxy.for_each_request(FAULTS[cell.fault]):
                try:
                    async with asyncio.timeout(60):
                        await operation(Site(behind, plain, f"case-{number}-{turn.number}", turn))
                except BaseException as error:
                    error.add_note(f"{cell}: {turn}")
                    raise
                met += turn.applied is not None
    return met


@pytest.fixture(scope="module")
def results() -> dict[str, int | BaseException]:
    azurite: Azurite = started_azurite()

    async def all_cells() -> list[int | BaseException]:
        places = asyncio.Semaphore(AT_ONCE)
        config = StorageConfig(read_seconds=TIMEOUT_SECONDS)
        async with Storage.from_connection_string(azurite.connection_string, config=config) as plain:

            async def one(number: int, cell: Cell) -> int:
                async with places:
                    return await check(plain, azurite.connection_string, number, cell)

            return await asyncio.gather(
                *(one(number, cell) for number, cell in enumerate(CELLS)), return_exceptions=True
            )

    try:
        found = asyncio.run(all_cells())
    finally:
        azurite.kill()
    return {str(cell): result for cell, result in zip(CELLS, found, strict=True)}


@pytest.mark.parametrize("cell", TABLE.cells, ids=str)
def test_what_was_promised_holds(cell: Cell, results: dict[str, int | BaseException]) -> None:
    result = results[str(cell)]
    if isinstance(result, BaseException):
        raise result
    assert result >= 1, "no request met the fault"
