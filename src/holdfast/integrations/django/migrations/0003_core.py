"""Holdfast's log says the end of a job and that of its chain in one row."""

from __future__ import annotations

from django.db import migrations

from holdfast.integrations.django.operations import TakeStep


class Migration(migrations.Migration):
    """Takes our step 3."""

    dependencies = (("holdfast", "0002_log"),)
    operations = (TakeStep(3),)
