"""Scaling rules of queues: what is stored, and changing it while workers run. Blocking functions for threads."""

from __future__ import annotations

from typing import NamedTuple

from coordinator.config import check_name
from coordinator.errors import KennelError
from coordinator.queues.azure import BlobRules
from coordinator.queues.rules import ScalingRule, Steps, decode_rule, encode_rule
from dashboard.core.actions import audited
from dashboard.core.actor import Actor
from dashboard.core.storage import call, keep, look, storage


class StoredRule(NamedTuple):
    """The rule stored for a queue, None if its workers go by their own.

    `problem` says why it is not known, or, if it `is_known`, from before.
    """

    rule: ScalingRule | None = None
    problem: str = ""
    is_known: bool = True

    @property
    def kind(self) -> str:
        """ "steps", "target", "own" or "unknown"."""
        if not self.is_known:
            return "unknown"
        if self.rule is None:
            return "own"
        return "steps" if isinstance(self.rule, Steps) else "target"


def stored(queue: str) -> StoredRule:
    """What is stored now; one request."""
    try:
        check_name("queue", queue)
        seen = look(_key(queue), _read, queue)
    except KennelError as error:
        return StoredRule(problem=str(error), is_known=False)
    if seen.value is None:
        return StoredRule(problem=seen.problem, is_known=False)
    return StoredRule(seen.value[0], seen.problem)


async def _read(queue: str) -> tuple[ScalingRule | None]:
    found = await BlobRules(storage()).read(queue, "")
    return (found[0] if found is not None else None,)


def _key(queue: str) -> str:
    return f"rule {queue}"


def store(actor: Actor, queue: str, rule: ScalingRule | None, *, reason: str = "") -> None:
    """Put a rule in force for every listener of the queue, None for their own again; they follow within seconds.

    Raises `ActionFailed`; audited as ``queue.rule`` with the rule before and after.
    """
    with audited(actor, "queue.rule", queue, reason) as act:
        check_name("queue", queue)
        rules = BlobRules(storage())
        before = call(rules.read, queue, "")
        act.before = _told(before[0] if before is not None else None)
        if rule is None:
            call(rules.remove, queue)
            keep(_key(queue), (None,))
        else:
            checked = decode_rule(encode_rule(rule))

            async def write() -> None:
                await rules.write(queue, checked, by=actor.name)

            call(write)
            keep(_key(queue), (checked,))
        act.after = _told(rule)


def _told(rule: ScalingRule | None) -> str:
    return encode_rule(rule).decode() if rule is not None else '{"rule": "the workers\' own"}'
