"""How Kennel's pages write figures, moments, states and small drawings. Unknown is written as a dash with a reason, never as 0."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from datetime import UTC, datetime
from functools import cache, lru_cache
from math import isfinite

from django import template
from django.templatetags.static import static
from django.utils.html import format_html
from django.utils.safestring import SafeString

from coordinator.realtime.protocol import ListenerStatus
from dashboard.live.fleet import GateView, GrantView, LeaderView, QueueView, WorkerView
from dashboard.live.releases import written
from dashboard.live.view_models import is_holding, is_unreadable

register = template.Library()

_NAME = re.compile(r"[^/\x00-\x1f\x7f\ud800-\udfff]{1,200}")
NARROW_SPACE = "\N{NARROW NO-BREAK SPACE}"
UNKNOWN = SafeString(
    '<span class="unknown" title="not known">–<span class="visually-hidden"> not known</span></span>'
)

# state -> (tone, icon, word)
STATES: dict[str, tuple[str, str, str]] = {
    # fleet
    "running": ("green", "play", "Running"),
    "held": ("amber", "hold", "Held"),
    "idle": ("grey", "idle", "Idle"),
    "stalled": ("red", "alert", "Stalled"),
    "unknown": ("grey", "question", "Unknown"),
    # gates
    "open": ("green", "play", "Open"),
    "armed": ("blue", "clock", "Armed"),
    "closed": ("grey", "shut", "Closed"),
    "holding": ("amber", "hold", "Closed – workers waiting"),
    # workers
    "ok": ("green", "check", "OK"),
    "late": ("amber", "clock", "Late"),
    "lost": ("red", "cross", "Lost"),
    "starting": ("blue", "clock", "Starting"),
    "draining": ("amber", "hold", "Draining"),
    "stopping": ("grey", "stop", "Stopping"),
    "stopped": ("grey", "stop", "Stopped"),
    "waiting": ("blue", "clock", "Waiting"),
    "passed": ("green", "check", "Passed"),
    # leaders
    "leader": ("green", "crown", "Leader"),
    "standby": ("blue", "clock", "Standby"),
    "leased": ("green", "crown", "Leader active"),
    "leaderless": ("red", "alert", "No leader"),
    "breaking": ("amber", "hold", "Breaking"),
    # ranges
    "in use": ("green", "play", "In use"),
    "used": ("grey", "check", "Used"),
    "returned": ("blue", "undo", "Returned"),
    "free": ("blue", "undo", "Returned, free"),
    "granted": ("grey", "question", "In use or lost"),
    "unattributed": ("amber", "question", "Unattributed"),
    "missing": ("red", "alert", "Unaccounted for"),
    # audit
    "intent": ("blue", "clock", "Started"),
    "done": ("green", "check", "Done"),
    "failed": ("red", "cross", "Failed"),
    "denied": ("red", "lock", "Denied"),
    # attention
    "warning": ("amber", "alert", "Warning"),
    "critical": ("red", "alert", "Critical"),
}


@register.simple_tag
@cache
def icon(name: str) -> SafeString:
    """A decorative icon; the word beside it carries the meaning."""
    return format_html(
        '<svg class="icon" aria-hidden="true" focusable="false"><use href="{}#{}"/></svg>',
        static("img/icons.svg"),
        name,
    )


@register.simple_tag
@lru_cache(maxsize=1024)
def state(name: str, word: str = "") -> SafeString:
    """A state as colour, icon and word."""
    tone, picture, usual = STATES.get(name, ("grey", "question", name.capitalize() or "Unknown"))
    return format_html('<span class="state tone-{}">{}{}</span>', tone, icon(picture), word or usual)


@register.filter
def tone(name: str) -> str:
    """The colour of a state, for the edge of its card."""
    return STATES.get(name, ("grey", "", ""))[0]


@register.filter
def gate_state(gate: GateView) -> str:
    """The gate's state as people see it: a closed gate with workers before it is holding."""
    return "holding" if gate.state == "closed" and is_holding(gate) else gate.state


