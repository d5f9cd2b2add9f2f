"""A press that finds the database locked is answered soon, and says that nothing was done."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing

from tests.support.dashboard import Dashboard, Person, audit_of, until

GATE = "start-while-locked"


async def test_a_press_is_answered_while_the_database_is_still_locked(own_dashboard: Dashboard) -> None:
    with Person(own_dashboard, "olga") as olga:
        assert olga.post("/gates/start-before/unleash").ok
        with closing(sqlite3.connect(own_dashboard.folder / "dashboard.sqlite3", timeout=60)) as other:
            other.execute("BEGIN IMMEDIATE")
            async with olga.socket("gates") as socket:
                # The lock is held until each way has answered: nothing here waits for its end.
                page = await asyncio.to_thread(olga.post, f"/gates/{GATE}/unleash")
                assert page.status_code == 200
                assert "Nothing changed" in page.text
                await socket.send(olga.frame("unleash", GATE))
                async with asyncio.timeout(60):
                    while '"ok": false' not in (frame := str(await socket.recv())):
                        pass
                assert "Nothing changed" in frame
                csrf = {"X-CSRFToken": olga.http.cookies["csrftoken"], "Referer": own_dashboard.url}
                api = await asyncio.to_thread(
                    olga.http.post, f"{own_dashboard.url}/api/v1/gates/{GATE}/open", json={}, headers=csrf, timeout=60
                )  # fmt: skip
                assert (api.status_code, api.headers["Content-Type"]) == (503, "application/problem+json")
                sign_in = await asyncio.to_thread(Person(own_dashboard, "otto").post, "/accounts/login/", {"username": "otto", "password": "x"}, page="/accounts/login/")  # fmt: skip
                assert sign_in.status_code == 503
                assert "database is busy" in sign_in.text
            other.rollback()
        assert olga.post(f"/gates/{GATE}/unleash").ok
        await until(lambda: "start" in olga.get("/gates/").text)
    rows = [row["outcome"] for row in audit_of(own_dashboard) if row["target"] == GATE]
    assert rows == ["intent", "done"]
    assert "Internal Server Error" not in own_dashboard.said()
