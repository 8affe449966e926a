"""What the shop does in the background; Holdfast's app imports the `tasks.py` of every app."""

from __future__ import annotations

from examples.orders_django.orders.models import Order
from holdfast import Retry
from holdfast.integrations.django import tasks
from holdfast.sync import Context


@tasks.task(name="charge", retry=Retry(attempts=3, first=0.1, jitter=0))
def charge(ctx: Context, order_id: int) -> str:
    """Mark an order paid by the ORM, in the commit that completes the job."""
    with ctx.complete() as tx:  # this is `transaction.atomic()`
        order = Order.objects.select_for_update().get(id=order_id)
        order.state = "paid"
        order.save()
        if ctx.job.used == 1:
            raise ConnectionError("broken off in the middle of the block")  # so the order stays new, and is tried again
        return tx.finish(f"receipt for order {order_id}")
