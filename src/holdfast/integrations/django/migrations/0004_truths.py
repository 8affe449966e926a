"""Events that still have to become webhook deliveries wait in an outbox."""

from __future__ import annotations

from django.db import migrations

from holdfast.integrations.django.operations import TakeStep


class Migration(migrations.Migration):
    """Takes our step 4."""

    dependencies = (("holdfast", "0003_core"),)
    operations = (TakeStep(4),)
