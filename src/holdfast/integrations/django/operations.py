"""Our migrations inside Django's: one operation for each step that `holdfast migrate` would take.

Both look at the same row before they act, so either may come first, and the other finds nothing left to do.
"""

from __future__ import annotations

from typing import Any

from django.db import router
from django.db.migrations.operations.base import Operation, OperationCategory

from holdfast.database import migrations
from holdfast.database.dialect import Dialect, PostgresDialect, SqliteDialect
from holdfast.database.tx import Row, drive
from holdfast.integrations.django.addresses import DATABASES
from holdfast.integrations.django.project import alias, schema_name


class TakeStep(Operation):
    """Takes our step *number*, in the database that HOLDFAST names and in no other.

    To go back from the first one drops all our tables; later steps stay as they are.
    """

    category = OperationCategory.SQL

    def __init__(self, number: int) -> None:
        self.number = number

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Change nothing: the models are not managed by Django."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Take what has not been taken, in Django's transaction; `sqlmigrate` is given this one's statements."""
        if not _is_ours(schema_editor.connection, app_label):
            return
        tx = _Editor(schema_editor)
        if schema_editor.collect_sql:
            (step,) = [each for each in migrations.steps(tx.database) if each.number == self.number]
            for statement in migrations.sql_of(step, tx.dialect):
                schema_editor.execute(statement, params=tx.no_values)
            return
        while drive(migrations.step(tx, tx.database, last=self.number)) is not None:
            pass

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Have all our tables dropped, if this is the first step."""
        if self.number == 1 and _is_ours(schema_editor.connection, app_label):
            drive(migrations.drop(_Editor(schema_editor)))

    def describe(self) -> str:
        """Say in `migrate --plan` what it does."""
        return f"Take step {self.number} of Holdfast's tables"

    @property
    def migration_name_fragment(self) -> str:
        """Name a migration that has only this."""
        return f"step_{self.number}"


def _is_ours(connection: Any, app_label: str) -> bool:
    return connection.alias == alias() and bool(router.allow_migrate(connection.alias, app_label))


class _Editor:
    """A schema editor's transaction as operations see it: its statements are run, or written down, by Django."""

    def __init__(self, editor: Any) -> None:
        vendor = editor.connection.vendor
        self.database = DATABASES[vendor]
        self.dialect: Dialect = SqliteDialect() if vendor == "sqlite" else PostgresDialect(schema_name())
        self.no_values: tuple[()] | None = None if vendor == "sqlite" else ()
        """What to give with a text in which percent signs stand for themselves, or are doubled."""
        self._editor = editor

    async def execute(self, sql: str, /, **values: object) -> None:
        """Run *sql*, or have it written down."""
        assert not values, "the statements of a migration step take no values"  # noqa: S101
        self._editor.execute(self.dialect.compile(sql).text, params=self.no_values)

    async def fetch_all(self, sql: str, /, **values: object) -> list[Row]:
        """Run *sql* and return all of its rows."""
        with self._editor.connection.cursor() as cursor:
            cursor.execute(self.dialect.compile(sql).text, self.no_values)
            return list(cursor.fetchall())
