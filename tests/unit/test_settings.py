"""Settings come as keywords or from the environment, and wrong ones are named."""

from __future__ import annotations

import pytest

from holdfast.errors import InvalidSettings
from holdfast.settings import Settings


def test_keywords_go_before_the_environment() -> None:
    environment = {"HOLDFAST_DATABASE": "env.db", "HOLDFAST_POOL_SIZE": "3", "HOLDFAST_SYNCHRONOUS": "normal"}

    settings = Settings.from_environment(environment, database="own.db")

    assert (settings.database, settings.pool_size, settings.synchronous) == ("own.db", 3, "normal")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("synchronous", "off"),
        ("deadline_seconds", 0),
        ("pool_size", 0),
        ("database", ""),
        ("schema_name", 'a"; DROP'),
        ("schema_name", "pg_mine"),
        ("nonsense", 1),
    ],
)
def test_a_wrong_setting_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidSettings, match=name):
        Settings.of(**{name: value})


def test_an_address_with_a_password_is_not_shown() -> None:
    assert "secret" not in repr(Settings.of(database="postgresql://app:secret@db/shop"))


@pytest.mark.parametrize(
    ("database", "is_postgres"),
    [("postgresql://x", True), ("postgres://x", True), ("jobs.db", False), ("/var/postgresql.db", False)],
)
def test_the_address_says_which_database_it_is(database: str, is_postgres: bool) -> None:
    assert Settings.of(database=database).is_postgres is is_postgres