register.filter("is_unreadable", is_unreadable)


@register.filter
def leader_state(leader: LeaderView) -> str:
    """Led, vacant, or not known because storage has not been read."""
    if leader.holder:
        return "leased"
    return "unknown" if leader.lease == "unknown" else "leaderless"


@register.filter
def epoch(thing: GateView | LeaderView) -> str:
    """Its epoch; what was never read has none that we know."""
    unread = thing.lease == "unknown" if isinstance(thing, LeaderView) else thing.state == "unknown"
    return figure(None) if unread and not thing.epoch else str(thing.epoch)


@register.filter
def figure(value: float | None) -> str:
    """A number with narrow spaces between thousands; a dash if unknown."""
    if value is None:
        return UNKNOWN
    if not isfinite(value):
        return UNKNOWN
    if value != int(value):
        return f"{value:,.1f}".replace(",", NARROW_SPACE)
    return f"{int(value):,}".replace(",", NARROW_SPACE)


@register.filter
def per_second(value: float | None) -> str:
    """A rate; small ones keep two figures."""
    if value is None:
        return UNKNOWN
    return figure(round(value)) if value >= 10 else f"{value:.1f}"


@register.filter
def milliseconds(value: float | None) -> str:
    """A delay in ms below a second, in s above."""
    if value is None:
        return UNKNOWN
    return f"{value:.0f}{NARROW_SPACE}ms" if value < 1000 else f"{value / 1000:.2f}{NARROW_SPACE}s"


@register.filter
def took(seconds: float | None) -> str:
    """A time that may be short: milliseconds below a second."""
    return duration(seconds) if seconds is None or seconds >= 1 else f"{seconds * 1000:.0f}{NARROW_SPACE}ms"


@register.filter
def duration(seconds: float | None) -> str:
    """A length of time in its two largest units."""
    if seconds is None or not isfinite(seconds):
        return UNKNOWN
    if seconds < 10:
        return f"{seconds:.1f}{NARROW_SPACE}s"
    whole = int(seconds)
    for size, unit, smaller, below in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            said = f"{whole // size}{NARROW_SPACE}{unit}"
            return f"{said} {rest}{NARROW_SPACE}{below}" if rest else said
    return f"{whole}{NARROW_SPACE}s"


@register.filter
def size(octets: float | None) -> str:
    """Bytes in binary units."""
    if octets is None:
        return UNKNOWN
    value, unit = float(octets), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f}{NARROW_SPACE}{unit}"


@register.filter
def rounded(value: float | None) -> str:
    """A whole number, for what is only an estimate."""
    return UNKNOWN if value is None else figure(round(value))


@register.filter
def percent(share: float) -> str:
    return f"{share * 100:.1f}{NARROW_SPACE}%"


@register.filter
def dollars(value: float | None) -> str:
    """Money; small sums keep two figures that count."""
    if value is None:
        return UNKNOWN
    return (
        f"${value:,.2f}" if value >= 0.1 or value == 0 else f"${value:.2g}" if value >= 1e-4 else "<$0.0001"
    )


@register.filter
def difference(later: float | None, earlier: float | None) -> float | None:
    """Seconds between two moments."""
    return None if later is None or earlier is None else max(0.0, later - earlier)


@register.filter
def in_milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


@register.filter
def moment(at: float | datetime | None) -> str:
    """A moment, in UTC as sent; the browser rewrites it to local time if the reader chose so."""
    return _moment(at, "clock")


@register.filter
def day_and_time(at: float | datetime | None) -> str:
    """A moment with its date."""
    return _moment(at, "full")


@register.filter
def planned(at: float | datetime | None) -> str:
    """A moment to come, with its weekday: "Fri 27 Nov 2026 09:00 UTC"; the browser adds the reader's own time, and how long until then."""
    return _moment(at, "planned")


@register.filter
def since(at: float | datetime | None) -> str:
    """A moment that the browser shows as "3 min ago"."""
    return _moment(at, "since")


