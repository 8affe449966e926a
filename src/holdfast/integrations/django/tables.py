"""Names of our tables in Django's models and migrations; on PostgreSQL they may stand in a schema of their own."""

from __future__ import annotations

from holdfast.integrations.django.addresses import connection_of
from holdfast.integrations.django.project import alias, schema_name


def table(name: str) -> str:
    """Name a table of ours as `db_table` takes it: Django puts quotes around it, so those inside end one name."""
    schema = schema_name()
    if schema == "public" or connection_of(alias()).vendor == "sqlite":
        return f"holdfast_{name}"
    return f'{schema}"."holdfast_{name}'
