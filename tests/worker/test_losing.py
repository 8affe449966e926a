"""A block whose job is taken away, or asked back, while it is open: it raises, and all of it rolls back (I-32)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast import Retry, UnknownOutcome
from holdfast.store.jobs import reaping
from holdfast.store.jobs.claiming import ClaimState
from holdfast.worker.attempts.aborts import AbortReason
from holdfast.worker.leases import LeaseKeeper
from tests.support.conditions import until
from tests.worker.colours import Colour, Witness, let_others_run
from tests.worker.providers import Often, provided

ONCE = Retry.never()
# while a block is open on SQLite nobody else writes, so that nothing can be lost or asked for
ON_POSTGRES = ("postgres-async", "postgres-plain", *provided("postgres", Often.EVERYWHERE))
PAY = "INSERT INTO bill (id, amount) VALUES (:id, 1)"


async def _reap(colour: Colour, chain: Any) -> None:
    """Have the job taken back, as if its worker were proved dead."""
    worker = (await colour.hf.get_job(chain)).worker
    assert len(await colour.hf.store.run(reaping.reap_dead, [worker])) == 1


async def _cancel(colour: Colour, chain: Any) -> None:
    await colour.hf.cancel(chain)


async def _delete(colour: Colour, chain: Any) -> None:
    await colour.hf.delete(chain)


async def _complete(colour: Colour, chain: Any) -> None:
    await colour.hf.complete(colour.hf.tasks.get("charge"), chain, output=99)


LOSSES: dict[str, tuple[Callable[[Colour, Any], Awaitable[None]], str, str, str | None]] = {
    "reaped": (_reap, "lease_lost", "taken_by_another_worker", "pending"),
    "cancelled": (_cancel, "Aborted", "cancelled", "cancelled"),
    "deleted": (_delete, "lease_lost", "not_found", None),
    "completed elsewhere": (_complete, "lease_lost", "already_completed", "completed"),
}


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that learns nothing from its leases, so that only the block itself can find out."""
    monkeypatch.setattr(LeaseKeeper, "step", lambda self: None)


@pytest.mark.usefixtures("deaf")
@pytest.mark.parametrize("kind", ["prepare", "complete", "atomic"])
@pytest.mark.parametrize("name", LOSSES)
async def test_a_job_lost_before_the_block_opens_is_refused(colour: Colour, name: str, kind: str) -> None:
    lose, code, reason, status = LOSSES[name]
    witness = Witness()

    async def charge(ctx: Any, n: int) -> Any:
        witness.reached.set()
        await colour.wait(witness.gate)
        async with witness.watching(), getattr(ctx, kind)() as tx:
            await tx.execute(PAY, id=1)
        return 1

    task = colour.task(charge, int)
    async with colour.hf.worker(concurrency=1, grace=0.5) as worker:
        chain = await colour.hf.start(task())
        await until(witness.reached.is_set, "the handler runs")
        await lose(colour, chain)
        worker.drain()
        witness.gate.set()
        await until(lambda: bool(witness.raised), "the block was refused")

    assert witness.codes == [code]
    assert witness.raised[0].reason == reason  # type: ignore[attr-defined]
    assert await colour.bills() == []
    assert status is None or await colour.status(chain) == status


@pytest.mark.usefixtures("deaf")
@pytest.mark.parametrize("kind", ["prepare", "complete"])
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("colour", ON_POSTGRES, indirect=True)
async def test_a_job_lost_while_the_block_is_open_rolls_it_back(colour: Colour, name: str, kind: str) -> None:
    """I-13, I-66."""
    lose, code, reason, status = LOSSES[name]
    witness = Witness()

    async def charge(ctx: Any, n: int) -> Any:
        async with witness.watching(), getattr(ctx, kind)() as tx:
            await tx.execute(PAY, id=1)
            witness.reached.set()
            await colour.wait(witness.gate)
            if kind == "complete":
                tx.finish(1)
        return 1

    task = colour.task(charge, int)
    async with colour.hf.worker(concurrency=1, grace=0.5) as worker:
        chain = await colour.hf.start(task())
        await until(witness.reached.is_set, "the block is open")
        await lose(colour, chain)
        worker.drain()
        witness.gate.set()
        await until(lambda: bool(witness.raised), "the block has raised")

    assert witness.codes == [code]
    assert witness.raised[0].reason == reason  # type: ignore[attr-defined]
    assert await colour.bills() == []
    assert status is None or await colour.status(chain) == status


