"""Journals are the same in every runner: entries in order, kept over attempts, and with a block or not at all."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast import JournalFull, Misuse
from tests.worker.runners.behaviours import SOON, behaviour, is_plain
from tests.worker.runners.notes import note
from tests.worker.runners.stage import PAY, Runner

pytestmark = pytest.mark.asyncio(loop_scope="package")
over_providers = True


async def entries(runner: Runner, chain: Any, **options: Any) -> list[tuple[int, int, str, Any]]:
    """Read the journal of a job as outsiders do: number, attempt, kind and body of each entry."""
    page = await runner.hf.journal(chain, limit=500, **options)
    return [(each.number, each.attempt, each.kind, each.body) for each in page]


@behaviour(retry=SOON)
async def converse(ctx: Any) -> list[Any]:
    """Say one thing more in each attempt, by what the journal has already; fail until three were said."""
    said = await ctx.journal.read(kind="message")
    await ctx.journal.append("message", {"turn": len(said) + 1})
    await ctx.journal.append("note", f"attempt {ctx.job.attempt}")
    if len(said) < 2:
        raise ValueError("go on")
    return [each.body["turn"] for each in await ctx.journal.read(kind="message")]


@pytest.mark.source("TQ-16", "TQ-44")
async def test_a_journal_is_kept_over_attempts_in_order(runner: Runner) -> None:
    chain = await runner.start(converse)

    assert await runner.output(chain) == [1, 2, 3]

    assert await entries(runner, chain) == [
        (1, 1, "message", {"turn": 1}),
        (2, 1, "note", "attempt 1"),
        (3, 2, "message", {"turn": 2}),
        (4, 2, "note", "attempt 2"),
        (5, 3, "message", {"turn": 3}),
        (6, 3, "note", "attempt 3"),
    ]


@behaviour()
async def all_at_once(ctx: Any, count: int) -> None:
    """Append from many tasks, or threads, at once."""
    if not is_plain(ctx):
        await asyncio.gather(*(ctx.journal.append("each", n) for n in range(count)))
        return
    inner = ctx._inner.journal
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: inner.append("each", n), range(count)))


async def test_entries_that_are_appended_at_once_never_collide(runner: Runner) -> None:
    chain = await runner.start(all_at_once, count=12)
    await runner.output(chain)

    found = await entries(runner, chain)
    assert [number for number, *_ in found] == list(range(1, 13))
    said = [body for *_, body in found]
    assert sorted(said) == list(range(12))
    assert runner.is_plain or said == sorted(said)


@behaviour(retry=SOON)
async def in_blocks(ctx: Any, n: int) -> int:
    """Append in both blocks, and between them; fail in the first attempt inside of the second block."""
    async with ctx.prepare() as tx:
        await tx.journal.append("prepared", n)
    await ctx.journal.append("between", n)
    async with ctx.complete() as tx:
        await tx.execute(PAY, id=n)
        async with tx.savepoint():
            await tx.journal.append("kept", n)
        try:
            async with tx.savepoint():
                await tx.journal.append("undone", n)
                raise LookupError
        except LookupError:
            await tx.journal.append("paid", ctx.job.attempt)
        if ctx.job.attempt == 1:
            raise ValueError("all of it rolls back")
        return tx.finish(n)  # type: ignore[no-any-return]


@pytest.mark.source("TQ-16")
async def test_entries_of_a_block_commit_with_it_or_not_at_all(runner: Runner, number: int) -> None:
    chain = await runner.start(in_blocks, n=number)
    assert await runner.output(chain) == number

    assert await entries(runner, chain) == [
        (1, 1, "prepared", number),
        (2, 1, "between", number),
        (3, 2, "prepared", number),
        (4, 2, "between", number),
        (5, 2, "kept", number),
        (6, 2, "paid", 2),
    ]
    told = [(each.facts["kind"], each.facts["number"]) for each in await runner.history(chain, "job:journal")]
    assert told[-1] == ("paid", 6)


@behaviour()
async def in_the_wrong_place(ctx: Any) -> None:
    """Append in a block past it, and after the end."""
    async with ctx.complete() as tx:
        try:
            await ctx.journal.append("beside", 1)
        except Misuse as error:
            note(ctx, "inside", str(error))
        tx.finish(None)
    try:
        await ctx.journal.append("late", 1)
    except Misuse as error:
        note(ctx, "after", str(error))


async def test_an_entry_past_the_block_or_after_the_end_is_refused(runner: Runner) -> None:
    chain = await runner.start(in_the_wrong_place)
    await runner.output(chain)

    assert "tx.journal.append" in (await runner.until_noted(chain, "inside"))[1]
    assert "completed the job" in (await runner.until_noted(chain, "after"))[1]
    assert await entries(runner, chain) == []


@behaviour()
async def goes_on_after_full(ctx: Any) -> None:
    """Append something too large, and then go on."""
    try:
        await ctx.journal.append("large", "x" * 65_535)
    except JournalFull as error:
        note(ctx, error.limit, error.most)
    await ctx.journal.append("small", "x" * 65_534)


async def test_an_entry_that_is_refused_leaves_no_gap(runner: Runner) -> None:
    chain = await runner.start(goes_on_after_full)
    await runner.output(chain)

    assert runner.notes(chain) == [["entry", 65_536]]
    assert [(number, kind) for number, _, kind, _ in await entries(runner, chain)] == [(1, "small")]
