"""A link that is opened where an application has users of its own: they stay who they are, and outsiders get in."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from holdfast import Holdfast
from holdfast.http import Identity, Role, asgi
from tests.support.factories import TASKS, greet

SAME_SITE = {"Sec-Fetch-Site": "same-origin"}


async def staff_or_nobody(request: Request) -> Identity | None:
    return Identity("ada", Role.OPERATOR) if request.headers.get("X-Staff") else None


async def staff_or_a_refusal(request: Request) -> Identity | None:
    if request.headers.get("X-Staff"):
        return Identity("ada", Role.OPERATOR)
    raise HTTPException(403, "log in first")


@pytest.mark.parametrize("auth", [staff_or_nobody, staff_or_a_refusal])
async def test_a_link_makes_an_outsider_a_guest_and_leaves_a_user_what_they_are(tmp_path: Path, auth: object) -> None:
    async with Holdfast(str(tmp_path / "jobs.db"), tasks=[TASKS]) as hf:
        chain = await hf.start(greet(name="Ada"))
        link = await hf.links.create(chain)
        transport = httpx.ASGITransport(asgi(hf, auth=auth))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=SAME_SITE) as browser:
            opened = await browser.post("/api/session", json={"token": link.token})
            outsider = (await browser.get("/api")).json()["who"]
            user = (await browser.get("/api", headers={"X-Staff": "1"})).json()["who"]

    assert opened.status_code == 204
    assert (outsider["role"], outsider["chain"]) == ("guest", str(chain.id))
    assert (user["name"], user["role"], user["chain"]) == ("ada", "operator", None)
