"""The HTTP API at any path of another application: its addresses lead back to it, and nothing beside it is ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.wrappers import Response

from holdfast import Holdfast
from holdfast.http import asgi, wsgi
from tests.support.factories import TASKS

Ask = Callable[..., Any]
ORDER = {"task": "greet", "arguments": {"name": "Ada"}}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Holdfast:
    """A face with a tenant, closed; nothing here minds what jobs there are."""
    hf = Holdfast(str(tmp_path_factory.mktemp("mounting") / "shop.db"), tasks=[TASKS], tenants=True)
    hf.sync.tenants.create("acme")
    hf.sync.close()
    return hf


def transport(hf: Holdfast, kind: str, *path: str) -> Any:
    """Mount the API at *path*, whose parts are mounted in each other."""
    if kind == "asgi":
        app: Any = asgi(hf)
        for each in reversed(path):
            app = Starlette(routes=[Mount(f"/{each}", app)])
        return httpx.ASGITransport(app)
    app = wsgi(hf)
    for each in reversed(path):
        app = DispatcherMiddleware(Response("nothing of ours", 404), {f"/{each}": app})
    return httpx.WSGITransport(app)


async def ask(
    hf: Holdfast, kind: str, mounted: tuple[str, ...], method: str, path: str, **given: Any
) -> httpx.Response:
    """Send a request as an operator of all tenants."""
    token = hf.sync.tokens.create("ada", role="operator", tenant="*").token
    options: dict[str, Any] = {"base_url": "http://localhost", "headers": {"Authorization": f"Bearer {token}"}}
    made = transport(hf, kind, *mounted)
    if kind == "asgi":
        async with httpx.AsyncClient(transport=made, **options) as client:
            answer = await client.request(method, path, **given)
        await hf.close()
        return answer
    with httpx.Client(transport=made, **options) as blocking:
        answer = blocking.request(method, path, **given)
    hf.sync.close()
    return answer


@pytest.mark.parametrize(
    ("kind", "mounted"),
    [
        ("asgi", ("jobs",)),
        ("asgi", ("much", "deeper")),
        ("asgi", ("работы",)),  # Werkzeug's dispatcher would compare bytes in the shape of a text
        ("wsgi", ("much", "deeper")),
    ],
)
@pytest.mark.parametrize("tenant", ["", "/t/acme"], ids=["control", "tenant"])
async def test_the_address_of_a_new_job_leads_to_it(
    shop: Holdfast, kind: str, mounted: tuple[str, ...], tenant: str
) -> None:
    root = f"/{'/'.join(mounted)}{tenant}"

    made = await ask(shop, kind, mounted, "POST", f"{root}/api/jobs", json=ORDER)
    found = await ask(shop, kind, mounted, "GET", made.headers["Location"])

    assert made.status_code == 201
    assert unquote(made.headers["Location"]).startswith(f"{root}/api/jobs/")
    assert found.json()["id"] == made.json()["job"]["id"]


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
async def test_what_describes_it_names_where_it_is(shop: Holdfast, kind: str) -> None:
    told = await ask(shop, kind, ("much", "deeper"), "GET", "/much/deeper/api/openapi.json")

    assert [each["url"] for each in told.json()["servers"]] == ["/much/deeper"]


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
@pytest.mark.parametrize("path", ["/jobsx/api", "/JOBS/api", "/jobs-api", "/api/jobs", "/job/s/api"])
async def test_a_path_that_only_looks_alike_is_not_ours(shop: Holdfast, kind: str, path: str) -> None:
    answer = await ask(shop, kind, ("jobs",), "GET", path)

    assert (answer.status_code, answer.headers["Content-Type"].partition(";")[0]) == (404, "text/plain")


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
@pytest.mark.parametrize("path", ["/jobs//api", "/jobs/api/", "/jobs/jobs/api", "/jobs/", "/jobs/%2fapi"])
async def test_a_path_below_it_that_is_none_is_not_found_by_us(shop: Holdfast, kind: str, path: str) -> None:
    answer = await ask(shop, kind, ("jobs",), "GET", path)

    assert (answer.status_code, answer.json()["code"]) == (404, "no_such_route")
