"""Addresses. Pages are included from `dashboard.pages`."""

from __future__ import annotations

from django.contrib.auth import views as auth_views
from django.urls import include, path

from dashboard.api import health, metrics, reading
from dashboard.signing_in import SignIn

urlpatterns = [
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
    path("metrics", metrics.metrics, name="metrics"),
    path("api/v1/fleet", reading.fleet, name="api-fleet"),
    path("api/v1/attention", reading.attention, name="api-attention"),
    path("api/v1/history", reading.history, name="api-history"),
    path("accounts/login/", SignIn.as_view(), name="login"),
    path("accounts/logout/", auth_views.LogoutView.as_view(), name="logout"),
    path("", include("dashboard.pages.urls")),
]
