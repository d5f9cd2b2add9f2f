"""Addresses of the pages and their actions."""

from __future__ import annotations

from django.urls import path, re_path

from dashboard.access import views as access
from dashboard.audit import views as audit
from dashboard.batches import views as batches
from dashboard.core import bulk as several
from dashboard.core import csv as export
from dashboard.core import exports as tables
from dashboard.cost import views as cost
from dashboard.gates import views as gates
from dashboard.leaders import views as leaders
from dashboard.live import graphs as history
from dashboard.overview import help, search
from dashboard.overview import views as overview
from dashboard.overview import wallboard as tv
from dashboard.queues import message_views as messages
from dashboard.queues import rule_views as rules
from dashboard.queues import views as queues
from dashboard.scaling import views as scaling
from dashboard.sequences import views as sequences
from dashboard.workers import views as workers

urlpatterns = [
    path("", overview.overview, name="overview"),
    path("gates/", gates.gates, name="gates"),
    path("gates/<str:name>/unleash", gates.unleash, name="gate-unleash"),
    path("gates/<str:name>/leash", gates.leash, name="gate-leash"),
    path("queues/", queues.queues, name="queues"),
    path("queues/<str:name>/", queues.queue, name="queue"),
    path("queues/<str:name>/messages", messages.messages, name="queue-messages"),
    path("queues/<str:name>/rule", rules.rule, name="queue-rule"),
    re_path(r"^queues/(?P<name>[^/]+)/(?P<verb>put|requeue|clear|delete)$", queues.do, name="queue-do"),
    path("workers/", workers.workers, name="workers"),
    re_path(r"^workers/(?P<instance>[^/]+)/(?P<verb>drain|resume|stop)$", workers.do, name="worker-do"),
    path("several/gates/unleash", several.unleash, name="gates-unleash"),
    path("several/workers/drain", several.drain, name="workers-drain"),
    path("several/workers/resume", several.resume, name="workers-resume"),
    path("several/workers/stop", several.stop, name="workers-stop"),
    path("several/queues/requeue", several.requeue, name="queues-requeue"),
    path("several/queues/clear", several.clear, name="queues-clear"),
    path("leaders/", leaders.leaders, name="leaders"),
    path("leaders/<str:name>/step-down", leaders.step_down, name="leader-step-down"),
    path("leaders/<str:name>/break", leaders.break_lease, name="leader-break"),
    path("sequences/", sequences.sequences, name="sequences"),
    path("batches/", batches.batches, name="batches"),
    path("batches/<str:pipeline>/<str:batch>/retry", batches.retry, name="batch-retry"),
    path("batches/<str:pipeline>/<str:batch>/cancel", batches.cancel, name="batch-cancel"),
    path("sagas/<str:saga>/<str:key>/retry", batches.free, name="saga-retry"),
    path("scaling/", scaling.scaling, name="scaling"),
    path("scaling/<str:pool>/policy", scaling.policy, name="scaling-policy"),
    path("cost/", cost.cost, name="cost"),
    path("cost/prices", cost.prices, name="cost-prices"),
    path("audit/", audit.audit, name="audit"),
    path("audit.csv", export.audit_csv, name="audit-csv"),
    path("ledger.csv", export.ledger_csv, name="ledger-csv"),
    re_path(r"^tables/(?P<name>[a-z]+)\.(?P<form>csv|json)$", tables.table, name="table"),
    path("access/", access.access, name="access"),
    path("access/tokens", access.create_token, name="token-create"),
    path("access/tokens/<int:token>/revoke", access.revoke_token, name="token-revoke"),
    path("access/sessions", access.end_sessions, name="sessions-end"),
    path("access/sessions/<int:session>/end", access.end_session, name="session-end"),
    path("access/rules", access.add_rule, name="team-rule"),
    path("access/rules/<int:rule>/remove", access.remove_rule, name="team-rule-remove"),
    path("access/members", access.set_member, name="team-member"),
    path("search/", search.search, name="search"),
    path("help/", help.help_page, name="help"),
    path("tv", tv.tv, name="tv"),
    path("history/", history.history, name="history"),
]
