"""Kennel's library for workers: gates, order numbers, leaders and queues over an Azure Storage account."""

from coordinator.errors import KennelError
from coordinator.sequences.generator import UniqueIdGenerator
from coordinator.sequences.grants import SequenceConfig
from coordinator.sequences.store import OptimisticSyncStore
from coordinator.storage import Storage

__all__ = [
    "KennelError",
    "OptimisticSyncStore",
    "SequenceConfig",
    "Storage",
    "UniqueIdGenerator",
]
