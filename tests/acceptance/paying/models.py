"""The orders as SQLAlchemy knows them."""

from __future__ import annotations

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """What models are made from."""


class Order(Base):
    """An order of the shop."""

    __tablename__ = "shop_order"

    number: Mapped[int] = mapped_column(primary_key=True)
    amount: Mapped[int]
    times_paid: Mapped[int]
    receipts: Mapped[int]
