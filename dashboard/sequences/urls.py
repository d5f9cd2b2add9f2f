"""Addresses."""

from __future__ import annotations

from django.urls import path

from dashboard.sequences import views

urlpatterns = [
    path("sequences/", views.sequences, name="sequences"),
    path("sequences/statement", views.statement, name="sequence-statement"),
    path("ledger.csv", views.ledger_csv, name="ledger-csv"),
]
