"""Addresses."""

from __future__ import annotations

from django.urls import path, re_path

from dashboard.queues import views

urlpatterns = [
    path("queues/", views.queues, name="queues"),
    path("queues/<str:name>/", views.queue, name="queue"),
    path("queues/<str:name>/messages", views.peek, name="queue-messages"),
    path("queues/<str:name>/messages/retry", views.retry_messages, name="queue-messages-retry"),
    path("queues/<str:name>/messages/delete", views.delete_messages, name="queue-messages-delete"),
    path("queues/<str:name>/poison", views.poison_messages, name="queue-poison"),
    path("queues/<str:name>/poison/read", views.read_poison, name="queue-poison-read"),
    path("queues/<str:name>/poison/acts/<int:number>/abort", views.abort, name="queue-poison-abort"),
    path("queues/<str:name>/poison/<str:message_id>", views.poison_message, name="queue-poison-message"),
    path("queues/<str:name>/rule", views.rule, name="queue-rule"),
    re_path(r"^queues/(?P<name>[^/]+)/(?P<verb>put|requeue|clear|delete)$", views.do, name="queue-do"),
    path("several/queues/requeue", views.requeue_selected, name="queues-requeue"),
    path("several/queues/clear", views.clear_selected, name="queues-clear"),
]
