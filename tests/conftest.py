"""What all tests share: the four ways, each on an empty database of its own."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from holdfast import Holdfast
from tests.support.databases.kept_connections import KeptConnections, kept_connections
from tests.support.databases.sweeping import Sweeper
from tests.support.factories import TASKS
from tests.support.ways import TENANT_WAYS, WAYS, Way

pytest_plugins = [
    "tests.support.broken_off",
    "tests.support.browser",
    "tests.support.processes.debian",
    "tests.support.garbage",
    "tests.support.databases.memory",
    "tests.support.databases.postgres",
    "tests.support.databases.pooled",
    "tests.support.faults.strace",
    "tests.support.turns",
    "tests.support.unclosed",
]

SCHEMA = "contract"
CONTROL, TENANT = "of_tenants", "tried"

# what fails says how it is drawn again (in CI, hypothesis draws the same each time); a slow machine is no failure
hypothesis.settings.register_profile(
    "holdfast", print_blob=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("holdfast")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run draw what another has drawn."""
    parser.addoption("--seed", type=int, help="what the tests that draw at random begin with, as a failed one says it")


def pytest_configure() -> None:
    """Heed the signals that a shell has its background programs ignore: what tests start would ignore them, too."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """What a test that draws at random begins with: another one in each run, told where it fails."""
    given: int | None = request.config.getoption("seed")
    drawn = int.from_bytes(os.urandom(4)) if given is None else given
    print(f"drawn from seed {drawn}; the same again: --seed={drawn}")
    return drawn


@pytest.fixture(scope="session")
def migrated_url(postgres_url: str) -> str:
    """A PostgreSQL database whose schema `contract` is up to date."""
    face = Holdfast(postgres_url, schema_name=SCHEMA).sync
    face.migrate()
    face.close()
    return postgres_url


@pytest.fixture(scope="session")
def kept_connections_of_run(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[KeptConnections | None]:
    """The connections that tests hand on to each other; none through a pooler."""
    if request.config.getoption("pooled"):
        yield None
        return
    with kept_connections(postgres_url) as kept:
        yield kept


@pytest.fixture
def own_connections(kept_connections_of_run: KeptConnections | None) -> Iterator[None]:
    """Make every connection of this test anew, and close it."""
    if kept_connections_of_run is None:
        yield
        return
    kept_connections_of_run.close()
    kept_connections_of_run.is_on = False
    yield
    kept_connections_of_run.is_on = True


@pytest.fixture(scope="session")
def sweeper(migrated_url: str) -> Iterator[Sweeper]:
    """Empties the tables of `contract`."""
    sweeper = Sweeper(migrated_url, SCHEMA)
    yield sweeper
    sweeper.close()


@pytest.fixture
def empty_url(migrated_url: str, sweeper: Sweeper, kept_connections_of_run: KeptConnections | None) -> str:
    """The same with empty tables; what a test leaves behind, the next one does not see."""
    sweeper.sweep()
    return migrated_url


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file whose tables are up to date, to be copied."""
    path = tmp_path_factory.mktemp("migrated") / "jobs.db"
    face = Holdfast(str(path)).sync
    face.migrate()
    face.close()
    return path


@pytest.fixture
def new_holdfast(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Holdfast]]:
    """Make faces on the database of this test: `new_holdfast("sqlite", deadline_seconds=1)`.

    Unless a test says otherwise, a call has more time than users' have: the machine may be busy with other things.
    """
    made: list[Holdfast] = []

    def make(database: str, **options: object) -> Holdfast:
        options = {"deadline_seconds": 20, **options}
        if is_in_tenant(request):
            place: tuple[str, dict[str, object]] = request.getfixturevalue(f"{database}_of_tenant")
            made.append(Holdfast(place[0], **{**place[1], "tenants": True, **options}))  # type: ignore[arg-type]
            return made[-1].tenant(TENANT)
        if database == "postgres":
            made.append(Holdfast(request.getfixturevalue("empty_url"), **{"schema_name": SCHEMA, **options}))  # type: ignore[arg-type]
        else:
            if not (path := tmp_path / "jobs.db").exists():
                shutil.copy(request.getfixturevalue("migrated_file"), path)
            made.append(Holdfast(str(path), **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for hf in made:
        hf.sync.close()


def is_in_tenant(request: pytest.FixtureRequest) -> bool:
    """Tell whether a test is run inside a tenant."""
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    return str(parameters.get("way", "")) in TENANT_WAYS


@pytest.fixture(scope="session")
def migrated_tenant(postgres_url: str) -> Iterator[Sweeper]:
    """A tenant on PostgreSQL whose schema is up to date, and who empties its tables."""
    face = Holdfast(postgres_url, schema_name=CONTROL, tenants=True).sync
    face.migrate()
    face.tenants.create(TENANT)
    face.close()
    sweeper = Sweeper(postgres_url, f"{CONTROL}_t_{TENANT}")
    yield sweeper
    sweeper.close()


@pytest.fixture
def postgres_of_tenant(
    postgres_url: str, migrated_tenant: Sweeper, kept_connections_of_run: KeptConnections | None
) -> tuple[str, dict[str, object]]:
    """The control place of a tenant whose tables are empty, and its settings."""
    migrated_tenant.sweep()
    return postgres_url, {"schema_name": CONTROL}


@pytest.fixture(scope="session")
def migrated_files_of_tenant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a control place and the file of a tenant, to be copied."""
    directory = tmp_path_factory.mktemp("migrated-tenant")
    face = Holdfast(str(directory / "jobs.db"), tenants=True).sync
    face.migrate()
    face.tenants.create(TENANT)
    face.close()
    return directory


@pytest.fixture
def sqlite_of_tenant(migrated_files_of_tenant: Path, tmp_path: Path) -> tuple[str, dict[str, object]]:
    """The control place of a tenant whose tables are empty, and its settings."""
    shutil.copytree(migrated_files_of_tenant, tmp_path, dirs_exist_ok=True)
    return str(tmp_path / "jobs.db"), {}


@pytest.fixture
def new_threads() -> Callable[[], set[str]]:
    """Name the threads that were begun since, and have not ended: to be asked for before what begins them."""
    before = set(threading.enumerate())
    return lambda: {each.name for each in set(threading.enumerate()) - before}


@pytest.fixture(params=WAYS)
async def way(request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast]) -> AsyncIterator[Way]:
    """One of the four ways, open and empty."""
    database, colour, *_ = request.param.split("-")
    way = Way(new_holdfast(database, tasks=[TASKS]), is_async=colour == "async")
    await way.face.open()
    yield way
    await way.close()
