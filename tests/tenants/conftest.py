"""What the tests of tenants share: a control place with tenants, on each database, in each colour."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.database.tx import Database
from tests.support.factories import TASKS
from tests.support.ways import WAYS, Awaitable, Way

CONTROL = "control"
OF_CONTROL = "SELECT nspname FROM pg_namespace WHERE nspname = 'control' OR nspname LIKE 'control\\_t\\_%'"


@dataclass(frozen=True)
class Control:
    """A control place in one colour."""

    hf: Holdfast
    is_async: bool
    again: Callable[..., Holdfast]
    """Makes another face on the same database, as another process has it."""

    @property
    def database(self) -> Database:
        return self.hf.store.database

    @property
    def tenants(self) -> Any:
        """What makes and lists tenants; every method is awaited."""
        return self.hf.tenants if self.is_async else Awaitable(self.hf.sync.tenants)

    def way(self, name: str, hf: Holdfast | None = None) -> Way:
        """Give the tenant *name*, in this colour."""
        return Way((hf or self.hf).tenant(name), self.is_async)


@pytest.fixture(scope="session")
def control_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A control place with no tenants, to be copied."""
    path = tmp_path_factory.mktemp("control") / "jobs.db"
    face = Holdfast(str(path), tenants=True).sync
    face.migrate()
    face.close()
    return path


@pytest.fixture
def control_url(postgres_url: str, own_connections: None) -> Iterator[str]:
    """A database without schemas of ours."""
    yield postgres_url
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for (name,) in connection.execute(OF_CONTROL).fetchall():
            connection.execute(f'DROP SCHEMA "{name}" CASCADE')


@pytest.fixture
def new_control(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Holdfast]]:
    """Make faces on one control place: `new_control("sqlite")`."""
    made: list[Holdfast] = []

    def make(database: str, **options: Any) -> Holdfast:
        options = {"deadline_seconds": 20, "tenants": True, "tasks": [TASKS], **options}
        if database == "postgres":
            url = options.pop("url", None) or request.getfixturevalue("control_url")
            made.append(Holdfast(url, **{"schema_name": CONTROL, **options}))
        else:
            if not (path := tmp_path / "jobs.db").exists():
                shutil.copy(request.getfixturevalue("control_file"), path)
            made.append(Holdfast(str(path), **options))
        return made[-1]

    yield make
    for hf in made:
        hf.sync.close()


@pytest.fixture(params=WAYS)
async def control(request: pytest.FixtureRequest, new_control: Callable[..., Holdfast]) -> AsyncIterator[Control]:
    """A control place without tenants, one of the four ways."""
    database, colour = request.param.split("-")
    hf = new_control(database)
    hf.sync.migrate()
    yield Control(hf, colour == "async", lambda **options: new_control(database, **options))
    await hf.close()
