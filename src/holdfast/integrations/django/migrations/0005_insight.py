"""Journals, figures, and an index for what needs a person."""

from __future__ import annotations

from django.db import migrations

from holdfast.integrations.django.operations import TakeStep


class Migration(migrations.Migration):
    """Takes our step 5."""

    dependencies = (("holdfast", "0004_truths"),)
    operations = (TakeStep(5),)
