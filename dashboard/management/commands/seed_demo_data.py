"""``manage.py seed_demo_data --scale small|large``: a past for the pages to show, in the database and the storage account."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
import time
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection, transaction

from coordinator.sequences.azure import BlobCounterStore, TableLedger
from coordinator.sequences.grants import USED, Counter, Grant, Owner
from coordinator.storage import Storage
from dashboard.core import audit
from dashboard.hub.runtime import current
from dashboard.live import tallies
from dashboard.live.history import LEVELS, pack
from dashboard.live.ledger_index import LedgerIndex
from dashboard.models import AuditHead, AuditOutcome, AuditRow, Chunk, LedgerBook, LedgerOwner, Series, Tally

BATCH = 2000
MOST_HANDLERS = 100
RANGE = 1000


class Scale(NamedTuple):
    """How much of everything."""

    audit_rows: int
    queues: int
    gates: int
    days: float
    grants: int
    index_rows: int = 0


SCALES = {
    "small": Scale(audit_rows=500, queues=8, gates=3, days=2, grants=200),
    "large": Scale(audit_rows=200_000, queues=300, gates=20, days=31, grants=20_000, index_rows=1_000_000),
}


class Command(BaseCommand):
    help = "Fill the database and the storage account with a generated history. Refuses if the audit has real rows."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--scale", choices=SCALES, default="small")
        parser.add_argument(
            "--grants", type=int, help="rows of the ledger; for a million, Azurite needs minutes and memory"
        )
        parser.add_argument("--seed", type=int, default=1, help="the same seed generates the same data")
        parser.add_argument("--without-storage", action="store_true", help="fill only the database")

    def handle(self, *args: Any, **options: Any) -> None:
        if AuditRow.objects.exists():
            raise CommandError(
                "the audit is not empty: made-up rows have no place in it; use a fresh database"
            )
        scale = SCALES[options["scale"]]
        if options["grants"] is not None:
            scale = scale._replace(grants=options["grants"])
        rng = random.Random(options["seed"])
        names = [f"{kind}-{number:03}" for number, kind in zip(range(scale.queues), itertools.cycle(KINDS))]
        self._timed(f"{scale.audit_rows} audit rows", lambda: seed_audit(scale.audit_rows, names, rng))
        if scale.index_rows:
            self._timed(f"{scale.index_rows} rows of the ledger's index", lambda: seed_index(scale))
        self._timed(f"{scale.days:g} days of history", lambda: seed_history(scale.days, names, rng))
        handlers = min(MOST_HANDLERS, len(names))
        what = f"{scale.days:g} days of {handlers} handlers"
        self._timed(what, lambda: seed_tallies(scale.days, names[:handlers], rng))
        if not options["without_storage"]:
            what = f"{len(names)} queues, {scale.gates} gates, {scale.grants} grants"
            self._timed(what, lambda: asyncio.run(seed_storage(scale, names, rng)))

    def _timed(self, what: str, work: Any) -> None:
        began = time.monotonic()
        work()
        self.stdout.write(f"{what}: {time.monotonic() - began:.1f} s")


KINDS = ("orders", "invoices", "refunds", "mails", "exports", "labels")
PEOPLE = ("olga", "otto", "adam", "vera")
ACTS = (
    ("gate.open", "start-order-processing", "tickets on sale"),
    ("gate.close", "start-order-processing", "stock check"),
    ("queue.requeue", "", "mended the parser"),
    ("queue.put", "", ""),
    ("worker.drain", "orders-1", "new version"),
    ("leader.step_down", "month-end", ""),
)


def seed_audit(rows: int, queues: list[str], rng: random.Random, *, every_seconds: float = 60.0) -> None:
    """A chain as `dashboard.core.audit` writes it: intents and outcomes, some denied, some failed."""
    at, previous, batch = time.time() - rows * every_seconds, "", []
    intent: dict[str, Any] | None = None
    with transaction.atomic():
        for number in range(1, rows + 1):
            at += rng.expovariate(1 / (every_seconds * 0.92))
            if intent is None:
                action, target, reason = rng.choice(ACTS)
                actor = rng.choice(PEOPLE)
                values: dict[str, Any] = {
                    "actor": actor,
                    "address": f"10.0.0.{PEOPLE.index(actor) + 1}",
                    "action": action,
                    "target": target or rng.choice(queues),
                    "before": "",
                    "after": "",
                    "reason": reason,
                    "outcome": str(AuditOutcome.DENIED if actor == "vera" else AuditOutcome.INTENT),
                    "request_id": f"{rng.getrandbits(64):016x}",
                    "intent_id": None,
                }
            else:
                result = AuditOutcome.FAILED if rng.random() < 0.03 else AuditOutcome.DONE
                values = intent | {"outcome": str(result), "intent_id": intent["id"]}
            values |= {"id": number, "at": min(at, time.time())}
            row = AuditRow(**values, previous=previous, digest=audit.digest(values, previous))
            row.closed = row.outcome == AuditOutcome.INTENT and number < rows
            intent = values if row.outcome == AuditOutcome.INTENT else None
            previous = row.digest
            batch.append(row)
            if len(batch) == BATCH or number == rows:
                AuditRow.objects.bulk_create(batch)
                batch = []
        AuditHead.objects.update_or_create(pk=1, defaults={"last_id": rows, "digest": previous})


def seed_history(days: float, queues: list[str], rng: random.Random, *, numbers: bool = True) -> None:
    """Every level as full as it can be, with a gap of half an hour an hour ago."""
    now = int(time.time())
    names = (
        [f"depth:{queue}" for queue in queues]
        + [f"active:{queue}" for queue in queues[:20]]
        + (["number:orders"] if numbers else [])
    )
    Series.objects.bulk_create([Series(name=name) for name in names], ignore_conflicts=True)
    ids = dict(Series.objects.filter(name__in=names).values_list("name", "pk"))
    with transaction.atomic():
        chunks = _chunks(ids, now, min(days * 86400, LEVELS[-1][2]), rng)
        while batch := list(itertools.islice(chunks, BATCH)):
            Chunk.objects.bulk_create(batch, ignore_conflicts=True)


def _chunks(ids: dict[str, int], now: int, span: float, rng: random.Random) -> Iterator[Chunk]:
    for name, series in ids.items():
        phase, height = rng.random() * math.tau, rng.choice((10, 100, 1000))
        counting = name.startswith("number:")
        for seconds, size, kept in LEVELS:
            length = seconds * size
            first = (now - int(min(kept, span))) // length * length
            for start in range(first, now - length, length):
                if now - 5400 < start < now - 3600 and seconds < 60:
                    continue
                if counting:
                    values = [float((start - now + 10**7 + slot * seconds) * 10) for slot in range(size)]
                else:
                    swing = height * (1 + math.sin(start / 14000 + phase))
                    values = [float(int(swing * (0.9 + 0.2 * rng.random()))) for _ in range(size)]
                yield Chunk(series_id=series, resolution=seconds, start=start, values=pack(values))


def seed_tallies(days: float, queues: list[str], rng: random.Random) -> None:
    """What handlers did in each hour, and in each minute of the last one."""
    now, source = time.time(), current().source
    hour, minute = (int(now) // step * step for step in (tallies.HOUR, tallies.MINUTE))
    past = [(tallies.HOUR, hour - n * tallies.HOUR) for n in range(int(days * 24))]
    past += [(tallies.MINUTE, minute - n * tallies.MINUTE) for n in range(60)]
    with transaction.atomic():
        rows = (_tally(source, queue, seconds, start, rng) for seconds, start in past for queue in queues)
        while batch := list(itertools.islice(rows, BATCH)):
            Tally.objects.bulk_create(batch)
    tallies.roll_up(now)


def _tally(source: str, queue: str, seconds: int, start: int, rng: random.Random) -> Tally:
    durations, waits = (
        {bucket: rng.randint(1, seconds // 10) for bucket in range(first, first + count)}
        for first, count in ((8, 20), (10, 28))
    )
    return Tally(
        source=source,
        queue=queue,
        handler=f"shop.{queue.partition('-')[0]}",
        seconds=seconds,
        start=start,
        done=sum(durations.values()),
        failed=rng.choice((0, 0, 0, 3)),
        durations=json.dumps(durations, separators=(",", ":")),
        waits=json.dumps(waits, separators=(",", ":")),
    )


async def seed_storage(scale: Scale, queues: list[str], rng: random.Random) -> None:
    """Queues with a few messages, gates, and one sequence with a long ledger."""
    async with Storage.from_env(settings.STORAGE_ENV) as storage:
        limit = asyncio.Semaphore(8)

        async def fill(name: str) -> None:
            async with limit:
                await storage.queue(name).create()
                for number in range(rng.randrange(4)):
                    await storage.queue(name).put({"order": number})

        async def gate(number: int) -> None:
            async with limit:
                made = storage.gate(f"stage-{number:02}")
                await made.open(by="olga", reason="rehearsal")
                await made.close(by="otto", reason="rehearsal is over")

        await asyncio.gather(
            *(fill(name) for name in queues), *(gate(number) for number in range(scale.gates))
        )
        await asyncio.to_thread(_grants, storage, scale)


OWNERS = 40


def seed_index(scale: Scale) -> None:
    """The index of a ledger longer than the one in the storage account, as after years: all settled but the newest."""
    began = time.time() - scale.index_rows * 10.0
    first = LedgerOwner.objects.bulk_create(
        LedgerOwner(name=f"orders-{n}", host="host", pid=1000 + n, started_at=int(began))
        for n in range(OWNERS)
    )[0]
    top = scale.index_rows * RANGE + 1
    source = LedgerIndex(current().storage).source
    book = LedgerBook.objects.create(name="orders", source=source, next=top, counter=top, read_at=time.time())
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < %s - 1) INSERT INTO "
            "dashboard_ledgerrow (book_id, first, last, turn, step, owner_id, granted_at, state) SELECT %s, "
            "i * %s + 1, i * %s + %s, 0, 1, CASE WHEN i %% 50000 = 49999 THEN NULL ELSE %s + i %% %s END, "
            "%s + i * 10.0, CASE WHEN i %% 50000 = 49999 THEN 'unattributed' ELSE 'used' END FROM n",
            [scale.index_rows, book.pk, RANGE, RANGE, RANGE, first.pk, OWNERS, began],
        )


def _grants(storage: Storage, scale: Scale) -> None:
    count, below = scale.grants, max(scale.grants, scale.index_rows)
    if not count:
        return
    ledger, store = TableLedger(storage, "orders"), BlobCounterStore(storage, "orders")
    began = time.time() - below * 10.0
    owners = [Owner(f"orders-{number}", "host", 1000 + number, int(began)) for number in range(OWNERS)]

    def grant(number: int) -> Grant:
        first = number * RANGE + 1
        owner = owners[number % len(owners)]
        return Grant(first, first + RANGE - 1, owner, uuid.uuid4().hex, began + number * 10, outcome=USED)

    for start in range(below - count, below, 100):
        ledger.record([grant(number) for number in range(start, min(start + 100, below))])
    counter = Counter(below * RANGE + 1, None, noted=below * RANGE + 1, start=1)
    if store.try_optimistic_write(counter.text(), etag=None, metadata=counter.metadata()) is None:
        raise CommandError("there is a sequence `orders` already; use a fresh storage account or prefix")
