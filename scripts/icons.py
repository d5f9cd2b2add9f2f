"""Makes static/img/icons.svg, the sprite of the icons that the pages use, out of the packaged set (lucide)."""

from __future__ import annotations

import argparse
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SET = ROOT / "node_modules" / "lucide-static" / "icons"
SPRITE = ROOT / "static" / "img" / "icons.svg"
SVG = "http://www.w3.org/2000/svg"

# our name -> the set's
NAMES = {
    "overview": "layout-dashboard",
    "gates": "fence",
    "queues": "list-end",
    "workers": "server",
    "leaders": "crown",
    "sequences": "hash",
    "batches": "layers",
    "scaling": "trending-up",
    "cost": "coins",
    "audit": "scroll-text",
    "tokens": "key-round",
    "people": "users",
    "crown": "crown",
    "play": "play",
    "hold": "pause",
    "stop": "square",
    "idle": "moon",
    "shut": "circle-minus",
    "alert": "triangle-alert",
    "question": "circle-question-mark",
    "clock": "clock",
    "view": "bookmark",
    "check": "check",
    "cross": "x",
    "lock": "lock",
    "undo": "undo-2",
    "theme": "sun-moon",
    "out": "log-out",
    "search": "search",
    "plus": "plus",
    "help": "circle-question-mark",
    "tv": "tv",
    "table": "table",
    "menu": "menu",
}
# The product's own mark: a leash.
MARK = (
    '<path d="M15.5 3.5a5 5 0 0 0-7 0l-2 2a5 5 0 0 0 0 7l5.8 5.8a3 3 0 0 0 4.2 0l.8-.8a3 3 0 0 0 0-4.2L12.5 8.5"/>'
    '<path d="M18.5 6.5l2-2"/><circle cx="6" cy="19.5" r="1.5"/>'
)


def symbol(name: str, body: str, width: str = "1.75") -> str:
    return (
        f'  <symbol id="{name}" viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="{width}" '
        f'stroke-linecap="round" stroke-linejoin="round">{body}</symbol>'
    )


def body_of(name: str) -> str:
    """The shapes of one icon of the set."""
    shapes = ET.parse(SET / f"{name}.svg").getroot()
    for shape in shapes.iter():
        # Another library may have given the namespace a prefix of its own.
        shape.tag = shape.tag.removeprefix(f"{{{SVG}}}")
    return "".join(ET.tostring(shape, encoding="unicode").strip() for shape in shapes)


def sprite() -> str:
    symbols = [symbol("mark", MARK, "2"), *(symbol(ours, body_of(theirs)) for ours, theirs in NAMES.items())]
    return f'<svg xmlns="{SVG}">\n' + "\n".join(symbols) + "\n</svg>\n"


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    if not SET.is_dir():
        print("The set of icons is not there; run `npm ci` first.", file=sys.stderr)
        return 1
    SPRITE.write_text(sprite(), encoding="utf-8")
    print(f"{len(NAMES) + 1} icons, {SPRITE.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
