"""Addresses of the pages and their actions."""

from __future__ import annotations

from django.urls import path, re_path

from dashboard.pages import (
    access,
    audit,
    cost,
    export,
    gates,
    help,
    history,
    leaders,
    overview,
    queues,
    rules,
    scaling,
    search,
    sequences,
    tv,
    workers,
)

urlpatterns = [
    path("", overview.overview, name="overview"),
    path("gates/", gates.gates, name="gates"),
    path("gates/<str:name>/unleash", gates.unleash, name="gate-unleash"),
    path("gates/<str:name>/leash", gates.leash, name="gate-leash"),
    path("queues/", queues.queues, name="queues"),
    path("queues/<str:name>/", queues.queue, name="queue"),
    path("queues/<str:name>/rule", rules.rule, name="queue-rule"),
    re_path(r"^queues/(?P<name>[^/]+)/(?P<verb>put|requeue|clear|delete)$", queues.do, name="queue-do"),
    path("workers/", workers.workers, name="workers"),
    re_path(r"^workers/(?P<instance>[^/]+)/(?P<verb>drain|resume|stop)$", workers.do, name="worker-do"),
    path("leaders/", leaders.leaders, name="leaders"),
    path("leaders/<str:name>/step-down", leaders.step_down, name="leader-step-down"),
    path("leaders/<str:name>/break", leaders.break_lease, name="leader-break"),
    path("sequences/", sequences.sequences, name="sequences"),
    path("scaling/", scaling.scaling, name="scaling"),
    path("scaling/<str:pool>/policy", scaling.policy, name="scaling-policy"),
    path("cost/", cost.cost, name="cost"),
    path("audit/", audit.audit, name="audit"),
    path("audit.csv", export.audit_csv, name="audit-csv"),
    path("ledger.csv", export.ledger_csv, name="ledger-csv"),
    path("access/", access.access, name="access"),
    path("access/tokens", access.create_token, name="token-create"),
    path("access/tokens/<int:token>/revoke", access.revoke_token, name="token-revoke"),
    path("access/rules", access.add_rule, name="team-rule"),
    path("access/rules/<int:rule>/remove", access.remove_rule, name="team-rule-remove"),
    path("access/members", access.set_member, name="team-member"),
    path("search/", search.search, name="search"),
    path("help/", help.help_page, name="help"),
    path("tv", tv.tv, name="tv"),
    path("history/", history.history, name="history"),
]
