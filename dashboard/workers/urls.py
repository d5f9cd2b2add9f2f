"""Addresses."""

from __future__ import annotations

from django.urls import path, re_path

from dashboard.workers import views
from dashboard.workers.actions import COMMANDS

urlpatterns = [
    path("workers/", views.workers, name="workers"),
    path("workers/<str:instance>/", views.worker, name="worker"),
    re_path(rf"^workers/(?P<instance>[^/]+)/(?P<verb>{'|'.join(COMMANDS)})$", views.do, name="worker-do"),
    *(
        path(f"several/workers/{verb}", views.do_to_selected, {"verb": verb}, name=f"workers-{verb}")
        for verb in COMMANDS
    ),
]
