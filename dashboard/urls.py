"""Addresses. Pages are included from `dashboard.pages`."""

from __future__ import annotations

from django.contrib.auth import views as auth_views
from django.urls import include, path

from dashboard.api import health, metrics, reading

urlpatterns = [
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
    path("metrics", metrics.metrics, name="metrics"),
    path("api/v1/fleet", reading.fleet, name="api-fleet"),
    path("api/v1/attention", reading.attention, name="api-attention"),
    path("api/v1/history", reading.history, name="api-history"),
    path("accounts/login/", auth_views.LoginView.as_view(redirect_authenticated_user=True), name="login"),
    path("accounts/logout/", auth_views.LogoutView.as_view(), name="logout"),
    path("", include("dashboard.pages.urls")),
]
