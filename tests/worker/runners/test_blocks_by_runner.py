"""Blocks are the same in every runner: your statements and the job's end in one commit, or none of it (Q-09, I-65)."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from holdfast import ChainNotFound, Misuse
from tests.worker.runners.behaviours import behaviour, face, is_plain
from tests.worker.runners.notes import note, place
from tests.worker.runners.stage import PAY, Runner
from tests.worker.runners.test_ends import echo, last

pytestmark = pytest.mark.asyncio(loop_scope="package")
over_providers = True


@behaviour()
async def charge(ctx: Any, n: int) -> str:
    """Write before the work and with its end."""
    async with ctx.prepare() as tx:
        await tx.execute(PAY, id=n)
    async with ctx.complete() as tx:
        row = await tx.fetch_one("SELECT id, amount FROM receipt WHERE id = :id", id=n)
        await tx.execute(PAY, id=-n)
        both = await tx.fetch_all("SELECT id FROM receipt WHERE id IN (:id, :other) ORDER BY id", id=n, other=-n)
        note(ctx, row[0], row["id"], row.amount, [each.id for each in both])
        return tx.finish(f"paid {row.id}")  # type: ignore[no-any-return]


@pytest.mark.source("JC-1", "JC-22")
async def test_statements_output_and_completion_are_one_commit(runner: Runner, number: int) -> None:
    chain = await runner.start(charge, n=number)

    assert await runner.output(chain) == f"paid {number}"

    job = await runner.hf.get_job(chain)
    assert runner.notes(chain) == [[number, number, 1, [-number, number]]]
    assert {number, -number} <= await runner.receipts()
    assert (job.status, job.output, job.attempt) == ("completed", f"paid {number}", 1)
    assert len(await runner.history(chain, "job:completed")) == len(await runner.history(chain, "chain:completed")) == 1


@behaviour()
async def charge_at_once(ctx: Any, n: int) -> int:
    """Do all in one transaction."""
    async with ctx.atomic() as tx:
        await tx.execute(PAY, id=n)
        return tx.finish(n)  # type: ignore[no-any-return]


@pytest.mark.source("JC-19")
async def test_atomic_is_both_in_one(runner: Runner, number: int) -> None:
    assert await runner.result(charge_at_once, n=number) == number
    assert number in await runner.receipts()


@behaviour()
async def refused(ctx: Any, kind: str, n: int) -> int:
    """Raise when all has been said and nothing committed."""
    async with getattr(ctx, kind)() as tx:
        await tx.execute(PAY, id=n)
        chain = await tx.start(last.beside(ctx)(n=n), delay=3600)
        note(ctx, str(chain.id))
        if kind != "prepare":
            tx.finish(n)
        raise OSError("the card was refused")


@pytest.mark.source("JC-24")
@pytest.mark.parametrize("kind", ["prepare", "complete", "atomic"])
async def test_what_raises_inside_a_block_undoes_all_of_it(runner: Runner, number: int, kind: str) -> None:
    ended = await runner.end(refused, kind=kind, n=number)

    ((started,),) = runner.notes(ended)
    assert (ended.status, ended.error["message"]) == ("failed", "the card was refused")
    assert number not in await runner.receipts()
    with pytest.raises(ChainNotFound):
        await runner.hf.get_chain(started)


ORDERS = {
    ("prepare", "prepare"): "prepare() was used, and can be used only once",
    ("complete", "prepare"): "the job is completed",
    ("complete", "complete"): "the job is completed",
    ("prepare", "atomic"): "the next block must be complete()",
    ("complete", "atomic"): "the job is completed",
}


@behaviour()
async def open_each(ctx: Any, kinds: list[str]) -> None:
    """Open blocks, one after the other, and tell what is said."""
    try:
        for kind in kinds:
            async with getattr(ctx, kind)():
                pass
    except Misuse as error:
        note(ctx, "refused", str(error))


@pytest.mark.source("JC-20")
@pytest.mark.parametrize("kinds", ORDERS, ids=" then ".join)
async def test_each_block_is_opened_once_and_in_order(runner: Runner, kinds: tuple[str, str]) -> None:
    chain = await runner.start(open_each, kinds=list(kinds))

    _, said = await runner.until_noted(chain, "refused")  # the first block may have completed the job before
    ended = await runner.ended(chain)

    assert ORDERS[kinds] in said
    assert ended.status == "completed"


@behaviour()
async def fan_out(ctx: Any) -> list[str]:
    """Start chains with the end of the job, and try one thing in vain."""
    task = echo.beside(ctx)
    async with ctx.complete() as tx:
        one = await tx.start(task(text="one"))
        others = await tx.start_many([task(text="two"), task(text="three")])
        try:
            async with tx.savepoint():
                note(ctx, str((await tx.start(task(text="undone"))).id))
                raise LookupError
        except LookupError:
            pass
        return tx.finish([str(each.id) for each in (one, *others)])  # type: ignore[no-any-return]


async def test_chains_start_with_the_commit_of_a_block_but_not_those_of_an_undone_savepoint(runner: Runner) -> None:
    chain = await runner.start(fan_out)

    started = [await runner.hf.get_chain(each) for each in await runner.output(chain)]

    assert [await runner.output(each) for each in started] == ["eno", "owt", "eerht"]
    ((undone,),) = runner.notes(chain)
    with pytest.raises(ChainNotFound):
        await runner.hf.get_chain(undone)


@behaviour()
async def go_on(ctx: Any, n: int) -> str:
    """Go on with another job by the commit of a block."""
    async with ctx.complete() as tx:
        await tx.execute(PAY, id=n)
        return tx.continue_with(last.beside(ctx)(n=n))  # type: ignore[no-any-return]


@pytest.mark.source("JC-22")
async def test_a_chain_goes_on_with_the_commit_of_a_block(runner: Runner, number: int) -> None:
    assert await runner.result(go_on, n=number) == f"1: {number}"
    assert number in await runner.receipts()


@behaviour()
async def start_beside(ctx: Any, database: str) -> str:
    """Start a chain inside a block, but not by its transaction; then by it, and after the block."""
    hf, task = face(ctx, database), last.beside(ctx)
    async with ctx.prepare() as tx:
        try:
            await hf.start(task(n=1))
        except Misuse as error:
            note(ctx, str(error))
        by_block = await hf.start(task(n=2), connection=getattr(tx, "_inner", tx))
    after = await hf.start(task(n=3))
    return f"{by_block.id} {after.id}"


async def test_a_start_beside_an_open_block_is_refused(runner: Runner) -> None:
    """I-65."""
    chain = await runner.start(start_beside, database=runner.database)

    started = [await runner.hf.get_chain(each) for each in (await runner.output(chain)).split()]

    ((said,),) = runner.notes(chain)
    assert "tx.start" in said
    assert "ctx.prepare()" in said
    assert [await runner.output(each) for each in started] == ["0: 2", "0: 3"]


@behaviour()
async def clumsy(ctx: Any, n: int) -> int:
    """Raise when all is done."""
    async with ctx.complete() as tx:
        await tx.execute(PAY, id=n)
        tx.finish(n)
    raise OSError("too late")


async def test_what_is_raised_after_the_block_is_a_warning_and_undoes_nothing(runner: Runner, number: int) -> None:
    """I-66."""
    chain = await runner.start(clumsy, n=number)
    assert await runner.output(chain) == number

    await runner.until_told(chain, "job:warning")

    job = await runner.hf.get_job(chain)
    (warning,) = await runner.history(chain, "job:warning")
    assert (job.status, job.attempt, job.error) == ("completed", 1, None)
    assert (warning.facts["error"]["type"], warning.facts["error"]["message"]) == ("OSError", "too late")
    assert number in await runner.receipts()


@cache
def engine(*, is_async: bool) -> Any:
    """An engine of the user's own on the SQLite file, as a module of his would have it; it keeps no connection."""
    from sqlalchemy import NullPool, create_engine
    from sqlalchemy.ext.asyncio import create_async_engine

    if is_async:
        return create_async_engine(f"sqlite+aiosqlite:///{place()}/jobs.db", poolclass=NullPool)
    return create_engine(f"sqlite:///{place()}/jobs.db", poolclass=NullPool)


