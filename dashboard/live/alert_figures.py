"""What an alert rule can watch: figures of the fleet by name, and which of its readings hold. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol
from urllib.parse import quote

from dashboard.core.permissions import matches
from dashboard.live import spending
from dashboard.live.conditions import LATE_SAMPLES, first_of
from dashboard.live.fleet import Fleet, Point

MOST_SUBJECTS = 20
"""Alerts of one rule at once; what is beyond is in one more."""
LEVELS = {"warning": 1.0, "critical": 2.0}
REST = "*"


class AlertRuleFields(Protocol):
    """What is read of a rule."""

    @property
    def figure(self) -> str: ...
    @property
    def below(self) -> bool: ...
    @property
    def value(self) -> float: ...
    @property
    def names(self) -> str: ...
    @property
    def level(self) -> str: ...


class Reading(NamedTuple):
    """A figure of one subject; None is unknown. `level` is the condition's own, "" for the rule's."""

    subject: str
    value: float | None
    what: str
    url: str = ""
    level: str = ""
    match: str = ""
    """What the patterns of a rule are held against, if it is not the subject."""


class AlertFigure(NamedTuple):
    """Something to watch. `series`: how history names it; `stored`: it is read from storage, and unknown while that is away."""

    title: str
    unit: str
    read: Callable[[Fleet], Iterable[Reading]]
    below: bool = False
    value: float = 0.0
    series: str = ""
    stored: bool = True


def _conditions(fleet: Fleet) -> Iterator[Reading]:
    for each in fleet.attention:
        for name in each.names or ("",):
            subject = f"{each.kind}: {name}" if name else each.kind or each.what
            yield Reading(
                subject[:200],
                LEVELS.get(each.level),
                each.what,
                each.url,
                each.level,
                each.kind.replace(" ", "-"),
            )


def _queue(figure: str, say: str) -> Callable[[Fleet], Iterator[Reading]]:
    def read(fleet: Fleet) -> Iterator[Reading]:
        for queue in fleet.queues:
            value = getattr(queue, figure)
            said = say.format(queue=queue.name, value=0 if value is None else round(value))
            yield Reading(queue.name, value, said, f"/queues/{quote(queue.name)}/")

    return read


def _elections(fleet: Fleet) -> Iterator[Reading]:
    for each in fleet.leaders:
        vacant = None if each.lease == "unknown" else float(not each.holder and not each.problem)
        yield Reading(each.name, vacant, f"No leader: {each.name}", f"/leaders/?q={quote(each.name)}")


def _sequences(fleet: Fleet) -> Iterator[Reading]:
    for each in fleet.sequences:
        seconds = each.runway_seconds if each.per_second else None
        said = f"Sequence {each.name} has numbers left for {seconds or 0:.1f} s"
        # One that nobody draws from runs out never.
        value = float("inf") if seconds is None and each.per_second == 0 else seconds
        yield Reading(each.name, value, said, f"/sequences/?sequence={quote(each.name)}")


def _workers(fleet: Fleet) -> Iterator[Reading]:
    for each in fleet.workers:
        yield Reading(
            each.name,
            float(each.presence == "lost"),
            f"Worker {each.name} is lost",
            "/workers/?presence=lost",
        )


def _storage(fleet: Fleet) -> Iterator[Reading]:
    since = fleet.storage.unreachable_since
    value = 0.0 if since is None else max(0.001, fleet.taken_at - since)
    yield Reading("storage", value, f"Storage is unreachable: {fleet.storage.error}")


def _releases(fleet: Fleet) -> Iterator[Reading]:
    for gate in fleet.gates:
        left = 0
        if gate.state == "open" and gate.release is not None:
            left = max(0, gate.release.expected - gate.release.passed)
        said = f"Gate {gate.name} is open, and {left} of the workers that waited have not passed"
        yield Reading(gate.name, float(left), said, f"/gates/?q={quote(gate.name)}")


def _cost(fleet: Fleet) -> Iterator[Reading]:
    today = spending.spending(fleet).today
    yield Reading("today", today, f"Requests cost ${today or 0:.2f} today", "/cost/")


FIGURES: dict[str, AlertFigure] = {
    "condition": AlertFigure(
        "Conditions of Overview", "1 warning, 2 critical", _conditions, value=1, stored=False
    ),
    "queue.depth": AlertFigure(
        "Queue depth", "messages", _queue("depth", "{value} messages in {queue}"), value=1000, series="depth:"
    ),
    "queue.oldest": AlertFigure(
        "Oldest message",
        "seconds",
        _queue("waits_seconds", "The oldest message of {queue} waits {value} s"),
        value=600,
        series="oldest:",
    ),
    "queue.poison": AlertFigure(
        "Poison messages",
        "messages",
        _queue("poison", "Poison messages in {queue}: {value}"),
        series="poison:",
    ),
    "election.vacant": AlertFigure("Elections without a leader", "1 vacant", _elections),
    "sequence.runway": AlertFigure(
        "Numbers left of a sequence", "seconds", _sequences, below=True, value=0.5
    ),
    "worker.lost": AlertFigure("Lost workers", "1 lost", _workers, stored=False),
    "storage.unreachable": AlertFigure("Storage unreachable", "seconds", _storage, stored=False),
    "release.waiting": AlertFigure("Workers that have not passed an open gate", "workers", _releases),
    "cost.today": AlertFigure("Cost of today's requests", "US dollars", _cost, value=10, stored=False),
}


class RuleReadings(NamedTuple):
    """The readings of a rule that hold, by subject; which subjects are `unknown`, or `all_unknown`."""

    holding: dict[str, Reading]
    unknown: frozenset[str]
    all_unknown: bool


def holds(rule: AlertRuleFields, value: float) -> bool:
    """Whether a value is beyond the rule's."""
    return value < rule.value if rule.below else value > rule.value


