"""Which pages may open a browser's socket."""

from __future__ import annotations

import pytest
from pytest_django import Settings

from dashboard.hub.routing import is_ours

HOST = "kennel.example.org"


@pytest.fixture(autouse=True)
def hosts(settings: Settings) -> None:
    settings.ALLOWED_HOSTS = [HOST, "localhost", "127.0.0.1"]
    settings.CSRF_TRUSTED_ORIGINS = ["https://ops.example.org:8443", "https://*.teams.example.org"]


@pytest.mark.parametrize(
    ("origin", "host", "is_secure"),
    [
        (f"https://{HOST}", HOST, True),
        (f"http://{HOST}:8000", f"{HOST}:8000", False),
        ("http://127.0.0.1:8000", "127.0.0.1:8000", False),
        ("https://ops.example.org:8443", HOST, True),
        ("https://a.teams.example.org", HOST, True),
    ],
)
def test_a_page_of_ours_may(origin: str, host: str, is_secure: bool) -> None:
    assert is_ours(origin, host, is_secure=is_secure)


@pytest.mark.parametrize(
    ("origin", "host", "is_secure"),
    [
        (f"http://{HOST}", HOST, True),
        (f"https://{HOST}", HOST, False),
        (f"https://{HOST}:8443", HOST, True),
        ("http://127.0.0.1:9000", "127.0.0.1:8000", False),
        ("http://localhost:8000", "127.0.0.1:8000", False),
        ("https://evil.example", "evil.example", True),
        (f"https://evil.example/{HOST}", HOST, True),
        ("https://ops.example.org", HOST, True),
        ("http://ops.example.org:8443", HOST, True),
        ("https://teams.example.org.evil.example", HOST, True),
        ("null", HOST, True),
        ("", HOST, True),
        ("", "", True),
    ],
)
def test_no_page_of_another_scheme_host_or_port_may(origin: str, host: str, is_secure: bool) -> None:
    assert not is_ours(origin, host, is_secure=is_secure)
