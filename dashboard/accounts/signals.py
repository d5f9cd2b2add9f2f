"""Connects what allauth reports of people's sign-ins and second factors to the audit log. Imported once Django is ready."""

from __future__ import annotations

from allauth.account.signals import user_logged_in
from allauth.mfa.signals import authenticator_added, authenticator_removed

from dashboard.accounts import kiosks, two_factor

user_logged_in.connect(two_factor.signed_in)
user_logged_in.connect(kiosks.end)
authenticator_added.connect(two_factor.factor_added)
authenticator_removed.connect(two_factor.factor_removed)
