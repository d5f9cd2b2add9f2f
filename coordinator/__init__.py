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
from coordinator.sequences.generator import UniqueIdGenerator
from coordinator.sequences.grants import SequenceConfig
from coordinator.sequences.store import OptimisticSyncStore
from coordinator.storage import Storage

__all__ = [
    "BlobDistributedMutex",
    "Election",
    "Gate",
    "GateConfig",
    "GateState",
    "GateTimeout",
    "GlobalFlag",
    "KennelError",
    "LeadershipLost",
    "ListeningRelease",
    "OptimisticSyncStore",
    "PollingRelease",
    "Release",
    "SequenceConfig",
    "Storage",
    "Term",
    "UniqueIdGenerator",
]
