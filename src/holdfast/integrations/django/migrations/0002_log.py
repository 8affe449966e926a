"""Holdfast's tables for phases, readers of the log, webhooks and retention."""

from __future__ import annotations

from django.db import migrations, models

from holdfast.integrations.django.operations import TakeStep


class Migration(migrations.Migration):
    """Takes our step 2."""

    dependencies = (("holdfast", "0001_kernel"),)
    operations = (
        TakeStep(2),
        migrations.AddField("Job", "stale_at", models.BigIntegerField(null=True)),
        migrations.AddField("Job", "webhook_sent", models.BigIntegerField(null=True)),
    )
