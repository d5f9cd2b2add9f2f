"""Kennel's library for workers: gates, order numbers, leaders and queues over an Azure Storage account."""

from coordinator.errors import GateTimeout, KennelError, LeadershipLost
from coordinator.gates.flag import GlobalFlag
from coordinator.gates.gate import Gate, GateConfig, Release
from coordinator.gates.listening import ListeningRelease
from coordinator.gates.polling import PollingRelease
from coordinator.gates.state import GateState
from coordinator.leadership.election import Election
from coordinator.leadership.mutex import BlobDistributedMutex
from coordinator.leadership.term import Term
from coordinator.queues.listener import QueueListener
from coordinator.queues.queue import Queue
from coordinator.sequences.generator import UniqueIdGenerator
from coordinator.sequences.grants import SequenceConfig
from coordinator.sequences.store import OptimisticSyncStore
from coordinator.storage import Storage
from coordinator.tables.operations import ANY, Delete, Insert, Merge, Put, Replace
from coordinator.tables.optimistic import Update, optimistic_update
from coordinator.tables.rows import Key, Row
from coordinator.tables.table import Table
from coordinator.worker import Worker

__all__ = [
    "ANY",
    "BlobDistributedMutex",
    "Delete",
    "Election",
    "Gate",
    "GateConfig",
    "GateState",
    "GateTimeout",
    "GlobalFlag",
    "Insert",
    "KennelError",
    "Key",
    "LeadershipLost",
    "ListeningRelease",
    "Merge",
    "OptimisticSyncStore",
    "PollingRelease",
    "Put",
    "Queue",
    "QueueListener",
    "Release",
    "Replace",
    "Row",
    "SequenceConfig",
    "Storage",
    "Table",
    "Term",
    "UniqueIdGenerator",
    "Update",
    "Worker",
    "optimistic_update",
]
