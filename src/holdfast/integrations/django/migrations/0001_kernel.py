"""Holdfast's first tables, and the models that show them."""

from __future__ import annotations

from django.db import migrations, models

from holdfast.integrations.django.operations import TakeStep
from holdfast.integrations.django.project import table
from holdfast.states import Status

STATUSES = [(str(each), str(each)) for each in Status]


class Migration(migrations.Migration):
    """Takes our step 1."""

    initial = True
    dependencies = ()
    operations = (
        TakeStep(1),
        migrations.CreateModel(
            name="Job",
            fields=[
                ("id", models.TextField(primary_key=True, serialize=False)),
                ("seq", models.BigIntegerField(unique=True)),
                ("chain_id", models.TextField()),
                ("chain_index", models.BigIntegerField()),
                ("task", models.TextField()),
                ("queue", models.TextField()),
                ("lane", models.TextField(null=True)),
                ("priority", models.BigIntegerField()),
                ("status", models.TextField(choices=STATUSES)),
                ("attempt", models.BigIntegerField()),
                ("crashes", models.BigIntegerField()),
                ("worker", models.TextField(null=True)),
                ("reason", models.TextField(null=True)),
                ("input", models.TextField()),
                ("output", models.TextField(null=True)),
                ("error", models.TextField(null=True)),
                ("progress", models.BigIntegerField(null=True)),
                ("message", models.TextField(null=True)),
                ("created_at", models.BigIntegerField()),
                ("run_at", models.BigIntegerField()),
                ("started_at", models.BigIntegerField(null=True)),
                ("finished_at", models.BigIntegerField(null=True)),
                ("lease_until", models.BigIntegerField(null=True)),
                ("closed_as", models.TextField(null=True)),
            ],
            options={
                "db_table": table("job"),
                "managed": False,
                "default_permissions": ("view",),
                "ordering": ("-seq",),
            },
        ),
        migrations.CreateModel(
            name="Event",
            fields=[
                ("seq", models.BigIntegerField(primary_key=True, serialize=False)),
                ("job", models.BigIntegerField()),
                ("name", models.TextField()),
                ("at", models.BigIntegerField()),
                ("attempt", models.BigIntegerField(null=True)),
                ("facts", models.TextField(null=True)),
            ],
            options={
                "db_table": table("event"),
                "managed": False,
                "default_permissions": (),
                "ordering": ("seq",),
            },
        ),
        migrations.CreateModel(
            name="Task",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False)),
                ("policy", models.TextField()),
            ],
            options={
                "db_table": table("task"),
                "managed": False,
                "default_permissions": (),
                "ordering": ("name",),
            },
        ),
    )
