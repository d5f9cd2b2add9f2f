"""Azurite for tests."""

from __future__ import annotations

from coordinator.testing.azurite import Azurite, AzuriteMissing

from .parts import missing


def started_azurite() -> Azurite:
    """A new Azurite with nothing in it, answering. The caller stops it."""
    try:
        return Azurite().start()
    except AzuriteMissing as error:
        missing("Azurite", str(error))
