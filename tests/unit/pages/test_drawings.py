"""Drawings say in words what they draw."""

from __future__ import annotations

import re

from dashboard.live.fleet import GrantView
from dashboard.templatetags.charts import histogram, range_map


def grants(*owners: str) -> list[GrantView]:
    return [
        GrantView("orders", n * 100 + 1, n * 100 + 100, owner, None, "used") for n, owner in enumerate(owners)
    ]


def test_the_histogram_counts_every_worker_once_in_bars_and_in_a_table() -> None:
    text = histogram([1.0, 1.0, 50.0, 240.0], "start")
    assert text.count("<rect") == 3
    figures = re.findall(r'<td class="num">(\d+)</td>', text)
    assert [int(figure) for figure in figures] == [2, 1, 1]
    assert 'id="delays-start"' in text
    assert histogram([]) == ""


def test_a_map_of_ranges_gives_each_owner_a_colour_and_names_it_beside() -> None:
    text = range_map(grants("bob", "ann", "bob"), 301, owners=True)
    band = re.findall(r'<rect class="(hue-\w+)" x="[\d.]+" y="30"', text)
    assert len(band) == 3 and band[0] == band[2] != band[1]
    for name, hue in (("ann", band[1]), ("bob", band[0])):
        assert f"owner={name}#ledger" in text
        assert re.search(rf'{hue}" width="10" height="10"/></svg>{name}</a>', text)
    assert "other" not in text


def test_the_owners_of_the_fewest_ranges_share_a_colour_and_are_counted() -> None:
    many = [f"worker-{n}" for n in range(6)] * 2 + ["few-1", "few-2"]
    text = range_map(grants(*many), 1401, owners=True)
    assert text.count('class="hue-none" x=') == 2
    assert "2 others" in text and "few-1</a>" not in text


def test_the_small_map_is_of_states_alone() -> None:
    text = range_map(grants("bob", "ann"), 201)
    assert "hue-" not in text and "bob" in text  # in the titles
