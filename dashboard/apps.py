"""The Django app. Nothing starts here: background work belongs to the ASGI lifespan."""

from importlib import import_module
from typing import Any

from django.apps import AppConfig
from django.apps.registry import Apps
from django.apps.registry import apps as installed
from django.db.models.signals import post_migrate


class DashboardConfig(AppConfig):
    name = "dashboard"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        post_migrate.connect(ensure_roles, sender=self)
        for module in ("accounts.signals", "core.checks"):  # they need the models, which are ready only now
            import_module(f"dashboard.{module}")


def ensure_roles(using: str, apps: Apps = installed, **_: Any) -> None:
    """The three roles and the start of the audit's chain, also after `manage.py flush`."""
    if "audithead" not in apps.all_models["dashboard"]:  # migrated back to nothing
        return
    for name in ("viewer", "operator", "admin"):
        apps.get_model("auth", "Group").objects.using(using).get_or_create(name=name)
    apps.get_model("dashboard", "AuditHead").objects.using(using).get_or_create(pk=1)
