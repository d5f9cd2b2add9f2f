"""Addresses. Pages are included from `dashboard.pages`."""

from __future__ import annotations

from django.contrib.auth import views as auth_views
from django.urls import include, path, re_path

from dashboard.api import health, metrics
from dashboard.api.v1 import api
from dashboard.signing_in import SignIn

urlpatterns = [
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
    path("metrics", metrics.metrics, name="metrics"),
    path("api/v1/", api.api.urls),
    re_path(r"^api/", api.unknown, name="api-unknown"),
    path("accounts/login/", SignIn.as_view(), name="login"),
    path("accounts/logout/", auth_views.LogoutView.as_view(), name="logout"),
    path("", include("dashboard.pages.urls")),
]
