"""The demo as a story, twenty times as fast: every page has something that moves, without a person."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.support.stack import LiveStack, live_stack, wait_until

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def story() -> Iterator[LiveStack]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOP_PACE", "20")
        with live_stack("--story", workers=3, orders=200, scale_to=5) as running:
            yield running


def test_every_page_moves_without_a_person(story: LiveStack) -> None:
    visitor = story.sign_in("admin")

    def text(path: str) -> str:
        return re.sub(r"<[^>]+>", " ", visitor.get(path).text)

    def says(path: str, pattern: str, what: str) -> None:
        wait_until(lambda: re.search(pattern, text(path)), f"{path} says that {what}", 90)

    says("/queues/", r"price-changes", "prices change")
    says("/workers/", r"shop-1[\s\S]*shop-2", "the shop is there")
    says("/sequences/?sequence=price-changes", r"price-changes", "numbers are taken")
    says("/gates/", r"flash sale", "flash sales open")
    says("/leaders/", r"prices[\s\S]*shop-[12]", "the shop is led")
    says("/batches/", r"nightly", "the batch runs")
    says("/batches/", r"Rolled back", "a refund was rolled back")
    says("/batches/", r"Stuck", "a refund is stuck")
    says("/gates/", r"nobody pressed Unleash", "the orders are released if nobody does it")
    wait_until(lambda: story.orders()[0] > 0, "orders are sold", 60)
    says("/sequences/?sequence=orders", r"Next free number", "orders take numbers")
    says("/scaling/", r"orders", "the agent decides")
    says("/cost/", r"\$", "requests cost money")
    says("/audit/", r"tickets on sale", "there is a past")
    says("/queues/price-changes/", r"[Pp]oison", "a change came too early")


def test_leaders_hand_over_and_stuck_refunds_are_repaired(story: LiveStack) -> None:
    visitor = story.sign_in("viewer")

    def holders() -> set[str]:
        return set(re.findall(r"shop-[12]", visitor.get("/leaders/?election=prices").text))

    wait_until(lambda: len(holders()) == 2, "both workers of the shop have led", 90)
    wait_until(
        lambda: "refund-" in visitor.get("/batches/").text and "Done" in visitor.get("/batches/").text,
        "refunds are paid back",
        90,
    )


def test_a_week_of_history_is_behind_it_and_a_tour_before_it(story: LiveStack) -> None:
    with closing(sqlite3.connect(story.folder / "dashboard.sqlite3")) as database:
        [(oldest, newest)] = database.execute("SELECT min(start), max(start) FROM dashboard_chunk").fetchall()
    assert newest - oldest > 6 * 86400
    page = story.sign_in("operator").get("/").text
    assert page.count("data-tour-step=") == 5 and "who got number 7?" in page


def test_the_plain_demo_has_neither() -> None:
    with live_stack(workers=1, orders=1) as plain:
        assert "data-tour" not in plain.sign_in("viewer").get("/").text
        with closing(sqlite3.connect(plain.folder / "dashboard.sqlite3")) as database:
            assert database.execute("SELECT count(*) FROM dashboard_auditrow").fetchone()[0] < 10
