"""All public names, as `coordinator` offers them. Loads the Azure SDK."""

from coordinator.cost import Budget, Prices, Spending
from coordinator.errors import GateTimeout, KennelError, LeadershipLost
from coordinator.gates.gate import Gate, GateConfig, Release
from coordinator.gates.releases import GlobalFlag, ListeningRelease, PollingRelease
from coordinator.gates.state import GateState
from coordinator.leadership.election import Election
from coordinator.leadership.mutex import BlobDistributedMutex
from coordinator.leadership.term import Term
from coordinator.pipelines.messages import BatchDone
from coordinator.pipelines.pipeline import Pipeline
from coordinator.queues.delivery import Done, Reject, Retry
from coordinator.queues.envelope import PoisonRecord
from coordinator.queues.handlers import MessageContext, current_batch, current_message
from coordinator.queues.listener import ActiveDequeueTasks, QueueListener, QueueState
from coordinator.queues.polling import Idle, IdleBackoff, QueueEmpty, queue_empty
from coordinator.queues.queue import Queue, QueueConfig, keeping, process_inline
from coordinator.queues.requeue import requeue_poison
from coordinator.queues.rules import ScalingRule, Steps, TargetLatency, WorkDetected, work_detected
from coordinator.queues.settling import RetryPolicy
from coordinator.queues.shards import ShardedQueue
from coordinator.scaling.agent import ScalingAgent
from coordinator.scaling.drivers import DryRunDriver
from coordinator.scaling.local import LocalProcessDriver
from coordinator.scaling.policy import ScalingPolicy
from coordinator.sequences.generator import UniqueIdGenerator
from coordinator.sequences.grants import SequenceConfig
from coordinator.sequences.store import OptimisticSyncStore
from coordinator.storage import Storage
from coordinator.tables.idempotency import idempotent, once
from coordinator.tables.operations import ANY, Delete, Insert, Merge, Put, Replace, Upsert
from coordinator.tables.optimistic import Update, optimistic_update
from coordinator.tables.outbox import Outbox
from coordinator.tables.rows import Key, Row
from coordinator.tables.saga import Saga, SagaContext
from coordinator.tables.table import Table
from coordinator.worker import Worker

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
