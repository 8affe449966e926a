"""The four ways in which one contract text is run: SQLite and PostgreSQL, async and blocking."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from holdfast import Holdfast
from holdfast.database.tx import Database, Operation

P = ParamSpec("P")
R = TypeVar("R")

WAYS = ("sqlite-async", "sqlite-blocking", "postgres-async", "postgres-blocking")
TENANT_WAYS = ("sqlite-async-tenant", "postgres-blocking-tenant")
"""The same contract inside a tenant, where all that the store does goes another way round."""


class Awaitable:
    """The blocking face under `await`, so that one text serves both."""

    def __init__(self, face: Any) -> None:
        self._face = face

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._face, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return method(*args, **kwargs)

        return call


@dataclass(frozen=True, slots=True)
class Way:
    """One database in one colour."""

    hf: Holdfast
    is_async: bool

    @property
    def database(self) -> Database:
        """Which database it is."""
        return self.hf.store.database

    @property
    def face(self) -> Any:
        """The public face; every method is awaited."""
        return self.hf if self.is_async else Awaitable(self.hf.sync)

    async def call(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a store operation in a transaction of its own."""
        if self.is_async:
            return await self.hf.store.run(operation, *args, **kwargs)
        return self.hf.store.run_sync(operation, *args, **kwargs)

    async def read(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a store operation that only reads."""
        if self.is_async:
            return await self.hf.store.read(operation, *args, **kwargs)
        return self.hf.store.read_sync(operation, *args, **kwargs)

    async def rows(self, sql: str, **values: object) -> list[tuple[Any, ...]]:
        """Look into the tables."""
        return await self.read(_fetch, sql, values)

    async def close(self) -> None:
        """Close the face in its own colour."""
        if self.is_async:
            await self.hf.close()
        self.hf.sync.close()


async def _fetch(tx: Any, sql: str, values: dict[str, object]) -> list[tuple[Any, ...]]:
    return list(await tx.fetch_all(sql, **values))
