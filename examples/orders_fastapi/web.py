"""The application: an order and its job are one commit; the worker runs in the same process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hmac import compare_digest
from typing import Any
from uuid import UUID

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from starlette.middleware.sessions import SessionMiddleware

from examples.orders_fastapi.jobs import charge, tasks
from examples.orders_fastapi.models import Base, Order
from holdfast import Holdfast
from holdfast.http import Identity, Role, asgi
from holdfast.integrations.fastapi import AppHoldfast, lifespan
from holdfast.integrations.sqlalchemy import SQLAlchemy


class NewOrder(BaseModel):
    """What is sent to order something."""

    item: str
    cents: int


class Login(BaseModel):
    """What a clerk of the shop sends to log in."""

    name: str
    password: str


class Taken(BaseModel):
    """What is answered: the order, and the job that charges it."""

    order_id: int
    job_id: UUID


CLERKS = {"ada": "of an example"}
"""Stands for the users of a shop, and for a library that keeps their passwords."""


async def clerk_of(request: Request) -> Identity | None:
    """Tell who is logged in, by the signed cookie of Starlette's session."""
    name = request.session.get("clerk")
    return Identity(name, Role.OPERATOR) if name in CLERKS else None


def create_app(database: str) -> FastAPI:
    """Make the shop on *database*, a SQLite file or a postgresql:// address that has our tables."""
    engine = create_async_engine(engine_url(database))
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    hf = Holdfast(database, tasks=[tasks], transactions=SQLAlchemy(sessions))

    @asynccontextmanager
    async def own(app: FastAPI) -> AsyncIterator[None]:
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        yield
        await engine.dispose()

    app = FastAPI(lifespan=lifespan(hf, worker={"concurrency": 10}, own=own))
    app.add_middleware(SessionMiddleware, secret_key="of an example")
    app.mount("/jobs", asgi(hf, auth=clerk_of, hosts=["shop"]))

    @app.post("/login", status_code=204)
    async def log_in(given: Login, request: Request) -> None:
        if not compare_digest(CLERKS.get(given.name, "").encode(), given.password.encode()):
            raise HTTPException(403, "wrong name or password")
        request.session["clerk"] = given.name

    @app.post("/orders", status_code=201)
    async def take_order(wanted: NewOrder, hf: AppHoldfast) -> Taken:
        async with sessions.begin() as session:
            order = Order(item=wanted.item, cents=wanted.cents)
            session.add(order)
            await session.flush()  # now it has its id
            chain = await hf.start(charge(order_id=order.id), connection=session)
            if wanted.item == "teapot":
                raise HTTPException(409, "out of stock")  # rolls back: neither order nor job
        return Taken(order_id=order.id, job_id=chain.id)

    @app.get("/orders/{order_id}")
    async def get_order(order_id: int) -> dict[str, Any]:
        async with sessions() as session:
            order = await session.get(Order, order_id)
        if order is None:
            raise HTTPException(404, "no such order")
        return {"item": order.item, "state": order.state}

    return app


def engine_url(database: str) -> str:
    """Name the driver for SQLAlchemy."""
    if database.startswith("postgresql://"):
        return database.replace("postgresql://", "postgresql+asyncpg://", 1)
    return f"sqlite+aiosqlite:///{database}"
