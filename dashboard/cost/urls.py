"""Addresses."""

from __future__ import annotations

from django.urls import path

from dashboard.cost import views

urlpatterns = [path("cost/", views.cost, name="cost"), path("cost/prices", views.prices, name="cost-prices")]
