"""The application: an order and its job are one commit; the worker is another process, `holdfast worker`."""

from __future__ import annotations

from typing import Any

from flask import Flask, abort, request, session
from sqlalchemy import create_engine
from starlette.requests import Request
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.security import check_password_hash, generate_password_hash

from examples.orders_flask.jobs import charge, tasks
from examples.orders_flask.models import Base, Order, db_session
from holdfast import Holdfast
from holdfast.http import Identity, Role, wsgi
from holdfast.integrations.sqlalchemy import SQLAlchemy


def create_app(database: str) -> Flask:
    """Make the shop on *database*, a SQLite file or a postgresql:// address that has our tables."""
    engine = create_engine(engine_url(database))
    db_session.configure(bind=engine)
    hf = Holdfast(database, tasks=[tasks], transactions=SQLAlchemy(engine))
    hf.sync.open()  # before any request's transaction; it closes itself when the process ends
    Base.metadata.create_all(engine)

    app = Flask(__name__)
    app.secret_key = "of an example"
    app.extensions["holdfast"] = hf
    clerks = {"ada": generate_password_hash("of an example")}

    async def clerk_of(asked: Request) -> Identity | None:
        """Tell who is logged in, by the signed cookie of Flask's session."""
        environ = asked.scope["wsgi_environ"]
        own = app.session_interface.open_session(app, app.request_class(environ))
        return Identity(own["clerk"], Role.OPERATOR) if own and "clerk" in own else None

    app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/jobs": wsgi(hf, auth=clerk_of)})  # type: ignore[method-assign]

    @app.post("/login")
    def log_in() -> tuple[str, int]:
        given = request.get_json()
        if not check_password_hash(clerks.get(given["name"], "x"), given["password"]):
            abort(403, "wrong name or password")
        session["clerk"] = given["name"]
        return "", 204

    @app.teardown_appcontext
    def end_session(error: BaseException | None) -> None:
        db_session.remove()  # rolls back what was not committed

    @app.post("/orders")
    def take_order() -> tuple[dict[str, Any], int]:
        wanted = request.get_json()
        order = Order(item=wanted["item"], cents=wanted["cents"])
        db_session.add(order)
        db_session.flush()  # now it has its id
        chain = hf.sync.start(charge(order_id=order.id), connection=db_session)
        if order.item == "teapot":
            abort(409, "out of stock")  # and the end of the request rolls back: neither order nor job
        db_session.commit()
        return {"order_id": order.id, "job_id": str(chain.id)}, 201

    @app.get("/orders/<int:order_id>")
    def get_order(order_id: int) -> dict[str, Any]:
        order = db_session.get(Order, order_id)
        if order is None:
            abort(404, "no such order")
        return {"item": order.item, "state": order.state}

    return app


def engine_url(database: str) -> str:
    """Name the driver for SQLAlchemy."""
    if database.startswith("postgresql://"):
        return database.replace("postgresql://", "postgresql+psycopg://", 1)
    return f"sqlite:///{database}"
