"""`holdfast migrate` as a person runs it: the real command, in a process of its own."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.support.processes import forked


def holdfast(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("holdfast")), *arguments]
    return forked.run(
        command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **environment}
    )


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database."""
    if request.param == "sqlite":
        return str(tmp_path / "jobs.db")
    url: str = request.getfixturevalue("postgres_url")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS command CASCADE")
    return url


both = pytest.mark.parametrize("database", ["sqlite", "postgres"], indirect=True)
schema = {"HOLDFAST_SCHEMA_NAME": "command"}


@both
def test_it_brings_an_empty_database_up_to_date_and_says_what_it_did(database: str) -> None:
    told = holdfast("migrate", database, **schema)

    assert told.returncode == 0, told.stderr
    taken = "0001_kernel, 0002_log, 0003_core, 0004_truths, 0005_insight, 0006_schedules_and_tenants, 0007_access"
    assert told.stdout == f"took {taken}; the database is up to date (schema 7)\n"


@both
def test_a_second_run_has_nothing_to_do(database: str) -> None:
    holdfast("migrate", database, **schema)

    told = holdfast("migrate", "--json", database, **schema)

    assert json.loads(told.stdout) == {"schema": 7, "taken": []}


@both
def test_check_tells_by_its_exit_code_and_the_command_to_run(database: str) -> None:
    before = holdfast("migrate", "--check", database, **schema)
    holdfast("migrate", database, **schema)
    after = holdfast("migrate", "--check", database, **schema)

    assert before.returncode == 4
    assert "run `holdfast migrate`" in before.stderr
    assert before.stdout == ""
    assert (after.returncode, after.stdout) == (0, "the database is up to date (schema 7)\n")


def test_check_makes_no_file(tmp_path: Path) -> None:
    holdfast("migrate", "--check", str(tmp_path / "jobs.db"))

    assert list(tmp_path.iterdir()) == []


def test_the_printed_sql_makes_a_sqlite_file_that_needs_no_more(tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.db")

    connection = sqlite3.connect(path)
    connection.executescript(holdfast("migrate", "--sql", path).stdout)
    connection.close()

    assert holdfast("migrate", "--json", path).stdout == '{"schema": 7, "taken": []}\n'


def test_the_printed_sql_makes_a_postgresql_schema_that_needs_no_more(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS by_hand CASCADE")
        connection.execute(holdfast("migrate", "--sql", "--schema-name", "by_hand", postgres_url).stdout)

    told = holdfast("migrate", "--check", "--schema-name", "by_hand", postgres_url)

    assert told.returncode == 0, told.stderr


def test_nothing_is_printed_when_no_sql_is_left(tmp_path: Path) -> None:
    holdfast("migrate", str(tmp_path / "jobs.db"))

    assert holdfast("migrate", "--sql", str(tmp_path / "jobs.db")).stdout == ""


def test_the_address_comes_from_the_environment_too(tmp_path: Path) -> None:
    told = holdfast("migrate", HOLDFAST_DATABASE=str(tmp_path / "env.db"))

    assert told.returncode == 0
    assert (tmp_path / "env.db").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("migrate", "--sql", "--check"), 2, "not both"),
        (("migrate", "/no/such/directory/jobs.db"), None, "directory"),
        (("migrate", "postgresql://127.0.0.1:1/none"), 5, "cannot be reached"),
        (("migrate", "--check", "postgresql://127.0.0.1:1/none"), 5, "cannot be reached"),
        (("migrate", "--schema-name", "Bad Name", "x.db"), 2, "schema_name"),
        (("nonsense",), 2, "No such command"),
    ],
)
def test_what_goes_wrong_is_one_clear_line(
    arguments: tuple[str, ...], code: int | None, words: str, tmp_path: Path
) -> None:
    told = holdfast(*arguments, HOLDFAST_DEADLINE_SECONDS="0.5")

    assert told.returncode == code if code is not None else told.returncode != 0
    assert words in told.stderr
    assert "Traceback" not in told.stderr


def test_help_shows_an_example() -> None:
    told = holdfast("migrate", "--help")

    assert "holdfast migrate postgresql://app@db/shop" in told.stdout


def test_a_password_is_never_printed() -> None:
    told = holdfast("migrate", "postgresql://app:s3cret@127.0.0.1:1/none", HOLDFAST_DEADLINE_SECONDS="0.5")

    assert told.returncode == 5
    assert "s3cret" not in told.stdout + told.stderr


def test_a_user_without_the_right_is_told_in_one_line(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS guest")
        connection.execute("CREATE ROLE guest LOGIN PASSWORD 'guest'")
    address = urlsplit(postgres_url)
    guest = address._replace(netloc=f"guest:guest@{address.hostname}:{address.port}").geturl()

    told = holdfast("migrate", "--schema-name", "of_a_guest", guest)

    assert told.returncode == 5
    assert "lacks a right (permission denied for database" in told.stderr
    assert "Traceback" not in told.stderr
