"""What an operator should look at, and what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from dashboard.fleet import Attention, Fleet

SHORT_RUNWAY_SECONDS = 0.5  # refills take milliseconds and begin in time; below this they do not keep up
LATE_SAMPLES = 10.0


def attention(fleet: Fleet, every_seconds: float) -> tuple[Attention, ...]:
    """All conditions that hold now, the critical ones first."""
    return tuple(sorted(_conditions(fleet, every_seconds), key=lambda item: item.level))


def _conditions(fleet: Fleet, every_seconds: float) -> Iterator[Attention]:
    storage = fleet.storage
    if storage.unreachable_since is not None:
        yield Attention(
            "critical",
            f"Storage is unreachable: {storage.error}",
            "Workers wait and resume by themselves. Check the account, its key and the network.",
        )
    elif storage.as_of is not None and fleet.taken_at - storage.as_of > LATE_SAMPLES + 2 * every_seconds:
        yield Attention(
            "warning",
            "The sampler is late: figures from storage are old",
            "Check the load of the dashboard's machine.",
        )
    if storage.unreachable_since is None and storage.as_of is not None and storage.error:
        yield Attention(
            "critical", f"Something in storage cannot be read: {storage.error}", "Repair or remove it."
        )
    if fleet.degraded:
        yield Attention("warning", fleet.degraded, "Check Redis; workers fall back to polling storage.")
    lost = [worker.name for worker in fleet.workers if worker.presence == "lost"]
    if lost:
        yield Attention(
            "critical",
            f"{some(len(lost), 'worker')} lost: {_names(lost)}",
            "Their messages reappear for the others. Start them again, or find out why they ended.",
            "/workers/",
        )
    yield from _leaders(fleet)
    for sequence in fleet.sequences:
        if sequence.problem:
            yield Attention(
                "critical",
                f"Sequence {sequence.name}: {sequence.problem}",
                "No number is issued until the counter is repaired; run `python -m coordinator ids verify`.",
                "/sequences/",
            )
        elif (
            sequence.runway_seconds is not None
            and sequence.runway_seconds < SHORT_RUNWAY_SECONDS
            and sequence.per_second
        ):
            yield Attention(
                "warning",
                f"Sequence {sequence.name} has numbers for {sequence.runway_seconds:.1f} s",
                "Give it a larger range size.",
                "/sequences/",
            )
    for queue in fleet.queues:
        if queue.poison:
            yield Attention(
                "warning",
                f"{some(queue.poison, 'message')} in the poison queue of {queue.name}",
                "Look why they failed, then requeue or clear them.",
                "/queues/",
            )
        if queue.depth and not queue.workers and fleet.workers:
            yield Attention(
                "warning",
                f"{some(queue.depth, 'message')} in {queue.name} and no worker listens",
                "Start a worker for it.",
                "/queues/",
            )


def _leaders(fleet: Fleet) -> Iterator[Attention]:
    for leader in fleet.leaders:
        if not leader.holder and (leader.standbys or leader.lease == "available"):
            yield Attention(
                "critical" if leader.standbys else "warning",
                f"Nobody leads {leader.name}",
                "A standby takes over within a lease. If none does, check that they reach storage."
                if leader.standbys
                else "Start a worker that takes part in it.",
                "/leaders/",
            )


def _names(names: list[str], most: int = 5) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def some(number: int, noun: str) -> str:
    """The number with its noun, in the plural where it is one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
