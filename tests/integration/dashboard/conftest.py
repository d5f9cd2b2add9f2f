"""A running dashboard for the tests of this folder."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.testing.azurite import Azurite
from tests.support.dashboard import Dashboard


@pytest.fixture(scope="module")
def dashboard(azurite: Azurite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """Shared by the tests of a module: don't stop it."""
    prefix = f"t{secrets.token_hex(5)}-"
    with Dashboard(tmp_path_factory.mktemp("dashboard"), azurite.connection_string, prefix) as running:
        yield running


@pytest.fixture
def own_dashboard(tmp_path: Path, connection_string: str, storage_prefix: str) -> Iterator[Dashboard]:
    """A dashboard for this test alone, to stop and start as it likes."""
    with Dashboard(tmp_path, connection_string, storage_prefix) as running:
        yield running
