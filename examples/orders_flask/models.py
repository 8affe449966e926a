"""The shop's own table, and the session of each request."""

from __future__ import annotations

from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

db_session: scoped_session[Session] = scoped_session(sessionmaker())
"""One session for each request, as Flask-SQLAlchemy's `db.session` is; `web` gives it its engine."""


class Base(DeclarativeBase):
    """All tables of the shop."""


class Order(Base):
    """What somebody wants to have."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    cents: Mapped[int]
    state: Mapped[str] = mapped_column(default="new")
