"""Blocks, continuations and blockers: what a handler returns is the type of its chain."""

from dataclasses import dataclass
from typing import Any, assert_type

from holdfast import Blocker, Chain, Completing, Context, Holdfast, Job, Record
from holdfast.sync import Chain as BlockingChain
from holdfast.sync import Completing as BlockingCompleting
from holdfast.sync import Context as BlockingContext

hf = Holdfast("jobs.db")


@dataclass
class Tracking:
    number: int


@hf.task
async def ship(order_id: int) -> Tracking:
    return Tracking(order_id)


@hf.task
async def forget(order_id: int) -> None: ...


@hf.task
async def charge(ctx: Context, order_id: int) -> Tracking:
    async with ctx.prepare() as tx:
        assert_type(await tx.fetch_one("SELECT 1"), Record | None)
        assert_type(await tx.fetch_all("SELECT :n", n=1), list[Record])
        tx.finish(1)  # refused
    async with ctx.complete() as tx:
        assert_type(await tx.start(ship(order_id=1), delay=5), Chain[Tracking])
        assert_type(await tx.start_many([ship(order_id=1)]), list[Chain[Tracking]])
        assert_type(tx.continue_with(ship(order_id=1)), Tracking)
        assert_type(tx.finish(), None)
        assert_type(tx.finish(Tracking(1)), Tracking)
        async with tx.savepoint():
            await tx.execute("SELECT 1")
        return tx.continue_with(ship(order_id=order_id))


@hf.task
async def wrong(ctx: Context, order_id: int) -> Tracking:
    async with ctx.complete() as tx:
        if order_id > 1:
            return tx.finish("sent")  # refused
        if order_id > 0:
            return tx.continue_with(forget(order_id=1))  # refused
        return tx.continue_with(ship)  # refused


@hf.task
async def simple(ctx: Context, order_id: int) -> Tracking:
    assert_type(ctx.blocker(ship), Tracking)
    assert_type(ctx.blocker(ship, 1), Tracking)
    assert_type(ctx.blockers, tuple[Blocker, ...])
    with ctx.complete():  # refused
        pass
    if order_id:
        return ctx.continue_with(forget(order_id=1))  # refused
    return ctx.continue_with(ship(order_id=1))


@hf.task
def plain(ctx: BlockingContext, order_id: int) -> Tracking:
    with ctx.prepare() as tx:
        assert_type(tx.fetch_one("SELECT 1"), Record | None)
    with ctx.atomic() as tx:
        assert_type(tx.start(ship(order_id=1)), BlockingChain[Tracking])
        with tx.savepoint():
            tx.execute("SELECT 1")
        if order_id:
            return tx.finish(1)  # refused
        return tx.continue_with(ship(order_id=order_id))


async def outside(chain: Chain[Tracking]) -> None:
    await hf.complete(ship, chain, Tracking(1), by="ada")
    await hf.complete(forget, chain)
    await hf.complete(ship, chain, output=Tracking(1), connection=object())
    await hf.complete(ship, chain)  # refused
    await hf.complete(ship, chain, 1)  # refused
    await hf.complete(forget, chain, 1)  # refused
    async with hf.completing(ship, chain) as job:
        assert_type(job, Completing[Tracking])
        assert_type(job.input, Any)
        following = await job.continue_with(ship(order_id=2))
        assert_type(following, Completing[Tracking])
        await following.finish(Tracking(3))
        await following.finish()  # refused
        await following.finish(3)  # refused
        await job.continue_with(forget(order_id=2))  # refused
        await job.tx.execute("SELECT 1")
    async with hf.completing(forget, chain) as last:
        await last.finish()
    with hf.completing(forget, chain):  # refused
        pass
    assert_type(await hf.get_blockers(chain), list[Chain[Any]])


def outside_blocking(chain: BlockingChain[Tracking]) -> None:
    hf.sync.complete(ship, chain, Tracking(1))
    assert_type(hf.sync.complete("ship", chain, {"number": 1}), Job)
    hf.sync.complete(ship, chain, 1)  # refused
    hf.sync.complete(7, chain, 1)  # refused
    with hf.sync.completing(ship, chain) as job:
        assert_type(job, BlockingCompleting[Tracking])
        job.continue_with(ship(order_id=2)).finish(Tracking(3))
        job.finish("x")  # refused
        job.tx.execute("SELECT 1")
