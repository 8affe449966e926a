"""Our tables in the history of an Alembic environment: a revision of yours takes a step of ours.

    def upgrade() -> None:
        holdfast.integrations.alembic.upgrade(step=3)

A revision names the step that it takes, so that it means the same with every release, also as a script. What `holdfast
migrate` has done already is not done again, nor the other way round: both go by the row in which steps are recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TypeAlias

from holdfast.errors import MissingLibrary

if find_spec("alembic") is None:
    raise MissingLibrary("holdfast.integrations.alembic", "alembic", "alembic")

from alembic import op
from sqlalchemy import TextClause, text

from holdfast.database import migrations
from holdfast.database.dialect import Dialect, PostgresDialect, SqliteDialect
from holdfast.database.tx import Database, Row, drive
from holdfast.errors import Misuse
from holdfast.settings import Settings

__all__ = ["downgrade", "include_name", "upgrade"]

ParentNames: TypeAlias = Mapping[str, str | None]

DATABASES: dict[str, Database] = {"postgresql": "postgres", "sqlite": "sqlite"}
PREFIX = "holdfast_"


def upgrade(step: int, *, schema_name: str = "public") -> None:
    """Bring our tables to *step*, in the transaction of the revision; take nothing that has been taken.

    *schema_name* is the setting of that name, for PostgreSQL. In offline mode (`alembic upgrade --sql`) nobody can be
    asked what has been taken: just this step is written out.
    """
    tx = _Revision(schema_name)
    known = {each.number: each for each in migrations.steps(tx.database)}
    if step not in known:
        raise Misuse(
            f"this release of Holdfast has the migration steps {min(known)} to {max(known)}, not step {step}; "
            "install the release for which the revision was written"
        )
    if op.get_context().as_sql:
        for statement in migrations.sql_of(known[step], tx.dialect):
            op.execute(tx.clause(statement))
        return
    while drive(migrations.step(tx, tx.database, last=step)) is not None:
        pass


def downgrade(*, schema_name: str = "public") -> None:
    """Take all our tables away, with every job in them: for the revision that took the first step.

    Later steps are not undone: go back to a release only if it suits the tables (`holdfast migrate --check` tells).
    """
    drive(migrations.drop(_Revision(schema_name)))


def include_name(name: str | None, type_: str, parent_names: ParentNames) -> bool:
    """Leave our tables out of what autogenerate compares, for `context.configure(include_name=include_name)`.

    Otherwise it finds tables that are not in your metadata, and proposes to drop them.
    """
    return not (type_ == "table" and name is not None and name.startswith(PREFIX))


class _Revision:
    """The transaction of the revision that Alembic runs, or the script that it writes, as operations see it."""

    def __init__(self, schema_name: str) -> None:
        name = op.get_context().dialect.name
        if name not in DATABASES:
            raise Misuse(
                f"Holdfast needs PostgreSQL or SQLite, but this revision runs on {name}; run it on the database of "
                "your Holdfast object"
            )
        self.database: Database = DATABASES[name]
        schema = Settings.of(schema_name=schema_name).schema_name
        self.dialect: Dialect = PostgresDialect(schema) if self.database == "postgres" else SqliteDialect()

    async def execute(self, sql: str, /, **values: object) -> None:
        """Run *sql*, or write it out."""
        op.execute(self._compile(sql, values))

    async def fetch_all(self, sql: str, /, **values: object) -> list[Row]:
        """Run *sql* and return all of its rows."""
        return [tuple(row) for row in op.get_bind().execute(self._compile(sql, values))]

    def _compile(self, sql: str, values: Mapping[str, object]) -> TextClause:
        assert not values  # noqa: S101 - a step is also written out as a script
        return self.clause(self.dialect.compile(sql).text)

    def clause(self, statement: str) -> TextClause:
        """Make *statement* one of SQLAlchemy's, which doubles percent signs by itself and reads colons as values."""
        if self.database == "postgres":
            statement = statement.replace("%%", "%")
        return text(statement.replace(":", r"\:"))
