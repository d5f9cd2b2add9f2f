"""Promises of signing in."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from dashboard.models import AuditRow, SignInTries
from dashboard.signing_in import FREE_TRIES, FREE_TRIES_OF_ADDRESS, LONGEST_LOCK_SECONDS, lock_seconds

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


def test_after_five_wrong_tries_even_the_right_password_has_to_wait(client: Client) -> None:
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


def test_an_address_that_tries_many_names_is_locked_for_all(client: Client) -> None:
    for number in range(FREE_TRIES_OF_ADDRESS):
        sign_in(client, f"name-{number}", "wrong")
    assert sign_in(client, "olga", PASSWORD).status_code == 429


def test_the_right_password_clears_the_count_and_is_in_the_audit_with_the_wrong_ones(client: Client) -> None:
    sign_in(client, "olga", "wrong")
    assert sign_in(client, "olga", PASSWORD).status_code == 302
    rows = [(row.actor, row.address, row.action, row.outcome) for row in AuditRow.objects.order_by("id")]
    assert rows == [
        ("olga", "10.0.0.1", "sign_in", "denied"),
        ("olga", "10.0.0.1", "sign_in", "intent"),
        ("olga", "10.0.0.1", "sign_in", "done"),
    ]
    assert SignInTries.objects.count() == 1


def test_what_was_typed_for_a_name_is_not_kept_with_the_count(client: Client) -> None:
    sign_in(client, "canary-name", "canary-password")
    assert "canary" not in str(list(SignInTries.objects.values()))
    assert "canary-password" not in str(list(AuditRow.objects.values()))
