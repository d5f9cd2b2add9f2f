"""What a listener tells about itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from coordinator.bounds import MAX_REASON, one_line
from coordinator.realtime.protocol import ListenerStatus

if TYPE_CHECKING:
    from coordinator.queues.listener import QueueListener


ActiveDequeueTasks = int
"""How many dequeue tasks run: `QueueState.active_dequeue_tasks`, named so in S6."""


class QueueState(msgspec.Struct, frozen=True, rename="pascal"):
    """What `query_state()` tells (S6). As JSON its names are CurrentQueueDepth, ActiveDequeueTasks, TotalDequeueTasks, ….

    `current_queue_depth` is approximate and includes what is in hand; None means it could not be read.
    """

    current_queue_depth: int | None
    active_dequeue_tasks: ActiveDequeueTasks
    total_dequeue_tasks: int
    wanted_dequeue_tasks: int
    in_hand: int
    buffered: int
    done: int
    failed: int
    retried: int
    poisoned: int
    given_back: int
    stale_receipts: int
    renewals: int
    per_second: float
    service_seconds: float | None
    visibility_seconds: float
    idle: int
    state: str
    reason: str


def listener_status(listener: QueueListener[Any]) -> ListenerStatus:
    counts = [source.settler.counts for source in listener.sources]
    return ListenerStatus(
        queue=listener.name,
        active_tasks=listener.crew.active,
        total_tasks=listener.tasks.stop - 1,
        wanted_tasks=listener.decision.tasks,
        in_hand=len(listener.leases),
        done=sum(count.done for count in counts),
        failed=sum(count.failed for count in counts),
        poisoned=sum(count.poisoned for count in counts),
        stale_receipts=listener.leases.stale,
        oldest_seconds=listener.leases.oldest_seconds(),
        state=listener.state,
        # A rule may be the user's own, with words of any length.
        reason=one_line(listener.reason or listener.decision.reason, MAX_REASON),
    )


def queue_state(listener: QueueListener[Any], depths: list[int | None]) -> QueueState:
    status = listener_status(listener)
    counts = [source.settler.counts for source in listener.sources]
    return QueueState(
        current_queue_depth=None if None in depths else sum(depth or 0 for depth in depths),
        active_dequeue_tasks=status.active_tasks,
        total_dequeue_tasks=status.total_tasks,
        wanted_dequeue_tasks=status.wanted_tasks,
        in_hand=status.in_hand,
        buffered=len(listener.crew.buffer),
        done=status.done,
        failed=status.failed,
        retried=sum(count.retried for count in counts),
        poisoned=status.poisoned,
        given_back=sum(count.given_back for count in counts),
        stale_receipts=status.stale_receipts,
        renewals=listener.leases.renewals,
        per_second=listener.pace.per_second,
        service_seconds=listener.pace.service_seconds,
        visibility_seconds=listener.leases.visibility_seconds,
        idle=min(source.idle for source in listener.sources),
        state=status.state,
        reason=status.reason,
    )
