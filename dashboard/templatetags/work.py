"""How batches and sagas are shown."""

from __future__ import annotations

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from coordinator.pipelines.status import BatchStatus
from dashboard.live.view_models import shown_state
from dashboard.live.workloads import AGENT_LATE_SECONDS, Pool
from dashboard.templatetags.kennel import STATES, figure, icon
from dashboard.templatetags.kennel import state as usual_state

register = template.Library()

# state -> (tone, icon, word); what is not here is as everywhere
WORK_STATES = {
    "partial": ("amber", "alert", "Partially failed"),
    "complete": ("green", "check", "Complete"),
    "cancelled": ("grey", "stop", "Cancelled"),
    "compensating": ("amber", "undo", "Rolling back"),
    "compensated": ("blue", "undo", "Rolled back"),
    "stuck": ("red", "alert", "Stuck"),
    "on track": ("green", "check", "On track"),
    "in time": ("green", "check", "Met"),
    "at risk": ("amber", "clock", "At risk"),
    "missed": ("red", "cross", "Missed"),
}


# what happened to a saga -> (tone, icon, words)
SAGA_EVENTS = {
    "done": ("green", "check", "Step done"),
    "failed": ("red", "cross", "Step failed"),
    "undone": ("blue", "undo", "Step rolled back"),
    "repaired": ("blue", "check", "Step marked repaired"),
    "undo failed": ("red", "alert", "Rollback of step failed"),
    "overdue": ("amber", "clock", "Step overdue"),
    "timed out": ("amber", "clock", "Saga timed out"),
}


@register.simple_tag
def saga_event(what: str) -> SafeString:
    """What happened to a saga: a step that failed and a rollback that failed are different things."""
    if what not in SAGA_EVENTS:
        return format_html("{}", what.capitalize())
    tone, picture, words = SAGA_EVENTS[what]
    return format_html('<span class="state tone-{}">{}{}</span>', tone, icon(picture), words)


@register.simple_tag
def work_state(name: str) -> SafeString:
    """The state of a batch, a saga or a promise, as colour, icon and word."""
    if name in STATES or name not in WORK_STATES:
        return usual_state(name)
    tone, picture, word = WORK_STATES[name]
    return format_html('<span class="state tone-{}">{}{}</span>', tone, icon(picture), word)


@register.simple_tag
def batch_state(batch: BatchStatus) -> SafeString:
    """The state of a batch; one that runs and does not move is stalled."""
    return work_state(shown_state(batch))


@register.filter
def is_late(now: float, pool: Pool) -> bool:
    """Nobody has decided for that pool recently: the agent is gone, or storage is."""
    return now - pool.latest.at > AGENT_LATE_SECONDS


@register.simple_tag
def batch_progress(batch: BatchStatus) -> SafeString:
    """What was counted of what there is, as figures, and as a bar if both are known."""
    done = batch.items_counted + batch.items_failed
    if batch.state == "cancelled" and not done:
        return format_html('<span class="quiet">{}</span>', "no longer counted")
    said = format_html(
        '<span class="num">{}<span class="quiet"> / {}</span></span>', figure(done), figure(batch.items_total)
    )
    if not batch.items_total:
        return said
    return format_html(
        '{}<progress max="{}" value="{}" aria-label="{}"></progress>',
        said, batch.items_total, done, "Items counted",
    )  # fmt: skip
