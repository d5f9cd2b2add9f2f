"""Element ids made from names: no name gives two elements of a page the same id.

Names of gates, queues, sequences and elections have no two hyphens in a row, so `--` ends a name.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from django.conf import settings
from msgspec.structs import replace

from dashboard.live import fragments
from tests.unit.pages.fleets import full

TEMPLATES = Path(settings.BASE_DIR) / "templates"
ID = re.compile(r'\sid="([^"]*)"')
SUFFIXES = ("-name", "-summary", "-help")
PREFIXES = ("help-", "name-")


def ids_in(folder: Path) -> list[str]:
    return [found for path in sorted(folder.rglob("*.html")) for found in ID.findall(path.read_text("utf-8"))]


@pytest.mark.parametrize(
    "folder", sorted(path for path in TEMPLATES.iterdir() if path.is_dir()), ids=lambda path: path.name
)
def test_a_name_in_an_id_is_set_off_from_what_else_the_folder_calls_its_elements(folder: Path) -> None:
    made = [each for each in ids_in(folder) if re.search(r"\{\{ .*name", each)]
    fixed = [each for each in ids_in(folder) if "{{" not in each]
    kinds = {each.partition("{{")[0] for each in made}
    assert [each for each in made if re.search(r"\}\}-(?!-)", each)] == []
    assert [each for each in fixed for kind in kinds if each.startswith(kind)] == []
    assert [(one, other) for one in kinds for other in kinds if one != other and one.startswith(other)] == []


@pytest.mark.parametrize("page", ["overview", "gates", "sequences", "queues", "leaders"])
def test_things_called_like_a_part_of_another_have_ids_of_their_own(page: str) -> None:
    fleet = full()

    def twins(things: tuple) -> tuple:  # type: ignore[type-arg]
        first = things[0]
        names = [
            first.name,
            *(first.name + end for end in SUFFIXES),
            *(start + first.name for start in PREFIXES),
        ]
        return tuple(replace(first, name=name) for name in names)

    fleet = replace(
        fleet,
        gates=twins(fleet.gates),
        queues=twins(fleet.queues),
        sequences=twins(fleet.sequences),
        leaders=twins(fleet.leaders),
    )
    found = Counter(
        id for region in fragments.render_each(page, fleet, "admin", "").values() for id in ID.findall(region)
    )
    assert [id for id, times in found.items() if times > 1] == []
