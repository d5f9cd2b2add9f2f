"""Refuses to serve with settings that are unsafe or cannot work, naming the remedy."""

from __future__ import annotations

import ipaddress
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, register
from django.core.exceptions import ImproperlyConfigured

from coordinator.errors import ConfigurationError
from dashboard.core import prices as pricing
from dashboard.core.permissions import ROLES

MIN_KEY, MIN_DIFFERENT = 32, 8
# Names that no public resolver answers for.
PRIVATE_ENDS = (".local", ".internal", ".localhost", ".test", ".lan", ".home.arpa", ".svc")
LOCAL_HOSTS = {"localhost", "127.0.0.1", "[::1]", "testserver"}


def problems() -> list[CheckMessage]:
    """The settings that are unsafe to serve with; empty if there is none."""
    found: list[CheckMessage] = []

    def error(number: int, message: str, hint: str) -> None:
        found.append(Error(message, hint=hint, id=f"kennel.E{number:03}"))

    if not settings.DEBUG and not settings.SECRET_KEY_GIVEN:
        error(1, "KENNEL_SECRET_KEY is not set.", "Set it to a long random text, the same for all processes.")
    if not settings.DEBUG and settings.SECRET_KEY_GIVEN and not _is_strong(settings.SECRET_KEY):
        error(
            12,
            "KENNEL_SECRET_KEY can be guessed: it signs sessions, and guessing it is signing in as anybody.",
            f"Set it to at least {MIN_KEY} random characters, such as those of `openssl rand -hex 32`.",
        )
    public = [host for host in settings.ALLOWED_HOSTS if _is_public(host)]
    if public and not settings.DEBUG and not settings.HTTPS:
        error(
            13,
            f"ALLOWED_HOSTS names {public[0]}, and KENNEL_HTTPS is not set: passwords would cross the network readable.",
            "Put a proxy with TLS before it, and set KENNEL_HTTPS=1.",
        )
    if "*" in settings.FORWARDED_ALLOW_IPS:
        error(
            14,
            "FORWARDED_ALLOW_IPS believes everybody: whoever reaches the port could claim any address.",
            "Name the addresses or networks of your proxy.",
        )
    if settings.DEBUG and not set(settings.ALLOWED_HOSTS) <= LOCAL_HOSTS:
        error(2, "DEBUG is on while ALLOWED_HOSTS names other machines.", "Unset DEBUG.")
    if "*" in settings.ALLOWED_HOSTS:
        error(3, "ALLOWED_HOSTS allows every host name.", "Name the hosts that people use.")
    try:
        pricing.parsed(settings.PRICES, settings.DAILY_BUDGET)
    except ConfigurationError as wrong:
        error(9, f"What requests cost is not known: {wrong}.", "Fix KENNEL_PRICES or KENNEL_DAILY_BUDGET.")
    if settings.PROCESSES > 1 and not settings.REDIS_URL:
        error(
            4,
            f"{settings.PROCESSES} processes without REDIS_URL would not hear of each other.",
            "Set REDIS_URL, or KENNEL_PROCESSES=1.",
        )
    if not settings.STORAGE_ENV.get("AZURE_STORAGE_CONNECTION_STRING") and not settings.STORAGE_ENV.get(
        "AZURE_STORAGE_ACCOUNT_URL"
    ):
        error(
            5,
            "No storage account is named.",
            "Set AZURE_STORAGE_CONNECTION_STRING or AZURE_STORAGE_ACCOUNT_URL.",
        )
    if settings.AUDIT_KEY and not _is_strong(settings.AUDIT_KEY):
        error(
            15,
            "KENNEL_AUDIT_KEY can be guessed: the ends of the audit could be made up.",
            f"Set it to at least {MIN_KEY} random characters, such as those of `openssl rand -hex 32`.",
        )
    if settings.AUDIT_SYSLOG and not settings.AUDIT_SYSLOG.startswith(("udp://", "/")):
        error(
            16,
            "KENNEL_AUDIT_SYSLOG is neither udp://HOST:PORT nor the path of a socket.",
            "Write it as one of these.",
        )
    if settings.AUDIT_DAYS and settings.AUDIT_DAYS < 1:
        error(
            6,
            f"KENNEL_AUDIT_DAYS is {settings.AUDIT_DAYS:g}; the audit is kept for at least 1 day.",
            "Set it to the days that you must be able to account for, or unset it to keep all.",
        )
    if settings.OIDC["url"]:
        parts = urlsplit(settings.OIDC["url"])
        if not settings.OIDC["client_id"] or not settings.OIDC["secret"]:
            error(
                7,
                "KENNEL_OIDC_URL is set without KENNEL_OIDC_CLIENT_ID and KENNEL_OIDC_SECRET.",
                "Register Kennel with the provider and set both, or unset KENNEL_OIDC_URL.",
            )
        if parts.scheme != "https" and parts.hostname not in ("localhost", "127.0.0.1"):
            error(
                8,
                "KENNEL_OIDC_URL is not an https address: who is on the way could be anybody.",
                "Use the provider's https address.",
            )
    unknown = [
        role
        for role in (*settings.OIDC.get("groups", {}).values(), *settings.SECOND_FACTOR_ROLES)
        if role not in ROLES
    ]
    if unknown:
        error(
            17,
            f"KENNEL_OIDC_GROUPS or KENNEL_SECOND_FACTOR_ROLES names {unknown[0]!r}, which is no role.",
            f"Roles are {', '.join(ROLES)}.",
        )
    if settings.WEBHOOKS and len(settings.WEBHOOK_SECRET) < 16:
        error(
            10,
            "KENNEL_WEBHOOKS is set without KENNEL_WEBHOOK_SECRET, or with one of less than 16 characters.",
            "Set it to a long random text that the receivers know, too.",
        )
    if any(
        urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname
        for url in settings.WEBHOOKS
    ):
        error(11, "KENNEL_WEBHOOKS names what is no http(s) address.", "Write them as https://HOST/PATH.")
    return found


def _is_strong(key: str) -> bool:
    return len(key) >= MIN_KEY and len(set(key)) >= MIN_DIFFERENT and not key.startswith("development-only-")


def _is_public(host: str) -> bool:
    """Whether people reach it over more than this machine or a network of containers."""
    name = host.strip("[]").lstrip(".").lower()
    try:
        return not ipaddress.ip_address(name).is_private
    except ValueError:
        return "." in name and not name.endswith(PRIVATE_ENDS)


@register(Tags.security, deploy=True)
def deployment(**_: Any) -> list[CheckMessage]:
    """The same problems for `manage.py check --deploy`."""
    return problems()


def refuse_unsafe() -> None:
    """Raise `ImproperlyConfigured` with every problem and its remedy, if there is any."""
    found = problems()
    if found:
        raise ImproperlyConfigured("; ".join(f"{p.msg} {p.hint} ({p.id})" for p in found))
