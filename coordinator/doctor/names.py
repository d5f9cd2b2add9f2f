"""Do the prefix and the queue names point at something that exists?"""

from __future__ import annotations

import difflib
from collections.abc import AsyncIterator, Iterable

from coordinator.azure.errors import translated
from coordinator.config import check_name
from coordinator.doctor import rights
from coordinator.doctor.findings import Finding
from coordinator.errors import ConfigurationError, NotFound, StorageError
from coordinator.storage import Storage

KINDS = ("gates", "sequences", "leases")
POISON = "-poison"


async def check_prefix(storage: Storage) -> Finding:
    """Whether a fleet lives under this prefix, or rather under another one."""
    prefix = storage.config.prefix
    try:
        with translated("list the containers of", storage.endpoints.account):
            names = [found.name async for found in storage.aio.blobs.list_containers()]
    except StorageError as error:
        return rights.failure("prefix", "blob", storage, error)
    ours = sorted(name for name in names if name.removeprefix(prefix) in KINDS and name.startswith(prefix))
    if ours:
        return Finding("prefix", "ok", f"{prefix} has {', '.join(ours)}")
    fleets = sorted(
        {name.removesuffix(kind) for name in names for kind in KINDS if name.endswith(f"-{kind}")} - {prefix}
    )
    if fleets:
        found = f"nothing is stored under {prefix}, but there are fleets under {', '.join(fleets[:5])}"
        return Finding("prefix", "warning", found, "If one of those is meant, set KENNEL_PREFIX to it.")
    return Finding("prefix", "ok", f"nothing is stored under {prefix} yet; the first use creates it")


async def check_queues(storage: Storage, wanted: Iterable[str], *, answers: bool = True) -> list[Finding]:
    """Each queue asked about: its depth, and whether its poison queue has messages. None is passed over in silence."""
    if not (asked := list(wanted)):
        return []
    if not answers:
        return [Finding(f"queue {name}", "skipped", "the queue service does not answer") for name in asked]
    try:
        with translated("list the queues of", storage.endpoints.account):
            existing = [str(found.name) async for found in storage.aio.queues.list_queues()]
    except StorageError as error:
        return [rights.failure(f"queue {name}", "queue", storage, error) for name in asked]
    findings: list[Finding] = []
    for name in asked:
        try:
            findings += [finding async for finding in _queue(storage, name, existing)]
        except StorageError as error:
            findings.append(rights.failure(f"queue {name}", "queue", storage, error))
    return findings


async def _queue(storage: Storage, name: str, existing: list[str]) -> AsyncIterator[Finding]:
    what = f"queue {name}"
    try:
        check_name("queue", name)
    except ConfigurationError as error:
        yield Finding(what, "fault", str(error), "Rename it where the worker declares it.")
        return
    if name not in existing:
        near = difflib.get_close_matches(name, existing, 1)
        hint = f"Did you mean {near[0]}? " if near else ""
        yield Finding(
            what, "warning", "does not exist", f"{hint}If the name is right, the first put creates it."
        )
        return
    yield Finding(what, "ok", f"about {await _depth(storage, name):,} messages")
    poison = name + POISON
    if poison in existing and (count := await _depth(storage, poison)):
        found = f"about {count:,} failed messages"
        cure = f"Look at them with `python -m coordinator queue peek {poison}`, fix the handler, then `queue requeue-poison {name}`."
        yield Finding(f"queue {poison}", "warning", found, cure)


async def _depth(storage: Storage, name: str) -> int:
    try:
        with translated("count the messages of", name):
            properties = await storage.aio.queues.get_queue_client(name).get_queue_properties()
    except NotFound:
        return 0
    return int(properties.approximate_message_count or 0)
