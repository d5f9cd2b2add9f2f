"""Addresses."""

from __future__ import annotations

from django.urls import path, re_path

from dashboard.workers import views

urlpatterns = [
    path("workers/", views.workers, name="workers"),
    re_path(r"^workers/(?P<instance>[^/]+)/(?P<verb>drain|resume|stop)$", views.do, name="worker-do"),
    path("several/workers/drain", views.drain_selected, name="workers-drain"),
    path("several/workers/resume", views.resume_selected, name="workers-resume"),
    path("several/workers/stop", views.stop_selected, name="workers-stop"),
]
