"""Who did what, and who may do what over HTTP."""

from __future__ import annotations

from django.db import migrations

from holdfast.integrations.django.operations import TakeStep


class Migration(migrations.Migration):
    """Takes our step 7, and declares what users may be given."""

    dependencies = (("holdfast", "0006_schedules_and_tenants"),)
    operations = (
        TakeStep(7),
        migrations.AlterModelOptions(
            name="job",
            options={
                "managed": False,
                "default_permissions": ("view",),
                "ordering": ("-seq",),
                "permissions": (
                    ("operate", "Can start and steer jobs over HTTP"),
                    ("administer", "Can do everything with jobs over HTTP"),
                ),
            },
        ),
    )