@pytest.mark.source("DF-21")
@pytest.mark.parametrize("colour", ON_POSTGRES, indirect=True)
async def test_a_cancel_is_told_while_the_block_is_open(colour: Colour) -> None:
    """I-33, I-66."""
    witness = Witness()

    async def charge(ctx: Any, n: int) -> Any:
        async with witness.watching(), ctx.complete() as tx:
            await tx.execute(PAY, id=1)
            witness.reached.set()
            if colour.is_async:
                await ctx.aborted
            else:
                ctx.aborted.wait(10)
            await tx.execute(PAY, id=2)
            return tx.finish(1)

    task = colour.task(charge, int)
    async with colour.hf.worker(poll=0.2):
        chain = await colour.hf.start(task())
        await until(witness.reached.is_set, "the block is open")
        await colour.hf.cancel(chain)
        await colour.until_status(chain, "cancelled")

    assert witness.codes == (["CancelledError"] if colour.is_async else ["Aborted"])
    assert await colour.bills() == []


async def test_a_time_out_in_a_block_rolls_it_back(colour: Colour) -> None:
    witness = Witness()

    async def slow(ctx: Any, n: int) -> Any:
        async with witness.watching(), ctx.complete() as tx:
            await tx.execute(PAY, id=1)
            if colour.is_async:
                await asyncio.Event().wait()
            ctx.aborted.wait(10)
            return tx.finish(1)

    task = colour.task(slow, int, timeout=0.3, retry=ONCE)
    async with colour.hf.worker():
        chain = await colour.hf.start(task())
        await colour.until_status(chain, "failed")

    assert (await colour.error(chain)).startswith("TimeoutError")
    assert await colour.bills() == []


async def test_a_shutdown_in_a_block_rolls_it_back_and_gives_the_job_back(colour: Colour) -> None:
    """I-50."""
    witness = Witness()

    async def slow(ctx: Any, n: int) -> Any:
        async with witness.watching(), ctx.complete() as tx:
            await tx.execute(PAY, id=1)
            witness.reached.set()
            if colour.is_async:
                await asyncio.Event().wait()
            ctx.aborted.wait(10)
            return tx.finish(1)

    task = colour.task(slow, int)
    async with colour.hf.worker(grace=0):
        chain = await colour.hf.start(task())
        await until(witness.reached.is_set, "the block is open")

    job = await colour.hf.get_job(chain)
    assert (job.status, job.used) == ("pending", 0)
    assert await colour.bills() == []


