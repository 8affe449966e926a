"""The session of a block: `session_as` gives it the type that its library has."""

from typing import Any, assert_type

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from holdfast import Context, Holdfast
from holdfast.sync import Context as BlockingContext

hf = Holdfast("jobs.db")


class Shop(Session):
    def orders(self) -> list[int]:
        return []


@hf.task
async def charge(ctx: Context, order_id: int) -> None:
    async with ctx.prepare() as tx:
        assert_type(tx.session, Any)
        assert_type(tx.session_as(AsyncSession), AsyncSession)
    async with ctx.complete() as tx:
        tx.session_as(AsyncSession).no_such_method()  # refused
        return tx.finish()


@hf.task
def ship(ctx: BlockingContext, order_id: int) -> None:
    with ctx.complete() as tx:
        assert_type(tx.session_as(Shop).orders(), list[int])
        tx.session_as("Session")  # refused
        return tx.finish()
