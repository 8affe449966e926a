"""Tenants of tests, on both databases: made and removed again, and what a test does to them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg

from holdfast import Holdfast
from holdfast.worker.hosts.host import WorkerHost
from tests.conftest import SCHEMA


class Scene:
    """A `Holdfast` with tenants, and what has run for whom."""

    def __init__(self, hf: Holdfast) -> None:
        self.hf = hf
        self.gate = asyncio.Event()
        """What handlers wait for that hold their slots."""
        self.ran: list[str] = []
        """The tenant of every job that has begun, in their order."""
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        """How many ran at once, for each."""

    @property
    def is_postgres(self) -> bool:
        return self.hf.store.database == "postgres"

    async def create(self, *names: str) -> None:
        for name in names:
            await self.hf.tenants.create(name)

    def place(self, name: str) -> str:
        """The schema of a tenant."""
        return f"{SCHEMA}_t_{name}"

    def file(self, name: str) -> Path:
        """The file of a tenant."""
        return Path(self.hf.tenant(name).database)

    def count(self, name: str) -> int:
        """How many jobs of a tenant have begun."""
        return self.ran.count(name)

    def begin(self, name: str) -> None:
        self.ran.append(name)
        self.running[name] += 1
        self.most[name] = max(self.most[name], self.running[name])
        self.most["all"] = max(self.most["all"], self.running.total())

    def end(self, name: str) -> None:
        self.running[name] -= 1

    @asynccontextmanager
    async def host(self, **options: Any) -> AsyncIterator[WorkerHost]:
        """Have a host work meanwhile."""
        worker = self.hf.worker(**{"concurrency": 10, "tenants": {"*": 1}, "webhooks": False, **options})
        assert isinstance(worker, WorkerHost)
        async with worker:
            yield worker


def execute(url: str, sql: str) -> list[tuple[Any, ...]]:
    """Run *sql* over a connection of its own."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(sql)
        return cursor.fetchall() if cursor.description else []


def remove_schemas(url: str) -> None:
    """Remove the schemas of all tenants of tests."""
    found = f"SELECT nspname FROM pg_namespace WHERE nspname LIKE '{SCHEMA}\\_t\\_%'"
    for (name,) in execute(url, found):
        execute(url, f'DROP SCHEMA "{name}" CASCADE')


@asynccontextmanager
async def scene_on(hf: Holdfast, url: str | None) -> AsyncIterator[Scene]:
    """Open *hf*, and remove its tenants at the end."""
    if url is not None:
        remove_schemas(url)
    async with hf:
        yield Scene(hf)
    if url is not None:
        remove_schemas(url)
