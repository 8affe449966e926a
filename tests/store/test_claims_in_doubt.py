"""A claim is one statement that commits by itself; whatever fails behind it, the claim is not forgotten (I-55)."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.errors import Busy, UnknownOutcome
from holdfast.store import admission
from holdfast.store.jobs import claiming
from holdfast.store.jobs.claiming import Want

WANTS = [Want("default", "later", 30_000)]


@pytest.fixture
def hf(new_holdfast: Callable[..., Holdfast]) -> Holdfast:
    """A face on PostgreSQL that does not wait for long."""
    return new_holdfast("postgres", deadline_seconds=1)


async def start_one_that_has_waited(hf: Holdfast) -> str:
    """Start a job whose blocker has completed: whoever claims it reads by a second statement how that ended."""

    @hf.task(name="first")
    async def first() -> None: ...

    @hf.task(name="later")
    async def later() -> None: ...

    blocker = await hf.start(first())
    waiting = await hf.start(later(), blockers=[blocker])
    await hf.complete(first, blocker, output=None)
    for _ in range(2):  # counts its blockers, makes it ready
        await hf.store.run(admission.admit, "default")
    return str(waiting.id)


async def test_a_claim_is_in_doubt_if_the_statement_behind_it_fails(hf: Holdfast) -> None:
    """F-16."""
    async with hf, await psycopg.AsyncConnection.connect(hf.settings.database) as stranger:
        waiting = await start_one_that_has_waited(hf)
        await stranger.execute(f'LOCK TABLE "{hf.settings.schema_name}".holdfast_blocker')
        with pytest.raises(UnknownOutcome):
            await hf.store.run(claiming.claim, WANTS, 1, "worker-1", "nonce-1")
        await stranger.rollback()

        (found,) = await hf.store.read(claiming.claimed_by, "worker-1", "nonce-1")
        assert found.id == waiting


async def test_a_claim_that_fails_by_its_first_statement_has_not_happened(hf: Holdfast) -> None:
    async with hf, await psycopg.AsyncConnection.connect(hf.settings.database) as stranger:
        await start_one_that_has_waited(hf)
        await stranger.execute(f'LOCK TABLE "{hf.settings.schema_name}".holdfast_job')
        with pytest.raises(Busy):
            await hf.store.run(claiming.claim, WANTS, 1, "worker-1", "nonce-1")
        await stranger.rollback()

        assert await hf.store.read(claiming.claimed_by, "worker-1", "nonce-1") == []
