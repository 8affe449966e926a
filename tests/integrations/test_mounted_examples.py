"""The HTTP API inside the example shops: their own users steer jobs by it, and the audit names them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from flask.testing import FlaskClient

from examples.orders_fastapi.web import create_app as create_fastapi
from examples.orders_flask.models import db_session
from examples.orders_flask.web import create_app as create_flask
from holdfast import Holdfast

LOGIN = {"name": "ada", "password": "of an example"}
ORDER = {"item": "kettle", "cents": 3900}
WHY = {"why": "no stock"}


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A SQLite file that has our tables."""
    face = Holdfast(str(tmp_path / "shop.db")).sync
    face.migrate()
    face.close()
    return str(tmp_path / "shop.db")


@asynccontextmanager
async def fastapi_shop(file: str) -> AsyncIterator[tuple[httpx.AsyncClient, Holdfast]]:
    app = create_fastapi(file)
    async with app.router.lifespan_context(app):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
            yield client, app.state.holdfast


@pytest.fixture
def flask_shop(file: str) -> Any:
    """The Flask shop: a client, and its Holdfast."""
    app = create_flask(file)
    hf = app.extensions["holdfast"]
    yield app.test_client(), hf
    hf.sync.close()
    db_session.get_bind().engine.dispose()
    db_session.remove()


async def test_a_clerk_of_the_fastapi_shop_cancels_a_job_and_the_audit_says_who(file: str) -> None:
    async with fastapi_shop(file) as (client, hf):
        await hf.queue("default").pause()
        taken = (await client.post("/orders", json=ORDER)).json()
        await client.post("/login", json=LOGIN)

        listed = (await client.get("/jobs/api/jobs")).json()["items"]
        answer = await client.post(
            f"/jobs/api/jobs/{taken['job_id']}/cancel", json=WHY, headers={"Origin": "http://shop"}
        )

        assert [job["id"] for job in listed] == [taken["job_id"]]
        assert answer.status_code == 200
        (entry,) = await hf.audit()
        assert (entry.who, entry.action, entry.why) == ("ada", "cancel", "no stock")


async def test_the_fastapi_shop_shows_jobs_to_no_stranger_and_keeps_its_own_paths(file: str) -> None:
    async with fastapi_shop(file) as (client, _):
        stranger = await client.get("/jobs/api/jobs")
        alike = await client.get("/jobsx/api/jobs")
        doubled = await client.get("/jobs//api/jobs")

    assert (stranger.status_code, stranger.json()["code"]) == (401, "unauthenticated")
    assert (alike.status_code, alike.json()) == (404, {"detail": "Not Found"})
    assert (doubled.status_code, doubled.json()["code"]) == (404, "no_such_route")


def test_a_clerk_of_the_flask_shop_cancels_a_job_and_the_audit_says_who(
    flask_shop: tuple[FlaskClient, Holdfast],
) -> None:
    client, hf = flask_shop
    taken: Any = client.post("/orders", json=ORDER).get_json()
    client.post("/login", json=LOGIN)

    listed: Any = client.get("/jobs/api/jobs").get_json()
    cancel = f"/jobs/api/jobs/{taken['job_id']}/cancel"
    answer = client.post(cancel, json=WHY, headers={"Origin": "http://localhost"})

    assert [job["id"] for job in listed["items"]] == [taken["job_id"]]
    assert answer.status_code == 200
    (entry,) = hf.sync.audit()
    assert (entry.who, entry.action, entry.why) == ("ada", "cancel", "no stock")


def test_the_flask_shop_takes_no_cancel_from_a_page_of_another_site(flask_shop: tuple[FlaskClient, Holdfast]) -> None:
    client, _ = flask_shop
    taken: Any = client.post("/orders", json=ORDER).get_json()
    client.post("/login", json=LOGIN)

    cancel = f"/jobs/api/jobs/{taken['job_id']}/cancel"
    answer = client.post(cancel, json=WHY, headers={"Origin": "http://evil.test"})

    assert (answer.status_code, answer.get_json()["code"]) == (403, "cross_site")


def test_the_flask_shop_shows_jobs_to_no_stranger_and_keeps_its_own_paths(
    flask_shop: tuple[FlaskClient, Holdfast],
) -> None:
    client, _ = flask_shop

    stranger, alike, doubled = (client.get(f"/{each}/api/jobs") for each in ("jobs", "jobsx", "jobs/"))

    assert (stranger.status_code, stranger.get_json()["code"]) == (401, "unauthenticated")
    assert (alike.status_code, alike.mimetype) == (404, "text/html")
    assert (doubled.status_code, doubled.get_json()["code"]) == (404, "no_such_route")


def test_the_flask_shop_tells_clients_to_poll(flask_shop: tuple[FlaskClient, Holdfast]) -> None:
    client, _ = flask_shop
    client.post("/login", json=LOGIN)

    assert client.get("/jobs/api/events").get_json()["code"] == "no_stream"
    page: Any = client.get("/jobs/api/events.json").get_json()
    client.post("/orders", json=ORDER)
    later: Any = client.get("/jobs/api/events.json", query_string={"after": page["cursor"]}).get_json()
    assert [each["event"] for each in later["items"]] == ["job:enqueued"]
