"""The Django app. Nothing starts here: background work belongs to the ASGI lifespan."""

from typing import Any

from django.apps import AppConfig
from django.apps.registry import Apps
from django.apps.registry import apps as installed
from django.db.models.signals import post_migrate


class DashboardConfig(AppConfig):
    name = "dashboard"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from allauth.account.signals import user_logged_in
        from allauth.mfa.signals import authenticator_added, authenticator_removed

        from dashboard.accounts import two_factor as second_factor
        from dashboard.core import checks  # noqa: F401 - registers the checks

        post_migrate.connect(ensure_roles, sender=self)
        user_logged_in.connect(second_factor.signed_in)
        authenticator_added.connect(second_factor.factor_added)
        authenticator_removed.connect(second_factor.factor_removed)


def ensure_roles(using: str, apps: Apps = installed, **_: Any) -> None:
    """The three roles and the start of the audit's chain, also after `manage.py flush`."""
    if "audithead" not in apps.all_models["dashboard"]:  # migrated back to nothing
        return
    for name in ("viewer", "operator", "admin"):
        apps.get_model("auth", "Group").objects.using(using).get_or_create(name=name)
    apps.get_model("dashboard", "AuditHead").objects.using(using).get_or_create(pk=1)