def find(rule: AlertRuleFields, fleet: Fleet, known: Iterable[str] = ()) -> RuleReadings:
    """What holds now. Of more than `MOST_SUBJECTS` the `known` ones stay, and the rest is one reading of the subject `REST`."""
    figure = FIGURES.get(rule.figure)
    if figure is None or (figure.stored and not _is_fresh(fleet)):
        return RuleReadings({}, frozenset(), all_unknown=True)
    holding: dict[str, Reading] = {}
    unknown = set()
    for reading in figure.read(fleet):
        if not matches(rule.names, reading.match or reading.subject):
            continue
        if reading.value is None:
            unknown.add(reading.subject)
        elif holds(rule, reading.value):
            holding[reading.subject] = reading
    if len(holding) > MOST_SUBJECTS:
        before = set(known)
        order = sorted(holding, key=lambda subject: (subject not in before, subject))
        rest = order[MOST_SUBJECTS:]
        holding = {subject: holding[subject] for subject in order[:MOST_SUBJECTS]}
        holding[REST] = Reading(REST, None, f"{len(rest)} more like these: {first_of(rest)}", "/alerts/")
    return RuleReadings(holding, frozenset(unknown), all_unknown=False)


def _is_fresh(fleet: Fleet) -> bool:
    storage = fleet.storage
    return (
        storage.unreachable_since is None
        and storage.as_of is not None
        and fleet.taken_at - storage.as_of < 3 * LATE_SAMPLES
    )


class Episode(NamedTuple):
    """A time in which a rule would have fired."""

    fired_at: float
    ended_at: float


def episodes(rule: AlertRuleFields, points: Iterable[Point], for_seconds: float) -> list[Episode]:
    """When the rule would have fired, by the points of one series; a gap ends an episode."""
    found: list[Episode] = []
    since: float | None = None
    last = 0.0
    for at, held in [*((p.at, p.value is not None and holds(rule, p.value)) for p in points), (0.0, False)]:
        if held:
            since = at if since is None else since
            last = at
        elif since is not None:
            if last - since >= for_seconds:
                found.append(Episode(since + for_seconds, last))
            since = None
    return found
