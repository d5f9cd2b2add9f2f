"""Regions: one template for page, htmx answer and socket push."""

from __future__ import annotations

import html
import json
import re
import warnings
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from django.template import TemplateSyntaxError, engines

from coordinator.realtime.protocol import GateStatus, LeadershipStatus, SequenceStatus
from dashboard.core import pages
from dashboard.live import fragments
from dashboard.live.fleet import Fleet, GateView
from dashboard.templatetags import memo
from tests.unit.pages.fleets import NOW, full, nothing

PAGES = tuple(pages.registry().by_name)
ROLES = ("viewer", "operator", "admin")


def drawn(page: str, fragment: str, fleet: Fleet, role: str, query: str = "") -> str:
    text = fragments.render_each(page, fleet, role, query)[fragment]
    assert "This part cannot be drawn" not in text
    return text


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(
    "fleet", [full(), nothing(), full(age=50, unreachable=True)], ids=["full", "empty", "cut"]
)
@pytest.mark.parametrize("role", ROLES)
def test_every_region_is_one_element_with_its_own_id_ready_to_be_swapped(
    page: str, fleet: Fleet, role: str
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for region in fragments.fragments_of(page):
            text = drawn(page, region, fleet, role).strip()
            assert re.match(rf'<\w+ [^>]*id="region-{region}"[^>]*hx-swap-oob="morph"', text), text[:200]


def test_a_page_that_does_not_exist_is_named_together_with_those_that_do() -> None:
    with pytest.raises(fragments.UnknownPage, match="no page 'nowhere'"):
        fragments.fragments_of("nowhere")


@pytest.mark.parametrize("page", PAGES)
def test_only_the_pulse_changes_when_nothing_but_time_has_passed(page: str) -> None:
    before, fleet = full(), full()
    after = msgspec.structs.replace(fleet, taken_at=NOW + 1)
    changed = [
        region
        for region in fragments.fragments_of(page)
        if drawn(page, region, before, "admin") != drawn(page, region, after, "admin")
    ]
    assert changed == ["pulse"]


@pytest.mark.parametrize("page", PAGES)
def test_viewers_get_no_form_that_changes_anything(page: str) -> None:
    text = fragments.render_all(page, full(), "viewer")
    assert 'method="post"' not in text
    assert "hx-post" not in text


def test_what_holds_no_gate_can_be_closed_to_repair_it_and_not_opened() -> None:
    odd = GateView("odd", "unknown", 0, problem="unreadable: no gate; close the gate to repair it")
    shown = drawn("gates", "gates", msgspec.structs.replace(full(), gates=(odd,)), "operator")
    assert "/gates/odd/leash" in shown
    for refused in ("/gates/odd/unleash", "/gates/odd/opening", "tick-odd"):
        assert refused not in shown


def test_operators_get_no_way_to_destroy() -> None:
    assert "/break" in drawn("leaders", "leaders", full(), "admin")
    assert "/break" not in drawn("leaders", "leaders", full(), "operator")


@pytest.mark.parametrize("page", PAGES)
def test_no_region_holds_a_token_or_an_inline_script_or_style(page: str) -> None:
    text = fragments.render_all(page, full(), "admin")
    assert "csrfmiddlewaretoken" not in text
    assert " style=" not in text
    assert " onclick=" not in text
    assert set(re.findall(r"<script[^>]*>", text)) <= {
        '<script type="application/json" id="region-pulse" hx-swap-oob="morph">'
    }


def test_what_people_wrote_is_shown_as_text() -> None:
    assert "on &lt;sale&gt;" in drawn("gates", "gates", full(), "viewer")
    evil = msgspec.structs.replace(
        full(), gates=(GateView('x"><script>alert(1)</script>', "open", 1, as_of=NOW),)
    )
    assert "<script>alert" not in fragments.render_all("overview", evil, "viewer")


def test_the_pulse_tells_every_age_and_cannot_end_its_script_early() -> None:
    text = drawn("queues", "pulse", full(age=3), "viewer")
    said = json.loads(html.unescape(text[text.index(">") + 1 : text.rindex("<")]))
    assert said["now"] - said["as_of"]["queues"] == 3
    assert said["unreachable"] is False
    gone = drawn("queues", "pulse", full(unreachable=True), "viewer")
    assert '"unreachable":true' in html.unescape(gone), "what was read a moment ago is the last known, too"
    assert said["points"]["depth:orders-in"][1] == 120
    assert "depth:unread" not in said["points"], "a queue that was never read has no point"
    named = msgspec.structs.replace(full().queues[0], name="</script>")
    assert "</script></script>" not in drawn(
        "queues", "pulse", msgspec.structs.replace(full(), queues=(named,)), "viewer"
    )


def test_unknown_is_a_dash_and_never_0() -> None:
    row = drawn("queues", "queues", full(), "viewer")
    unread = row[row.index('id="queue-unread"') :]
    heads = re.findall(r'<th scope="col" class="num[^>]*>(.*?)</th>', row, re.DOTALL)
    cells = re.findall(r'<td class="num[^>]*>(.*?)</td>', unread, re.DOTALL)
    names = {"Depth", "Poison", "In/s", "Out/s", "In flight", "Oldest"}
    figures = [cell for head, cell in zip(heads, cells, strict=False) if head in names]
    assert len(figures) == 6
    assert all("not known" in figure and "0" not in figure for figure in figures)


def test_before_the_first_read_a_page_does_not_claim_that_there_is_nothing() -> None:
    for page in ("gates", "queues", "leaders", "sequences"):
        assert "has not been read yet" in drawn(page, page, nothing(), "admin")


def test_a_batch_shows_progress_only_where_it_is_known_and_its_promise_in_words() -> None:
    text = drawn("batches", "batches", full(), "viewer")
    assert '<progress max="1000" value="400"' in text and text.count("<progress") == 5
    for word in (
        "Running",
        "Partially failed",
        "Complete",
        "Cancelled",
        "At risk",
        "no longer counted",
        "Stalled",
        "Failed",
        "line 7 is &lt;damaged&gt;",
    ):
        assert word in text, word
    assert "Show all 7" in drawn("batches", "batches", full(), "viewer", "q=nowhere")
    assert drawn("batches", "batches", full(), "viewer", "state=partial").count("<tr id=") == 1
    assert "has not been read yet" in drawn("batches", "batches", nothing(), "viewer")
    cut = msgspec.structs.replace(full(), work=msgspec.structs.replace(full().work, problem="no answer"))
    text = drawn("batches", "batches", cut, "viewer")
    assert "no answer" in text and "night" in text, "the last figures stay, with what is wrong"


def test_a_pool_shows_why_and_that_nobody_decides_any_more() -> None:
    text = drawn("scaling", "pools", full(), "viewer")
    assert "5 because 900 &lt;wait&gt;" in text and "No active scaling agent" not in text
    later = msgspec.structs.replace(full(), taken_at=NOW + 200)
    assert "No active scaling agent" in drawn("scaling", "pools", later, "viewer")
    assert "5 because 900" in drawn("scaling", "changes", full(), "viewer", "pool=orders")
    assert "No scaling history yet" in drawn("scaling", "changes", full(), "viewer", "pool=other")


def test_an_outage_says_since_when_and_keeps_the_last_figures() -> None:
    fleet = full(age=50, unreachable=True)
    assert "Storage unreachable since" in drawn("queues", "storage", fleet, "viewer")
    assert drawn("queues", "queues", fleet, "viewer") == drawn("queues", "queues", full(), "viewer")


def test_large_fleets_are_bounded() -> None:
    many = msgspec.structs.replace(
        full(),
        workers=tuple(
            msgspec.structs.replace(full().workers[0], name=f"w-{n}", instance=f"i{n}") for n in range(1000)
        ),
        queues=tuple(msgspec.structs.replace(full().queues[0], name=f"q-{n}") for n in range(300)),
    )
    for page in PAGES:
        assert len(fragments.render_all(page, many, "admin")) < 200_000


def test_the_panel_of_one_batch_follows_the_batch_and_offers_what_its_state_allows() -> None:
    def shown(name: str, role: str = "operator") -> str:
        return str(drawn("batches", "batch", full(), role, f"pipeline=billing&batch={name}"))

    assert "Retry failed items" in shown("odd") and "Cancel batch" in shown("odd")
    assert "Retry failed items" not in shown("night") and "Cancel batch" in shown("night")
    assert "<form" not in shown("old") and "Partially failed" in shown("odd", "viewer")
    assert "<form" not in shown("odd", "viewer")
    assert "Batch" not in shown("of-another-month")


def test_the_panel_of_one_saga_offers_to_free_it_only_when_it_is_stuck() -> None:
    def shown(key: str, role: str = "operator") -> str:
        return str(drawn("batches", "saga", full(), role, f"saga=trip&key={key}"))

    assert "Retry rollback</button>" in shown("t-1") and "<form" not in shown("t-1", "viewer")
    assert "<form" not in shown("t-2") and "Done" in shown("t-2")


def test_a_row_that_was_drawn_before_is_drawn_anew_when_anything_of_it_changes() -> None:
    fleet = full()
    first, *others = fleet.workers
    state = msgspec.structs.replace(first.state, mode="draining", sequences=(SequenceStatus("invoices"),))
    changed = [
        msgspec.structs.replace(first, host="host-2"),
        msgspec.structs.replace(first, presence="lost"),
        msgspec.structs.replace(first, state=state),
        msgspec.structs.replace(
            first,
            state=msgspec.structs.replace(first.state, gates=(GateStatus("start", "open", 4, False, 4),)),
        ),
        first,
    ]
    for role in ("viewer", "operator"):
        seen = [
            drawn("workers", "workers", msgspec.structs.replace(fleet, workers=(each, *others)), role)
            for each in changed
        ]
        assert "host-2" in seen[0] and "process 7" in seen[0]
        assert (seen[0].count("Drain"), seen[1].count("Drain")) == ((2, 1) if role == "operator" else (0, 0))
        assert "ranges<span" in seen[2] and ("Resume" in seen[2]) == (role == "operator")
        assert "Passed" in seen[3]
        assert len(set(seen)) == len(seen)
        assert not {"host-2", "Resume", "Passed", "ranges<span"} & set(seen[4].split())


def changed(row: Any) -> Iterator[Any]:
    """The same row with one thing changed, for each of its fields, and for each of those within it."""
    for name in row.__struct_fields__:
        value, others = getattr(row, name), []
        if isinstance(value, msgspec.Struct):
            others = list(changed(value))
        elif isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct):
            others = [(each, *value[1:]) for each in changed(value[0])] + [value[1:], value * 2]
        elif isinstance(value, bool):
            others = [not value]
        elif isinstance(value, int | float):
            others = [value + 1, value + 12_345, 0]
        elif isinstance(value, str):
            others = [f"{value}-", *("late", "lost", "open", "armed", "draining")]
        elif value is None:
            others = [7.0]
        elif isinstance(value, tuple):
            others = [("somebody",), ()]
        yield from (msgspec.structs.replace(row, **{name: other}) for other in others)


