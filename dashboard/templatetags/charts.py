"""Small drawings of the pages. Each says in words what it draws: in a key, a table, or the table that it names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from django import template
from django.template.defaultfilters import pluralize
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString

from coordinator.leadership.terms import TermRecord
from dashboard.live.fleet import GrantView
from dashboard.templatetags.kennel import STATES, figure, milliseconds, moment, tone

register = template.Library()

BINS = 24
HUES = 6
NOBODY = "hue-none"


@register.simple_tag
def histogram(delays_ms: Sequence[float], name: str = "") -> SafeString:
    """How long the workers took to pass, as bars from 0 to the slowest, and as a table. `name` is the gate's."""
    if not delays_ms:
        return SafeString("")
    top = max(max(delays_ms), 1.0)
    heap = [0] * BINS
    for delay in delays_ms:
        heap[min(BINS - 1, int(max(0.0, delay) / top * BINS))] += 1
    tallest, width = max(heap), top / BINS
    bars = format_html_join(
        "",
        '<rect x="{}" y="{}" width="8" height="{}" rx="1"/>',
        (
            (i * 10 + 1, 40 - round(n / tallest * 38, 1), round(n / tallest * 38, 1))
            for i, n in enumerate(heap)
            if n
        ),
    )
    rows = format_html_join(
        "",
        '<tr><th scope="row" class="num left">{} – {}</th><td class="num">{}</td></tr>',
        (
            (milliseconds(i * width), milliseconds((i + 1) * width), figure(n))
            for i, n in enumerate(heap)
            if n
        ),
    )
    return format_html(
        '<figure class="histogram"><svg viewBox="0 0 {} 41" preserveAspectRatio="none" role="img" aria-label="'
        '{}"><path d="M0 40.5H{}"/>{}</svg>'
        '<figcaption><span>0</span><span>{}</span></figcaption></figure>'
        '<details class="figures" id="delays-{}"><summary id="delays-{}--summary">{}</summary>'
        '<table class="grid"><caption class="visually-hidden">{}</caption><thead><tr><th scope="col">{}</th>'
        '<th scope="col" class="num">{}</th></tr></thead><tbody>{}</tbody></table></details>',
        BINS * 10, f"Delays of {len(delays_ms)} workers between 0 and {round(top)} milliseconds",
        BINS * 10, bars, milliseconds(top), name, name, "View as table",
        "Time to pass", "Passed within", "Workers", rows,
    )  # fmt: skip


@register.simple_tag
def sparkline(points: Sequence[float | None]) -> SafeString:
    """Values by minute as a line from 0 to the greatest; where nothing is known there is no line. The figures beside it say the same."""
    top = max((point for point in points if point is not None), default=0.0) or 1.0
    path, is_down = [], False
    for n, point in enumerate(points):
        if point is not None:
            path.append(
                f"{'L' if is_down else 'M'}{n * 2} {19 - round(point / top * 18, 1)}{'' if is_down else 'h.1'}"
            )
        is_down = point is not None
    return format_html(
        '<svg class="sparkline" viewBox="0 0 {} 20" preserveAspectRatio="none" aria-hidden="true"><path d="{}"/></svg>',
        max(1, len(points) - 1) * 2,
        "".join(path),
    )


@register.simple_tag
def range_map(grants: Sequence[GrantView], next_number: int | None, *, owners: bool = False) -> SafeString:
    """The newest ranges side by side, to scale, coloured by state; the used part of a range in use is solid.

    With `owners` a second band is coloured by who has the range, with the names beside: those of the most ranges have
    colours of their own, all others one.
    """
    rows = sorted(grants, key=lambda grant: grant.first)
    if not rows:
        return SafeString("")
    low, high = rows[0].first, max(rows[-1].last, (next_number or 1) - 1)
    scale = 1000 / (high - low + 1)
    hues = _hues([grant.owner for grant in rows if grant.owner])
    parts: list[tuple[str, float, int, float, int, str]] = []
    for grant in rows:
        x, width = (grant.first - low) * scale, (grant.last - grant.first + 1) * scale
        hue = f"tone-{tone(grant.state)}"
        title = f"{figure(grant.first)}–{figure(grant.last)}: {STATES.get(grant.state, ('', '', grant.state))[2]}, {grant.owner or 'unknown owner'}"
        place = (round(x + 1, 1), 1, round(max(width - 2, 1), 1))
        parts.append((hue, *place, 26, title))
        if grant.state == "in use" and grant.last_issued is not None:
            used = max(0, grant.last_issued - grant.first + 1) * scale
            parts.append((f"{hue} solid", round(x + 1, 1), 1, round(max(used - 2, 0), 1), 26, title))
        if owners:
            parts.append((hues.get(grant.owner, NOBODY), place[0], 30, place[2], 10, title))
    bars = format_html_join(
        "", '<rect class="{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>', parts
    )
    said = (
        f"The newest {len(rows)} ranges to scale, by state and by owner; the ledger has them as a table"
        if owners
        else f"The newest {len(rows)} ranges to scale, by state; the ledger has them as a table"
    )
    return format_html(
        '<figure class="rangemap{}"><svg viewBox="0 0 1000 {}" preserveAspectRatio="none" role="img" '
        'aria-label="{}">{}</svg>'
        "<figcaption><span>{}</span><span>{}</span></figcaption></figure>{}",
        " owned" if owners else "", 41 if owners else 28, said, bars, figure(low), figure(high),
        _owners_key(rows, hues) if owners else "",
    )  # fmt: skip


