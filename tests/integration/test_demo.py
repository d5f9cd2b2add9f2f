"""The main job, end to end, and what happens to it when parts of it die."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from tests.support.stack import PROJECT, QUICK, live_stack, wait_until

pytestmark = pytest.mark.timeout(240)


def auto(*options: str) -> dict:
    result = subprocess.run(
        [sys.executable, "manage.py", "demo", "--auto", *options],
        cwd=PROJECT,
        env=os.environ | QUICK,
        capture_output=True,
        text=True,
        timeout=230,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def verdict() -> dict:
    """Of eight workers and two thousand orders."""
    return auto("--workers", "8", "--orders", "2000")


def test_two_thousand_orders_get_two_thousand_numbers_after_one_press(verdict):
    assert verdict["orders"] == verdict["distinct"] == 2000
    assert verdict["released"] == verdict["workers"] == 8
    assert verdict["ledger"] == "ok"
    assert verdict["release_sources"] == ["push"]


def test_eight_workers_are_released_as_fast(verdict):
    assert verdict["released"] == 8
    assert verdict["release_sources"] == ["push"]
    assert verdict["release_ms"]["p99"] < 2000, "later than the earliest poll: this was no push"


def test_without_a_hub_polling_alone_releases_all_within_its_interval():
    verdict = auto("--workers", "4", "--orders", "300", "--without-hub")
    assert verdict["released"] == 4
    assert verdict["release_ms"]["p99"] <= 2500 * 1.2


def test_a_worker_killed_in_mid_run_loses_no_order_and_repeats_no_number():
    with live_stack(workers=3, orders=600) as stack:
        stack.wait_for_workers(3)
        stack.sign_in().post("/gates/start-order-processing/unleash")
        stack.wait_for_orders(100)
        stack.kill(stack.worker_pids[0])
        stack.wait_for_orders(600)
        orders, numbers = stack.orders()
        assert orders == numbers == 600
        assert stack.verify_ledger().returncode == 0
        page = wait_until(
            lambda: "lost" in (text := stack.sign_in().get("/sequences/?sequence=orders").text) and text,
            "the dead worker's range is shown as lost",
        )
        assert "orders-1" in page


def test_the_hub_killed_in_mid_run_stops_nothing_and_workers_come_back():
    with live_stack(workers=3, orders=800) as stack:
        stack.wait_for_workers(3)
        stack.sign_in().post("/gates/start-order-processing/unleash")
        stack.wait_for_orders(50)
        stack.kill(stack.dashboard_pid)
        before = stack.orders()[0]
        time.sleep(2)
        assert stack.orders()[0] > before, "orders stopped with the hub"
        visitor = wait_until(lambda: _reachable(stack), "the dashboard is back", 40)
        stack.wait_for_orders(800)
        wait_until(
            lambda: all(f"orders-{n}" in visitor.get("/workers/").text for n in (1, 2, 3)),
            "all workers are back",
            20,
        )
        assert stack.orders() == (800, 800)


def test_storage_stopped_for_twenty_seconds_is_said_and_survived():
    with live_stack(workers=3, orders=800) as stack:
        stack.wait_for_workers(3)
        visitor = stack.sign_in()
        visitor.post("/gates/start-order-processing/unleash")
        stack.wait_for_orders(50)
        with stack.suspended(stack.azurite_pid):
            began = time.monotonic()
            page = wait_until(
                lambda: "unreachable since" in (text := visitor.get("/").text) and text,
                "the page says so",
                19,
            )
            assert "Storage unreachable since" in page
            time.sleep(max(0.0, 20 - (time.monotonic() - began)))
        stack.wait_for_orders(800)
        wait_until(lambda: "unreachable since" not in visitor.get("/").text, "the page has recovered", 30)
        assert stack.orders() == (800, 800)
        assert stack.verify_ledger().returncode == 0


def _reachable(stack):
    try:
        return stack.sign_in()
    except OSError:
        return None
