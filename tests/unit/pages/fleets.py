"""Hand-made fleets for the tests of the pages."""

from __future__ import annotations

from coordinator.pipelines.status import BatchStatus
from coordinator.realtime.protocol import GateStatus, ListenerStatus, WorkerState
from coordinator.tables.azure import SagaHead
from dashboard.live.fleet import (
    AlertView,
    Attention,
    Fleet,
    GateView,
    GrantView,
    Headline,
    LeaderView,
    QueueView,
    ReleaseView,
    SequenceView,
    StorageView,
    WorkerView,
)
from dashboard.live.workloads import Decided, Pool, Work

NOW = 1_800_000_000.0


def worker(name: str, presence: str = "ok") -> WorkerView:
    return WorkerView(
        name,
        f"instance-of-{name}",
        "host-1",
        7,
        NOW - 60,
        "kennel",
        presence,
        NOW - 1,
        WorkerState(
            gates=(GateStatus("start", "closed", 3, True),),
            listeners=(ListenerStatus("orders-in", 2, 10, 2, 1),),
        ),
    )


def batch(name: str, state: str, **more: object) -> BatchStatus:
    values: dict[str, object] = {
        "pipeline": "billing", "batch": name, "state": state, "source": "{}", "by": "olga", "started_at": NOW - 60,
        "finished_at": 0.0, "items_total": 1000, "items_sent": 1000, "items_counted": 400, "items_failed": 0,
        "per_second": 12.0, "eta_seconds": 50.0, "sla_seconds": 300.0, "sla_risk": "on track", "age_seconds": 1.0,
        "round": 0, "report": "",
    }  # fmt: skip
    return BatchStatus(**{**values, **more})  # type: ignore[arg-type]


def work(read: float) -> Work:
    """Batches, sagas and pools in every state."""
    record = Decided("orders", read, "agent-1", 3, 5, 4, 4, "5 because 900 <wait>")
    return Work(
        batches=(
            batch("night", "running"),
            batch("late", "running", sla_risk="at risk", items_total=None, eta_seconds=None),
            batch("odd", "partial", items_failed=3),
            batch("old", "complete", items_counted=1000, finished_at=read),
            batch(
                "broken", "failed", cause="the initiator: ValueError: line 7 is <damaged>", progressed_at=read
            ),
            batch("still", "running", is_stalled=True, per_second=0.0, eta_seconds=None, progressed_at=read),
            batch("given-up", "cancelled", items_counted=0, items_total=None),
        ),
        sagas=(SagaHead("trip", "t-1", "stuck", 4, read), SagaHead("trip", "t-2", "done", 1, read)),
        pools=(Pool(record, (record,)),),
        as_of=read,
    )


def nothing() -> Fleet:
    return Fleet(taken_at=NOW, headline=Headline("unknown", "nothing is known yet"), storage=StorageView())


def full(*, age: float = 0.5, unreachable: bool = False) -> Fleet:
    """One of everything, read `age` seconds ago."""
    read = NOW - age
    release = ReleaseView("start", 4, read, read + 0.01, 4, 3, 40.0, 90.0, ("w-4",), (10.0, 40.0, 90.0))
    return Fleet(
        taken_at=NOW,
        headline=Headline("running", "3 of 4 workers take messages"),
        storage=StorageView(
            read, read + 1 if unreachable else None, "connection refused" if unreachable else ""
        ),
        gates=(
            GateView("start", "open", 4, "olga", "on <sale>", read, release=release, workers=4, as_of=read),
            GateView("nightly", "closed", 1, waiting=("w-1", "w-2"), workers=2, as_of=read),
        ),
        queues=(
            QueueView("orders-in", 120, 2, 3, 10, 5, 1.0, 3.0, 2.5, 2, read),
            QueueView("unread"),
        ),
        leaders=(
            LeaderView("report", "w-1", 2, "leased", read, 9.0, ("w-2",), read, lease_ends=read + 9),
            LeaderView("orphan", "", 5, "available", as_of=read),
        ),
        sequences=(
            SequenceView(
                "orders",
                3001,
                12.5,
                80.0,
                2,
                (
                    GrantView("orders", 1, 1000, "w-4", read, "lost", 10),
                    GrantView("orders", 1001, 2000, "w-1", read, "in use", 1500),
                    GrantView("orders", 2001, 3000, "", None, "unattributed"),
                ),
                "",
                read,
            ),
        ),
        workers=(worker("w-10"), worker("w-2"), worker("w-4", "lost")),
        attention=(Attention("critical", "w-4 is lost", "Start another.", "/workers/"),),
        work=work(read),
        alerts=(
            AlertView(1, "deep-queues", "orders-in", "120 messages in <orders-in>", "critical", read, read),
        ),
        requests_per_minute=31.0,
        requests={"queue.GetMessages": 900, "blob.PutBlob": 90, "blob.GetBlob": 10},
    )
