"""The stage for tests with real workers, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from holdfast.testing import PostgresServer, temporary_postgres
from tests.acceptance.scene import Scene, scene

SCHEMA = "stage"


@pytest.fixture
def stage_database(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, str]]:
    """The address of an empty database, and the settings that go with it."""
    if getattr(request, "param", "postgres") == "sqlite":
        return str(tmp_path / "jobs.db"), {}
    url: str = request.getfixturevalue("postgres_url")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
    return url, {"schema_name": SCHEMA}


@pytest.fixture
def stage(stage_database: tuple[str, dict[str, str]], tmp_path: Path) -> Iterator[Scene]:
    """A scene on PostgreSQL, or where `on_both` sends it."""
    database, settings = stage_database
    with scene(database, tmp_path, **settings) as made:
        yield made


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A PostgreSQL that the test may stop and start."""
    with temporary_postgres() as server:
        yield server