@register.filter
def uptime(at: float | datetime | None) -> str:
    """A moment that the browser shows as the time since then: "3 min"."""
    return _moment(at, "uptime")


@register.filter
def ends(at: float | None) -> str:
    """The end of a lease, to a tenth of a second: each heartbeat reports it again. The browser shows it as "in 9 s"."""
    return _moment(None if at is None else round(at, 1), "ends")


def _moment(at: float | datetime | None, style: str) -> str:
    if at is None:
        return UNKNOWN
    try:
        when = at.astimezone(UTC) if isinstance(at, datetime) else datetime.fromtimestamp(at, UTC)
    except (ValueError, OverflowError, OSError, TypeError):
        return format_html('<span class="bad">{}</span>', "unreadable")
    said = (
        written(when.timestamp())
        if style == "planned"
        else when.strftime("%H:%M:%S UTC" if style == "clock" else "%Y-%m-%d %H:%M:%S UTC")
    )
    return format_html(
        '<time datetime="{}" data-moment="{}">{}</time>', when.isoformat(timespec="milliseconds"), style, said
    )


@register.filter
def drain_seconds(queue: QueueView) -> float | None:
    """How long until the queue is empty if it goes on like this; None if it is not known or never."""
    if queue.depth is None or queue.in_per_second is None or queue.out_per_second is None:
        return None
    if queue.depth == 0:
        return 0.0
    gain = queue.out_per_second - queue.in_per_second
    return queue.depth / gain if gain > 0 else None


@register.filter
def length_of(grant: GrantView) -> int:
    """How many numbers the range holds."""
    return grant.last - grant.first + 1


@register.filter
def left_in(grant: GrantView) -> int | None:
    """How many of a range's numbers were not issued, as far as its owner reported."""
    return None if grant.last_issued is None else max(0, grant.last - max(grant.last_issued, grant.first - 1))


@register.filter
def length_of_all(grants: Sequence[GrantView]) -> int:
    """How many numbers these ranges hold."""
    return sum(map(length_of, grants))


@register.filter
def left_in_all(grants: Sequence[GrantView]) -> int:
    """How many numbers of these ranges were not issued, of those ranges whose owners reported."""
    return sum(left_in(grant) or 0 for grant in grants)


@register.filter
def answer_tone(kind: str) -> str:
    """The colour of what the ledger answers about a number."""
    return {"lost": "red", "missing": "red", "unattributed": "amber", "unread": "amber"}.get(kind, "blue")


@register.filter
def is_name(name: str) -> bool:
    """Whether it can be acted on by an address of ours: a blob of another program may be called anything."""
    return _NAME.fullmatch(name) is not None


@register.filter
def queue_cells(queue: QueueView) -> tuple[object, ...]:
    """What the row of a queue shows, as it is written: for `memo`."""
    return (
        queue.name, queue.depth, duration(queue.oldest_seconds), queue.active_tasks, queue.total_tasks,
        per_second(queue.in_per_second), per_second(queue.out_per_second), queue.in_flight, queue.poison, queue.workers,
    )  # fmt: skip


@register.filter
def listener_cells(listener: ListenerStatus) -> tuple[object, ...]:
    """What a worker's row shows of a listener: for `memo`."""
    return (
        listener.queue, listener.active_tasks, listener.total_tasks, listener.in_hand, duration(listener.oldest_seconds),
        listener.reason, listener.failed, listener.poisoned, listener.stale_receipts, bool(listener.oldest_seconds),
    )  # fmt: skip


@register.filter
def row_cells(worker: WorkerView) -> tuple[object, ...]:
    """What the row of a worker shows of it: for `memo`."""
    state = worker.state
    return (
        worker.head_cell, worker.silent_since, state.mode, state.gates,
        tuple([listener_cells(each) for each in state.listeners]), worker.last_cells, size(state.memory_bytes),
    )  # fmt: skip


@register.filter
def is_in(value: object, values: Container[object]) -> bool:
    """Whether it is one of them."""
    return value in values
