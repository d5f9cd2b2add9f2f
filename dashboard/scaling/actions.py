"""Changing the policy of a pool."""

from __future__ import annotations

import msgspec

from coordinator.config import check_name
from coordinator.errors import ConfigurationError
from coordinator.scaling.azure import save_policy
from coordinator.scaling.policy import ScalingPolicy, decode_policy
from dashboard.core.audit import ActionFailed, audited
from dashboard.core.permissions import Actor
from dashboard.hub.runtime import call, current, keep, storage


def store_policy(actor: Actor, pool: str, text: str, *, reason: str = "") -> None:
    """Save a policy (JSON) for a pool; its agent follows at its next turn. Raises `ActionFailed`."""
    with audited(actor, "scaling.policy", pool, reason) as act:
        check_name("pool", pool)
        try:
            policy = decode_policy(text)
        except ConfigurationError as error:
            raise ActionFailed(f"The policy was not changed: {error}.") from error

        async def save() -> ScalingPolicy | None:
            return await save_policy(storage(), pool, policy, by=actor.name)

        before = call(save)
        keep(f"policy {pool}", policy)
        act.before = msgspec.json.encode(before).decode() if before else ""
        act.after = msgspec.json.encode(policy).decode()
        current().look_again()
