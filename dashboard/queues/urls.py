"""Addresses."""

from __future__ import annotations

from django.urls import path, re_path

from dashboard.pages import bulk
from dashboard.queues import views

urlpatterns = [
    path("queues/", views.queues, name="queues"),
    path("queues/<str:name>/", views.queue, name="queue"),
    path("queues/<str:name>/messages", views.peek, name="queue-messages"),
    path("queues/<str:name>/rule", views.rule, name="queue-rule"),
    re_path(r"^queues/(?P<name>[^/]+)/(?P<verb>put|requeue|clear|delete)$", views.do, name="queue-do"),
    path("several/queues/requeue", bulk.requeue, name="queues-requeue"),
    path("several/queues/clear", bulk.clear, name="queues-clear"),
]
