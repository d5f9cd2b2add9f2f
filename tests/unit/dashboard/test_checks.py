"""Promises of the start-up checks."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from pytest_django import Settings

from dashboard.core.checks import problems, refuse_unsafe

SAFE: dict[str, Any] = {
    "DEBUG": False,
    "SECRET_KEY_GIVEN": True,
    "ALLOWED_HOSTS": ["kennel.example.org"],
    "HTTPS": True,
    "FORWARDED_ALLOW_IPS": "10.0.0.7",
    "SECRET_KEY": "0123456789abcdef" * 4,
    "PROCESSES": 1,
    "REDIS_URL": "",
    "STORAGE_ENV": {"AZURE_STORAGE_ACCOUNT_URL": "https://x.blob.core.windows.net"},
    "AUDIT_DAYS": 0.0,
    "OIDC": {"url": "", "client_id": "", "secret": ""},
}


def configure(settings: Settings, **changed: Any) -> None:
    for name, value in {**SAFE, **changed}.items():
        setattr(settings, name, value)


def test_safe_settings_are_let_through(settings: Settings) -> None:
    configure(settings)
    refuse_unsafe()


@pytest.mark.parametrize(
    ("changed", "number", "remedy"),
    [
        ({"SECRET_KEY_GIVEN": False}, "kennel.E001", "long random text"),
        ({"DEBUG": True}, "kennel.E002", "Unset DEBUG"),
        ({"ALLOWED_HOSTS": ["*"]}, "kennel.E003", "Name the hosts"),
        ({"PROCESSES": 2}, "kennel.E004", "REDIS_URL"),
        ({"STORAGE_ENV": {}}, "kennel.E005", "AZURE_STORAGE_CONNECTION_STRING"),
        ({"SECOND_FACTOR_ROLES": frozenset({"boss"})}, "kennel.E017", "viewer, operator, admin"),
        ({"SECRET_KEY": "x"}, "kennel.E012", "openssl rand"),
        ({"SECRET_KEY": "0123456789abcdef0123456789abcde"}, "kennel.E012", "at least 32"),
        ({"SECRET_KEY": "ab" * 40}, "kennel.E012", "random characters"),
        ({"HTTPS": False}, "kennel.E013", "KENNEL_HTTPS=1"),
        ({"HTTPS": False, "ALLOWED_HOSTS": ["localhost", "20.1.2.3"]}, "kennel.E013", "proxy with TLS"),
        ({"HTTPS": False, "ALLOWED_HOSTS": [".example.org"]}, "kennel.E013", "proxy with TLS"),
        ({"FORWARDED_ALLOW_IPS": "*"}, "kennel.E014", "of your proxy"),
        ({"FORWARDED_ALLOW_IPS": "10.0.0.7,*"}, "kennel.E014", "of your proxy"),
        ({"AUDIT_DAYS": 0.5}, "kennel.E006", "unset it to keep all"),
        ({"OIDC": {"url": "https://x.example", "client_id": "k", "secret": ""}}, "kennel.E007", "set both"),
        ({"PRICES": '{"queue": "dear"}'}, "kennel.E009", "KENNEL_PRICES"),
        ({"WEBHOOKS": ["https://x.example/"], "WEBHOOK_SECRET": "short"}, "kennel.E010", "receivers know"),
        ({"WEBHOOKS": ["x.example"], "WEBHOOK_SECRET": "long " * 9}, "kennel.E011", "https://HOST/PATH"),
        ({"DAILY_BUDGET": -1.0}, "kennel.E009", "KENNEL_DAILY_BUDGET"),
        (
            {"OIDC": {"url": "http://x.example", "client_id": "k", "secret": "s"}},
            "kennel.E008",
            "https address",
        ),
    ],
)
def test_each_unsafe_setting_is_refused_with_its_remedy(
    settings: Settings, changed: dict[str, Any], number: str, remedy: str
) -> None:
    configure(settings, **changed)
    assert [problem.id for problem in problems()] == [number]
    with pytest.raises(ImproperlyConfigured, match=remedy):
        refuse_unsafe()


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "[::1]", "dashboard-1", "10.1.2.3", "kennel.kennel.svc"]
)
def test_a_host_of_this_machine_or_of_a_network_of_containers_needs_no_tls(
    settings: Settings, host: str
) -> None:
    configure(settings, HTTPS=False, ALLOWED_HOSTS=[host])
    assert problems() == []


def test_development_on_this_machine_needs_no_key(settings: Settings) -> None:
    configure(settings, DEBUG=True, SECRET_KEY_GIVEN=False, ALLOWED_HOSTS=["127.0.0.1"])
    assert problems() == []
