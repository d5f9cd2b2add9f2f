"""Addresses."""

from __future__ import annotations

from django.urls import path

from dashboard.throughput import views

urlpatterns = [
    path("throughput/", views.throughput, name="throughput"),
    path("throughput/figures", views.figures, name="throughput-figures"),
]
