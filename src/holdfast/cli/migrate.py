"""`holdfast migrate`: brings the schema up to date, shows what that would do, or checks that it has been done."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from holdfast.cli.database import announce, chosen, is_app, of_database

if TYPE_CHECKING:
    from holdfast.app import Holdfast

NOT_MIGRATED = 4
"""The exit code of `--check` if the tables do not fit; 5 says, as in every command, that nobody could look at them."""


@click.command()
@click.argument("target", required=False)
@click.option("--sql", "show_sql", is_flag=True, help="Print the SQL that would run, and run nothing.")
@click.option(
    "--check",
    "only_check",
    is_flag=True,
    help=f"Run nothing; exit with code {NOT_MIGRATED} unless the tables fit this release.",
)
@of_database
def migrate(
    target: str | None,
    show_sql: bool,
    only_check: bool,
    database: str | None,
    schema_name: str | None,
    as_json: bool,
) -> None:
    """Migrate the database: create or update the Holdfast tables.

    TARGET is a SQLite file, a postgresql:// URL, or APP: the import path of your Holdfast object, e.g. `shop.jobs:hf`.
    Without it, the command uses --database, or the environment variable HOLDFAST_DATABASE. You can run this command on
    several machines at once, and you can interrupt it. Migrate first, then restart your programs: an older release
    refuses to open tables that it cannot use, and says so.

    Exit codes: 0 the tables fit this release; 2 wrong usage, or no database is given; 4 with --check, the tables do not
    fit; 5 the database could not be reached.

    \b
    Examples:
      holdfast migrate postgresql://app@db/shop
      holdfast migrate shop.jobs:hf
      holdfast migrate --sql postgresql://app@db/shop | psql postgresql://owner@db/shop
      holdfast migrate --check
    """
    from holdfast.database import migrations
    from holdfast.errors import NotMigrated

    if show_sql and only_check:
        raise click.UsageError("give --sql or --check, not both")
    hf = _target(target, database, schema_name)
    announce(hf)
    store = hf.store
    try:
        if show_sql:
            sql = migrations.pending_sql(store.database, store.dialect, store.standing_sync().schema)
            click.echo(sql, nl=bool(sql))
            return
        if only_check:
            migrations.judge(store.standing_sync(), migrations.code_number(store.database))
        taken = [] if only_check else store.migrate_sync()
        schema = store.standing_sync().schema
    except NotMigrated as error:
        if not only_check:
            raise
        click.echo(f"holdfast: {error}", err=True)
        sys.exit(NOT_MIGRATED)
    finally:
        store.close_sync()
    click.echo(json.dumps({"schema": schema, "taken": taken}) if as_json else _sentence(schema, taken))


def _target(target: str | None, database: str | None, schema_name: str | None) -> Holdfast:
    """Make the Holdfast whose tables are meant; *target* is the address of a database, or an import path."""
    from holdfast.app import Holdfast
    from holdfast.cli.worker import load

    if target is not None and database is not None:
        raise click.UsageError("give TARGET or --database, not both")
    if target is None or not is_app(target):
        also = " or APP, e.g. `holdfast migrate shop.jobs:hf`"
        return Holdfast(settings=chosen(target or database, schema_name, also=also))
    if schema_name is not None:
        raise click.UsageError("give APP or --schema-name, not both: your Holdfast object has its own schema_name")
    return load(target)


def _sentence(schema: int, taken: list[str]) -> str:
    if not taken:
        return f"the database is up to date (schema {schema})"
    return f"took {', '.join(taken)}; the database is up to date (schema {schema})"
