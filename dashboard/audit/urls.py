"""Addresses."""

from __future__ import annotations

from django.urls import path

from dashboard.audit import views

urlpatterns = [
    path("audit/", views.audit, name="audit"),
    path("audit.csv", views.audit_csv, name="audit-csv"),
]
