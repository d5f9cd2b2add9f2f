"""A day as a drawing: how much waits, and how many instances are desired and ready, under Kennel's rule and KEDA's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.scaling_pool import Pool

EVERY_SECONDS = 30
WIDTH, LEFT, RIGHT = 960, 64, 24
PANEL, GAP, TOP = 150, 46, 56
DARK, BLUE, AMBER, GREY = "#22303c", "#1f6feb", "#b35900", "#9aa7b1"


@dataclass
class Course:
    """What was seen of a pool every half minute."""

    depth: list[int] = field(default_factory=list)
    desired: list[int] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)

    def see(self, pool: Pool) -> None:
        if pool.second % EVERY_SECONDS == 0:
            self.depth.append(pool.depth)
            self.desired.append(pool.actual)
            self.ready.append(pool.ready)


def draw(title: str, kennel: Course, keda: Course, keda_name: str) -> str:
    """An SVG with three panels, one below the other, on one axis of time."""
    panels = [
        ("Messages waiting", [(kennel.depth, BLUE, "Kennel"), (keda.depth, AMBER, keda_name)]),
        ("Instances, Kennel", [(kennel.desired, GREY, "desired"), (kennel.ready, BLUE, "ready")]),
        (f"Instances, {keda_name}", [(keda.desired, GREY, "desired"), (keda.ready, AMBER, "ready")]),
    ]
    height = TOP + len(panels) * (PANEL + GAP)
    most = max(*kennel.desired, *keda.desired, 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="{DARK}">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="24" font-size="16" font-weight="600">{title}</text>',
    ]
    for place, (name, lines) in enumerate(panels):
        top = TOP + place * (PANEL + GAP)
        highest = most if place else max(max(values) for values, _, _ in lines)
        parts += _panel(top, name, lines, max(1, highest))
    return "\n".join([*parts, "</svg>", ""])


def _panel(top: int, name: str, lines: Sequence[tuple[list[int], str, str]], highest: int) -> list[str]:
    bottom, right = top + PANEL, WIDTH - RIGHT
    hours = len(lines[0][0]) * EVERY_SECONDS / 3600
    parts = [f'<text x="{LEFT}" y="{top - 8}" font-weight="600">{name}</text>']
    at = right
    for _, colour, label in reversed(lines):
        at -= 9 * len(label) + 26
        parts.append(
            f'<path d="M{at} {top - 12}h16" stroke="{colour}" stroke-width="3"/>'
            f'<text x="{at + 20}" y="{top - 8}">{label}</text>'
        )
    for value in (0, highest / 2, highest):
        y = bottom - PANEL * value / highest
        parts.append(
            f'<path d="M{LEFT} {y:.1f}H{right}" stroke="#e1e6ea"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:,.0f}</text>'
        )
    step = 3 if hours > 12 else 1
    for hour in range(0, int(hours) + 1, step):
        x = LEFT + (right - LEFT) * hour / hours
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{hour}:00</text>')
    for values, colour, _ in lines:
        parts.append(
            f'<path d="{_path(values, bottom, highest)}" fill="none" stroke="{colour}" stroke-width="1.4"/>'
        )
    return parts


def _path(values: Sequence[int], bottom: int, highest: int) -> str:
    """Steps: only where the value changes."""
    path, before = [f"M{LEFT} {bottom - PANEL * values[0] / highest:.1f}"], values[0]
    for place, value in enumerate(values):
        if value != before:
            x = LEFT + (WIDTH - LEFT - RIGHT) * place / len(values)
            path.append(f"H{x:.1f}V{bottom - PANEL * value / highest:.1f}")
            before = value
    return "".join([*path, f"H{WIDTH - RIGHT}"])
