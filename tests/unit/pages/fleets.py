"""Hand-made fleets for the tests of the pages."""

from __future__ import annotations

from coordinator.protocol import GateStatus, ListenerStatus, WorkerState
from dashboard.fleet import (
    Attention,
    Fleet,
    GateView,
    GrantView,
    Headline,
    LeaderView,
    QueueView,
    Release,
    SequenceView,
    StorageView,
    WorkerView,
)

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


def nothing() -> Fleet:
    return Fleet(taken_at=NOW, headline=Headline("unknown", "nothing is known yet"), storage=StorageView())


def full(*, age: float = 0.5, unreachable: bool = False) -> Fleet:
    """One of everything, read `age` seconds ago."""
    read = NOW - age
    release = Release("start", 4, read, read + 0.01, 4, 3, 40.0, 90.0, ("w-4",), (10.0, 40.0, 90.0))
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
            LeaderView("report", "w-1", 2, "leased", read, 9.0, ("w-2",), read),
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
        requests_per_minute=31.0,
        requests={"queue.GetMessages": 900, "blob.PutBlob": 90, "blob.GetBlob": 10},
    )
