"""Addresses. Those of the pages are in the packages that `dashboard.core.pages` lists."""

from __future__ import annotations

from allauth.mfa.base import views as factors
from allauth.socialaccount import views as social
from allauth.socialaccount.providers.openid_connect import views as sso
from django.contrib.auth import views as auth_views
from django.urls import include, path, re_path

from dashboard.accounts import sign_in as signing_in
from dashboard.api import health, metrics
from dashboard.api.v1 import api
from dashboard.core.pages import PACKAGES

urlpatterns = [
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
    path("metrics", metrics.metrics, name="metrics"),
    path("api/v1/", api.api.urls),
    re_path(r"^api/", api.unknown, name="api-unknown"),
    # Not allauth's own list: no sign-up, no e-mail, no password by mail.
    path("accounts/login/", signing_in.SignIn.as_view(), name="account_login"),
    path("accounts/logout/", auth_views.LogoutView.as_view(), name="account_logout"),
    path("accounts/password/", signing_in.ChangePassword.as_view(), name="password"),
    path("accounts/confirm/", signing_in.ConfirmPassword.as_view(), name="account_reauthenticate"),
    path("accounts/second-factor/", factors.index, name="mfa_index"),
    path("accounts/second-factor/code/", signing_in.SecondFactor.as_view(), name="mfa_authenticate"),
    path("accounts/second-factor/confirm/", signing_in.ConfirmCode.as_view(), name="mfa_reauthenticate"),
    path("accounts/second-factor/app/", include("allauth.mfa.totp.urls")),
    path("accounts/second-factor/recovery/", include("allauth.mfa.recovery_codes.urls")),
    path("accounts/oidc/<str:provider_id>/login/", sso.login, name="openid_connect_login"),
    path("accounts/oidc/<str:provider_id>/login/callback/", sso.callback, name="openid_connect_callback"),
    path("accounts/oidc/cancelled/", social.login_cancelled, name="socialaccount_login_cancelled"),
    *(path("", include(f"dashboard.{package}.urls")) for package in PACKAGES),
]
