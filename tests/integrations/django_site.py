"""What the tests of the Django app share: a project on a database of its own that Django has migrated."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from django.core.management import call_command
from django.db import connections

from holdfast import Holdfast
from holdfast.integrations.django import project, tasks
from tests.support.databases import django_project

on_postgres = pytest.mark.parametrize("site", ["postgres"], indirect=True)
on_sqlite = pytest.mark.parametrize("site", ["sqlite"], indirect=True)


@tasks.task(name="greet", queue="mail")
def greet(name: str) -> str:
    """Greet *name*."""
    return f"Hello, {name}"


class Databases:
    """Makes databases on a server, copies of others if that is asked for, and drops them all."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._made: list[str] = []

    def make(self, template: str = "template0") -> str:
        """Make one, and give its address."""
        self._made.append(f"holdfast_django_{secrets.token_hex(6)}")
        self._execute(f"CREATE DATABASE {self._made[-1]} TEMPLATE {template.rpartition('/')[2]}")
        return urlsplit(self._server)._replace(path=f"/{self._made[-1]}").geturl()

    def close(self) -> None:
        """Drop them."""
        while self._made:
            self._execute(f"DROP DATABASE {self._made.pop()} WITH (FORCE)")

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(statement)


@pytest.fixture(scope="session")
def servers_databases(postgres_server: str) -> Iterator[Databases]:
    """The databases of a run on PostgreSQL."""
    made = Databases(postgres_server)
    yield made
    made.close()


@pytest.fixture
def empty_database(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """Make an empty database, `empty_database("postgres")`, and give its address."""

    def make(kind: str) -> str:
        if kind == "sqlite":
            return str(tmp_path / f"{secrets.token_hex(4)}.sqlite3")
        made: Databases = request.getfixturevalue("servers_databases")
        return made.make()

    return make


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file that Django has migrated."""
    return Path(_migrated(str(tmp_path_factory.mktemp("django") / "migrated.sqlite3")))


@pytest.fixture(scope="session")
def migrated_server_database(servers_databases: Databases) -> str:
    """A PostgreSQL database that Django has migrated."""
    return _migrated(servers_databases.make())


@pytest.fixture(params=["sqlite", "postgres"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    """A project whose database is a copy of a migrated one, and its Holdfast."""
    if request.param == "sqlite":
        address = str(shutil.copy(request.getfixturevalue("migrated_file"), tmp_path / "site.sqlite3"))
    else:
        made: Databases = request.getfixturevalue("servers_databases")
        address = made.make(template=request.getfixturevalue("migrated_server_database"))
    with django_project.databases(default=django_project.database(address)):
        yield project.holdfast()
        forget()


def forget() -> None:
    """Close the project's Holdfast, and have the next one be built anew."""
    if project._BUILT is not None:
        project._BUILT[1].sync.close()
        project._BUILT = None


def _migrated(address: str) -> str:
    with django_project.databases(default=django_project.database(address)):
        call_command("migrate", verbosity=0)
    return address


def rows(statement: str, alias: str = "default") -> list[Any]:
    """Read by hand."""
    with connections[alias].cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())
