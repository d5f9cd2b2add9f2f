"""What an operator should look at, and what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import quote

from django.template.defaultfilters import pluralize

from dashboard.live import spending as cost
from dashboard.live.fleet import Attention, Fleet, QueueView

SHORT_RUNWAY_SECONDS = 0.5  # refills take milliseconds and begin in time; below this they do not keep up
LATE_SAMPLES = 10.0
MOST_LINES = 5
MOST_NAMES = 100
"""What one condition names, for alerts."""
PAGED = ("/gates/", "/leaders/", "/sequences/")


def conditions_of(fleet: Fleet, every_seconds: float) -> tuple[Attention, ...]:
    """All conditions that hold now, the critical ones first."""
    return tuple(sorted(_conditions(fleet, every_seconds), key=lambda item: item.level))


def _conditions(fleet: Fleet, every_seconds: float) -> Iterator[Attention]:
    storage = fleet.storage
    if storage.unreachable_since is not None:
        yield Attention(
            "critical",
            f"Storage is unreachable: {storage.error}",
            "Workers wait and recover automatically. Check the account, its key and the network.",
            kind="storage",
        )
    elif storage.as_of is not None and fleet.taken_at - storage.as_of > LATE_SAMPLES + 2 * every_seconds:
        yield Attention(
            "warning",
            "The sampler is late: data from storage is stale",
            "Check the load of the dashboard host.",
            kind="stale",
        )
    if storage.unreachable_since is None and storage.as_of is not None and storage.error:
        yield Attention(
            "critical",
            f"Something in storage cannot be read: {storage.error}",
            "Repair or remove the object.",
            kind="unreadable",
        )
    if fleet.degraded:
        yield Attention(
            "warning", fleet.degraded, "Check Redis; workers fall back to polling storage.", kind="degraded"
        )
    for trouble in fleet.troubles[:MOST_LINES]:
        yield Attention("warning", trouble, "See the dashboard's log.", kind="own work", names=(trouble,))
    yield from _each_problem(
        [(gate.name, gate.problem) for gate in fleet.gates if gate.problem],
        "gate",
        "Gate {name}: {problem}",
        "Check who changed the storage account. Leash or unleash the gate: the new epoch is higher than any seen.",
        "/gates/",
    )
    yield from _each_problem(
        [(row, "") for row in fleet.work.odd],
        "row",
        "{name}",
        "Remove the row, or restore it from a backup.",
        "/batches/",
    )
    yield from _each_problem(
        [(leader.name, leader.problem) for leader in fleet.leaders if leader.problem],
        "election",
        "Election {name}: {problem}",
        "Repair its metadata or remove the blob; its leader writes it again.",
        "/leaders/",
    )
    spending = cost.spending(fleet)
    if spending.verdict in ("warn", "over"):
        yield Attention(
            "warning",
            f"Requests cost ${spending.today:.2f} today; the budget is ${spending.budget:.2f}",
            "Check the cost of each operation and queue. The budget never slows work.",
            "/cost/",
            "budget",
        )
    lost = [worker.name for worker in fleet.workers if worker.presence == "lost"]
    if lost:
        yield Attention(
            "critical",
            f"{workers(len(lost))} lost: {first_of(lost)}",
            "Their messages become visible to other workers. Restart them, or find out why they stopped.",
            "/workers/?presence=lost",
            "workers lost",
            tuple(lost[:MOST_NAMES]),
        )
    yield from _leaders(fleet)
    yield from _each_problem(
        [(sequence.name, sequence.problem) for sequence in fleet.sequences if sequence.problem],
        "sequence",
        "Sequence {name}: {problem}",
        "No number is issued until the counter is repaired; run `python -m coordinator ids verify`.",
        "/sequences/",
    )
    for sequence in fleet.sequences:
        if (
            not sequence.problem
            and sequence.runway_seconds is not None
            and sequence.runway_seconds < SHORT_RUNWAY_SECONDS
            and sequence.per_second
        ):
            yield Attention(
                "warning",
                f"Sequence {sequence.name} has numbers left for {sequence.runway_seconds:.1f} s",
                "Increase the range size.",
                f"/sequences/?sequence={quote(sequence.name)}",
                "numbers left",
                (sequence.name,),
            )
    yield from _queues(fleet)
    yield from _work(fleet)


def _each_problem(
    rows: list[tuple[str, str]], kind: str, what: str, remedy: str, url: str, level: str = "critical"
) -> Iterator[Attention]:
    """One line for each, and one for all others."""
    for name, problem in rows[:MOST_LINES]:
        at = f"{url}?q={quote(name)}" if url in PAGED else url
        yield Attention(level, what.format(name=name, problem=problem), remedy, at, kind, (name,))
    if len(rows) > MOST_LINES:
        rest = tuple(name for name, _ in rows[MOST_LINES:MOST_NAMES])
        yield Attention(level, f"{len(rows) - MOST_LINES} more like these", remedy, url, kind, rest)


def _work(fleet: Fleet) -> Iterator[Attention]:
    """One line for each kind: a night's batches must not hide the rest."""
    batches = fleet.work.batches
    running = [each for each in batches if each.state == "running"]
    where = "Check where messages are waiting, and start more workers for that queue."
    kinds = (
        ("critical", "Batches failed", [each.batch for each in batches if each.state == "failed"],
         "Fix the cause, then retry: batches continue where they stopped.", "?state=failed"),
        ("warning", "Batches stalled", [each.batch for each in running if each.is_stalled],
         "Check whether workers listen to their queues and whether an item hangs.", "?state=stalled"),
        ("critical", "SLA missed", [each.batch for each in running if each.sla_risk == "missed"], where, "?state=running"),
        ("warning", "SLA at risk", [each.batch for each in running if each.sla_risk == "at risk"], where, "?state=running"),
        ("warning", "Completed with failures", [each.batch for each in batches if each.state == "partial"],
         "Check why they failed, then retry.", "?state=partial"),
        ("critical", "Sagas stuck (rollback failed)", [each.key for each in fleet.work.sagas if each.state == "stuck"],
         "Fix the cause, then retry the rollback.", "#sagas-title"),
    )  # fmt: skip
    for level, what, names, remedy, place in kinds:
        if names:
            said, at = f"{what}: {first_of(names)}", f"/batches/{place}"
            yield Attention(level, said, remedy, at, what.lower(), tuple(names[:MOST_NAMES]))


