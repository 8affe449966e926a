"""Blocks in handlers: your statements and the job's end in one commit, or none of it (I-14, I-65, I-66).

What a child process can show, too, is tested in `tests/worker/runners/test_blocks_by_runner.py`, in all runners.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from holdfast import LeaseLost, Misuse, Retry, Unavailable
from holdfast.database.tx import Tx
from holdfast.store.jobs import block_ends
from holdfast.store.jobs.settling import Settlement
from tests.support.conditions import until
from tests.worker.colours import Colour, Witness

ONCE = Retry.never()
PAY = "INSERT INTO bill (id, amount) VALUES (:id, 1)"


@pytest.mark.source("JC-18")
async def test_what_prepare_has_committed_stays_when_complete_rolls_back(colour: Colour) -> None:
    async def charge(ctx: Any, n: int) -> Any:
        async with ctx.prepare() as tx:
            await tx.execute(PAY, id=1)
        async with ctx.complete() as tx:
            await tx.execute(PAY, id=2)
            raise OSError("no")

    task = colour.task(charge, int, retry=ONCE)
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=3))
        await colour.until_status(chain, "failed")

    assert await colour.bills() == [1]


@pytest.mark.parametrize(("is_ours", "error"), [(True, Unavailable), (False, LeaseLost)])
async def test_a_commit_that_failed_because_the_lease_is_over_says_so(
    colour: Colour, monkeypatch: pytest.MonkeyPatch, is_ours: bool, error: type[Exception]
) -> None:
    """F-04: a process that stood still for longer than its lease has overrun the time for an answer as well."""
    told: list[type[Exception]] = []

    async def charge(ctx: Any, n: int) -> Any:
        try:
            async with ctx.complete() as tx:
                await tx.execute(PAY, id=n)
                return tx.finish(n)
        except (LeaseLost, Unavailable) as raised:
            told.append(type(raised))
            raise

    task = colour.task(charge, int, retry=ONCE)
    worker = colour.hf.worker(grace=0.1)

    async def no_answer(tx: Tx, settlement: Settlement, **_: object) -> None:
        if not is_ours:
            worker._core.leases.drop(settlement.token)
        raise Unavailable("no answer in time")

    monkeypatch.setattr(block_ends, "finish", no_answer)
    async with worker:
        await colour.hf.start(task(n=1))
        await until(lambda: bool(told), "the handler is told")

    assert set(told) == {error}  # what is given back may begin again
    assert await colour.bills() == []


@pytest.mark.source("JC-23")
async def test_a_handler_may_prepare_and_then_return_its_output(colour: Colour) -> None:
    async def charge(ctx: Any, n: int) -> Any:
        async with ctx.prepare() as tx:
            await tx.execute(PAY, id=n)
        return n + 1

    task = colour.task(charge, int)
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=1))

        assert await chain.result(timeout=10) == 2


async def _has_ended(colour: Colour, chain: Any) -> bool:
    return await colour.status(chain) in ("completed", "failed")


@pytest.mark.parametrize("inner", ["prepare", "complete", "atomic"])
@pytest.mark.parametrize("outer", ["prepare", "complete"])
async def test_a_block_in_a_block_is_refused_and_the_outer_one_rolls_back(
    colour: Colour, outer: str, inner: str
) -> None:
    async def charge(ctx: Any, n: int) -> None:
        async with getattr(ctx, outer)() as tx:
            await tx.execute(PAY, id=1)
            async with getattr(ctx, inner)():
                pass

    task = colour.task(charge, None, retry=ONCE)
    async with colour.hf.worker():
        chain = await colour.hf.start(task())
        await colour.until_status(chain, "failed")

    assert "still open" in await colour.error(chain)
    assert await colour.bills() == []


@pytest.mark.source("JC-23", "DF-11")
async def test_naming_a_block_without_entering_it_does_nothing(colour: Colour) -> None:
    async def charge(ctx: Any, n: int) -> Any:
        ctx.prepare(), ctx.complete(), ctx.atomic()
        return "plain"

    task = colour.task(charge, str)
    async with colour.hf.worker():
        chain = await colour.hf.start(task())

        assert await chain.result(timeout=10) == "plain"


async def test_after_a_block_that_rolled_back_no_other_is_opened(colour: Colour) -> None:
    async def charge(ctx: Any, n: int) -> Any:
        try:
            async with ctx.complete() as tx:
                await tx.execute(PAY, id=1)
                raise OSError("once")
        except OSError:
            pass
        async with ctx.complete() as tx:
            return tx.finish(1)

    task = colour.task(charge, int, retry=ONCE)
    async with colour.hf.worker():
        chain = await colour.hf.start(task())
        await colour.until_status(chain, "failed")

    assert "was rolled back" in await colour.error(chain)


@pytest.mark.parametrize("kind", ["complete", "atomic"])
async def test_an_end_whose_block_was_rolled_back_completes_nothing(colour: Colour, kind: str) -> None:
    async def charge(ctx: Any, n: int) -> Any:
        with suppress(OSError):  # the mistake that is tested
            async with getattr(ctx, kind)() as tx:
                await tx.execute(PAY, id=1)
                output = tx.finish(n)
                raise OSError("too late")
        return output

    task = colour.task(charge, int, retry=ONCE)
    async with colour.hf.worker():
        chain = await colour.hf.start(task())
        await until(lambda: _has_ended(colour, chain), "the job has ended")

    assert "its block did not complete the job" in await colour.error(chain)
    assert await colour.bills() == []


async def test_whoever_gave_his_block_no_end_may_end_otherwise_when_it_was_rolled_back(colour: Colour) -> None:
    async def charge(ctx: Any, n: int) -> Any:
        try:
            async with ctx.complete() as tx:
                await tx.execute(PAY, id=1)
                await tx.execute(PAY, id=1)
                return tx.finish("new")
        except Exception:  # noqa: BLE001 - the driver's own
            return "old"

    task = colour.task(charge, str, retry=ONCE)
    async with colour.hf.worker():
        chain = await colour.hf.start(task())

        assert await chain.result(timeout=10) == "old"

    assert await colour.bills() == []


@pytest.mark.source("JC-24")
async def test_a_transaction_that_a_swallowed_error_has_broken_does_not_commit(colour: Colour) -> None:
    """I-66."""

    async def charge(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            await tx.execute(PAY, id=1)
            with suppress(Exception):  # the mistake that is tested
                await tx.execute(PAY, id=1)
            return tx.finish(n)

    task = colour.task(charge, int, retry=ONCE)
    async with colour.hf.worker():
        chain = await colour.hf.start(task())
        await until(lambda: _has_ended(colour, chain), "the job has ended")

    assert (await colour.error(chain)).startswith("TransactionBroken")
    assert await colour.bills() == []


async def test_a_savepoint_lets_a_part_fail(colour: Colour) -> None:
    async def charge(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            await tx.execute(PAY, id=1)
            try:
                async with tx.savepoint():
                    await tx.execute(PAY, id=2)
                    await tx.execute(PAY, id=1)
            except Exception as error:  # noqa: BLE001 - the driver's own
                caught = type(error).__name__
            async with tx.savepoint():
                await tx.execute(PAY, id=3)
            return tx.finish(caught)

    task = colour.task(charge, str, retry=ONCE)
    async with colour.hf.worker():
        chain = await colour.hf.start(task())

        assert await chain.result(timeout=10) in ("UniqueViolation", "IntegrityError")

    assert await colour.bills() == [1, 3]


async def test_chains_started_in_a_block_exist_with_its_commit(colour: Colour) -> None:
    witness = Witness()

    async def fan_out(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            one = await tx.start(task(n=1), delay=60)
            others = await tx.start_many([task(n=2).options(delay=60), task(n=3).options(delay=60)])
            witness.reached.set()
            await colour.wait(witness.gate)
            return tx.finish([str(each.id) for each in (one, *others)])

    task = colour.task(fan_out, list[str])
    async with colour.hf.worker():
        chain = await colour.hf.start(task())
        await until(witness.reached.is_set, "they are started")
        before = len((await colour.hf.list_jobs()).items)
        witness.gate.set()
        started = await chain.result(timeout=10)

    assert before == 1
    assert [(await colour.hf.get_job(each)).status for each in started] == ["pending"] * 3


async def test_the_result_of_a_chain_started_in_a_block_is_had_after_it(colour: Colour) -> None:
    async def result_of(chain: Any) -> Any:
        result = chain.result(timeout=20)
        return await result if colour.is_async else result

    async def leaf(ctx: Any, n: int) -> Any:
        return n

    async def parent(ctx: Any, n: int) -> Any:
        async with ctx.prepare() as tx:
            chain = await tx.start(leaf_task(n=7))
            try:
                await result_of(chain)
            except Misuse as error:
                said = str(error)
        return [said, str(await result_of(chain))]

    leaf_task = colour.task(leaf, int)
    task = colour.task(parent, list[str], retry=ONCE)
    async with colour.hf.worker():
        said, output = await (await colour.hf.start(task())).result(timeout=30)

    assert "after the block" in said
    assert output == "7"


async def test_a_block_left_without_an_end_finishes_with_none_if_that_is_an_output(colour: Colour) -> None:
    async def silent(ctx: Any, n: int) -> None:
        async with ctx.complete() as tx:
            await tx.execute(PAY, id=n)

    task = colour.task(silent, None)
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=1))

        assert await chain.result(timeout=10) is None

    assert await colour.bills() == [1]


async def test_a_block_left_without_an_end_rolls_back_if_none_is_no_output(colour: Colour) -> None:
    async def silent(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            await tx.execute(PAY, id=n)

    task = colour.task(silent, int, retry=ONCE)
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=1))
        await colour.until_status(chain, "failed")

    assert "left without an end" in await colour.error(chain)
    assert await colour.bills() == []


async def test_an_output_that_does_not_fit_is_refused_where_it_is_given(colour: Colour) -> None:
    async def wrong(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            await tx.execute(PAY, id=n)
            return tx.finish("seven")

    task = colour.task(wrong, int, retry=ONCE)
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=1))
        await colour.until_status(chain, "failed")

    assert (await colour.error(chain)).startswith("InvalidOutput")
    assert await colour.bills() == []


@pytest.mark.source("JC-3")
async def test_a_job_is_finished_or_continued_once(colour: Colour) -> None:
    async def twice(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            tx.finish(1)
            return tx.continue_with(task(n=2))

    task = colour.task(twice, int, retry=ONCE)
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=1))
        await colour.until_status(chain, "failed")

    assert "finish or continue a job once" in await colour.error(chain)


async def test_the_transaction_is_of_no_use_after_its_block(colour: Colour) -> None:
    async def keeps(ctx: Any, n: int) -> Any:
        async with ctx.prepare() as tx:
            pass
        await tx.execute(PAY, id=1)
        return n

    task = colour.task(keeps, int, retry=ONCE)
    async with colour.hf.worker():
        chain = await colour.hf.start(task())
        await colour.until_status(chain, "failed")

    assert "inside the block only" in await colour.error(chain)


async def _warned(colour: Colour, chain: Any) -> bool:
    return "job:warning" in await colour.events(chain)


async def test_another_output_returned_after_the_block_is_warned_of(colour: Colour) -> None:
    async def fickle(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            tx.finish(n)
        return n + 1 if n == 4 else n

    task = colour.task(fickle, int)
    async with colour.hf.worker():
        same = await colour.hf.start(task(n=3))
        chain = await colour.hf.start(task(n=4))
        assert await chain.result(timeout=10) == 4
        await until(lambda: _warned(colour, chain), "the warning is in the history")
        await same.result(timeout=10)

    assert "job:warning" not in await colour.events(same)


async def test_the_last_progress_is_written_with_the_block(colour: Colour) -> None:
    async def steps(ctx: Any, n: int) -> None:
        ctx.progress(10, "begun")
        async with ctx.complete():
            ctx.progress(90, "nearly")

    task = colour.task(steps, None)
    async with colour.hf.worker():
        chain = await colour.hf.start(task())
        await chain.result(timeout=10)

    job = await colour.hf.get_job(chain)
    assert (job.progress, job.message) == (90, "nearly")


async def test_a_lane_goes_on_with_the_commit_of_a_block(colour: Colour) -> None:
    witness = Witness()
    ran: list[int] = []

    async def in_lane(ctx: Any, n: int) -> None:
        ran.append(n)
        async with ctx.complete():
            pass
        if n == 1:
            witness.reached.set()
            await colour.wait(witness.gate)

    task = colour.task(in_lane, None)
    async with colour.hf.worker(poll=0.2):
        await colour.hf.start(task(n=1), lane="a")
        second = await colour.hf.start(task(n=2), lane="a")
        await until(witness.reached.is_set, "the first has completed")
        await second.result(timeout=10)  # though the handler of the first has not returned
        witness.gate.set()

    assert ran == [1, 2]


async def test_a_block_that_is_never_left_is_ended_with_its_attempt(colour: Colour) -> None:
    """Its place in the pool, or its right to write, is for others to have."""
    kept: list[Any] = []

    async def forget(ctx: Any, n: int) -> Any:
        block = ctx.prepare()
        kept.append(block)
        tx = await block.__aenter__()
        await tx.execute(PAY, id=n)
        return n

    async def charge(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            await tx.execute(PAY, id=n)
            return tx.finish(n)

    forgetful = colour.task(forget, int, retry=ONCE)
    careful = colour.task(charge, int, retry=ONCE)
    places = colour.hf.settings.pool_size
    async with colour.hf.worker():
        await colour.hf.wait(await colour.hf.start_many([forgetful(n=100 + n) for n in range(places)]), timeout=30)
        chain = await colour.hf.start(careful(n=1))

        assert await chain.result(timeout=10) == 1

    assert await colour.bills() == [1]


@pytest.mark.parametrize("verb", ["complete", "delete"])
async def test_a_block_that_ends_its_own_job_by_a_verb_is_refused(colour: Colour, verb: str) -> None:
    async def charge(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            await tx.execute(PAY, id=1)
            own = tx if colour.is_async else tx._inner
            face = colour.hf if colour.is_async else colour.hf.sync
            if verb == "complete":
                called = face.complete(task, ctx.job.id, output=1, connection=own)
            else:
                called = face.delete(ctx.job.id, connection=own)
            if colour.is_async:
                await called
            return tx.finish(n)

    task = colour.task(charge, int, retry=ONCE)
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=1))
        await until(lambda: _has_ended(colour, chain), "the job has ended")

    assert (await colour.error(chain)).startswith("Misuse")
    assert await colour.bills() == []
