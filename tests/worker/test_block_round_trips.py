"""How blocks end on PostgreSQL: in one round trip with COMMIT where nothing else follows, and else as ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Context, Holdfast
from holdfast.database.postgres.block import PostgresTransaction
from holdfast.store import outbox
from tests.conftest import SCHEMA

NewHoldfast = Callable[..., Holdfast]


@pytest.fixture
async def hf(new_holdfast: NewHoldfast) -> Holdfast:
    hf = new_holdfast("postgres")
    await hf.migrate()
    return hf


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note how blocks end: by a COMMIT of its own, or by one that comes with the last statement."""
    noted: list[str] = []
    commit, commit_with = PostgresTransaction._commit, PostgresTransaction.commit_with

    async def note_commit(self: PostgresTransaction) -> None:
        await commit(self)
        noted.append("alone")

    async def note_commit_with(self: PostgresTransaction, *given: Any) -> None:
        await commit_with(self, *given)
        if self.is_committed:
            noted.append("together")

    monkeypatch.setattr(PostgresTransaction, "_commit", note_commit)
    monkeypatch.setattr(PostgresTransaction, "commit_with", note_commit_with)
    return noted


async def test_prepare_and_complete_end_in_one_round_trip_each(hf: Holdfast, ends: list[str]) -> None:
    @hf.task(name="pays")
    async def pays(ctx: Context) -> str:
        async with ctx.prepare() as tx:
            await tx.fetch_one("SELECT 1 AS one")
        async with ctx.complete() as end:
            return end.finish("it's \\ paid")

    async with hf.worker():
        assert await (await hf.start(pays())).result(timeout=10) == "it's \\ paid"
    assert ends == ["together", "together"]


async def test_a_prepare_that_has_written_nothing_waits_for_nobody_who_has_its_job_locked(hf: Holdfast) -> None:
    @hf.task(name="looks")
    async def looks(ctx: Context) -> int:
        stranger = await hf.store.begin(30)
        await stranger.query(f"SELECT seq FROM {SCHEMA}.holdfast_job FOR UPDATE", {})
        async with ctx.prepare() as tx:
            found = await tx.fetch_one("SELECT 7 AS number")
        await stranger.roll_back()
        return int(found.number) if found else 0

    async with hf.worker():
        assert await (await hf.start(looks())).result(timeout=10) == 7


async def test_a_webhook_is_written_before_a_commit_of_its_own(hf: Holdfast, ends: list[str]) -> None:
    @hf.task(name="tells")
    async def tells(ctx: Context) -> int:
        async with ctx.complete() as tx:
            return tx.finish(1)

    async with hf.worker(webhooks=False):
        chain = await hf.start(tells().options(webhook="https://example.com/hook"))
        assert await chain.result(timeout=10) == 1

    assert ends == ["alone"]
    assert await hf.store.read(outbox.backlog) == 1