def _queues(fleet: Fleet) -> Iterator[Attention]:
    """One line for each queue, or one for all if they are many: hundreds of lines would hide the others."""
    poisoned = [queue for queue in fleet.queues if queue.poison]
    what = "{messages} in the poison queue of {queue}", "{messages} in the poison queues of {names}"
    remedy = "Check why they failed, then requeue or clear them."
    yield from _each_or_all(
        poisoned, [q.poison or 0 for q in poisoned], "poison", what, remedy, "/queues/?sort=poison"
    )
    unheard = [queue for queue in fleet.queues if queue.depth and not queue.workers and fleet.workers]
    what = ("{messages} in {queue}: no consumers", "{messages} in queues without consumers: {names}")
    remedy = (
        "Start a worker for this queue." if len(unheard) <= MOST_LINES else "Start workers for these queues."
    )
    yield from _each_or_all(
        unheard, [q.depth or 0 for q in unheard], "no consumers", what, remedy, "/queues/?sort=depth"
    )


def _each_or_all(
    queues: list[QueueView], numbers: list[int], kind: str, what: tuple[str, str], remedy: str, every: str
) -> Iterator[Attention]:
    if len(queues) > MOST_LINES:
        names = [queue.name for queue in queues]
        said = what[1].format(messages=messages(sum(numbers)), names=first_of(names))
        yield Attention("warning", said, remedy, every, kind, tuple(names[:MOST_NAMES]))
        return
    for queue, number in zip(queues, numbers, strict=True):
        said = what[0].format(messages=messages(number), queue=queue.name)
        yield Attention("warning", said, remedy, f"/queues/{quote(queue.name)}/", kind, (queue.name,))


def _leaders(fleet: Fleet) -> Iterator[Attention]:
    # Those of an unknown lease were not read yet; those with a problem have a line of their own.
    vacant = [each for each in fleet.leaders if not (each.holder or each.problem) and each.lease != "unknown"]
    for leader in vacant:
        if leader.standbys:
            name = quote(leader.name)
            yield Attention(
                "critical",
                f"No leader: {leader.name}",
                "A standby takes over within one lease. If none does, check that standbys can reach storage.",
                f"/leaders/?q={name}#election-{name}",
                "no leader",
                (leader.name,),
            )
    yield from _each_problem(
        [(each.name, "") for each in vacant if not each.standbys and each.lease == "available"],
        "no leader",
        "No leader: {name}",
        "Start a worker that takes part in the election.",
        "/leaders/",
        "warning",
    )


def first_of(names: Sequence[str], most: int = 5) -> str:
    """The names, or the first of them and how many more."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def workers(number: int) -> str:
    """The number of workers, with the noun."""
    return f"{number} worker{pluralize(number)}"


def messages(number: int) -> str:
    """The number of messages, with the noun."""
    return f"{number} message{pluralize(number)}"
