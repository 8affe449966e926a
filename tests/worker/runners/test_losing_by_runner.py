"""A job that is taken away, or asked back, completes in no runner, and what its block wrote is gone (I-32, I-37).

In the loop and in a thread the same losses are in `tests/worker/test_losing.py`, where a worker can be made to learn
nothing from its leases; here are the children, which are told by their worker.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from typing import Any

import pytest

from holdfast import Chain, Holdfast, JobNotFound
from tests.support.conditions import until
from tests.worker.runners.behaviours import CHILDREN, LONGEST_SECONDS, behaviour
from tests.worker.runners.notes import note, noting_errors, pass_gate, pass_gate_whatever_happens, place
from tests.worker.runners.stage import PAY, Runner

pytestmark = pytest.mark.asyncio(loop_scope="package")

TAKE = "UPDATE holdfast_job SET nonce = 'of another worker', attempt = attempt + 1 WHERE id = :id"


@behaviour()
async def complete_late(ctx: Any, n: int, before: bool) -> int:
    """Complete the job, though it may be somebody else's by then: taken before the block is opened, or inside it."""
    if before:
        note(ctx, "here")
        await pass_gate_whatever_happens(ctx)
    async with noting_errors(ctx), ctx.complete() as tx:
        await tx.execute(PAY, id=n)
        if not before:
            note(ctx, "here")
            await pass_gate_whatever_happens(ctx)
        return tx.finish(n)  # type: ignore[no-any-return]


async def _take(runner: Runner, chain: Chain[Any]) -> None:
    async def take(tx: Any) -> None:
        await tx.execute(TAKE, id=str(chain.id))

    await runner.hf.store.run(take)


async def _cancel(runner: Runner, chain: Chain[Any]) -> None:
    await runner.hf.cancel(chain)


async def _complete(runner: Runner, chain: Chain[Any]) -> None:
    await runner.hf.complete(complete_late.on(runner.name), chain, output=99)


async def _delete(runner: Runner, chain: Chain[Any]) -> None:
    await runner.hf.delete(chain)


LOSSES: dict[str, tuple[Callable[[Runner, Chain[Any]], Awaitable[None]], list[str]]] = {
    "taken by another worker": (_take, ["raised", "lease_lost", "taken_by_another_worker"]),
    "cancelled": (_cancel, ["raised", "Aborted", "cancelled"]),
    "completed elsewhere": (_complete, ["raised", "lease_lost", "already_completed"]),
    "deleted": (_delete, ["raised", "lease_lost", "not_found"]),
}
CANCELLED = ["raised", "CancelledError", ""]
"""What an async handler meets that is told, at one of the awaits of its block, before the block finds out itself."""
STATUSES = {"taken by another worker": "running", "cancelled": "cancelled", "completed elsewhere": "completed"}


async def _status(runner: Runner, chain: Chain[Any]) -> str | None:
    try:
        return str((await runner.hf.get_job(chain)).status)
    except JobNotFound:
        return None


async def lose(runner: Runner, number: int, name: str, *, before: bool) -> None:
    """Have a handler complete a job that it loses meanwhile, and look at what is left of it."""
    loss, raised = LOSSES[name]
    chain = await runner.start(complete_late, n=number, before=before)
    await runner.until_noted(chain, "here")

    await loss(runner, chain)
    runner.open_gate(chain)
    noted = await runner.until_noted(chain, "raised")
    if name == "cancelled":
        await runner.until_state(chain, "cancelled")

    assert noted == raised or (noted == CANCELLED and not runner.is_plain)
    assert number not in await runner.receipts()
    assert await _status(runner, chain) == STATUSES.get(name)
    if name == "completed elsewhere":
        assert await runner.output(chain) == 99
    if name == "taken by another worker":
        await runner.hf.delete(chain)  # nobody has it, and nobody else is to run it


in_children = pytest.mark.parametrize("runner", CHILDREN, indirect=True)


@in_children
@pytest.mark.parametrize("name", LOSSES)
async def test_a_job_lost_before_the_block_is_opened_is_not_completed(runner: Runner, number: int, name: str) -> None:
    await lose(runner, number, name, before=True)


@pytest.mark.source("DF-29")
@in_children
@pytest.mark.parametrize("hf", ["postgres"], indirect=True, scope="package")  # on SQLite an open block is alone
@pytest.mark.parametrize("name", LOSSES)
async def test_a_job_lost_while_the_block_is_open_is_not_completed(runner: Runner, number: int, name: str) -> None:
    await lose(runner, number, name, before=False)


LEASE_SECONDS = 3.0


@behaviour(lease=LEASE_SECONDS)
async def complete_after_leases(ctx: Any, n: int) -> int:
    """Work until the test lets it complete the job."""
    note(ctx, "here")
    await pass_gate(ctx)
    async with ctx.complete() as tx:
        await tx.execute(PAY, id=n)
        return tx.finish(n)  # type: ignore[no-any-return]


async def work_longer_than_a_lease(
    hf: Holdfast, child: str, number: int, meanwhile: AbstractContextManager[Any]
) -> None:
    """Have handlers complete their jobs when their leases would be over, had nobody kept them."""
    runners = [Runner(hf, name) for name in ("loop", "thread", child)]
    chains = [await each.start(complete_after_leases, n=number * 1_000_000 + n) for n, each in enumerate(runners)]
    for chain in chains:
        await runners[0].until_noted(chain, "here")
    with meanwhile:
        over_at = time.monotonic() + LEASE_SECONDS * 1.5
        await until(lambda: time.monotonic() > over_at, "the leases would be over", LEASE_SECONDS * 3)
    await until_renewed(hf, chains[-1])
    for chain in chains:
        runners[0].open_gate(chain)

    ended = [await runners[0].ended(chain) for chain in chains]

    assert [(each.status, each.attempt) for each in ended] == [("completed", 1)] * len(runners)


async def until_renewed(hf: Holdfast, chain: Chain[Any]) -> None:
    """Wait until a lease was renewed twice: after the first, which waited for long, nothing is sure for a moment."""
    seen: set[Any] = set()

    async def is_renewed() -> bool:
        seen.add((await hf.get_job(chain)).lease_until)
        return len(seen) > 2

    await until(is_renewed, "the lease is renewed", LONGEST_SECONDS)


@pytest.mark.long
@pytest.mark.parametrize("child", CHILDREN)
async def test_a_handler_that_works_for_longer_than_its_lease_completes(hf: Holdfast, number: int, child: str) -> None:
    await work_longer_than_a_lease(hf, child, number, nullcontext())


@contextmanager
def nobody_else_writes() -> Iterator[None]:
    """Have SQLite's right to write."""
    with closing(sqlite3.connect(place() / "jobs.db", isolation_level=None)) as stranger:
        stranger.execute("BEGIN IMMEDIATE")
        yield
        stranger.execute("ROLLBACK")


@pytest.mark.long
@pytest.mark.parametrize("hf", ["sqlite"], indirect=True, scope="package")
@pytest.mark.parametrize("child", CHILDREN)
async def test_a_renewal_that_waits_for_sqlites_right_to_write_costs_no_job(
    hf: Holdfast, number: int, child: str
) -> None:
    await work_longer_than_a_lease(hf, child, number, nobody_else_writes())
