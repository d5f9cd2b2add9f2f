"""Addresses."""

from __future__ import annotations

from django.urls import path, re_path

from dashboard.pages import bulk
from dashboard.workers import views

urlpatterns = [
    path("workers/", views.workers, name="workers"),
    re_path(r"^workers/(?P<instance>[^/]+)/(?P<verb>drain|resume|stop)$", views.do, name="worker-do"),
    path("several/workers/drain", bulk.drain, name="workers-drain"),
    path("several/workers/resume", bulk.resume, name="workers-resume"),
    path("several/workers/stop", bulk.stop, name="workers-stop"),
]
