"""Kennel's library for workers: gates, order numbers, leaders and queues over an Azure Storage account.

The names are imported together when the first of them is asked for: a program that needs one module of the library, such as the
command line, does not wait for the Azure SDK.
"""

import gc
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coordinator.public import *

__all__ = [
    "ANY",
    "ActiveDequeueTasks",
    "BatchDone",
    "BlobDistributedMutex",
    "Budget",
    "Delete",
    "Done",
    "DryRunDriver",
    "Election",
    "Gate",
    "GateConfig",
    "GateState",
    "GateTimeout",
    "GlobalFlag",
    "Idle",
    "IdleBackoff",
    "Insert",
    "KennelError",
    "Key",
    "LeadershipLost",
    "ListeningRelease",
    "LocalProcessDriver",
    "Merge",
    "MessageContext",
    "OptimisticSyncStore",
    "Outbox",
    "Pipeline",
    "PoisonRecord",
    "PollingRelease",
    "Prices",
    "Put",
    "Queue",
    "QueueConfig",
    "QueueEmpty",
    "QueueListener",
    "QueueState",
    "Reject",
    "Release",
    "Replace",
    "Retry",
    "RetryPolicy",
    "Row",
    "Saga",
    "SagaContext",
    "ScalingAgent",
    "ScalingPolicy",
    "ScalingRule",
    "SequenceConfig",
    "ShardedQueue",
    "Spending",
    "Steps",
    "Storage",
    "Table",
    "TargetLatency",
    "Term",
    "UniqueIdGenerator",
    "Update",
    "Upsert",
    "WorkDetected",
    "Worker",
    "current_batch",
    "current_message",
    "idempotent",
    "keeping",
    "once",
    "optimistic_update",
    "process_inline",
    "queue_empty",
    "requeue_poison",
    "work_detected",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    collects = gc.isenabled()
    gc.disable()  # modules stay: to search their objects for garbage while they are imported takes a fifth of the time
    try:
        value = globals()[name] = getattr(import_module("coordinator.public"), name)
    finally:
        if collects:
            gc.enable()
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
