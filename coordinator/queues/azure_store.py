"""Queues in an Azure storage account."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from coordinator.queues.azure_claims import BlobClaims
from coordinator.queues.azure_queue import AzureQueue
from coordinator.queues.azure_rules import BlobRules
from coordinator.queues.claims import Claims
from coordinator.queues.envelope import Schema, Upcaster
from coordinator.queues.poison import SUFFIX
from coordinator.queues.queue import Queue, QueueConfig
from coordinator.service_errors import translated

if TYPE_CHECKING:
    from coordinator.storage import Storage


class QueueOptions(TypedDict, total=False):
    """`version` of the item's schema, and how to bring items of older versions up to it; `config` of the queue."""

    version: int
    upcasters: Mapping[int, Upcaster] | None
    config: QueueConfig | None


def make_queue(
    storage: Storage,
    name: str,
    *,
    type: Any = Any,
    **options: Unpack[QueueOptions],
) -> Queue[Any]:
    """The queue of that name; no request is made."""
    config = options.get("config") or QueueConfig()
    version, upcasters = options.get("version", 0), options.get("upcasters")
    return Queue(
        AzureQueue(storage, name),
        # A poison queue shares its queue's claims: its records name them.
        Claims(
            BlobClaims(storage, name.removesuffix(SUFFIX) or name),
            clock=storage.clock,
            max_payload_bytes=config.max_payload_bytes,
        ),
        schema=Schema(type=type, version=version, upcasters=dict(upcasters or {})),
        bus=lambda: storage.bus,
        make_transport=lambda other: AzureQueue(storage, other),
        identity=lambda: storage.identity,
        clock=storage.clock,
        config=config,
        rules=BlobRules(storage),
        portal=lambda: storage.portal,
    )


async def list_queues(storage: Storage) -> list[str]:
    """The names of all queues of the account, poison queues included; one request for each 5,000."""
    with translated("list", "the queues"):
        return [queue.name async for queue in storage.aio.queues.list_queues()]
