"""Who reads a stream: asked again while it is open, and told of nothing that is somebody else's (S-10)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from uuid import uuid4

import pytest
from starlette.requests import Request

from holdfast import Holdfast
from holdfast.access import Role
from holdfast.http import asgi, identity, service
from holdfast.http.app import Api
from holdfast.http.headers import USUAL
from holdfast.http.identity import Auth, Identity
from holdfast.http.limits import Limits
from tests.conftest import TENANT
from tests.http.security.asking import WIDE, browser, follow
from tests.support.conditions import until
from tests.support.factories import TASKS, greet


def soon(hf: Holdfast, monkeypatch: pytest.MonkeyPatch, auth: Auth | None = None) -> Api:
    """Make an application that asks again with each event, and keeps nothing that it knows of tokens."""
    monkeypatch.setattr(identity, "KEPT_SECONDS", 0.0)
    app = asgi(hf, auth=auth)
    app.service.live.allowed_seconds = 1e-9
    return app


async def test_a_stream_ends_when_its_token_is_revoked(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    ada, bob = [await hf.tokens.create(name) for name in ("ada", "bob")]
    app = soon(hf, monkeypatch)
    async with follow(app, ada.token) as ended, follow(app, bob.token) as lives:
        await hf.start(greet(name="before"))
        await until(lambda: "before" in ended.text, "it is told of a job")
        await hf.tokens.revoke(ada.info.id)
        await hf.start(greet(name="between"))
        await until(lambda: ended.is_over, "the stream has ended")
        last = await hf.start(greet(name="after"))
        await until(lambda: str(last.id) in lives.text, "the other goes on")

    assert "after" not in ended.text
    assert app.service.streams.total == 0


async def test_a_stream_has_the_headers_of_every_answer(new_holdfast: Callable[..., Holdfast]) -> None:
    """S-09."""
    hf = new_holdfast("sqlite")
    async with follow(asgi(hf), (await hf.tokens.create("ada")).token) as stream:
        found = {name: stream.headers.get(name.lower()) for name in USUAL}

    assert found == USUAL


async def test_a_stream_ends_when_its_link_is_revoked(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = await hf.start(greet(name="Ada"), paused=True)
    link = await hf.links.create(chain)
    async with follow(soon(hf, monkeypatch), link.token) as stream:
        await hf.links.revoke(link.link.id)
        await hf.resume(chain)
        await until(lambda: stream.is_over, "the stream has ended")


async def test_a_stream_ends_when_its_user_may_see_less(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [Identity("ada", Role.VIEWER)]

    async def auth(request: Request) -> Identity | None:
        return now[0]

    app = soon(hf, monkeypatch, auth=auth)
    async with follow(app, "of somebody else") as stream:
        now[0] = Identity("ada", Role.VIEWER, payloads=False)
        await hf.start(greet(name="between"))
        await until(lambda: stream.is_over, "the stream has ended")


async def test_a_stream_ends_with_its_tenant(
    sqlite_of_tenant: tuple[str, dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Holdfast(sqlite_of_tenant[0], tenants=True, deadline_seconds=20, tasks=[TASKS]) as control:
        tenant = control.tenant(TENANT)
        token = (await tenant.tokens.create("ada")).token
        async with follow(soon(control, monkeypatch), token, f"/t/{TENANT}/api/events") as stream:
            await tenant.start(greet(name="Ada"))
            await control.tenants.suspend(TENANT)
            await until(lambda: stream.is_over or "tenant" in stream.text, "the stream has ended")


def test_a_right_that_is_gone_ends_a_stream_within_a_minute() -> None:
    ping = inspect.signature(Holdfast.event_stream).parameters["ping_seconds"].default

    assert service.ALLOWED_SECONDS + ping + identity.KEPT_SECONDS < 60


async def test_nobody_is_told_of_what_is_in_another_tenant(sqlite_of_tenant: tuple[str, dict[str, object]]) -> None:
    async with Holdfast(sqlite_of_tenant[0], tenants=True, deadline_seconds=20, tasks=[TASKS]) as control:
        tenant = control.tenant(TENANT)
        app = asgi(control, limits=WIDE)
        theirs, ours = (
            (await tenant.tokens.create("ada")).token,
            (await control.tokens.create("root", role="admin")).token,
        )
        async with follow(app, theirs, f"/t/{TENANT}/api/events") as in_tenant, follow(app, ours) as in_control:
            one, other = await tenant.start(greet(name="Ada")), await control.start(greet(name="Bob"))
            await until(lambda: str(one.id) in in_tenant.text and str(other.id) in in_control.text, "each has its own")

    assert str(other.id) not in in_tenant.text
    assert str(one.id) not in in_control.text


MIXED = "?chain={chain}&job={other}"


@pytest.mark.parametrize("asked", ["", "?chain={chain}", "?job={other}", "?task=greet", "?lane=one", MIXED])
async def test_a_guest_is_told_of_one_chain_whatever_they_ask_for(hf: Holdfast, asked: str) -> None:
    chain, other = [await hf.start(greet(name=each), paused=True, lane="one") for each in ("Ada", "Bob")]
    link = await hf.links.create(chain)
    target = f"/api/events{asked.format(chain=chain.id, other=other.id)}"
    async with browser(asgi(hf)) as client:
        paged = await client.get(
            target.replace("events", "events.json"), headers={"Authorization": f"Bearer {link.token}"}
        )
    async with follow(asgi(hf), link.token, target) as stream:
        await hf.resume(other)
        await hf.resume(chain)
        if stream.status == 200 and "{other}" not in asked:
            await until(lambda: "job:resumed" in stream.text, "it is told of its own")

    assert str(other.id) not in stream.text + paged.text
    assert "name" not in stream.text.partition('"input":{')[2][:20]
    assert paged.status_code == stream.status


async def test_a_guest_who_asks_for_another_chain_is_told_that_there_is_none(hf: Holdfast) -> None:
    chain, other = [await hf.start(greet(name=each)) for each in ("Ada", "Bob")]
    token = (await hf.links.create(chain)).token
    async with browser(asgi(hf)) as client:
        client.headers["Authorization"] = f"Bearer {token}"
        there, not_there = [
            await client.get("/api/events.json", params={"chain": str(each)}) for each in (other.id, uuid4())
        ]
        several = await client.get("/api/events.json", params={"chain": f"{chain.id},{other.id}"})

    assert [each.status_code for each in (there, not_there, several)] == [404] * 3
    assert there.json()["code"] == not_there.json()["code"]


async def test_an_identity_has_so_many_streams_and_others_go_on(new_holdfast: Callable[..., Holdfast]) -> None:
    """S-11."""
    hf = new_holdfast("sqlite")
    ada, bob = [(await hf.tokens.create(name)).token for name in ("ada", "bob")]
    app = asgi(hf, limits=Limits(streams=2))
    async with follow(app, ada) as one, follow(app, ada) as two, follow(app, ada) as refused, follow(app, bob) as other:
        assert [each.status for each in (one, two, refused, other)] == [200, 200, 429, 200]

    assert app.service.streams.total == 0
