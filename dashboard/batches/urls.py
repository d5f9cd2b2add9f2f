"""Addresses."""

from __future__ import annotations

from django.urls import path

from dashboard.batches import views

urlpatterns = [
    path("batches/", views.batches, name="batches"),
    path("batches/<str:pipeline>/<str:batch>/retry", views.retry, name="batch-retry"),
    path("batches/<str:pipeline>/<str:batch>/cancel", views.cancel, name="batch-cancel"),
    path("sagas/<str:saga>/<str:key>/retry", views.free, name="saga-retry"),
    path("sagas/<str:saga>/<str:key>/repair", views.repair, name="saga-repair"),
]
