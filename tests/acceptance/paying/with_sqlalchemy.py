"""SQLAlchemy's blocking sessions on SQLite."""

from __future__ import annotations

import time

from sqlalchemy import URL, create_engine

from holdfast import Holdfast
from holdfast.integrations.sqlalchemy import SQLAlchemy
from holdfast.sync import Context
from tests.acceptance.paying.models import Order
from tests.acceptance.paying.runtime import TASK, database, is_open

engine = create_engine(URL.create("sqlite", database=database()))
hf = Holdfast(transactions=SQLAlchemy(engine))
task = hf.tasks.task(**TASK)


@task(name="pay")
def pay(ctx: Context, number: int) -> int:
    """Pay an order, and leave its receipt to the next job."""
    with ctx.prepare() as tx:
        amount = tx.session.get_one(Order, number).amount
    ctx.progress(50)
    while not is_open():
        time.sleep(0.02)
    with ctx.complete() as tx:
        order = tx.session.get_one(Order, number)
        order.times_paid += 1
        return tx.continue_with(write_receipt(number=number, amount=amount))


@task(name="write_receipt")
def write_receipt(ctx: Context, number: int, amount: int) -> int:
    """Write down that an order was paid."""
    with ctx.complete() as tx:
        order = tx.session.get_one(Order, number)
        order.receipts += 1
        return tx.finish(amount)
