"""Graphs: zoomed together, read as a table, and with what operators did on their time axis."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import time
import uuid
from contextlib import closing

from playwright.async_api import expect

from dashboard.live.history import LEVELS, pack
from tests.browser.conftest import GATE, People, signed_in
from tests.conftest import PageFactory
from tests.support.stack import LiveStack

# Keeps what draws the graphs, whose axes are on a canvas.
KEEP_PLOTS = """
let made;
window.plots = [];
Object.defineProperty(window, "uPlot", {
  configurable: true,
  get: () => made,
  set: (kind) => {
    made = new Proxy(kind, { construct: (target, given) => {
      const plot = new target(...given);
      window.plots.push(plot);
      return plot;
    } });
  },
});
"""
DRAWN_SPAN = "() => { const { min, max } = window.plots.at(-1).scales.x; return max - min; }"


async def test_a_graph_is_read_as_a_table_and_zoomed_by_keys_and_by_dragging(
    person: People, held_gate: str
) -> None:
    page = await person("operator", "/gates/")
    await page.locator(f"#unleash-{GATE}").click()
    await page.locator(f"#gate-{GATE} [data-released]").wait_for()
    await page.goto(page.url.replace("/gates/", "/queues/orders-in/"))
    figures = page.locator("figure.graph")
    await expect(figures).to_have_count(4)

    first = figures.first
    await first.get_by_role("button", name="Table").press("Enter")
    table = first.get_by_role("table")
    await expect(table.get_by_role("columnheader")).to_have_text(["Time", "orders-in"])
    await expect(table.get_by_role("row").nth(3)).to_be_visible(timeout=20_000)
    await expect(first.get_by_role("region")).to_contain_text("unleashed: olga start-order-processing")

    canvas = first.locator("[data-graph-canvas]")
    whole = page.get_by_role("button", name="Whole span")
    await expect(whole).to_have_count(0)
    second = figures.nth(1).locator(".graph-at")
    async with asyncio.timeout(30):  # a graph of rates has its first point later than one of depths
        while not await second.is_visible():
            await canvas.focus()
            await page.keyboard.press("ArrowLeft")
            await asyncio.sleep(0.2)
    await expect(first.locator(".graph-at"), "the cross-hair is on all graphs").to_be_visible()
    await page.keyboard.press("+")
    await expect(whole, "all graphs of the page zoom together").to_have_count(4)
    await page.keyboard.press("Escape")
    await expect(whole).to_have_count(0)

    place = await canvas.locator(".u-over").bounding_box()
    assert place is not None
    await page.mouse.move(place["x"] + place["width"] * 0.4, place["y"] + 40)
    await page.mouse.down()
    await page.mouse.move(place["x"] + place["width"] * 0.8, place["y"] + 50, steps=4)
    await page.mouse.up()
    await expect(whole).to_have_count(4)
    await whole.first.click()
    await expect(whole).to_have_count(0)


async def test_a_graph_says_how_many_queues_it_leaves_out_and_lets_one_be_chosen(
    person: People, stack: LiveStack
) -> None:
    names = [f"t-{uuid.uuid4().hex[:8]}-{n}" for n in range(7)]
    admin = stack.sign_in("admin")
    for name in names:
        admin.post("/queues/", name=name)
    try:
        page = await person("viewer", "/queues/")
        graph = page.locator("figure.graph").first
        chooser = graph.locator("[data-graph-choose]")
        await expect(chooser.locator("summary")).to_have_text(re.compile(r"\+\d+ more"), timeout=30_000)
        drawn = graph.locator(".graph-key")
        await expect(drawn).to_have_count(6)
        await expect(graph.locator("[data-graph-legend]"), "the busiest is there").to_contain_text(
            "orders-in"
        )
        await chooser.locator("summary").click()
        await chooser.locator("input:checked").first.uncheck()
        await expect(drawn).to_have_count(5)
        await chooser.locator("input:enabled:not(:checked)").last.check()
        await expect(drawn).to_have_count(6)
        await chooser.get_by_role("button", name="The busiest").click()
        await expect(graph.locator("[data-graph-legend]")).to_contain_text("orders-in")
    finally:
        for name in names:
            admin.post(f"/queues/{name}/delete", typed=name)


async def test_the_axis_shows_the_chosen_span_where_there_are_hardly_any_samples(
    new_page: PageFactory, stack: LiveStack
) -> None:
    page = await new_page()
    await page.add_init_script(KEEP_PLOTS)
    await signed_in(page, stack, "viewer", "/tv")
    graph = page.locator("figure.graph")
    await expect(graph.locator(".graph-key b").first).to_have_text(re.compile(r"\d"), timeout=30_000)
    for span in (86_400, 604_800, 300):
        await graph.get_by_label("Show the last").select_option(str(span))
        async with asyncio.timeout(30):
            while abs(await page.evaluate(DRAWN_SPAN) - span) > 2:
                await asyncio.sleep(0.2)


async def test_a_graph_has_the_same_hours_of_yesterday_beside_it(person: People, stack: LiveStack) -> None:
    page = await person("viewer", "/queues/orders-in/")
    figure = page.locator("figure.graph").first
    await figure.get_by_role("button", name="Table").press("Enter")
    await expect(figure.get_by_role("table").get_by_role("row").nth(1)).to_be_visible(timeout=20_000)
    async with asyncio.timeout(30):  # a series is in the database a moment after its first sample
        while not await asyncio.to_thread(_yesterday, stack, "depth:orders-in", 777.0):
            await asyncio.sleep(0.5)
    await figure.get_by_label("Compare Depth with").select_option("with yesterday")
    await expect(figure.locator("[data-graph-legend]")).to_contain_text("yesterday 777", timeout=30_000)
    heads = figure.get_by_role("table").get_by_role("columnheader")
    await expect(heads).to_have_text(["Time", "orders-in", "orders-in yesterday"], timeout=30_000)
    await expect(figure.get_by_role("table").get_by_role("row").nth(1)).to_contain_text("777")


def _yesterday(stack: LiveStack, series: str, value: float) -> bool:
    """A series was at that value around this time of yesterday; False if it is not there yet."""
    seconds, size, _ = LEVELS[-1]
    first = int(time.time() - 86_400) // (seconds * size) * seconds * size
    with closing(sqlite3.connect(stack.folder / "dashboard.sqlite3", timeout=30)) as database, database:
        for start in (first - seconds * size, first, first + seconds * size):
            written = database.execute(
                'INSERT OR REPLACE INTO dashboard_chunk (series_id, resolution, start, "values")'
                " SELECT id, ?, ?, ? FROM dashboard_series WHERE name = ?",
                [seconds, start, pack([value] * size), series],
            )
    return written.rowcount > 0
