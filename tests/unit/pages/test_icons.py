"""The sprite is made from the packaged set, and has every icon that is asked for."""

from __future__ import annotations

import re
from pathlib import Path

from django.conf import settings

from dashboard.templatetags.kennel import STATES
from scripts import icons


def test_the_sprite_is_what_the_packaged_set_makes_of_it() -> None:
    assert icons.SPRITE.read_text(encoding="utf-8") == icons.sprite(), "run `python scripts/icons.py`"


def test_every_icon_that_is_asked_for_is_in_the_sprite() -> None:
    there = set(re.findall(r'<symbol id="([\w-]+)"', icons.SPRITE.read_text(encoding="utf-8")))
    asked = {picture for _, picture, _ in STATES.values()}
    for template in (Path(settings.BASE_DIR) / "templates").rglob("*.html"):
        asked |= set(re.findall(r'\{% icon "([\w-]+)"', template.read_text(encoding="utf-8")))
    assert not asked - there, "name them in scripts/icons.py and run it"
