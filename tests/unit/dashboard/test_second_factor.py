"""Promises of the second factor."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import struct
import time
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from django.contrib.auth.models import Group, User
from django.core.cache import cache
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from dashboard.accounts.sign_in import FREE_TRIES
from dashboard.models import AuditRow

pytestmark = pytest.mark.django_db

PASSWORD = "correct horse battery"


def code_of(secret: str, *, steps: int = 0) -> str:
    """What an authenticator app shows (RFC 6238), `steps` half-minutes from now."""
    key = base64.b32decode(secret + "=" * (-len(secret) % 8))
    counter = struct.pack(">Q", int(time.time() // 30) + steps)
    digest = hmac.new(key, counter, hashlib.sha1).digest()
    start = digest[-1] & 15
    return f"{(struct.unpack('>I', digest[start : start + 4])[0] & 0x7FFFFFFF) % 10**6:06}"


def wrong(secret: str) -> str:
    """A code that is not right at any moment near now."""
    right = {code_of(secret, steps=step) for step in range(-3, 4)}
    return next(code for code in map("{:06}".format, range(10)) if code not in right)


@pytest.fixture(autouse=True)
def olga(settings: Settings) -> User:
    cache.clear()  # it holds which codes were used
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    user = User.objects.create_user("olga", password=PASSWORD)
    user.groups.add(Group.objects.get(name="operator"))
    return user


def sign_in(client: Client, password: str = PASSWORD) -> HttpResponse:
    return client.post(
        reverse("account_login"), {"username": "olga", "password": password, "next": "/gates/"}
    )  # type: ignore[return-value]


def confirmed(client: Client) -> None:
    """Signed in, and the password asked for once more, as before every change."""
    sign_in(client)
    asked = client.get(reverse("mfa_activate_totp"))
    assert asked["Location"].startswith(reverse("account_reauthenticate"))
    assert client.post(asked["Location"], {"password": "wrong"}).status_code == 200
    assert client.post(asked["Location"], {"password": PASSWORD}).status_code in (200, 302)


def activate(client: Client) -> str:
    confirmed(client)
    page = client.get(reverse("mfa_activate_totp")).content.decode()
    assert "data:image/svg+xml;base64," in page
    found = re.search(r'id="authenticator_secret"[^>]*\svalue="([A-Z2-7]+)"', page)
    assert found is not None, page
    done = client.post(reverse("mfa_activate_totp"), {"code": code_of(found[1], steps=-1)})
    assert done.status_code == 302, done.content.decode()
    return found[1]


def test_the_password_alone_no_longer_signs_in_and_the_code_does() -> None:
    secret = activate(Client())
    client = Client()
    half = sign_in(client)
    assert half["Location"] == reverse("mfa_authenticate")
    assert client.get("/gates/").status_code == 302, "not in yet"
    assert not AuditRow.objects.filter(action="sign_in", outcome="done", after__contains="mfa").exists()
    refused = client.post(reverse("mfa_authenticate"), {"code": wrong(secret)})
    assert refused.status_code == 200
    assert "Incorrect code" in refused.content.decode()
    done = client.post(reverse("mfa_authenticate"), {"code": code_of(secret)})
    assert (done.status_code, done["Location"]) == (302, "/gates/")
    assert client.get("/access/").status_code == 200
    last = AuditRow.objects.order_by("-id").first()
    assert last is not None
    assert (last.actor, last.action, last.outcome) == ("olga", "sign_in", "done")
    assert "mfa" in last.after
    assert "password" in last.after


def test_the_code_that_set_it_up_opens_nothing(django_capture_on_commit_callbacks: Any) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        secret = activate(Client())
    client = Client()
    sign_in(client)
    used = client.post(reverse("mfa_authenticate"), {"code": code_of(secret, steps=-1)})
    assert used.status_code == 200
    assert client.post(reverse("mfa_authenticate"), {"code": code_of(secret)}).status_code == 302


def test_a_code_opens_once() -> None:
    secret = activate(Client())
    code = code_of(secret)
    for expected in (302, 200):
        client = Client()
        sign_in(client)
        assert client.post(reverse("mfa_authenticate"), {"code": code}).status_code == expected


def test_after_the_free_tries_even_the_right_one_has_to_wait_from_wherever() -> None:
    secret = activate(Client())
    client = Client()
    sign_in(client)
    for _ in range(FREE_TRIES):
        assert client.post(reverse("mfa_authenticate"), {"code": wrong(secret)}).status_code == 200
    other = Client(REMOTE_ADDR="10.9.9.9")
    sign_in(other)
    locked = other.post(reverse("mfa_authenticate"), {"code": code_of(secret)})
    assert locked.status_code == 429
    assert int(locked["Retry-After"]) <= 15
    assert "Wait" in locked.content.decode()
    assert other.get("/gates/").status_code == 302
    denied = AuditRow.objects.filter(action="sign_in", outcome="denied", actor="olga")
    assert denied.count() == FREE_TRIES + 1, "the wrong codes, and the wrong password while it was set up"


def test_a_recovery_code_opens_once() -> None:
    client = Client()
    activate(client)
    page = client.get(reverse("mfa_view_recovery_codes")).content.decode()
    found = re.search(r'<textarea[^>]*id="recovery_codes"[^>]*>([^<]+)<', page)
    assert found is not None, page
    code = found[1].split()[0]
    for expected in (302, 200):
        again = Client()
        sign_in(again)
        assert again.post(reverse("mfa_authenticate"), {"code": code}).status_code == expected


def test_the_secret_is_not_readable_in_the_database_and_in_no_audit(
    django_capture_on_commit_callbacks: Any,
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        secret = activate(Client())
    kept = str(list(Authenticator.objects.values())) + str(list(AuditRow.objects.values()))
    assert secret not in kept
    added = AuditRow.objects.filter(action="second_factor.add", outcome="done")
    assert {row.after for row in added} == {'{"type": "totp"}', '{"type": "recovery_codes"}'}


def test_taking_it_away_asks_for_a_code_first_after_a_while(settings: Settings) -> None:
    client = Client()
    secret = activate(client)
    settings.ACCOUNT_REAUTHENTICATION_TIMEOUT = 0
    asked = client.post(reverse("mfa_deactivate_totp"))
    assert "/accounts/" in asked["Location"]
    assert "confirm" in asked["Location"]
    settings.ACCOUNT_REAUTHENTICATION_TIMEOUT = 300
    assert client.post(reverse("mfa_reauthenticate"), {"code": wrong(secret)}).status_code == 200
    assert client.post(reverse("mfa_reauthenticate"), {"code": code_of(secret)}).status_code == 302
    assert Authenticator.objects.filter(type="totp").count() == 0 or (
        client.post(reverse("mfa_deactivate_totp")).status_code == 302
    )
    assert not Authenticator.objects.filter(type="totp").exists()
    assert AuditRow.objects.filter(action="second_factor.remove", outcome="done").exists()


@pytest.mark.parametrize("name", ["mfa_index", "mfa_activate_totp", "account_reauthenticate"])
def test_its_pages_keep_the_content_security_policy(name: str) -> None:
    client = Client()
    confirmed(client)
    answer = client.get(reverse(name))
    assert answer.status_code == 200
    assert "unsafe-inline" not in answer["Content-Security-Policy"]
    text = answer.content.decode()
    assert not re.search(r"<script(?![^>]* (src|type=\"application/json\"))", text)
    assert not re.search(r"\son[a-z]+=|style=", text)
    assert "plain-card" in text
