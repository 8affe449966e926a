"""The Chromium of the tests shows what we serve, and tells what is wrong with it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

from tests.http.serving import served
from tests.support.browser import Complaints, NewPage

STRICT = {"content-security-policy": "default-src 'none'; script-src 'self'"}


async def show(request: Request) -> HTMLResponse:
    body = request.query_params.get("body", "")
    return HTMLResponse(f"<title>{request.url.hostname}</title>{body}", headers=STRICT)


async def set_cookie(request: Request) -> HTMLResponse:
    return HTMLResponse(request.cookies.get("met", "new"), headers={"set-cookie": "met=before"})


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def port() -> AsyncIterator[int]:
    async with served(Starlette(routes=[Route("/", show), Route("/cookie", set_cookie)])) as server:
        yield server.port


@pytest.mark.parametrize("host", ["127.0.0.1", "shop.test"])
async def test_a_page_of_this_machine_is_shown(host: str, port: int, page: Page) -> None:
    await page.goto(f"http://{host}:{port}/")

    await expect(page).to_have_title(host)


async def test_two_pages_of_one_test_share_no_cookies(port: int, new_page: NewPage) -> None:
    one, other = await new_page(), await new_page()
    for page in (one, one, other):
        await page.goto(f"http://127.0.0.1:{port}/cookie")

    assert [await page.inner_text("body") for page in (one, other)] == ["before", "new"]


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("<script>alert(1)</script>", "Content Security Policy"),
        ("<script src=/nothing></script>", "404"),
    ],
)
async def test_what_the_page_complains_of_is_heard(
    body: str, complaint: str, port: int, page: Page, complaints: Complaints
) -> None:
    complaints.expect(complaint)

    await page.goto(f"http://127.0.0.1:{port}/?body={body}")


@pytest.mark.parametrize("program", ["console.error('oh')", "setTimeout(() => { throw Error('oh') })"])
async def test_a_page_that_goes_wrong_fails_its_test(program: str, page: Page, complaints: Complaints) -> None:
    await page.evaluate(f"() => {{ {program} }}")
    await page.evaluate("() => new Promise(done => setTimeout(done))")

    assert "the page complained: " in complaints.verdict()
    complaints.expect("oh")


def test_an_expected_complaint_has_to_come() -> None:
    complaints = Complaints(heard=["404"])
    complaints.expect("403")

    assert complaints.verdict() == "the page complained: 404\nthe page was to complain of '403', and did not"
