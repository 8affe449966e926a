"""SQLAlchemy's sessions, by each driver that it has for our databases."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from sqlalchemy import URL, create_engine, make_url
from sqlalchemy.ext.asyncio import create_async_engine

from holdfast.integrations.sqlalchemy import SQLAlchemy
from tests.support.databases import pooled
from tests.worker.providers.interface import Often, Stack, Url

DRIVERS = {
    "pysqlite": ("sqlite", False),
    "aiosqlite": ("sqlite", True),
    "psycopg": ("postgres", False),
    "psycopg2": ("postgres", False),
    "async psycopg": ("postgres", True),
    "asyncpg": ("postgres", True),
}
OFTEN = {
    "pysqlite": Often.EVERYWHERE,
    "asyncpg": Often.CHEAP,
    "aiosqlite": Often.CHEAP,
    "psycopg": Often.CHEAP,
}


def address(url: Url, driver: str) -> URL:
    """Write the address of a test's database as SQLAlchemy reads it."""
    if not url.startswith("postgresql"):
        return URL.create(f"sqlite+{driver}", database=url)
    return make_url(url).set(drivername=f"postgresql+{driver.removeprefix('async ')}")


@asynccontextmanager
async def blocking_engine(url: Url, driver: str, **options: Any) -> AsyncIterator[Any]:
    """Make a blocking engine."""
    engine = create_engine(address(url, driver), connect_args=pooled.engine_options(driver), **options)
    try:
        yield engine
    finally:
        engine.dispose()


@asynccontextmanager
async def async_engine(url: Url, driver: str, **options: Any) -> AsyncIterator[Any]:
    """Make an async engine."""
    own = pooled.engine_options(driver.removeprefix("async "))
    engine = create_async_engine(address(url, driver), connect_args=own, **options)
    try:
        yield engine
    finally:
        await engine.dispose()


def engine_of(driver: str) -> Callable[..., AbstractAsyncContextManager[Any]]:
    """Find what makes engines of this driver's colour."""
    return async_engine if DRIVERS[driver][1] else blocking_engine


def _provider(driver: str) -> Callable[[Url], AbstractAsyncContextManager[Any]]:
    @asynccontextmanager
    async def open_provider(url: Url) -> AsyncIterator[SQLAlchemy]:
        async with engine_of(driver)(url, driver) as engine:
            yield SQLAlchemy(engine)

    return open_provider


STACKS = tuple(
    Stack(
        f"sqlalchemy+{driver.replace(' ', '_')}",
        database,
        is_async,
        _provider(driver),
        OFTEN.get(driver, Often.LONG),
    )
    for driver, (database, is_async) in DRIVERS.items()
)
