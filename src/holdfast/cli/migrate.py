"""`holdfast migrate`: brings the schema up to date, shows what that would do, or checks that it has been done."""

from __future__ import annotations

import json

import click

from holdfast.cli.database import SCHEMA_NAME_HELP


@click.command()
@click.argument("database", required=False)
@click.option("--sql", "show_sql", is_flag=True, help="Print the SQL that would run, and run nothing.")
@click.option(
    "--check", "only_check", is_flag=True, help="Run nothing; exit with code 5 unless the tables fit this release."
)
@click.option("--schema-name", help=SCHEMA_NAME_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def migrate(database: str | None, show_sql: bool, only_check: bool, schema_name: str | None, as_json: bool) -> None:
    """Migrate DATABASE: create or update the Holdfast tables.

    DATABASE is a SQLite file or a postgresql:// URL; the default is the environment variable HOLDFAST_DATABASE, or
    holdfast.db. You can run this command on several machines at once, and you can interrupt it. Migrate first, then
    restart your programs: an older release refuses to open tables that it cannot use, and says so.

    \b
    Examples:
      holdfast migrate postgresql://app@db/shop
      holdfast migrate --sql postgresql://app@db/shop | psql postgresql://owner@db/shop
      holdfast migrate --check
    """
    from holdfast.database import make_store, migrations
    from holdfast.runtime import Runtime
    from holdfast.settings import Settings

    if show_sql and only_check:
        raise click.UsageError("give --sql or --check, not both")
    given = {"database": database, "schema_name": schema_name}
    settings = Settings.from_environment(**{name: value for name, value in given.items() if value is not None})
    store = make_store(settings, Runtime())
    try:
        if show_sql:
            click.echo(migrations.pending_sql(store.database, store.dialect, store.standing_sync().schema))
            return
        if only_check:
            migrations.judge(store.standing_sync(), migrations.code_number(store.database))
        taken = [] if only_check else store.migrate_sync()
        schema = store.standing_sync().schema
    finally:
        store.close_sync()
    click.echo(json.dumps({"schema": schema, "taken": taken}) if as_json else _sentence(schema, taken))


def _sentence(schema: int, taken: list[str]) -> str:
    if not taken:
        return f"the database is up to date (schema {schema})"
    return f"took {', '.join(taken)}; the database is up to date (schema {schema})"
