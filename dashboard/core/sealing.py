"""Secrets as the database keeps them: encrypted with a key made of KENNEL_SECRET_KEY, so that the database alone opens nothing."""

from __future__ import annotations

import base64
import hashlib

from cryptography.fernet import Fernet, InvalidToken
from django.conf import settings


class Unreadable(Exception):
    """It was sealed under another KENNEL_SECRET_KEY, or damaged."""


def seal(purpose: str, text: str) -> str:
    """The text, encrypted for that purpose alone."""
    return _box(purpose).encrypt(text.encode()).decode()


def unseal(purpose: str, sealed: str) -> str:
    """What was sealed; raises `Unreadable`."""
    try:
        return _box(purpose).decrypt(sealed.encode()).decode()
    except InvalidToken as error:
        raise Unreadable("it was saved under another KENNEL_SECRET_KEY") from error


def _box(purpose: str) -> Fernet:
    key = hashlib.sha256(f"kennel {purpose}\0".encode() + settings.SECRET_KEY.encode()).digest()
    return Fernet(base64.urlsafe_b64encode(key))
