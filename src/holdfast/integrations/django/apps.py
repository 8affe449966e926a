"""The app of INSTALLED_APPS: when Django is ready, it imports the `tasks.py` of every other app."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class HoldfastConfig(AppConfig):
    """Holdfast as an app; its label is `holdfast`."""

    name = "holdfast.integrations.django"
    label = "holdfast"
    verbose_name = "Holdfast"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Have every task known that an app registers."""
        autodiscover_modules("tasks")