@pytest.mark.parametrize(
    ("page", "kind"),
    [("workers", "workers"), ("overview", "workers"), ("queues", "queues"), ("overview", "gates"), ("gates", "gates")],
)  # fmt: skip
def test_what_is_kept_of_a_row_never_shows_what_the_row_was(
    page: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = full()
    first, *others = getattr(fleet, kind)
    if kind == "workers":
        leads = (LeadershipStatus("report", "leader", 2, 9.0),)
        first = msgspec.structs.replace(first, state=msgspec.structs.replace(first.state, elections=leads))
    fleets = [
        msgspec.structs.replace(fleet, **{kind: (each, *others)}) for each in (first, *changed(first), first)
    ]
    for role in ("viewer", "operator"):
        kept = [fragments.render_each(page, each, role) for each in fleets]
        with monkeypatch.context() as patch:
            patch.setattr(memo.MemoNode, "render", lambda node, context: node.nodelist.render(context))
            assert [fragments.render_each(page, each, role) for each in fleets] == kept


def test_no_more_than_so_many_renderings_of_a_piece_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memo, "MOST", 3)
    template = engines["django"].from_string("{% load memo %}{% memo name %}<b>{{ name }}</b>{% endmemo %}")
    said = [template.render({"name": f"<{n % 5}>"}) for n in range(20)]
    assert said == [f"<b>&lt;{n % 5}&gt;</b>" for n in range(20)]
    [piece] = template.template.nodelist.get_nodes_by_type(memo.MemoNode)
    assert len(piece.drawn) <= 3
    with pytest.raises(TemplateSyntaxError, match="needs the values"):
        engines["django"].from_string("{% load memo %}{% memo %}x{% endmemo %}")
