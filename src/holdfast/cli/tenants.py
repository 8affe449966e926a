"""`holdfast tenants`: makes, lists, suspends, resumes and drops tenants; `holdfast migrate --tenants` migrates them."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.database import of_database, opened
from holdfast.cli.person import acting, in_my_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.sync import BlockingHoldfast
    from holdfast.tenancy import MigrationProgress, TenantInfo, TenantsMigrated


@click.group()
def tenants() -> None:
    """Manage tenants: a schema or a file for each, beside the control database.

    Choose the control database with --database, or with the environment variable HOLDFAST_DATABASE. On PostgreSQL the
    role must be allowed to create schemas; if yours is not, set HOLDFAST_MIGRATIONS_URL to the address of one that is.

    \b
    Examples:
      holdfast tenants create acme --host acme.example.com
      holdfast tenants list
      holdfast tenants suspend acme --why "unpaid"
    """


@tenants.command("list")
@of_database
def list_tenants(database: str | None, schema_name: str | None, as_json: bool) -> None:
    """List the tenants by name, with their state, and why workers leave a tenant out.

    \b
    Examples:
      holdfast tenants list --database jobs.db
    """
    from holdfast.wire.tenant_json import tenant_object

    with opened(database, schema_name, tenants=True) as face:
        found = [tenant_object(each) for each in face.tenants.list()]
    if as_json:
        click.echo(json.dumps(found))
        return
    for each in found:
        click.echo(tenant_line(each))
    if not found:
        click.echo("there are no tenants", err=True)


@tenants.command()
@click.argument("name")
@click.option("--host", help="Store this host name with the tenant, for the HTTP API.")
@in_my_name
@of_database
def create(
    name: str,
    host: str | None,
    by: str | None,
    why: str | None,
    database: str | None,
    schema_name: str | None,
    as_json: bool,
) -> None:
    """Make a tenant: its schema or file, with all tables.

    NAME is its name: lower-case letters, digits and _. If the command is interrupted, run it again, and it goes on from
    there.

    \b
    Examples:
      holdfast tenants create acme
      holdfast tenants create acme --host acme.example.com --by ada
    """
    from holdfast.wire.tenant_json import tenant_object

    with opened(database, schema_name, tenants=True) as face:
        made = tenant_object(acting(face, by, why).tenants.create(name, host=host))
    click.echo(json.dumps(made) if as_json else tenant_line(made))


@tenants.command()
@click.argument("name")
@in_my_name
@of_database
def suspend(
    name: str, by: str | None, why: str | None, database: str | None, schema_name: str | None, as_json: bool
) -> None:
    """Suspend a tenant: no job of it starts, and running jobs end. NAME is its name.

    Programs notice it within 5 seconds. Its jobs can still be read, cancelled and so on.

    \b
    Examples:
      holdfast tenants suspend acme --by ada --why "unpaid"
    """
    change(database, schema_name, as_json, lambda face: acting(face, by, why).tenants.suspend(name))


@tenants.command()
@click.argument("name")
@in_my_name
@of_database
def resume(
    name: str, by: str | None, why: str | None, database: str | None, schema_name: str | None, as_json: bool
) -> None:
    """Resume a suspended tenant. NAME is its name.

    \b
    Examples:
      holdfast tenants resume acme
    """
    change(database, schema_name, as_json, lambda face: acting(face, by, why).tenants.resume(name))


@tenants.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask; all jobs of the tenant are lost.")
@in_my_name
@of_database
def drop(
    name: str,
    yes: bool,
    by: str | None,
    why: str | None,
    database: str | None,
    schema_name: str | None,
    as_json: bool,
) -> None:
    """Remove a suspended tenant with all its jobs. NAME is its name, and you type it again to confirm.

    No job of the tenant may run. On PostgreSQL its schema must hold nothing but the tables of Holdfast. If the command
    is interrupted, run it again: it goes on from there.

    \b
    Examples:
      holdfast tenants drop acme
      holdfast tenants drop acme --yes
    """
    with opened(database, schema_name, tenants=True) as face:
        if face.tenants.get(name).state != "active" and not yes:  # an active one is refused, and nobody need type
            confirm(name)
        acting(face, by, why).tenants.drop(name, confirm=name)
    click.echo(json.dumps({"dropped": name}) if as_json else f"dropped {name}")


def confirm(name: str) -> None:
    """Have the name typed again; refuse where nobody can."""
    if not sys.stdin.isatty():
        raise click.UsageError("nobody is there to confirm this; give --yes")
    typed = click.prompt(f"All jobs of tenant {name} will be lost. Type its name to drop it", err=True)
    if typed != name:
        raise click.UsageError(f"{typed!r} is not the name of the tenant; nothing was dropped")


def change(
    database: str | None, schema_name: str | None, as_json: bool, verb: Callable[[BlockingHoldfast], TenantInfo]
) -> None:
    """Change a tenant and print it."""
    from holdfast.wire.tenant_json import tenant_object

    with opened(database, schema_name, tenants=True) as face:
        changed = tenant_object(verb(face))
    click.echo(json.dumps(changed) if as_json else tenant_line(changed))


def tenant_line(each: dict[str, Any]) -> str:
    """Write a tenant for people."""
    said = ": ".join(word for word in (each["changed_by"] and f"by {each['changed_by']}", each["reason"]) if word)
    host = f", host {each['host']}" if each["host"] else ""
    trouble = f", workers leave it out since {each['trouble_at']}: {each['trouble']}" if each["trouble"] else ""
    return f"{each['name']}: {each['state']}{f' ({said})' if said else ''}, in {each['place']}{host}{trouble}"


class MigrationReport:
    """Tells how far the migration of tenants is: one line that changes on a terminal, and a line each in a pipe."""

    def __init__(self, *, as_json: bool) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._as_json = as_json

    def tell(self, progress: MigrationProgress) -> None:
        """Tell of one tenant that is done."""
        if self._is_terminal:
            end = "\n" if progress.done == progress.of else ""
            click.echo(f"\r{progress.done}/{progress.of} tenants{end}", nl=False, err=True)
        elif not self._as_json and progress.failure is None:
            what = f"took {', '.join(progress.taken)}" if progress.taken else "is up to date"
            click.echo(f"{progress.name}: {what}")

    def end(self, control: int, taken: list[str], done: TenantsMigrated) -> None:
        """Tell what was done, and what failed, by name."""
        if self._as_json:
            tenants = {name: list(steps) for name, steps in sorted(done.taken.items())}
            click.echo(
                json.dumps(
                    {"schema": control, "taken": taken, "tenants": tenants, "failed": dict(sorted(done.failed.items()))}
                )
            )
            return
        changed = sum(bool(steps) for steps in done.taken.values())
        click.echo(
            f"migrated {changed} tenants; {len(done.taken) - changed} were up to date; {len(done.failed)} failed"
        )
        for name, failure in sorted(done.failed.items()):
            click.echo(f"{name}: failed: {failure}", err=True)
        if done.failed:
            click.echo("mend these, and run the same command again", err=True)
