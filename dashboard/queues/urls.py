"""Addresses."""

from __future__ import annotations

from django.urls import path, re_path

from dashboard.core import bulk
from dashboard.queues import message_views, rule_views, views

urlpatterns = [
    path("queues/", views.queues, name="queues"),
    path("queues/<str:name>/", views.queue, name="queue"),
    path("queues/<str:name>/messages", message_views.messages, name="queue-messages"),
    path("queues/<str:name>/rule", rule_views.rule, name="queue-rule"),
    re_path(r"^queues/(?P<name>[^/]+)/(?P<verb>put|requeue|clear|delete)$", views.do, name="queue-do"),
    path("several/queues/requeue", bulk.requeue, name="queues-requeue"),
    path("several/queues/clear", bulk.clear, name="queues-clear"),
]