@pytest.mark.parametrize(
    "colour", ["postgres-plain"], indirect=True
)  # an async handler is cancelled when it is to pause
async def test_a_pause_lets_the_block_come_to_its_end(colour: Colour) -> None:
    witness = Witness()

    async def slow(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            await tx.execute(PAY, id=1)
            witness.reached.set()
            ctx.aborted.wait(10)
            return tx.finish(1)

    task = colour.task(slow, int)
    async with colour.hf.worker(poll=0.2):
        chain = await colour.hf.start(task())
        await until(witness.reached.is_set, "the block is open")
        await colour.hf.pause(chain)

        assert await chain.result(timeout=10) == 1

    assert await colour.bills() == [1]


@pytest.mark.parametrize("kind", ["complete", "atomic"])
async def test_a_worker_that_may_have_lost_its_lease_opens_no_block_that_completes(
    colour: Colour, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-20."""
    witness = Witness()

    async def charge(ctx: Any, n: int) -> Any:
        witness.reached.set()
        await colour.wait(witness.gate)
        async with witness.watching(), getattr(ctx, kind)():
            entered.append(kind)

    entered: list[str] = []
    monkeypatch.setattr(LeaseKeeper, "may_complete", lambda self, token: False)
    task = colour.task(charge, int)
    async with colour.hf.worker(concurrency=1) as worker:
        chain = await colour.hf.start(task())
        await until(witness.reached.is_set, "the handler runs")
        worker.drain()
        witness.gate.set()

    job = await colour.hf.get_job(chain)
    assert witness.codes == ["lease_lost"]
    assert witness.raised[0].reason == "error"  # type: ignore[attr-defined]
    assert (job.status, job.used) == ("pending", 0)
    assert not entered


async def test_a_lease_that_ends_while_the_block_is_open_keeps_it_from_completing(
    colour: Colour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-20, I-14."""
    witness = Witness()

    async def charge(ctx: Any, n: int) -> Any:
        async with witness.watching(), ctx.complete() as tx:
            await tx.execute(PAY, id=1)
            witness.reached.set()
            await colour.wait(witness.gate)
            return tx.finish(1)

    monkeypatch.setattr(LeaseKeeper, "may_complete", lambda self, token: not witness.gate.is_set())
    task = colour.task(charge, int)
    async with colour.hf.worker(concurrency=1) as worker:
        await colour.hf.start(task())
        await until(witness.reached.is_set, "the block is open")
        worker.drain()
        witness.gate.set()

    assert witness.codes == ["lease_lost"]
    assert await colour.bills() == []


class LostAnswers:
    """Makes the COMMIT of blocks lose its answer, after it has happened or before."""

    def __init__(self, colour: Colour, monkeypatch: pytest.MonkeyPatch, *, happens: bool) -> None:
        self.commits = 0
        lost = self

        def broken(open_tx: Any) -> Any:
            commit, roll_back = open_tx.commit, open_tx.roll_back

            async def lose(*given: Any) -> None:
                lost.commits += 1
                await (commit(*given) if happens else roll_back())
                raise UnknownOutcome("the answer was lost")

            return Substitute(open_tx, lose)

        change_blocks(colour, monkeypatch, broken)


def change_blocks(colour: Colour, monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any]) -> None:
    """Have every block's transaction, whosever it is, put through *change*."""

    def changed(begin: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def begin_changed(*given: Any) -> Any:
            return change(await begin(*given))

        return begin_changed

    opener = colour.hf._opener
    monkeypatch.setattr(opener, "begin", changed(opener.begin))
    monkeypatch.setattr(opener, "begin_blocking", changed(opener.begin_blocking))


class Substitute:
    """An open transaction with another commit; *is_committed* tells what is known of it."""

    def __init__(self, open_tx: Any, commit: Any, is_committed: Callable[[], bool] = lambda: False) -> None:
        self._open_tx = open_tx
        self._is_committed = is_committed
        self.commit = commit

    @property
    def is_committed(self) -> bool:
        """Tell whether COMMIT is known to have succeeded."""
        return self._is_committed()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._open_tx, name)


async def test_a_commit_whose_answer_was_lost_is_found_to_have_happened(
    colour: Colour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-16, I-55."""
    after: list[str] = []

    async def charge(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            await tx.execute(PAY, id=1)
            tx.finish(1)
        after.append("went on")
        return 1

    task = colour.task(charge, int)
    lost = LostAnswers(colour, monkeypatch, happens=True)
    async with colour.hf.worker():
        chain = await colour.hf.start(task())
        assert await chain.result(timeout=10) == 1
        await until(lambda: after == ["went on"], "the handler goes on after its block")

    job = await colour.hf.get_job(chain)
    assert (lost.commits, job.attempt) == (1, 1)
    assert await colour.bills() == [1]


async def test_a_commit_whose_answer_was_lost_is_found_not_to_have_happened(
    colour: Colour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-16, I-55."""

    async def charge(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            await tx.execute(PAY, id=1)
            return tx.finish(1)

    task = colour.task(charge, int, retry=ONCE)
    LostAnswers(colour, monkeypatch, happens=False)
    async with colour.hf.worker():
        chain = await colour.hf.start(task())
        await colour.until_status(chain, "failed")

    assert "nothing of the block was saved" in await colour.error(chain)
    assert await colour.bills() == []


async def test_a_prepare_whose_answer_was_lost_says_that_nobody_knows(
    colour: Colour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-16, I-55."""

    async def charge(ctx: Any, n: int) -> Any:
        async with ctx.prepare() as tx:
            await tx.execute(PAY, id=1)
        return 1

    task = colour.task(charge, int, retry=ONCE)
    LostAnswers(colour, monkeypatch, happens=True)
    async with colour.hf.worker():
        chain = await colour.hf.start(task())
        await colour.until_status(chain, "failed")

    assert (await colour.error(chain)).startswith("UnknownOutcome")


async def test_a_handler_that_goes_on_after_its_block_is_not_told_that_its_job_is_completed(colour: Colour) -> None:
    witness = Witness()
    reasons: list[Any] = []

    async def lingers(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            tx.finish(n)
        witness.reached.set()
        await colour.wait(witness.gate)
        reasons.append(ctx.abort_reason)
        return n

    task = colour.task(lingers, int)
    async with colour.hf.worker() as worker:
        chain = await colour.hf.start(task(n=1))
        await until(witness.reached.is_set, "the block is closed")
        (attempt,) = worker._core.active
        is_kept = worker._core.leases.good_until(attempt.job.token) is not None
        worker._on_claim_states({attempt.job.token: ClaimState.COMPLETED})  # as the leases' thread does
        await let_others_run()
        witness.gate.set()
        await until(lambda: bool(reasons), "the handler has ended")

    assert not is_kept
    assert reasons == [None]
    assert "job:warning" not in await colour.events(chain)


async def test_an_abort_that_comes_with_the_commit_waits_for_it(
    colour: Colour, monkeypatch: pytest.MonkeyPatch
) -> None:
    after: list[Any] = []
    told: list[AbortReason] = []

    async def charge(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            await tx.execute(PAY, id=1)
            tx.finish(1)
        after.append(ctx.abort_reason)
        return 1

    def tell(token: Any) -> None:
        (attempt,) = worker._core.active
        attempt.abort(AbortReason.COMPLETED)
        told.append(AbortReason.COMPLETED)

    task = colour.task(charge, int)
    AtCommit(colour, monkeypatch, tell)
    async with colour.hf.worker() as worker:
        chain = await colour.hf.start(task())
        assert await chain.result(timeout=10) == 1
        await until(lambda: bool(after), "the handler goes on after its block")

    assert told == [AbortReason.COMPLETED]
    assert after == [None]
    assert await colour.bills() == [1]


class AtCommit:
    """Has something happen in the loop while a block's COMMIT is under way."""

    def __init__(self, colour: Colour, monkeypatch: pytest.MonkeyPatch, act: Callable[[Any], None]) -> None:
        loop = asyncio.get_running_loop()

        def watched(open_tx: Any) -> Any:
            commit = open_tx.commit

            async def commit_later(last: Any, begin_commit: Callable[[], None]) -> None:
                begin_commit()
                happened = threading.Event()
                loop.call_soon_threadsafe(lambda: (act(None), happened.set()))
                if colour.is_async:
                    await until(happened.is_set, "it has happened")
                else:
                    happened.wait(10)
                await commit(last, begin_commit)

            return Substitute(open_tx, commit_later, lambda: open_tx.is_committed)

        change_blocks(colour, monkeypatch, watched)
