"""The stage of the contract: four runners on both databases, one worker for all tests of each, with one warm child."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import AsyncIterator, Iterator
from importlib import import_module
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
import pytest_asyncio

from holdfast import Holdfast
from tests.worker.runners.behaviours import LONGEST_SECONDS, RUNNERS
from tests.worker.runners.notes import PLACE
from tests.worker.runners.stage import Runner, make_table, until_ready

NUMBERS = count(1)


@pytest.fixture(scope="session")
def runners_place(tmp_path_factory: pytest.TempPathFactory, migrated_file: Path) -> Iterator[Path]:
    """The directory that the application knows by its environment, with a SQLite file that is up to date."""
    place = tmp_path_factory.mktemp("runners")
    shutil.copy(migrated_file, place / "jobs.db")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(PLACE, str(place))
        yield place


@pytest.fixture(scope="session")
def runners_url(postgres_server: str, runners_place: Path) -> Iterator[str]:
    """A PostgreSQL database of its own, in which nobody else sweeps, up to date and known by the environment."""
    from tests.worker.runners.application import POSTGRES

    name = f"holdfast_runners_{secrets.token_hex(6)}"
    url = urlsplit(postgres_server)._replace(path=f"/{name}").geturl()
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    face = Holdfast(url).sync
    face.migrate()
    face.close()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(POSTGRES, url)
        yield url
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest_asyncio.fixture(scope="package", loop_scope="package", params=["sqlite", "postgres"])
async def hf(request: pytest.FixtureRequest, runners_place: Path) -> AsyncIterator[Holdfast]:
    """The application on each database, open, and a worker that runs whatever a test starts."""
    if request.param == "postgres":
        request.getfixturevalue("runners_url")
    made: Holdfast = import_module(f"tests.worker.runners.on_{request.param}").hf
    from tests.worker.runners.application import MIDDLEWARE

    await made.open()
    await made.store.run(make_table)
    # who misses a hint is not to be saved by the poll: that would hide it
    async with made.worker(middleware=MIDDLEWARE, grace=0.5, poll=LONGEST_SECONDS, children=1) as worker:
        await until_ready(worker)
        yield made
    await made.close()
    made.sync.close()


@pytest.fixture(params=RUNNERS)
def runner(request: pytest.FixtureRequest, hf: Holdfast) -> Runner:
    """One of the runners, on one database."""
    return Runner(hf, request.param)


@pytest.fixture
def number() -> int:
    """A number that no other test of this process has."""
    return next(NUMBERS)
