"""The Django app. Nothing starts here: background work belongs to the ASGI lifespan."""

from django.apps import AppConfig


class DashboardConfig(AppConfig):
    name = "dashboard"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from dashboard import checks  # noqa: F401 - registers the checks
