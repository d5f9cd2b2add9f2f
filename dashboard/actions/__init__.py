"""Every write that people make through the dashboard. Each is one call: permission, audit intent, act, audit outcome.

Blocking functions for threads; storage is reached through the process's one event loop. Each raises `ActionFailed`
with what to tell the person, `Denied` if they may not (the attempt is in the audit).
"""

from dashboard.access.people_actions import end_session, end_sessions
from dashboard.access.team_actions import add_rule, remove_rule, set_member
from dashboard.access.token_actions import create_token, revoke_token
from dashboard.audit.actions import prune_audit
from dashboard.batches.actions import cancel_batch, free_saga, retry_batch
from dashboard.core.actions import ActionFailed, Actor, Denied, audited
from dashboard.core.dispatch import by_name
from dashboard.cost.actions import reset_prices, set_prices
from dashboard.gates.actions import create_gate, leash, unleash
from dashboard.queues.actions import clear_queue, create_queue, delete_queue, put_message, requeue_poison
from dashboard.workers.actions import break_lease, step_down, worker_command

__all__ = [
    "ActionFailed", "Actor", "Denied", "add_rule", "audited", "break_lease", "by_name", "cancel_batch", "clear_queue", "create_gate", "create_queue",
    "create_token",
    "delete_queue", "end_session", "end_sessions", "free_saga", "leash", "prune_audit", "put_message", "remove_rule", "requeue_poison", "reset_prices", "retry_batch", "revoke_token", "set_member", "set_prices", "step_down", "unleash", "worker_command",
]  # fmt: skip
