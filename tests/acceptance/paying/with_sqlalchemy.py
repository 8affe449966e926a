"""SQLAlchemy's blocking sessions on SQLite."""

from __future__ import annotations

from sqlalchemy import URL, create_engine

from holdfast import Holdfast
from holdfast.integrations.sqlalchemy import SQLAlchemy
from holdfast.sync import Context
from tests.acceptance.paying.models import Order
from tests.acceptance.paying.runtime import TASK, database

engine = create_engine(URL.create("sqlite", database=database()))
hf = Holdfast(transactions=SQLAlchemy(engine))
task = hf.tasks.task(**TASK)


@task(name="pay")
def pay(ctx: Context, number: int) -> int:
    """Pay an order, and leave its receipt to the next job."""
    with ctx.prepare() as tx:
        amount = tx.session.get_one(Order, number).amount
    ctx.progress(50, flush=True)
    with ctx.complete() as tx:
        order = tx.session.get_one(Order, number)
        order.times_paid += 1
        ctx.progress(90)  # the block holds the job's row, so that its end writes this
        return tx.continue_with(write_receipt(number=number, amount=amount))


@task(name="write_receipt")
def write_receipt(ctx: Context, number: int, amount: int) -> int:
    """Write down that an order was paid."""
    with ctx.complete() as tx:
        order = tx.session.get_one(Order, number)
        order.receipts += 1
        return tx.finish(amount)
