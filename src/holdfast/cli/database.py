"""What commands share that look into a database: their options, and the face that is opened on it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.sync import BlockingHoldfast

DATABASE_HELP = "Use this database: a SQLite file or a postgresql:// URL.  [default: HOLDFAST_DATABASE, or holdfast.db]"
SCHEMA_NAME_HELP = "Use this PostgreSQL schema for the tables.  [default: HOLDFAST_SCHEMA_NAME, or public]"


def of_database(command: Callable[..., None]) -> Callable[..., None]:
    """Give *command* the options of all that look into a database."""
    options = (
        click.option("--database", help=DATABASE_HELP),
        click.option("--schema-name", help=SCHEMA_NAME_HELP),
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@contextmanager
def opened(database: str | None, schema_name: str | None) -> Iterator[BlockingHoldfast]:
    """Open the blocking face on a database, as far as it is not named by that of the environment."""
    from holdfast.app import Holdfast
    from holdfast.settings import Settings

    given = {"database": database, "schema_name": schema_name}
    settings = Settings.from_environment(**{name: value for name, value in given.items() if value is not None})
    with Holdfast(settings=settings).sync as face:
        yield face