@behaviour()
async def charge_by_session(ctx: Any, n: int, fails: bool) -> str:
    """Complete the job by a session of SQLAlchemy's."""
    async with ctx.complete(using=engine(is_async=not is_plain(ctx))) as tx:
        await tx.execute(PAY, id=n)
        if fails:
            raise OSError("the card was refused")
        return tx.finish(type(tx.session).__name__)  # type: ignore[no-any-return]


@pytest.mark.parametrize("hf", ["sqlite"], indirect=True, scope="package")
async def test_the_transaction_may_be_a_session_of_the_users_own(runner: Runner, number: int) -> None:
    ended = await runner.end(charge_by_session, n=number, fails=True)
    name = await runner.result(charge_by_session, n=-number, fails=False)

    assert (ended.status, name) == ("failed", "Session" if runner.is_plain else "AsyncSession")
    assert (await runner.receipts()) & {number, -number} == {-number}


@behaviour()
async def have_children(ctx: Any, database: str, n: int) -> None:
    """Start children by the face and by the block, and one job that is to have no parent."""
    task = last.beside(ctx)
    await face(ctx, database).start(task(n=n), delay=3600)
    async with ctx.complete() as tx:
        await tx.start_many([task(n=n).options(delay=3600) for _ in range(2)])
        await tx.start(task(n=n), delay=3600, parent=None)


async def test_what_a_handler_starts_has_its_job_as_parent(runner: Runner, number: int) -> None:
    chain = await runner.start(have_children, database=runner.database, n=number)
    await runner.output(chain)

    children = await runner.hf.list_jobs(parent=chain)

    assert [job.parent for job in children] == [chain.id] * 3
    assert {job.state for job in children} == {"scheduled"}
