"""What pages of other sites can do in a real browser, whose user is logged in here: nothing (S-05, S-06, S-07, S-09).

The user's cookie is of `localhost`. Pages of `evil.test` are of another site; those of `localhost` at another port are
of a sibling, to which the browser sends even a strict cookie.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.async_api import Page
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

from holdfast import Holdfast
from holdfast.http import asgi
from holdfast.http.app import Api
from tests.http.serving import served
from tests.support.browser import Complaints
from tests.support.factories import TASKS, greet

REFUSED = "Failed to load resource|CORS policy|Refused to|violates|X-Frame-Options|Framing|MIME type|ERR_BLOCKED"


async def empty(request: Request) -> HTMLResponse:
    """Be a page that may do anything."""
    return HTMLResponse("<!doctype html><title>another site</title><body></body>")


@dataclass
class Scene:
    """Our server, that of another site, and a user who is logged in at ours."""

    hf: Holdfast
    app: Api
    port: int
    other_port: int

    @property
    def api(self) -> str:
        """Where we are."""
        return f"http://localhost:{self.port}"


@asynccontextmanager
async def scene(new_holdfast: Callable[..., Holdfast], page: Page, named: str = "") -> AsyncIterator[Scene]:
    """Serve both, and log the user in; pages of the host *named* may ask."""
    hf = new_holdfast("sqlite", tasks=[TASKS])
    async with hf, served(Starlette(routes=[Route("/", empty)])) as other:
        origins = [f"http://{named}:{other.port}"] if named else []
        app = asgi(hf, origins=origins)
        async with served(app) as server:
            token = (await hf.tokens.create("ada", role="admin")).token
            await hf.start(greet(name="canary"), lane="canary")
            made = Scene(hf, app, server.port, other.port)
            login = await page.request.post(
                f"{made.api}/api/session", data={"token": token}, headers={"Sec-Fetch-Site": "same-origin"}
            )
            assert login.status == 204
            assert (await page.request.get(f"{made.api}/api")).status == 200
            yield made


ATTACKS = """async api => {
    const pause = api + "/api/queue/pause?name=mail", start = api + "/api/jobs"
    const call = JSON.stringify({task: "greet", arguments: {name: "forged"}})
    const read = {}, wait = ms => new Promise(done => setTimeout(done, ms))
    const seen = (name, promise) => promise.then(
        async answer => { if (answer.type != "opaque") read[name] = await answer.text() }, () => {})
    const within = (name, element) => new Promise(done => {
        element.onload = () => { read[name] = "loaded"; done() }
        element.onerror = () => done()
        document.body.append(element)
    })
    const post = async (encoding, action) => {
        const frame = document.createElement("iframe")
        frame.name = "target" + encoding + action
        document.body.append(frame)
        const form = document.createElement("form")
        Object.assign(form, {method: "post", enctype: encoding, action, target: frame.name})
        const field = document.createElement("input")
        Object.assign(field, {name: call.slice(0, -1) + ',"x":"', value: '"}'})
        form.append(field)
        document.body.append(form)
        const loaded = new Promise(done => { frame.onload = done })
        form.submit()
        await Promise.race([loaded, wait(2000)])
        try { if (frame.contentDocument && frame.contentDocument.URL != "about:blank") read[frame.name] = "a frame" }
        catch (error) {}
    }
    for (const encoding of ["text/plain", "multipart/form-data", "application/x-www-form-urlencoded"])
        for (const action of [pause, start]) await post(encoding, action)
    for (const mode of ["no-cors", "cors"])
        for (const address of [pause, start])
            for (const kind of ["text/plain", "application/json"])
                await seen([mode, address, kind].join(), fetch(address, {
                    method: "POST", mode, credentials: "include", body: call, headers: {"Content-Type": kind}}))
    for (const method of ["GET", "HEAD", "PUT", "DELETE"])
        await seen(method, fetch(api + "/api/jobs", {method, credentials: "include"}))
    await seen("logout", fetch(api + "/api/session", {method: "DELETE", credentials: "include"}))
    const login = {method: "POST", mode: "no-cors", credentials: "include", body: "{}"}
    await seen("login", fetch(api + "/api/session", login))
    navigator.sendBeacon(start, call)
    navigator.sendBeacon(pause, new Blob([call], {type: "text/plain"}))
    await within("img", Object.assign(new Image(), {src: api + "/api/jobs"}))
    await within("script", Object.assign(document.createElement("script"), {src: api + "/api/jobs"}))
    const events = new EventSource(api + "/api/events", {withCredentials: true})
    await new Promise(done => {
        events.onmessage = events.onopen = () => { read.events = "open"; done() }
        events.onerror = done
    })
    events.close()
    return read
}"""


@pytest.mark.parametrize("host", [pytest.param("evil.test", marks=pytest.mark.long), "localhost"])
async def test_a_page_of_another_site_can_do_nothing_and_read_nothing(
    new_holdfast: Callable[..., Holdfast], page: Page, complaints: Complaints, host: str
) -> None:
    complaints.expect(REFUSED)
    async with scene(new_holdfast, page) as there:
        await page.goto(f"http://{host}:{there.other_port}/")
        read = await page.evaluate(ATTACKS, there.api)
        jobs, audit = await there.hf.list_jobs(), await there.hf.audit()
        queues = [each.name for each in await there.hf.list_queues() if each.is_paused]
        still = await page.request.get(f"{there.api}/api")

    assert read == {}
    assert ([job.lane for job in jobs], queues, list(audit)) == (["canary"], [], [])
    assert still.status == 200  # nobody was logged out
    assert min(there.app.service.answered[each, 4] for each in ("queues_pause", "starts_start")) >= 5  # it was tried


@pytest.mark.long
async def test_a_name_that_is_led_here_is_not_served(
    new_holdfast: Callable[..., Holdfast], page: Page, complaints: Complaints
) -> None:
    """DNS rebinding: the page's own host leads to us, so that to the browser we are that page's site."""
    complaints.expect("421|Cross-Origin-Opener-Policy header has been ignored")
    async with scene(new_holdfast, page) as there:
        answer = await page.goto(f"http://evil.test:{there.port}/api/jobs")
        text = await page.inner_text("body")

    assert answer is not None
    assert answer.status == 421
    assert "canary" not in text


@pytest.mark.long
@pytest.mark.parametrize("host", ["evil.test", "localhost"])
async def test_no_page_can_frame_ours(
    new_holdfast: Callable[..., Holdfast], page: Page, complaints: Complaints, host: str
) -> None:
    complaints.expect(REFUSED)
    async with scene(new_holdfast, page) as there:
        await page.goto(f"http://{host}:{there.other_port}/")
        await page.evaluate(
            """address => new Promise(done => {
                const frame = document.createElement("iframe")
                Object.assign(frame, {src: address, onload: done})
                document.body.append(frame)
            })""",
            f"{there.api}/api/jobs",
        )
        shown = [await each.evaluate("document.body ? document.body.innerText : ''") for each in page.frames[1:]]

    assert len(shown) == 1
    assert "canary" not in shown[0]


ASK = """async ([address, options]) => {
    const answer = await fetch(address, options)
    return [answer.status, await answer.text(), answer.headers.get("X-Request-Id")]
}"""


@pytest.mark.long
async def test_a_named_origin_reads_and_acts_with_the_cookie_of_a_sibling(
    new_holdfast: Callable[..., Holdfast], page: Page
) -> None:
    async with scene(new_holdfast, page, named="localhost") as there:
        await page.goto(f"http://localhost:{there.other_port}/")
        body = {"method": "POST", "body": "{}", "headers": {"Content-Type": "application/json"}}
        read = await page.evaluate(ASK, [f"{there.api}/api/jobs", {"credentials": "include"}])
        act = await page.evaluate(ASK, [f"{there.api}/api/queue/pause?name=mail", {"credentials": "include", **body}])
        audit = await there.hf.audit()

    assert read[0] == 200
    assert "canary" in read[1]
    assert read[2]
    assert act[0] == 204
    assert [each.action for each in audit] == ["queue.pause"]


@pytest.mark.long
async def test_a_named_origin_of_another_site_uses_a_token(new_holdfast: Callable[..., Holdfast], page: Page) -> None:
    async with scene(new_holdfast, page, named="friend.test") as there:
        token = (await there.hf.tokens.create("page")).token
        await page.goto(f"http://friend.test:{there.other_port}/")
        headers: dict[str, Any] = {"headers": {"Authorization": f"Bearer {token}"}}
        read = await page.evaluate(ASK, [f"{there.api}/api/jobs", headers])

    assert read[0] == 200
    assert "canary" in read[1]
