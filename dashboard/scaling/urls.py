"""Addresses."""

from __future__ import annotations

from django.urls import path

from dashboard.scaling import views

urlpatterns = [
    path("scaling/", views.scaling, name="scaling"),
    path("scaling/<str:pool>/policy", views.policy, name="scaling-policy"),
]
