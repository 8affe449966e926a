"""SQLAlchemy's async sessions on asyncpg."""

from __future__ import annotations

from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from holdfast import Context, Holdfast
from holdfast.integrations.sqlalchemy import SQLAlchemy
from tests.acceptance.paying.models import Order
from tests.acceptance.paying.runtime import TASK, database

engine = create_async_engine(make_url(database()).set(drivername="postgresql+asyncpg"))
hf = Holdfast(transactions=SQLAlchemy(engine))
task = hf.tasks.task(**TASK)


@task(name="pay")
async def pay(ctx: Context, number: int) -> int:
    """Pay an order, and leave its receipt to the next job."""
    async with ctx.prepare() as tx:
        amount = (await tx.session.get_one(Order, number)).amount
    await ctx.progress(50, flush=True)
    async with ctx.complete() as tx:
        order = await tx.session.get_one(Order, number)
        order.times_paid += 1
        ctx.progress(90)  # the block holds the job's row, so that its end writes this
        return tx.continue_with(write_receipt(number=number, amount=amount))


@task(name="write_receipt")
async def write_receipt(ctx: Context, number: int, amount: int) -> int:
    """Write down that an order was paid."""
    async with ctx.complete() as tx:
        order = await tx.session.get_one(Order, number)
        order.receipts += 1
        return tx.finish(amount)
