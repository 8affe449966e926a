"""What the shop does in the background; `web` gives these tasks to its Holdfast."""

from __future__ import annotations

from sqlalchemy.orm import Session

from examples.orders_flask.models import Order
from holdfast import Retry, Tasks
from holdfast.sync import Context

tasks = Tasks()


@tasks.task(name="charge", retry=Retry(attempts=3, first=0.1, jitter=0))
def charge(ctx: Context, order_id: int) -> str:
    """Mark an order paid by the ORM, in the commit that completes the job."""
    with ctx.complete() as tx:  # `tx.session` is a Session, in a transaction of this block
        order = tx.session_as(Session).get_one(Order, order_id)
        order.state = "paid"
        if ctx.job.used == 1:
            raise ConnectionError("broken off in the middle of the block")  # so the order stays new, and is tried again
        return tx.finish(f"receipt for order {order_id}")
