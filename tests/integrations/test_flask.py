"""Flask by the blocking face: a view's scoped session, as of Flask-SQLAlchemy, carries the job; a worker ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from uuid import UUID

import pytest
from flask import Flask, abort, request
from sqlalchemy import create_engine, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from holdfast import Holdfast, Tasks
from holdfast.integrations.sqlalchemy import SQLAlchemy
from holdfast.sync import Context

tasks = Tasks()


class Base(DeclarativeBase):
    """The tables of the shop."""


class Order(Base):
    """What somebody wants to have."""

    __tablename__ = "flask_order"

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    state: Mapped[str] = mapped_column(default="new")


@tasks.task(name="pay")
def pay(ctx: Context, order_id: int) -> str:
    with ctx.complete() as tx:
        tx.session.get_one(Order, order_id).state = "paid"
        return tx.finish(f"receipt {order_id}")


@dataclass(frozen=True)
class Shop:
    """An application, and what it works on."""

    app: Flask
    hf: Holdfast
    sessions: scoped_session[Session]

    def order(self, item: str) -> tuple[int, str]:
        """Order something; give the status of the answer, and its text."""
        told = self.app.test_client().post("/orders", query_string={"item": item})
        return told.status_code, told.text

    def count(self) -> tuple[int, int]:
        """Count orders and jobs."""
        with self.sessions() as session:
            orders = session.scalar(select(func.count()).select_from(Order))
        return orders or 0, len(self.hf.sync.list_jobs(limit=100).items)


@pytest.fixture(params=["sqlite", "postgres"])
def shop(request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast]) -> Iterator[Shop]:
    """A shop on either database."""
    address = new_holdfast(request.param).settings.database
    url = address.replace("postgresql://", "postgresql+psycopg://") if "://" in address else f"sqlite:///{address}"
    engine = create_engine(url)
    sessions = scoped_session(sessionmaker(engine))
    hf = new_holdfast(request.param, tasks=[tasks], transactions=SQLAlchemy(engine))
    hf.sync.open()
    Base.metadata.create_all(engine)
    yield Shop(make_app(hf, sessions), hf, sessions)
    sessions.remove()
    Base.metadata.drop_all(engine)
    engine.dispose()


def make_app(hf: Holdfast, sessions: scoped_session[Session]) -> Flask:
    app = Flask(__name__)

    @app.teardown_appcontext
    def end_session(error: BaseException | None) -> None:
        sessions.remove()

    @app.post("/orders")
    def take_order() -> str:
        order = Order(item=request.args["item"])
        sessions.add(order)
        sessions.flush()
        chain = hf.sync.start(pay(order_id=order.id), connection=sessions)
        if order.item == "teapot":
            abort(409)
        if order.item == "broken kettle":
            raise ValueError(order.item)
        if order.item != "forgotten kettle":
            sessions.commit()
        return str(chain.id)

    return app


def test_an_order_and_its_job_are_one_commit(shop: Shop) -> None:
    status, job = shop.order("kettle")

    assert (status, shop.count()) == (200, (1, 1))
    assert shop.hf.sync.get_job(UUID(job)).task == "pay"


@pytest.mark.parametrize(("item", "status"), [("teapot", 409), ("broken kettle", 500), ("forgotten kettle", 200)])
def test_a_request_that_does_not_commit_leaves_neither(shop: Shop, item: str, status: int) -> None:
    assert shop.order(item)[0] == status

    assert shop.count() == (0, 0)
    assert shop.order("kettle")[0] == 200  # and the next one goes well


def test_requests_in_threads_have_a_session_each(shop: Shop) -> None:
    together = threading.Barrier(4)

    def order(number: int) -> int:
        together.wait(10)
        return shop.order("teapot" if number % 2 else "kettle")[0]

    with ThreadPoolExecutor(4) as threads:
        statuses = list(threads.map(order, range(8)))

    assert sorted(statuses) == [200] * 4 + [409] * 4
    assert shop.count() == (4, 4)


async def test_a_worker_marks_it_paid_in_the_commit_that_completes_the_job(shop: Shop) -> None:
    job = UUID(shop.order("kettle")[1])

    async with shop.hf, shop.hf.worker():
        receipt = await (await shop.hf.get_chain(job)).result(timeout=10)

    with shop.sessions() as session:
        (order,) = session.scalars(select(Order))
        assert (receipt, order.state) == (f"receipt {order.id}", "paid")
