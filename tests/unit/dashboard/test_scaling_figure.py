"""The figure that external scalers follow: with a token, and never an old one."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from coordinator.scaling.azure import ScalingFigure
from dashboard.core import tokens
from dashboard.models import Scope
from dashboard.scaling import queries

pytestmark = pytest.mark.django_db


def ask(client: Client, pool: str, **headers: str) -> tuple[int, Any]:
    answer = client.get(f"/api/v1/scaling/{pool}/figure", headers=headers)
    return answer.status_code, answer.json()


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[ScalingFigure | None, str]]:
    found: dict[str, tuple[ScalingFigure | None, str]] = {}
    monkeypatch.setattr(queries, "figure", lambda pool: found.get(pool, (None, "")))
    return found


def test_a_token_reads_the_figure_and_its_age(
    client: Client, figures: dict[str, tuple[ScalingFigure | None, str]]
) -> None:
    figures["orders"] = ScalingFigure("orders", 7, 4.2), ""
    token = tokens.create("keda", scope=Scope.ACT, role="viewer")
    status, body = ask(client, "orders", Authorization=f"Bearer {token}")
    assert (status, body) == (200, {"wanted": 7, "age_seconds": 4.2})
    assert ask(client, "orders")[0] == 401
    assert ask(client, "orders", Authorization="Bearer kw_nonsense")[0] == 401


def test_what_is_old_unknown_or_unreadable_is_no_figure(
    client: Client, figures: dict[str, tuple[ScalingFigure | None, str]]
) -> None:
    bearer = f"Bearer {tokens.create('keda', scope=Scope.ACT, role='viewer')}"
    figures["old"] = ScalingFigure("old", 7, 121.0), ""
    figures["away"] = None, "storage did not answer in time"
    status, body = ask(client, "old", Authorization=bearer)
    assert (status, "121 s old" in body["detail"]) == (503, True)
    assert ask(client, "away", Authorization=bearer)[0] == 503
    assert ask(client, "none", Authorization=bearer)[0] == 404
