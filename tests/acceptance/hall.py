"""Jobs that wait until a test lets them go, for workers in the test's own process; and questions about them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeAlias
from uuid import UUID

import psycopg
import pytest

from holdfast import Context, Holdfast, Tasks
from holdfast.outcomes import Retry
from tests.support.conditions import until
from tests.support.log_lines import lines

NewHoldfast: TypeAlias = Callable[..., Holdfast]

GATE_KEY = 77


class Hall:
    """Tasks whose handlers wait until the test lets them go, and what became of each."""

    def __init__(self, lease: float = 30.0) -> None:
        self.tasks = Tasks()
        self.gate = asyncio.Event()
        self.begun: list[UUID] = []
        self.stopped: dict[UUID, str | None] = {}
        task = self.tasks.task(lease=lease, retry=Retry(first=0.05, maximum=0.05, jitter=0))

        @task(name="waits")
        async def waits(ctx: Context) -> None:
            self.begun.append(ctx.job.id)
            try:
                await self.gate.wait()
            finally:
                if ctx.abort_reason is not None:
                    self.stopped[ctx.job.id] = ctx.abort_reason

        self.waits = waits


async def rows(hf: Holdfast, sql: str, **values: object) -> list[tuple[Any, ...]]:
    """Look into the tables."""

    async def fetch(tx: Any) -> list[tuple[Any, ...]]:
        return list(await tx.fetch_all(sql, **values))

    return await hf.store.read(fetch)


async def counts(hf: Holdfast) -> dict[str, int]:
    """Count the jobs by their status."""
    return dict(await rows(hf, "SELECT status, count(*) FROM holdfast_job GROUP BY status"))


async def until_counts(hf: Holdfast, timeout: float = 20, **wanted: int) -> None:
    """Wait until there are so many jobs of each status."""

    async def holds() -> bool:
        return await counts(hf) == wanted

    await until(holds, f"the jobs are {wanted}", timeout)


async def until_past(seconds: float) -> None:
    """Wait until this machine's clock has gone on by *seconds*."""
    until_then = time.monotonic() + seconds
    await until(lambda: time.monotonic() > until_then, "time passes", seconds + 5)


async def reaped(hf: Holdfast) -> int:
    """Count how often a job was taken back."""
    ((count,),) = await rows(hf, "SELECT count(*) FROM holdfast_event WHERE name = 'job:reaped'")
    return int(count)


class Crowd:
    """Middleware that counts how many attempts one worker has at once."""

    def __init__(self) -> None:
        self.now = self.most = 0

    async def __call__(self, ctx: Any, following: Any) -> Any:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            return await following()
        finally:
            self.now -= 1


def deadlocks(url: str) -> int:
    """Count the deadlocks that the database of *url* has ever seen; a connection tells of its own when it is closed."""
    with psycopg.connect(url) as person:
        found = person.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchone()
    return int(found[0]) if found else 0


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return lines(caplog)


def disconnect_all(person: psycopg.Connection[Any]) -> None:
    """Terminate every other connection to the database."""
    person.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


async def sit(tx: Any) -> None:
    await tx.execute(f"SELECT pg_advisory_xact_lock_shared({GATE_KEY})")


def waiting_for_gate(person: psycopg.Connection[Any]) -> int:
    found = person.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted").fetchone()
    return int(found[0]) if found else 0
