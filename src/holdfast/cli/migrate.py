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
@click.option("--tenants", "of_tenants", is_flag=True, help="Migrate the tenants too, 4 at a time.")
@of_database
def migrate(
    target: str | None,
    show_sql: bool,
    only_check: bool,
    of_tenants: bool,
    database: str | None,
    schema_name: str | None,
    as_json: bool,
) -> None:
    """Migrate the database: create or update the Holdfast tables.

    TARGET is a SQLite file, a postgresql:// URL, or APP: the import path of your Holdfast object, e.g. `shop.jobs:hf`.
    Without it, the command uses --database, or the environment variable HOLDFAST_DATABASE. You can run this command on
    several machines at once, and you can interrupt it. Migrate first, then restart your programs: an older release
    refuses to open tables that it cannot use, and says so.

    With --tenants the command also migrates the tenants of the database, each step in a transaction of its own. A
    tenant that fails keeps no other from being migrated: the command lists it, and you run the command again.

    Exit codes: 0 the tables fit this release; 2 wrong usage, or no database is given; 4 with --check, the tables do not
    fit, or with --tenants, a tenant could not be migrated; 5 the database could not be reached.

    \b
    Examples:
      holdfast migrate postgresql://app@db/shop
      holdfast migrate shop.jobs:hf
      holdfast migrate --sql postgresql://app@db/shop | psql postgresql://owner@db/shop
      holdfast migrate --check
      holdfast migrate --tenants shop.jobs:hf
    """
    from holdfast.database import migrations
    from holdfast.errors import NotMigrated

    if show_sql and (only_check or of_tenants):
        raise click.UsageError(f"give --sql or {'--check' if only_check else '--tenants'}, not both")
    hf = _target(target, database, schema_name, of_tenants)
    announce(hf)
    store = hf.store
    try:
        if show_sql:
            sql = migrations.pending_sql(store.database, store.dialect, store.standing_sync().schema)
            click.echo(sql, nl=bool(sql))
            return
        if only_check:
            migrations.judge(store.standing_sync(), migrations.code_number(store.database))
        taken = [] if only_check else hf.sync.migrate()
        schema = store.standing_sync().schema
        if of_tenants:
            sys.exit(
                _check_tenants(hf, schema, as_json) if only_check else _migrate_tenants(hf, schema, taken, as_json)
            )
    except NotMigrated as error:
        if not only_check:
            raise
        click.echo(f"holdfast: {error}", err=True)
        sys.exit(NOT_MIGRATED)
    finally:
        hf.sync.close()
    click.echo(json.dumps({"schema": schema, "taken": taken}) if as_json else _sentence(schema, taken))


def _migrate_tenants(hf: Holdfast, schema: int, taken: list[str], as_json: bool) -> int:
    """Migrate the tenants of *hf*, which is migrated itself; give the exit code."""
    from holdfast.cli.tenants import MigrationReport

    if not as_json:
        click.echo(_sentence(schema, taken))
    report = MigrationReport(as_json=as_json)
    done = hf.sync.tenants.migrate(on_progress=report.tell)
    report.end(schema, taken, done)
    return NOT_MIGRATED if done.failed else 0


def _check_tenants(hf: Holdfast, schema: int, as_json: bool) -> int:
    """Name the tenants of *hf* whose tables do not fit; give the exit code."""
    from holdfast.client.tenant_store import not_migrated
    from holdfast.database import migrations
    from holdfast.errors import HoldfastError, NotMigrated

    fit: list[str] = []
    unfit: dict[str, str] = {}
    for each in hf.sync.tenants.list():
        if each.state not in ("active", "suspended"):  # `create` or `drop` goes on with it, and no migration
            click.echo(f"holdfast: tenant {each.name} is left out: its state is {each.state}", err=True)
            continue
        store = hf.tenant(each.name).store
        try:
            migrations.judge(store.standing_sync(), migrations.code_number(store.database))
            fit.append(each.name)
        except NotMigrated as error:
            unfit[each.name] = str(not_migrated(error, each.name))
        except HoldfastError as error:
            unfit[each.name] = f"tenant {each.name!r} cannot be looked at: {error}"
        finally:
            store.close_sync()  # a file that is left open for each of many tenants is one too many
    for problem in unfit.values():
        click.echo(f"holdfast: {problem}", err=True)
    if as_json:
        done = {"schema": schema, "taken": [], "tenants": {name: [] for name in fit}, "failed": unfit}
        click.echo(json.dumps(done))
    elif not unfit:
        click.echo(f"the database and its {len(fit)} tenants are up to date (schema {schema})")
    return NOT_MIGRATED if unfit else 0


def _target(target: str | None, database: str | None, schema_name: str | None, of_tenants: bool) -> Holdfast:
    """Make the Holdfast whose tables are meant; *target* is the address of a database, or an import path."""
    from holdfast.app import Holdfast
    from holdfast.cli.worker import load

    if target is not None and database is not None:
        raise click.UsageError("give TARGET or --database, not both")
    if target is None or not is_app(target):
        also = " or APP, e.g. `holdfast migrate shop.jobs:hf`"
        return Holdfast(settings=chosen(target or database, schema_name, also=also, tenants=of_tenants))
    if schema_name is not None:
        raise click.UsageError("give APP or --schema-name, not both: your Holdfast object has its own schema_name")
    return load(target)


def _sentence(schema: int, taken: list[str]) -> str:
    if not taken:
        return f"the database is up to date (schema {schema})"
    return f"took {', '.join(taken)}; the database is up to date (schema {schema})"
