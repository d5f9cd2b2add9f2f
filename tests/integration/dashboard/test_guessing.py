"""Guessing at a running dashboard: tries sent at once are no more than tries sent one after the other."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from requests.adapters import HTTPAdapter

from dashboard.accounts.sign_in import FREE_TRIES, PAGE_SECONDS, RESERVED_TRIES
from tests.support.dashboard import PASSWORD, BareWorker, Dashboard, Person, audit_of, until

LOGIN = "/accounts/login/"


class From(HTTPAdapter):
    """Requests from another address of this machine."""

    def __init__(self, address: str) -> None:
        self.address = address
        super().__init__()

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, source_address=(self.address, 0), **kwargs)


def sign_in(
    dashboard: Dashboard, name: str, password: str, address: str, session: requests.Session | None = None
) -> int:
    """The status of the answer to name and password; 302 is in."""
    with session or requests.Session() as http:
        http.mount("http://", From(address))
        http.get(dashboard.url + LOGIN, timeout=60)
        fields = {"username": name, "password": password, "csrfmiddlewaretoken": http.cookies["csrftoken"]}
        headers = {"Referer": dashboard.url + LOGIN}
        answer = http.post(dashboard.url + LOGIN, fields, headers=headers, allow_redirects=False, timeout=60)
        return answer.status_code


def _again(dashboard: Dashboard, http: requests.Session) -> int:
    """Olga's right password, in a browser that has the page open."""
    fields = {"username": "olga", "password": PASSWORD, "csrfmiddlewaretoken": http.cookies["csrftoken"]}
    headers = {"Referer": dashboard.url + LOGIN}
    return http.post(
        dashboard.url + LOGIN, fields, headers=headers, allow_redirects=False, timeout=60
    ).status_code


@pytest.fixture
def own_dashboard(tmp_path: Path, connection_string: str, storage_prefix: str) -> Iterator[Dashboard]:
    """With the rounds of the product: guesses must cost what they do there."""
    extra = {"DJANGO_SETTINGS_MODULE": "dashboard.settings"}
    with Dashboard(tmp_path, connection_string, storage_prefix, extra) as running:
        yield running


async def test_of_sixty_tries_at_once_five_are_looked_at_and_the_real_person_gets_in(
    own_dashboard: Dashboard,
) -> None:
    with Person(own_dashboard, "olga") as olga:
        known = olga.http
        olga.post("/accounts/logout/")
        new = requests.Session()
        new.mount("http://", From("127.0.0.9"))
        new.get(own_dashboard.url + LOGIN, timeout=60)
        opened = time.monotonic()
        answers = await asyncio.gather(
            *(asyncio.to_thread(sign_in, own_dashboard, "olga", f"guess-{number}", "127.0.0.9") for number in range(60))
        )  # fmt: skip
        counted = Counter(answers)
        assert counted.keys() <= {200, 429, 503}, counted
        assert 1 <= counted[200] <= FREE_TRIES + RESERVED_TRIES, counted
        rows = await asyncio.to_thread(audit_of, own_dashboard)
        assert sum(row["outcome"] == "denied" for row in rows) == counted[200]
        # The real person: from another address, and behind the same one with the browser that is known here, or in a new
        # one; there at once, or as soon as the strangers' tries have run out that got the reserved one.
        assert await asyncio.to_thread(sign_in, own_dashboard, "olga", PASSWORD, "127.0.0.77") == 302
        assert await asyncio.to_thread(sign_in, own_dashboard, "olga", PASSWORD, "127.0.0.9", known) == 302
        until_open = opened + PAGE_SECONDS + 1 - time.monotonic()
        await asyncio.sleep(max(0.0, until_open))
        deadline = time.monotonic() + 60
        while (status := await asyncio.to_thread(_again, own_dashboard, new)) != 302:
            assert status == 429
            assert time.monotonic() < deadline
            await asyncio.sleep(1)


async def test_a_release_passes_while_forty_strangers_guess(own_dashboard: Dashboard) -> None:
    """It is pressed and heard while their passwords still wait: not after them."""
    with Person(own_dashboard, "otto") as otto:
        async with BareWorker(own_dashboard, "w") as worker:
            await until(lambda: worker.heard)
            guesses = [
                asyncio.create_task(asyncio.to_thread(sign_in, own_dashboard, f"name-{n}", "guess", f"127.0.{n}.1"))
                for n in range(40)
            ]  # fmt: skip
            answer = await asyncio.to_thread(otto.post, "/gates/start-it/unleash")
            assert answer.ok
            await until(lambda: worker.hints("gate:start-it"))
            counted = Counter(await asyncio.gather(*guesses))
    assert counted.keys() <= {200, 429, 503}, counted
