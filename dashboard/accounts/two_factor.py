"""The second factor as allauth keeps it, and what the audit records of it."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from allauth.mfa.adapter import DefaultMFAAdapter
from cryptography.fernet import Fernet
from django.conf import settings
from django.http import HttpRequest

from dashboard.core import audit
from dashboard.core.permissions import Actor
from dashboard.models import Outcome


class MfaAdapter(DefaultMFAAdapter):  # type: ignore[misc]
    """Secrets of authenticators are encrypted with a key made of KENNEL_SECRET_KEY: the database alone opens nothing."""

    def encrypt(self, text: str) -> str:
        return _box().encrypt(text.encode()).decode()

    def decrypt(self, encrypted_text: str) -> str:
        return _box().decrypt(encrypted_text.encode()).decode()


def _box() -> Fernet:
    key = hashlib.sha256(b"kennel second factor\0" + settings.SECRET_KEY.encode()).digest()
    return Fernet(base64.urlsafe_b64encode(key))


def signed_in(request: HttpRequest, user: Any, **_: Any) -> None:
    """Somebody is in, by all the factors they have: written to the audit."""
    how = [record["method"] for record in request.session.get("account_authentication_methods", ())]
    _tell(request, "sign_in", {"by": how})


def factor_added(request: HttpRequest, user: Any, authenticator: Any, **_: Any) -> None:
    _tell(request, "second_factor.add", {"type": str(authenticator.type)})


def factor_removed(request: HttpRequest, user: Any, authenticator: Any, **_: Any) -> None:
    _tell(request, "second_factor.remove", {"type": str(authenticator.type)})


def _tell(request: HttpRequest, action: str, after: dict[str, Any]) -> None:
    actor = Actor.from_request(request)
    row = audit.intent(actor, action, actor.name)
    audit.outcome(row, Outcome.DONE, after=json.dumps(after))
