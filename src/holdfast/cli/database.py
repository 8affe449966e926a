"""What commands share that look into a database: how it is chosen, that it is named, and that it must exist."""

from __future__ import annotations

import re
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.app import Holdfast
    from holdfast.settings import Settings
    from holdfast.sync import BlockingHoldfast

DATABASE_HELP = (
    "Use this database: a SQLite file or a postgresql:// URL. Other users of the machine can see a password in it: put "
    "such a URL into HOLDFAST_DATABASE.  [default: HOLDFAST_DATABASE]"
)
SCHEMA_NAME_HELP = "Use this PostgreSQL schema for the tables.  [default: HOLDFAST_SCHEMA_NAME, or public]"
TENANT_HELP = "Use the tables of this tenant."
APP_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


class ChosenPlace(NamedTuple):
    """Whose tables a command uses: those of a database, or of a *tenant* whose control place that is."""

    database: str | None
    schema_name: str | None
    tenant: str | None

    @contextmanager
    def opened(self, *, app: str | None = None, also: str = "") -> Iterator[BlockingHoldfast]:
        """Open the blocking face of the place, as `opened` does."""
        has_tenants = self.tenant is not None
        with opened(self.database, self.schema_name, app=app, also=also, tenants=has_tenants) as face:
            yield face if self.tenant is None else face.tenant(self.tenant)


def of_database(command: Callable[..., None]) -> Callable[..., None]:
    """Give *command* the options of all that look into a database."""
    return _with_options(command, *CHOICE, AS_JSON)


def of_place(command: Callable[..., None]) -> Callable[..., None]:
    """Give *command* the options of all that look into a database, or into a tenant of it, as a `ChosenPlace`."""

    @wraps(command)
    def run(*, database: str | None, schema_name: str | None, tenant: str | None, **given: Any) -> None:
        command(place=ChosenPlace(database, schema_name, tenant), **given)

    return _with_options(run, *CHOICE, OF_TENANT, AS_JSON)


CHOICE = (click.option("--database", help=DATABASE_HELP), click.option("--schema-name", help=SCHEMA_NAME_HELP))
OF_TENANT = click.option("--tenant", help=TENANT_HELP, metavar="NAME")
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


def _with_options(
    command: Callable[..., None], *options: Callable[[Callable[..., None]], Callable[..., None]]
) -> Callable[..., None]:
    for option in reversed(options):
        command = option(command)
    return command


@contextmanager
def opened(
    database: str | None, schema_name: str | None, *, app: str | None = None, also: str = "", tenants: bool = False
) -> Iterator[BlockingHoldfast]:
    """Open the blocking face on a database that exists: that of *app*, or the one that is chosen, as `chosen` does.

    With *tenants* it is the control place of tenants.
    """
    from holdfast.app import Holdfast
    from holdfast.cli.worker import load

    settings = None if app is not None else chosen(database, schema_name, also=also, tenants=tenants)
    hf = load(app) if app is not None else Holdfast(settings=settings)
    announce(hf)
    require_file(hf.settings)
    with hf.sync as face:
        yield face


def chosen(database: str | None, schema_name: str | None, *, also: str = "", tenants: bool = False) -> Settings:
    """Read the settings of a command; *also* names a further way by which this command takes its database."""
    from holdfast.settings import Settings

    given = {"database": database, "schema_name": schema_name, "tenants": tenants or None}
    settings = Settings.from_environment(**{name: value for name, value in given.items() if value is not None})
    settings.require_database(f"name it with --database{also}")
    if schema_name is not None and not settings.is_postgres:
        raise click.UsageError("--schema-name is for PostgreSQL; a SQLite file has no schemas: name the file alone")
    return settings


def is_app(text: str) -> bool:
    """Tell the import path of an object, such as `shop.jobs:hf`, from the address of a database."""
    return APP_PATH.fullmatch(text) is not None and not Path(text).exists()


def announce(hf: Holdfast) -> None:
    """Name the database on stderr, so that nobody looks into the wrong one and stdout stays as it is."""
    click.echo(f"database: {hf.settings.shown_database}", err=True)


def require_file(settings: Settings) -> None:
    """Refuse a SQLite file that does not exist: opening would create it, and a wrong path would look like no jobs."""
    from holdfast.database import migrations
    from holdfast.errors import NotMigrated

    if settings.is_postgres or Path(settings.database).exists():
        return
    raise NotMigrated(
        f"there is no database file {settings.shown_database}; check the path, or create the file with "
        f"`holdfast migrate {settings.database}`",
        found=None,
        needed=migrations.code_number("sqlite"),
    )
