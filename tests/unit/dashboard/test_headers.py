"""What every answer says to the browser: run no scripts of others, frame no page, keep to the type, tell other sites nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from tests.support.readme import PROJECT

PRINT_SECURE = """
import django, json
django.setup()
from django.conf import settings as s
names = ("SESSION_COOKIE_SECURE", "CSRF_COOKIE_SECURE", "SESSION_COOKIE_HTTPONLY", "SESSION_COOKIE_SAMESITE", "SECURE_HSTS_SECONDS")
print(json.dumps({name: getattr(s, name) for name in names}))
"""


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("who", "path", "status"),
    [
        ("", "/accounts/login/", 200),
        ("", "/nowhere/", 404),
        ("", "/api/v1/gates", 401),
        ("olga", "/gates/", 200),
        ("olga", "/queues/orders-in/clear", 403),
        ("olga", "/tables/gates.csv", 200),
    ],
)
def test_every_answer_forbids_frames_foreign_scripts_and_guessed_types(
    client: Client, who: str, path: str, status: int
) -> None:
    if who:
        user = User.objects.create_user(who)
        user.groups.add(Group.objects.get(name="operator"))
        client.force_login(user)
    answer = client.get(path)
    assert answer.status_code == status
    policy = dict(each.split(" ", 1) for each in answer["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["object-src"] == policy["base-uri"] == "'none'"
    assert "unsafe" not in answer["Content-Security-Policy"]
    assert answer["X-Frame-Options"] == "DENY"
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert answer["Referrer-Policy"] == "same-origin"


def test_with_tls_cookies_travel_by_it_alone_and_browsers_keep_to_it() -> None:
    env = {
        **{key: value for key, value in os.environ.items() if not key.startswith("KENNEL_")},
        "KENNEL_HTTPS": "1", "KENNEL_SECRET_KEY": "0123456789abcdef" * 4, "DJANGO_SETTINGS_MODULE": "dashboard.settings",
        "PYTHONPATH": str(PROJECT),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", PRINT_SECURE], env=env, capture_output=True, text=True, check=True, timeout=60
    )
    told = json.loads(done.stdout)
    assert told.pop("SECURE_HSTS_SECONDS") >= 180 * 86_400
    assert told.pop("SESSION_COOKIE_SAMESITE") == "Lax"
    assert set(told.values()) == {True}
