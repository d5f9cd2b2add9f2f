"""Addresses."""

from __future__ import annotations

from django.urls import path

from dashboard.leaders import views

urlpatterns = [
    path("leaders/", views.leaders, name="leaders"),
    path("leaders/<str:name>/step-down", views.step_down, name="leader-step-down"),
    path("leaders/<str:name>/break", views.break_lease, name="leader-break"),
]
