"""The second factor as allauth keeps it, and what the audit records of it."""

from __future__ import annotations

import json
from typing import Any

from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.models import Authenticator
from django.http import HttpRequest

from dashboard.core import audit
from dashboard.core.permissions import Actor
from dashboard.core.sealing import seal, unseal
from dashboard.models import AuditOutcome


class MfaAdapter(DefaultMFAAdapter):  # type: ignore[misc]
    """Secrets of authenticators are encrypted with a key made of KENNEL_SECRET_KEY: the database alone opens nothing."""

    def encrypt(self, text: str) -> str:
        return seal("second factor", text)

    def decrypt(self, encrypted_text: str) -> str:
        return unseal("second factor", encrypted_text)


def signed_in(request: HttpRequest, user: Any, **_: Any) -> None:
    """Somebody is in, by all the factors they have: written to the audit."""
    how = [record["method"] for record in request.session.get("account_authentication_methods", ())]
    _audit(request, "sign_in", {"by": how})


def factor_added(request: HttpRequest, user: Any, authenticator: Any, **_: Any) -> None:
    """Written to the audit. The code that proved an authenticator counts as used: it opens nothing again."""
    if authenticator.type == Authenticator.Type.TOTP:
        authenticator.wrap().validate_code(request.POST.get("code", ""))
    _audit(request, "second_factor.add", {"type": str(authenticator.type)})


def factor_removed(request: HttpRequest, user: Any, authenticator: Any, **_: Any) -> None:
    _audit(request, "second_factor.remove", {"type": str(authenticator.type)})


def _audit(request: HttpRequest, action: str, after: dict[str, Any]) -> None:
    actor = Actor.from_request(request)
    row = audit.intent(actor, action, actor.name)
    audit.outcome(row, AuditOutcome.DONE, after=json.dumps(after))
