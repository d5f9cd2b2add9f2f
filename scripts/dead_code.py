"""Code that nothing uses, by vulture; run by `make lint`.

Vulture reads Python alone. What templates and scripts name, and what the documentation shows to users, is used as well; so
are the names that frameworks call or that travel in messages (`[tool.vulture]` in pyproject.toml). The tests don't count:
what only they use is dead.
"""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from vulture.config import make_config
from vulture.core import Vulture

ROOT = Path(__file__).resolve().parent.parent
_NAME = re.compile(r"[A-Za-z_]\w*")


def shown() -> Iterator[str]:
    """The code in templates, scripts and the documentation, and what Django's settings name."""
    yield from re.findall(r'"(dashboard\.[\w.]+)"', (ROOT / "dashboard" / "settings.py").read_text())
    for template in ROOT.glob("templates/**/*.*"):
        yield from re.findall(r"{[{%](.*?)[%}]}", template.read_text())
    for script in ROOT.glob("static/**/*.js"):
        yield script.read_text()
    for page in [ROOT / "README.md", *ROOT.glob("docs/*.md")]:
        yield from map(
            "".join, re.findall(r"^```\w*\n(.*?)^```|^    (.*?)$|`([^`\n]+)`", page.read_text(), re.M | re.S)
        )


def main() -> int:
    """Print what nothing uses; 0 if there is nothing."""
    config = make_config()
    vulture = Vulture(ignore_names=config["ignore_names"], ignore_decorators=config["ignore_decorators"])
    vulture.scavenge(config["paths"], exclude=config["exclude"])
    names = {name for code in shown() for name in _NAME.findall(code)} - set(keyword.kwlist)
    vulture.scan("\n".join(sorted(names)), "templates and documentation")
    unused = vulture.get_unused_code(min_confidence=config["min_confidence"])
    for item in unused:
        print(item.get_report())
    return 1 if unused else 0


if __name__ == "__main__":
    sys.exit(main())
