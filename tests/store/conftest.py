"""What the tests of the PostgreSQL store share: a sample table, stores, a proxy, a stranger, open transactions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeAlias

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.database.postgres import PostgresStore
from holdfast.runtime import Runtime
from holdfast.settings import Settings
from tests.store.half import Half
from tests.store.samples import CREATE_TABLE, SCHEMA, Caller, Stranger
from tests.support.factories import TASKS
from tests.support.faults.fault_proxy import FaultProxy
from tests.support.ways import TENANT_WAYS, WAYS, Way

MakeStore: TypeAlias = Callable[..., PostgresStore]


@pytest.fixture(scope="session")
def samples_url(postgres_url: str) -> str:
    """A database with our schema and the sample table."""
    store = PostgresStore(Settings.from_environment(database=postgres_url, schema_name=SCHEMA))
    store.migrate_sync()
    store.close_sync()
    return postgres_url


@pytest.fixture
def stranger(samples_url: str, direct_url: str, own_connections: None) -> Iterator[Stranger]:
    """Somebody else's connection, past any pooler, and an empty sample table; nobody else is connected."""
    with psycopg.connect(direct_url, autocommit=True) as connection:
        connection.execute(CREATE_TABLE)
        yield Stranger(connection)


@pytest.fixture
def proxy(samples_url: str) -> Iterator[FaultProxy]:
    """A proxy in front of the server."""
    with FaultProxy(samples_url) as proxy:
        yield proxy


@pytest.fixture
async def make_store(samples_url: str, stranger: Stranger) -> AsyncIterator[MakeStore]:
    """Make stores that are closed after the test; *url* may lead through a proxy."""
    made: list[PostgresStore] = []

    def make(url: str = samples_url, runtime: Runtime | None = None, **settings: Any) -> PostgresStore:
        chosen = Settings.from_environment(database=url, **{"schema_name": SCHEMA, **settings})
        made.append(PostgresStore(chosen, runtime))
        return made[-1]

    yield make
    for store in made:
        await store.close()


@pytest.fixture(params=["async", "blocking"])
def make_caller(request: pytest.FixtureRequest, make_store: MakeStore) -> Callable[..., Caller]:
    """Make a store in each of the colours."""

    def make(*args: Any, **settings: Any) -> Caller:
        return Caller(make_store(*args, **settings), is_async=request.param == "async")

    return make


@pytest.fixture(params=[*WAYS, *TENANT_WAYS])
async def way(request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast]) -> AsyncIterator[Way]:
    """One of the four ways, or of those inside a tenant, open and empty."""
    database, colour, *_ = request.param.split("-")
    way = Way(new_holdfast(database, tasks=[TASKS]), is_async=colour == "async")
    await way.face.open()
    yield way
    await way.close()


@pytest.fixture
async def way_pg(new_holdfast: Callable[..., Holdfast]) -> AsyncIterator[Way]:
    """PostgreSQL, for async code."""
    way = Way(new_holdfast("postgres", tasks=[TASKS]), is_async=True)
    await way.hf.open()
    yield way
    await way.close()


@pytest.fixture
async def begin(way_pg: Way) -> AsyncIterator[Callable[[], Any]]:
    """Begin transactions that are left open: `one = await begin()`."""
    begun: list[Half] = []

    async def begin() -> Half:
        begun.append(await Half.connect(way_pg))
        return begun[-1]

    yield begin
    for each in begun:
        await each.connection.close()
