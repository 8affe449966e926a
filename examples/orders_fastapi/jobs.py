"""What the shop does in the background; `web` gives these tasks to its Holdfast."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from examples.orders_fastapi.models import Order
from holdfast import Context, Retry, Tasks

tasks = Tasks()


class Payments:
    """Stands for a service outside the database: it knows what it has done by the key that it was given."""

    def __init__(self) -> None:
        self.charged: dict[str, int] = {}
        self.requests = 0

    async def charge(self, cents: int, key: str) -> None:
        """Charge once for each *key*, however often it is asked."""
        self.requests += 1
        self.charged.setdefault(key, cents)


payments = Payments()


@tasks.task(name="charge", retry=Retry(attempts=3, first=0.1, jitter=0))
async def charge(ctx: Context, order_id: int) -> str:
    """Charge an order, and mark it paid by the ORM in the commit that completes the job."""
    async with ctx.prepare() as tx:  # `tx.session` is an AsyncSession, in a transaction of this block
        order = await tx.session_as(AsyncSession).get_one(Order, order_id)
    await payments.charge(order.cents, key=ctx.idempotency_key)  # long work; no transaction is open
    async with ctx.complete() as tx:
        order = await tx.session_as(AsyncSession).get_one(Order, order_id)
        order.state = "paid"
        if ctx.job.used == 1:
            raise ConnectionError("broken off in the middle of the block")  # so the order stays new, and is tried again
        return tx.finish(f"receipt for order {order_id}")
