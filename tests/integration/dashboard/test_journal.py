"""The ends of the audit in the account: written by a running dashboard, compared by `audit verify`."""

from __future__ import annotations

import asyncio

import pytest

from coordinator import Storage
from coordinator.config import StorageConfig
from coordinator.journal import Journal
from tests.support.dashboard import Dashboard, Person, until


async def test_lines_are_added_and_never_replaced(connection_string: str, storage_prefix: str) -> None:
    config = StorageConfig(prefix=storage_prefix)
    async with Storage.from_connection_string(connection_string, config=config) as storage:
        journal = Journal(storage, "audit")
        assert await journal.lines() == []
        for part, line in (("2026-10", "a"), ("2026-11", "b"), ("2026-10", "c"), ("2026-11", "ä")):
            await journal.append(part, line)
        assert await journal.lines() == ["a", "c", "b", "ä"]
        assert await Journal(storage, "audit").lines() == ["a", "c", "b", "ä"]


@pytest.mark.timeout(240)
async def test_the_end_is_kept_by_itself_and_an_emptied_audit_is_found(own_dashboard: Dashboard) -> None:
    config = StorageConfig(prefix=own_dashboard.prefix)
    with Person(own_dashboard, "olga") as olga:
        assert olga.post("/gates/start-it/unleash").ok
    async with Storage.from_connection_string(own_dashboard.connection_string, config=config) as storage:
        kept: list[str] = []
        while not kept:
            await asyncio.sleep(0.5)
            kept = await Journal(storage, "audit").lines()
    assert await until(lambda: "1 ends kept" in own_dashboard.manage("audit", "verify"))
    own_dashboard.stop()
    own_dashboard.manage(
        code="from dashboard.models import AuditHead, AuditRow\nfrom dashboard.core import audit as audit\n"
        "from dashboard.core.permissions import Actor\n"
        "AuditRow.objects.all().delete()\nAuditHead.objects.update(last_id=0, digest='')\n"
        "audit.denied(Actor('otto', ''), 'sign_in', 'otto')"
    )
    with pytest.raises(AssertionError, match="the chain does not hold"):
        own_dashboard.manage("audit", "verify")
    assert "Not compared" in own_dashboard.manage("audit", "verify", "--without-storage")
