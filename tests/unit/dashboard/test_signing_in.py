"""Promises of signing in."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from types import SimpleNamespace

import pytest
from django.contrib.auth.hashers import PBKDF2PasswordHasher, make_password
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from dashboard.accounts import hashing
from dashboard.accounts.hashing import PooledHasher
from dashboard.accounts.sign_in import (
    FREE_TRIES,
    FREE_TRIES_OF_ADDRESS,
    FREE_TRIES_OF_NAME,
    FREE_TRIES_OF_NETWORK,
    KNOWN_COOKIE,
    LONGEST_LOCK_SECONDS,
    PAGE_COOKIE,
    PAGE_SECONDS,
    RESERVED_TRIES,
    lock_seconds,
)
from dashboard.models import AuditRow, SignInTries

pytestmark = pytest.mark.django_db

PASSWORD = "correct horse battery"


def sign_in(client: Client, name: str, password: str, address: str = "10.0.0.1") -> HttpResponse:
    return client.post(
        reverse("account_login"), {"username": name, "password": password}, REMOTE_ADDR=address
    )  # type: ignore[return-value]


@pytest.fixture(autouse=True)
def olga(settings: Settings) -> User:
    settings.PASSWORD_HASHERS = [
        "django.contrib.auth.hashers.MD5PasswordHasher"
    ]  # the slow one is not what is tested
    return User.objects.create_user("olga", password=PASSWORD)


def test_the_wait_doubles_up_to_a_quarter_of_an_hour() -> None:
    assert [lock_seconds(tries, 5) for tries in (0, 4, 5, 6, 7)] == [0, 0, 15, 30, 60]
    assert lock_seconds(1000, 5) == LONGEST_LOCK_SECONDS


def test_after_the_free_tries_even_the_right_password_has_to_wait(client: Client) -> None:
    for _ in range(FREE_TRIES):
        assert sign_in(client, "olga", "wrong").status_code == 200
    locked = sign_in(client, "Olga", PASSWORD)
    assert locked.status_code == 429
    assert 10 <= int(locked["Retry-After"]) <= 15
    assert "Wait" in locked.content.decode()
    assert not AuditRow.objects.filter(outcome="done").exists()


def test_nobody_can_lock_an_operator_out_from_elsewhere(client: Client) -> None:
    for _ in range(FREE_TRIES + 1):
        sign_in(client, "olga", "wrong", address="10.9.9.9")
    assert sign_in(client, "olga", PASSWORD).status_code == 302


def test_an_address_that_tries_many_names_has_one_try_for_each_and_locks_out_nobody_behind_it(
    client: Client,
) -> None:
    for number in range(FREE_TRIES_OF_ADDRESS):
        sign_in(client, f"name-{number}", "wrong")
    assert sign_in(client, "otto", "wrong").status_code == 200
    assert sign_in(client, "otto", "wrong").status_code == 429
    assert sign_in(client, "olga", PASSWORD).status_code == 302


def test_where_all_the_world_tries_a_name_each_address_has_one_try_and_the_right_password_gets_in(
    client: Client,
) -> None:
    for number in range(FREE_TRIES_OF_NAME):
        sign_in(client, "olga", "wrong", address=f"10.{number}.0.1")
    assert sign_in(client, "olga", "wrong", address="10.200.0.1").status_code == 200
    assert sign_in(client, "olga", "wrong", address="10.200.0.1").status_code == 429
    assert sign_in(client, "olga", PASSWORD, address="10.201.0.1").status_code == 302


SPELLINGS = ["olga", "OLGA", "ｏｌｇａ", "ＯＬＧＡ", " olga", "olga ", "oℓga", "ｏlga", "olｇa", "𝐨𝐥𝐠𝐚"]


def test_spellings_of_a_name_do_not_multiply_its_tries(client: Client) -> None:
    answers = [sign_in(client, name, "wrong").status_code for name in SPELLINGS]
    assert answers == [200] * FREE_TRIES + [429] * (len(SPELLINGS) - FREE_TRIES)


@pytest.mark.parametrize(
    ("addresses", "looked_at"),
    [
        ([f"2001:db8:1:1::{number:x}" for number in range(40)], FREE_TRIES),
        ([f"2001:db8:1:{number:x}::1" for number in range(40)], FREE_TRIES_OF_NETWORK),
        ([f"10.0.0.{number}" for number in range(40)], FREE_TRIES_OF_NETWORK),
        ([f"::ffff:10.0.0.{number % 2}" for number in range(40)], 2 * FREE_TRIES),
    ],
    ids=["64 bits", "48 bits", "24 bits", "mapped"],
)
def test_addresses_of_one_network_do_not_multiply_the_tries(
    client: Client, addresses: list[str], looked_at: int
) -> None:
    answers = [sign_in(client, "olga", "wrong", address=address).status_code for address in addresses]
    assert answers.count(200) == looked_at


def test_a_browser_that_signed_in_before_gets_in_whatever_others_did_to_the_name(client: Client) -> None:
    assert sign_in(client, "olga", PASSWORD).status_code == 302
    client.post(reverse("account_logout"))
    stranger = Client()
    for _ in range(60):
        sign_in(stranger, "olga", "wrong")
    assert sign_in(stranger, "olga", PASSWORD).status_code == 429
    assert sign_in(client, "olga", PASSWORD).status_code == 302


def test_a_known_browser_is_known_for_its_person_and_password_alone(client: Client, olga: User) -> None:
    User.objects.create_user("otto", password=PASSWORD)
    assert sign_in(client, "olga", PASSWORD).status_code == 302
    client.post(reverse("account_logout"))
    stranger = Client()
    for name in ("olga", "otto"):
        for _ in range(FREE_TRIES):
            sign_in(stranger, name, "wrong")
    assert sign_in(client, "otto", PASSWORD).status_code == 429
    for _ in range(FREE_TRIES):
        assert sign_in(client, "olga", "wrong").status_code == 200
    assert sign_in(client, "olga", PASSWORD).status_code == 429, "it may not guess without end either"
    SignInTries.objects.all().delete()
    olga.set_password("another horse battery")
    olga.save()
    for _ in range(FREE_TRIES):
        sign_in(stranger, "olga", "wrong")
    assert sign_in(client, "olga", "another horse battery").status_code == 429


def test_the_cookie_of_a_known_browser_cannot_be_made_up(client: Client) -> None:
    for _ in range(FREE_TRIES):
        sign_in(client, "olga", "wrong")
    for value in ("x", "eyJ1c2VyIjoxfQ:1:x", ""):
        client.cookies[KNOWN_COOKIE] = value
        assert sign_in(client, "olga", PASSWORD).status_code == 429


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets the clock of signing in go on."""
    ahead = [0.0]
    clock = SimpleNamespace(time=lambda: time.time() + ahead[0])
    monkeypatch.setattr("dashboard.accounts.sign_in.time", clock)

    def wait(seconds: float) -> None:
        ahead[0] += seconds

    return wait