LEAST_SHOWN = 4


class Part(Protocol):
    """One of several numbers that add up: its colour, and what it counts."""

    @property
    def tone(self) -> str: ...

    @property
    def word(self) -> str: ...

    @property
    def numbers(self) -> int: ...


@register.simple_tag
def balance_strip(parts: Sequence[Part], numbers: int) -> SafeString:
    """Numbers that add up, as one strip. Every part is visible, however small: at least a few thousandths wide."""
    shown = [part for part in parts if part.numbers]
    room = 1000 - LEAST_SHOWN * len(shown)
    bars, x = [], 0.0
    for part in shown:
        width = LEAST_SHOWN + room * part.numbers / numbers
        bars.append((part.tone, round(x, 1), round(width - 1, 1), f"{part.word}: {figure(part.numbers)}"))
        x += width
    return format_html(
        '<figure class="rangemap balance"><svg viewBox="0 0 1000 28" preserveAspectRatio="none" role="img" aria-label="{}">'
        "{}</svg></figure>",
        ", ".join(f"{part.word} {figure(part.numbers)}" for part in parts),
        format_html_join(
            "",
            '<rect class="tone-{} solid" x="{}" y="1" width="{}" height="26"><title>{}</title></rect>',
            bars,
        ),
    )


def _hues(names: Sequence[str]) -> dict[str, str]:
    """Those who occur most, in the order of their names, so that a colour stays with a name while it is there."""
    most = sorted(name for name, _ in Counter(names).most_common(HUES))
    return {name: f"hue-{number + 1}" for number, name in enumerate(most)}


def _owners_key(rows: Sequence[GrantView], hues: dict[str, str]) -> SafeString:
    address = f"{reverse('sequences')}?"
    shown = format_html_join(
        "",
        '<a href="{}#ledger"><svg class="swatch" viewBox="0 0 10 10" aria-hidden="true"><rect class="{}" width="10" height="10"/></svg>{}</a>',
        (
            (address + urlencode({"sequence": rows[0].sequence, "owner": name}), hue, name)
            for name, hue in hues.items()
        ),
    )
    others = len({grant.owner for grant in rows} - hues.keys())
    more = (
        format_html(
            '<span><svg class="swatch" viewBox="0 0 10 10" aria-hidden="true"><rect class="{}" width="10" height="10"/></svg>{}</span>',
            NOBODY,
            f"{others} other{pluralize(others)}"
            if any(grant.owner not in hues and grant.owner for grant in rows)
            else "no owner",
        )
        if others
        else ""
    )
    return format_html('<p class="key owners"><span>{}</span>{}{}</p>', "Lower band, by owner:", shown, more)


@register.simple_tag
def term_line(terms: Sequence[TermRecord], now: float) -> SafeString:
    """Who led when, to scale: one colour a leader; where nobody led is empty."""
    if not terms:
        return SafeString("")
    low = min(term.since for term in terms)
    scale = 1000 / max(1.0, now - low)
    hues = _hues([term.holder for term in terms])
    bars = format_html_join(
        "",
        '<rect class="{}" x="{}" y="1" width="{}" height="26"><title>{}</title></rect>',
        (
            (
                hues.get(term.holder, NOBODY),
                round((term.since - low) * scale, 1),
                round(max(1.0, ((term.ended or now) - term.since) * scale - 1), 1),
                f"{term.holder}, epoch {term.epoch}",
            )
            for term in terms
        ),
    )
    key = format_html_join(
        "",
        '<span><svg class="swatch" viewBox="0 0 10 10" aria-hidden="true"><rect class="{}" width="10" height="10"/></svg>{}</span>',
        ((hue, holder) for holder, hue in hues.items()),
    )
    return format_html(
        '<figure class="rangemap terms"><svg viewBox="0 0 1000 28" preserveAspectRatio="none" role="img" '
        'aria-label="{}">{}</svg>'
        '<figcaption><span>{}</span><span>{}</span></figcaption><p class="key">{}</p></figure>',
        "Terms to scale; the table below has the same data",
        bars,
        moment(low),
        "now",
        key,
    )
