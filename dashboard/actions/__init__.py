"""Every write that people make through the dashboard. Each is one call: permission, audit intent, act, audit outcome.

Blocking functions for threads; storage is reached through the process's one event loop. Each raises `ActionFailed`
with what to tell the person, `Denied` if they may not (the attempt is in the audit).
"""

from dashboard.actions.acting import ActionFailed, Actor, Denied, audited
from dashboard.actions.batches import cancel_batch, free_saga, retry_batch
from dashboard.actions.cost import reset_prices, set_prices
from dashboard.actions.fleet import break_lease, step_down, worker_command
from dashboard.actions.gates import create_gate, leash, unleash
from dashboard.actions.named import by_name
from dashboard.actions.people import end_session, end_sessions
from dashboard.actions.queues import clear_queue, create_queue, delete_queue, put_message, requeue_poison
from dashboard.actions.retention import prune_audit
from dashboard.actions.teams import add_rule, remove_rule, set_member
from dashboard.actions.tokens import create_token, revoke_token

__all__ = [
    "ActionFailed", "Actor", "Denied", "add_rule", "audited", "break_lease", "by_name", "cancel_batch", "clear_queue", "create_gate", "create_queue",
    "create_token",
    "delete_queue", "end_session", "end_sessions", "free_saga", "leash", "prune_audit", "put_message", "remove_rule", "requeue_poison", "reset_prices", "retry_batch", "revoke_token", "set_member", "set_prices", "step_down", "unleash", "worker_command",
]  # fmt: skip
