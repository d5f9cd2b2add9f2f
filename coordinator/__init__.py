"""Kennel's library for workers: gates, order numbers, leaders and queues over an Azure Storage account."""

from coordinator.errors import KennelError
from coordinator.storage import Storage

__all__ = [
    "KennelError",
    "Storage",
]