def test_a_person_in_a_new_browser_gets_in_while_a_stranger_behind_the_same_address_tries_sixty_times(
    client: Client, later: Callable[[float], None]
) -> None:
    client.get(reverse("account_login"))
    later(PAGE_SECONDS + 1)
    answers = []
    for number in range(60):
        stranger = Client()
        stranger.get(reverse("account_login"))
        answers.append(sign_in(stranger, "olga", f"guess-{number}").status_code)
    assert answers == [200] * FREE_TRIES + [429] * (60 - FREE_TRIES)
    assert sign_in(client, "olga", PASSWORD).status_code == 302


@pytest.mark.parametrize(
    "network",
    [
        lambda number: "10.0.0.1",
        lambda number: f"10.0.0.{number}",
        lambda number: f"2001:db8:1:{number:x}::1",
    ],
    ids=["one address", "24 bits", "48 bits"],
)
def test_open_pages_are_one_try_in_all_and_then_wait_longer_each_time(
    client: Client, later: Callable[[float], None], network: Callable[[int], str]
) -> None:
    strangers = [Client() for _ in range(60)]
    for stranger in strangers:
        stranger.get(reverse("account_login"))
    later(PAGE_SECONDS + 1)
    answers = [
        sign_in(each, "olga", "wrong", network(number + 1)).status_code
        for number, each in enumerate(strangers)
    ]
    free = FREE_TRIES if network(1) == network(2) else FREE_TRIES_OF_NETWORK
    assert answers.count(200) == free + RESERVED_TRIES
    later(10)
    assert sign_in(strangers[0], "olga", PASSWORD, network(1)).status_code == 429


def test_the_cookie_of_an_open_page_cannot_be_made_up_or_be_new(client: Client) -> None:
    for _ in range(FREE_TRIES):
        sign_in(client, "olga", "wrong")
    for value in ("x", "eyJhdCI6MX0:1:x", ""):
        client.cookies[PAGE_COOKIE] = value
        assert sign_in(client, "olga", PASSWORD).status_code == 429
    client.get(reverse("account_login"))
    assert client.cookies[PAGE_COOKIE].value.count(":") == 2
    assert sign_in(client, "olga", PASSWORD).status_code == 429


