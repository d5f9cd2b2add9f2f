"""Rows of decisions that another program wrote: each costs itself, and the others are read."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.errors import ConfigurationError, KennelError
from coordinator.scaling import azure
from coordinator.scaling.history import CHANGE, LATEST, ScalingHistory
from coordinator.scaling.policy import ScalingPolicy
from coordinator.tables.operations import Insert
from coordinator.tables.table import Table
from coordinator.testing.clock import ManualClock
from coordinator.testing.storage import MemoryStorage
from coordinator.testing.tables import MemoryTableStore

GOOD: dict[str, Any] = {
    "at": 1e9,
    "by": "node",
    "epoch": 1,
    "wanted": 3,
    "previous": 0,
    "actual": 2,
    "reason": "3000 to do",
    "seen": '{"at": 1e9, "actual": 2, "visible": 3000, "invisible": 0}',
    "memory": "{}",
}
ODD = (
    *({"at": 1e300}, {"at": float("nan")}, {"epoch": "x"}, {"wanted": float("inf")}, {"wanted": -1}),
    *({"previous": 10**18}, {"actual": b"x"}, {"by": 5}, {"reason": True}, {"seen": 5}, {"memory": "{"}),
    {"usage": '{"day": 1e300, "at": 0}'},
)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    made = Table(MemoryTableStore("scaling", clock=ManualClock()))
    monkeypatch.setattr(azure, "make_table", lambda storage, name: made)
    return made


@pytest.mark.parametrize("odd", ODD, ids=str)
async def test_an_odd_decision_hides_no_other(table: Table, odd: dict[str, Any]) -> None:
    await table.write(Insert(("orders", LATEST), GOOD))
    await table.write(Insert(("a-odd", LATEST), GOOD | odd))
    await table.write(Insert(("orders", f"{CHANGE}1"), GOOD | odd))
    await table.write(Insert(("orders", f"{CHANGE}2"), GOOD))
    told: list[str] = []
    storage: Any = MemoryStorage()
    assert [each.pool for each in await azure.list_scaling(storage, odd=told.append)] == ["orders"]
    changes = await ScalingHistory(table, "orders").changes(odd=told.append)
    assert [each.wanted for each in changes] == [3]
    assert len(told) == 2 and all("unreadable" in each for each in told)
    with pytest.raises(KennelError, match="unreadable"):
        await ScalingHistory(table, "a-odd").latest()


@pytest.mark.parametrize("odd", [{}, {"policy": 5}, {"policy": "{"}], ids=str)
async def test_an_odd_policy_says_so_and_is_replaced(table: Table, odd: dict[str, Any]) -> None:
    await table.write(Insert(("orders", azure.POLICY), odd))
    storage: Any = MemoryStorage()
    with pytest.raises(ConfigurationError, match="not a scaling policy"):
        await azure.read_policy(storage, "orders")
    assert await azure.save_policy(storage, "orders", ScalingPolicy(maximum=7), by="olga") is None
    stored = await azure.read_policy(storage, "orders")
    assert stored is not None and stored.maximum == 7
