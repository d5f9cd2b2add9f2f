"""Passwords with few rounds: a test signs in some hundred times, and each time would take a third of a second."""

from __future__ import annotations

from dashboard.accounts.hashing import PooledHasher


class QuickHasher(PooledHasher):
    iterations = 1000