def test_a_reserved_try_that_was_not_looked_at_is_kept_and_opens_no_lock(
    client: Client, later: Callable[[float], None], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.PASSWORD_HASHERS = ["dashboard.accounts.hashing.PooledHasher"]
    monkeypatch.setattr(PooledHasher, "iterations", 1000)
    User.objects.create_user("otto", password=PASSWORD)
    client.get(reverse("account_login"))
    later(PAGE_SECONDS + 1)
    stranger = Client()
    for _ in range(FREE_TRIES):
        sign_in(stranger, "otto", "wrong")
    monkeypatch.setattr(hashing._pool, "waiting", hashing.MOST_WAITING + hashing.THREADS)
    assert sign_in(client, "otto", PASSWORD).status_code == 503
    monkeypatch.setattr(hashing._pool, "waiting", 0)
    assert sign_in(stranger, "otto", PASSWORD).status_code == 429
    assert sign_in(client, "otto", PASSWORD).status_code == 302


def test_what_was_typed_for_a_name_that_nobody_has_is_not_in_the_audit(client: Client) -> None:
    sign_in(client, "correct horse battery", "")
    sign_in(client, "Tr0ub4dor&3", "olga")
    assert set(AuditRow.objects.values_list("actor", "target")) == {("nobody", "nobody")}


def test_a_full_line_before_the_hashing_threads_is_answered_at_once(
    client: Client, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.PASSWORD_HASHERS = ["dashboard.accounts.hashing.PooledHasher"]
    monkeypatch.setattr(PooledHasher, "iterations", 1000)  # how long a hash takes is no matter here
    User.objects.create_user("otto", password=PASSWORD)
    monkeypatch.setattr(hashing._pool, "waiting", hashing.MOST_WAITING + hashing.THREADS)
    busy = sign_in(client, "otto", PASSWORD)
    assert (busy.status_code, busy["Retry-After"]) == (503, "5")
    assert "Try again in a few seconds" in busy.content.decode()
    monkeypatch.setattr(hashing._pool, "waiting", 0)
    for _ in range(FREE_TRIES - 1):
        assert sign_in(client, "otto", "wrong").status_code == 200
    assert sign_in(client, "otto", PASSWORD).status_code == 302, "what was not looked at does not count"


def test_a_network_that_fills_the_line_makes_room_for_others_and_waits_for_its_turn() -> None:
    threads, release, order = hashing.HashingThreads(), threading.Event(), list[str]()

    def ask(network: str, number: int) -> str:
        token = hashing.asker.set(hashing.Asker(network))
        try:
            return threads.run(lambda: hashed(f"{network}{number}"))
        except hashing.Busy:
            return "busy"
        finally:
            hashing.asker.reset(token)

    def hashed(name: str) -> str:
        release.wait(60)
        order.append(name)
        return name

    most = hashing.MOST_WAITING + hashing.THREADS
    with ThreadPoolExecutor(most + 4) as people:
        flood = []
        for number in range(most):
            flood.append(people.submit(ask, "flood", number))
            while threads.waiting <= number:
                time.sleep(0.01)
        assert ask("flood", most) == "busy"
        one = people.submit(ask, "office", 1)
        wait(flood, 60, return_when=FIRST_COMPLETED)
        release.set()
        assert one.result(60) == "office1"
        answers = [each.result(60) for each in flood]
    assert answers.count("busy") == 1
    assert order.index("office1") <= hashing.THREADS + 1, "behind those that were being hashed, and one"


def test_hashing_leaves_half_of_the_processors_alone_and_steps_back() -> None:
    assert max(1, (os.cpu_count() or 2) // 2) >= hashing.THREADS
    seen = hashing.HashingThreads().run(
        lambda: str(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
    )
    assert int(seen) >= hashing.NICENESS or sys.platform != "linux"


def test_what_is_stored_is_djangos_own_hash() -> None:
    made = make_password(PASSWORD, hasher="default")
    ours = PooledHasher().encode(PASSWORD, "salt" * 6)
    assert ours == PBKDF2PasswordHasher().encode(PASSWORD, "salt" * 6)
    assert made != ours


def test_the_right_password_clears_the_count_and_is_in_the_audit_with_the_wrong_ones(client: Client) -> None:
    sign_in(client, "olga", "wrong")
    assert sign_in(client, "olga", PASSWORD).status_code == 302
    rows = [(row.actor, row.address, row.action, row.outcome) for row in AuditRow.objects.order_by("id")]
    assert rows == [
        ("olga", "10.0.0.1", "sign_in", "denied"),
        ("olga", "10.0.0.1", "sign_in", "intent"),
        ("olga", "10.0.0.1", "sign_in", "done"),
    ]
    left = SignInTries.objects.values_list("tries", flat=True)
    assert list(left) == [1, 1], "of the address and of the name everywhere: the wrong try alone"


def test_what_was_typed_for_a_name_is_not_kept_with_the_count(client: Client) -> None:
    sign_in(client, "canary-name", "canary-password")
    assert "canary" not in str(list(SignInTries.objects.values()))
    assert "canary-password" not in str(list(AuditRow.objects.values()))
