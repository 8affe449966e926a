"""What schedules need, and the registry of tenants."""

from __future__ import annotations

from django.db import migrations

from holdfast.integrations.django.operations import TakeStep


class Migration(migrations.Migration):
    """Takes our step 6."""

    dependencies = (("holdfast", "0005_insight"),)
    operations = (TakeStep(6),)
