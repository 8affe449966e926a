"""SQLAlchemy's sessions: one for each transaction, as a request has it; by hand is `session.execute(text(…))`."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from itertools import count
from typing import Any

from sqlalchemy import Engine, TextClause, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from bench.limits import postgres, sqlite
from bench.stacks.drivers import job_values
from bench.stacks.kinds import AsyncMeans, Means


def session_over(driver: str) -> Callable[[str], AbstractContextManager[Means]]:
    """Make what opens an engine for `Session`, over *driver* as SQLAlchemy names it."""

    @contextmanager
    def connect(address: str) -> Iterator[Means]:
        engine = create_engine(engine_url(driver, address))
        _be_durable(engine)

        @contextmanager
        def transaction() -> Iterator[Session]:
            with Session(engine) as session, session.begin():
                yield session

        yield Means(transaction, _insert)
        engine.dispose()

    return connect


def async_session_over(driver: str) -> Callable[[str], AbstractAsyncContextManager[AsyncMeans]]:
    """Make what opens an engine for `AsyncSession`, over *driver* as SQLAlchemy names it."""

    @asynccontextmanager
    async def connect(address: str) -> AsyncIterator[AsyncMeans]:
        engine = create_async_engine(engine_url(driver, address))
        _be_durable(engine.sync_engine)

        @asynccontextmanager
        async def transaction() -> AsyncIterator[AsyncSession]:
            async with AsyncSession(engine) as session, session.begin():
                yield session

        yield AsyncMeans(transaction, _insert_async)
        await engine.dispose()

    return connect


def engine_url(driver: str, address: str) -> str:
    """Name the driver in front of the address."""
    if driver.startswith("sqlite"):
        return f"{driver}:///{address}"
    return address.replace("postgresql://", f"{driver}://", 1)


def _be_durable(engine: Engine) -> None:
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA synchronous = FULL").close())


def _insert(session: Session, given: str) -> None:
    job, event_of_job = STATEMENTS[session.get_bind().dialect.name]
    result: Any = session.execute(job, named_values(given))
    seq = result.scalar_one() if result.returns_rows else result.lastrowid
    session.execute(event_of_job, {"v1": seq})


async def _insert_async(session: AsyncSession, given: str) -> None:
    job, event_of_job = STATEMENTS[session.get_bind().dialect.name]
    result: Any = await session.execute(job, named_values(given))
    seq = result.scalar_one() if result.returns_rows else result.lastrowid
    await session.execute(event_of_job, {"v1": seq})


def named_values(given: str) -> dict[str, str]:
    """Name the values of a job's INSERT."""
    return {f"v{number}": value for number, value in enumerate(job_values(given), start=1)}


def named(sql: str, placeholder: str) -> TextClause:
    """Write `:v1`, `:v2`, … in place of a driver's placeholders."""
    numbers = count(1)
    return text(re.sub(re.escape(placeholder), lambda _: f":v{next(numbers)}", sql))


STATEMENTS = {
    "sqlite": (named(sqlite.JOB, "?"), named(sqlite.EVENT, "?")),
    "postgresql": (named(postgres.JOB, "%s"), named(postgres.EVENT, "%s")),
}
