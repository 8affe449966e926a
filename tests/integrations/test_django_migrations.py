"""Our migrations inside Django's: either may come first, both can be read, and to go back drops."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import connections
from django.test import override_settings

import holdfast.integrations.django.migrations as ours
from holdfast import Holdfast
from holdfast.database import migrations
from holdfast.database.dialect import TABLES
from holdfast.database.tx import Database
from tests.integrations.django_site import rows
from tests.support.databases import django_project

KINDS: tuple[Database, ...] = ("sqlite", "postgres")


@pytest.fixture(params=KINDS)
def address(request: pytest.FixtureRequest, empty_database: Callable[[str], str]) -> Iterator[str]:
    """The address of an empty database, which is Django's default."""
    address = empty_database(request.param)
    with django_project.databases(default=django_project.database(address)):
        yield address


def told(command: str, *arguments: str) -> str:
    """Run a command of Django's and give what it prints."""
    out = StringIO()
    call_command(command, *arguments, stdout=out, no_color=True)
    return out.getvalue()


def tables() -> set[str]:
    with connections["default"].cursor() as cursor:
        found = connections["default"].introspection.table_names(cursor, include_views=True)
    return {name for name in found if name.startswith("holdfast_")}


EVERY = {f"holdfast_{name}" for name in TABLES}


def test_after_djangos_migrate_holdfasts_own_finds_nothing_to_do(address: str) -> None:
    call_command("migrate", "holdfast", verbosity=0)
    hf = Holdfast(address).sync

    assert tables() == EVERY
    assert hf.migrate() == []
    hf.close()


def test_after_holdfasts_own_djangos_migrate_finds_nothing_to_do(address: str) -> None:
    hf = Holdfast(address).sync
    hf.migrate()
    identity = rows("SELECT value FROM holdfast_meta WHERE key = 'identity'")

    call_command("migrate", "holdfast", verbosity=0)

    assert rows("SELECT value FROM holdfast_meta WHERE key = 'identity'") == identity
    assert rows("SELECT name FROM django_migrations WHERE app = 'holdfast'") == [
        (each.name,) for each in migrations.steps("sqlite")
    ]
    hf.close()


def test_a_migration_that_fails_later_leaves_none_of_our_tables(address: str, monkeypatch: Any) -> None:
    def fail(*_: object) -> None:
        raise LookupError

    monkeypatch.setattr("django.db.migrations.operations.models.CreateModel.database_forwards", fail)

    with pytest.raises(LookupError):
        call_command("migrate", "holdfast", verbosity=0)

    assert tables() == set()


def test_the_plan_says_what_is_done(address: str) -> None:
    plan = told("migrate", "--plan", "holdfast")

    numbers = [each.number for each in migrations.steps("sqlite")]
    assert [number for number in numbers if f"Take step {number} of" in plan] == [1, 2, 3, 4, 5, 6, 7]


def test_the_sql_can_be_read_and_run_by_hand(address: str) -> None:
    script = "".join(told("sqlmigrate", "holdfast", each.name) for each in migrations.steps("sqlite"))

    if address.startswith("postgresql://"):
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(script.encode())
    else:
        file = sqlite3.connect(address)
        file.executescript(script)
        file.close()

    hf = Holdfast(address).sync
    assert hf.migrate() == []
    assert tables() == EVERY
    hf.close()


def test_to_go_back_drops_our_tables_and_no_others(address: str) -> None:
    call_command("migrate", verbosity=0)

    call_command("migrate", "holdfast", "zero", verbosity=0)

    assert tables() == set()
    assert rows("SELECT count(*) FROM auth_user") == [(0,)]
    call_command("migrate", "holdfast", verbosity=0)
    assert tables() == EVERY


def test_the_models_are_what_the_migrations_say(address: str) -> None:
    call_command("makemigrations", "holdfast", "--check", "--dry-run", verbosity=0)


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_of_ours_has_its_migration(kind: Database) -> None:
    folder = Path(str(ours.__file__)).parent

    assert [each.stem for each in sorted(folder.glob("0*.py"))] == [each.name for each in migrations.steps(kind)]


def test_other_databases_are_left_alone(address: str, empty_database: Callable[[str], str]) -> None:
    django_project.add("other", django_project.database(empty_database("sqlite")))

    call_command("migrate", "holdfast", database="other", verbosity=0)

    assert rows("SELECT name FROM sqlite_master WHERE name LIKE 'holdfast%'", alias="other") == []
    assert tables() == set()
    django_project.remove("other")


def test_a_router_that_forbids_it_is_heeded(address: str) -> None:
    class Nowhere:
        def allow_migrate(self, db: str, app_label: str, **_: object) -> bool | None:
            return False if app_label == "holdfast" else None

    with override_settings(DATABASE_ROUTERS=[Nowhere()]):
        call_command("migrate", "holdfast", verbosity=0)

    assert tables() == set()


@pytest.mark.parametrize("address", ["postgres"], indirect=True)
def test_on_postgresql_the_tables_may_be_in_a_schema_of_their_own(address: str) -> None:
    with override_settings(HOLDFAST={"schema_name": "jobs"}):
        call_command("migrate", "holdfast", verbosity=0)

    assert rows("SELECT count(*) FROM jobs.holdfast_job") == [(0,)]
    assert tables() == set()
