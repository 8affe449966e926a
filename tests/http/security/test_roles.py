"""Who may use which endpoint, asked of every row of the table by every kind of identity (S-02, S-03, S-13)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import MISSING, dataclass, fields
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from starlette.requests import Request

from holdfast import Holdfast
from holdfast.access import ALL_TENANTS, Role, hash_of, make_token
from holdfast.database.tx import Tx
from holdfast.http import asgi
from holdfast.http.endpoint import NOBODY, Endpoint
from holdfast.http.endpoints import ENDPOINTS
from holdfast.http.identity import Identity, ProxyUsers
from holdfast.store import access
from holdfast.store.access import NewGrant
from tests.conftest import TENANT
from tests.http.security.asking import NO_ID, SAME_SITE, WIDE, ask, browser, frame, log_in, reached, request
from tests.support.factories import TASKS, greet

ROOT = f"/t/{TENANT}"
ALLOWED = 200
NOBODY_MAY = {("POST", "/api/session"), ("GET", "/healthz"), ("GET", "/readyz")}
ROLES = (Role.VIEWER, Role.OPERATOR, Role.ADMIN)


@dataclass(frozen=True)
class Place:
    """A tenant with two chains, beside the control place."""

    control: Holdfast
    tenant: Holdfast
    chain: UUID
    other_chain: UUID


@pytest.fixture
async def place(
    new_holdfast: Callable[..., Holdfast], sqlite_of_tenant: tuple[str, dict[str, object]]
) -> AsyncIterator[Place]:
    """A control place with a tenant; which database it is makes no difference to who may do what."""
    control = Holdfast(sqlite_of_tenant[0], tenants=True, deadline_seconds=20, tasks=[TASKS])
    async with control:
        tenant = control.tenant(TENANT)
        one, other = [await tenant.start(greet(name=each)) for each in ("Ada", "Bob")]
        yield Place(control, tenant, one.id, other.id)


def expected(endpoint: Endpoint, who: str, role: Role | None) -> int:
    """Derive from the table alone what *who* is answered."""
    if endpoint.role is NOBODY:
        return ALLOWED
    if who in UNKNOWN:
        return 401
    assert role is not None
    assert isinstance(endpoint.role, Role)
    if not role.allows(endpoint.role) or who == "of another tenant":
        return 403
    if who.startswith("guest"):
        return _of_guest(endpoint, who)
    return ALLOWED


def _of_guest(endpoint: Endpoint, who: str) -> int:
    if not endpoint.names_chain:
        return ALLOWED
    if "{id}" not in endpoint.path:
        return 403  # it names no chain, so it would be all of them
    return ALLOWED if who == "guest of this chain" else 404


UNKNOWN = ("nobody", "mistyped", "wrong", "expired", "revoked", "a session that was logged out")


async def differences(
    client: httpx.AsyncClient, place: Place, who: str, role: Role | None, **headers: str
) -> dict[str, tuple[int, int]]:
    """Ask every endpoint; give what was answered, and what the table says, where that is not the same."""
    wrong = {}
    for each in ENDPOINTS:
        root = "" if each.in_control else ROOT
        status = await ask(client, each, place.chain, root, headers={**SAME_SITE, **headers})
        found, wanted = status if status in (401, 403, 404) else ALLOWED, expected(each, who, role)
        if found != wanted:
            wrong[f"{who}: {each.method} {each.path}"] = found, wanted
    return wrong


async def grant(hf: Holdfast, role: Role = Role.ADMIN, tenant: str | None = ALL_TENANTS, **also: Any) -> str:
    """Make a token, also one that the face would not make."""
    token = make_token(hf._runtime.chance.getrandbits(256))
    new = NewGrant(uuid4(), hash_of(token), "some", role, ALL_TENANTS, True, None, **also)
    await hf.store.run(access.add_token, new)
    await hf.store.run(_move, new.id, tenant)
    return token


async def _move(tx: Tx, id_: UUID, tenant: str | None) -> None:
    await tx.execute("UPDATE holdfast_token SET tenant = :tenant WHERE id = :id", id=str(id_), tenant=tenant)


async def test_whoever_is_nobody_may_do_what_is_open_and_nothing_else(place: Place) -> None:
    app = frame(place.control, auth=nobody)
    revoked = await place.control.tokens.create("gone", role="admin", tenant=ALL_TENANTS)
    await place.control.tokens.revoke(revoked.info.id)
    good = await grant(place.control)
    bearers = {
        "mistyped": f"{good[:-1]}{'a' if good[-1] != 'a' else 'b'}",
        "wrong": make_token(7),
        "expired": await grant(place.control, expires_ms=-1),
        "revoked": revoked.token,
    }

    wrong: dict[str, tuple[int, int]] = {}
    async with browser(app) as client:
        wrong |= await differences(client, place, "nobody", None)
        for who, token in bearers.items():
            wrong |= await differences(client, place, who, None, Authorization=f"Bearer {token}")
    async with browser(asgi(place.control)) as real, browser(app) as client:
        await log_in(real, good)
        client.cookies.update(real.cookies)
        await real.delete("/api/session", headers=SAME_SITE)
        wrong |= await differences(client, place, "a session that was logged out", None)

    assert wrong == {}


async def test_a_token_of_another_place_may_do_nothing_in_this_one(place: Place) -> None:
    app = frame(place.control)
    wrong = {}
    async with browser(app) as client:
        for tenant in ("elsewhere", None):
            token = await grant(place.control, tenant=tenant)
            for each in ENDPOINTS:
                status = await ask(client, each, place.chain, ROOT, headers={"Authorization": f"Bearer {token}"})
                if status != (200 if each.role is NOBODY else 404 if each.in_control else 403):
                    wrong[tenant, each.method, each.path] = status
        own = await grant(place.control, tenant=TENANT)
        for each in ENDPOINTS:
            status = await ask(client, each, place.chain, headers={"Authorization": f"Bearer {own}"})
            if status != (200 if each.role is NOBODY else 403):
                wrong[TENANT, each.method, each.path] = status

    assert wrong == {}


async def test_a_guest_sees_one_chain_and_nothing_else(place: Place) -> None:
    wrong: dict[str, tuple[int, int]] = {}
    for who, chain in (("guest of this chain", place.chain), ("guest of another", place.other_chain)):
        link = await place.tenant.links.create(chain)
        async with browser(frame(place.control)) as client, browser(asgi(place.control)) as real:
            wrong |= await differences(client, place, who, Role.GUEST, Authorization=f"Bearer {link.token}")
            await log_in(real, link.token)
            client.cookies.update(real.cookies)
            wrong |= await differences(client, place, who, Role.GUEST)

    assert wrong == {}


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_may_do_what_the_table_says_however_who_has_it_is_known(place: Place, role: Role) -> None:
    async def auth(request: Request) -> Identity | None:
        return Identity("ada", role, tenant=ALL_TENANTS) if "X-Ada" in request.headers else None

    token = await grant(place.control, role)
    app = frame(place.control, auth=auth)
    async with browser(app) as client, browser(asgi(place.control)) as real:
        wrong = await differences(client, place, "token", role, Authorization=f"Bearer {token}")
        wrong |= await differences(client, place, "auth=", role, **{"X-Ada": "yes"})
        await log_in(real, token)
        client.cookies.update(real.cookies)
        wrong |= await differences(client, place, "cookie", role)

    assert wrong == {}


async def test_who_a_proxy_names_is_a_viewer_unless_operators_name_them(new_holdfast: Callable[..., Holdfast]) -> None:
    """S-31."""
    users = ProxyUsers("X-Forwarded-User", frozenset({"olga"}))
    app = frame(new_holdfast("sqlite"), proxies=["10.0.0.0/8"], proxy_users=users)
    wrong = {}
    for name, role in (("vera", Role.VIEWER), ("olga", Role.OPERATOR)):
        for address in ("10.0.0.1", "192.0.2.1"):
            async with browser(app, client=(address, 1)) as client:
                for each in ENDPOINTS:
                    status = await ask(client, each, headers={**SAME_SITE, "X-Forwarded-User": name})
                    wanted = expected(each, "nobody" if address == "192.0.2.1" else "proxy", role)
                    if status != wanted:
                        wrong[name, address, each.method, each.path] = status, wanted

    assert wrong == {}


async def nobody(request: Request) -> Identity | None:
    return None


def test_an_endpoint_without_a_role_cannot_be_written() -> None:
    with pytest.raises(TypeError, match="handler"):
        Endpoint("GET", "/api/more", reached)  # type: ignore[call-arg,arg-type]

    assert next(each for each in fields(Endpoint) if each.name == "role").default is MISSING


def test_the_endpoints_that_nobody_needs_to_be_known_for_are_these() -> None:
    assert {(each.method, each.path) for each in ENDPOINTS if each.role is NOBODY} == NOBODY_MAY


def test_the_routes_of_the_application_are_the_table(new_holdfast: Callable[..., Holdfast]) -> None:
    app = asgi(new_holdfast("sqlite"))

    assert [each.path for each in app.routes] == list(dict.fromkeys(each.path for each in ENDPOINTS))
    assert {(each.method, each.path) for each in app.endpoints} == {(each.method, each.path) for each in ENDPOINTS}
    assert len(app.endpoints) == len({(each.method, each.path) for each in app.endpoints})


async def test_a_tenant_that_is_not_there_is_answered_like_one_that_is_not_theirs(place: Place) -> None:
    token = await grant(place.control, tenant="elsewhere")
    headers = {"Authorization": f"Bearer {token}"}
    async with browser(asgi(place.control)) as client:
        there, not_there = [await client.get(f"/t/{name}/api/jobs", headers=headers) for name in (TENANT, "nothere")]
        open_ones = [await client.get(f"/t/{name}/healthz") for name in (TENANT, "nothere", "no-name-at-all")]

    assert there.status_code == not_there.status_code == 403
    assert there.json()["detail"] == not_there.json()["detail"]
    assert [each.status_code for each in open_ones] == [204] * 3


async def test_a_job_of_another_tenant_is_404_like_one_that_does_not_exist(place: Place) -> None:
    job = await place.control.start(greet(name="Ada"))
    token = await grant(place.control, tenant=TENANT)
    by_id = [each for each in ENDPOINTS if "{id}" in each.path and ("/jobs/" in each.path or "/chains/" in each.path)]
    told = {}
    async with browser(asgi(place.control, limits=WIDE)) as client:
        client.headers["Authorization"] = f"Bearer {token}"
        for each in by_id:
            for id_ in (job.id, NO_ID):
                answer = await request(client, each, id_, ROOT)
                told[each.method, each.path, id_] = answer.status_code, _without(answer, str(id_))

    assert {path for (_, path, _), (status, _) in told.items() if status < 400} == {"/api/jobs/{id}/explain"}  # says so
    assert [each for each in by_id if told[each.method, each.path, job.id] != told[each.method, each.path, NO_ID]] == []


def _without(answer: httpx.Response, id_: str) -> str:
    problem = {name: value for name, value in answer.json().items() if name != "instance"}
    return json.dumps(problem).replace(id_, "ID")


async def test_the_id_of_a_session_is_no_token_and_a_token_no_session(new_holdfast: Callable[..., Holdfast]) -> None:
    hf = new_holdfast("sqlite")
    token = (await hf.tokens.create("ada")).token
    async with browser(asgi(hf)) as client:
        await log_in(client, token)
        ((name, session),) = client.cookies.items()
        as_cookie = await client.get("/api")
        client.cookies.clear()
        as_bearer = await client.get("/api", headers={"Authorization": f"Bearer {session}"})
        good = await client.get("/api", headers={"Authorization": f"Bearer {token}"})
        swapped = await client.get("/api", headers={"Cookie": f"{name}={token}"})

    assert [each.status_code for each in (as_cookie, good)] == [200, 200]
    assert [each.status_code for each in (as_bearer, swapped)] == [401, 401]


async def test_a_cookie_beside_a_bearer_token_of_somebody_else_is_not_looked_at(
    new_holdfast: Callable[..., Holdfast],
) -> None:
    """What a bearer token is exempt from, a cookie must not get by it (S-05)."""
    hf = new_holdfast("sqlite")
    token = (await hf.tokens.create("ada", role="operator")).token
    async with browser(asgi(hf)) as client:
        await log_in(client, token)
        answer = await client.post("/api/queue/pause?name=mail", headers={"Authorization": "Bearer eyJ"}, json={})

    assert answer.status_code == 401


async def test_operators_have_no_bulk_delete_of_an_admin_done_once_more(new_holdfast: Callable[..., Holdfast]) -> None:
    hf = new_holdfast("sqlite", tasks=[TASKS])
    tokens = {role: (await hf.tokens.create(role, role=role)).token for role in ("operator", "admin")}
    async with browser(asgi(hf)) as client:
        client.headers["Authorization"] = f"Bearer {tokens['admin']}"
        made = await client.post("/api/bulk", json={"verb": "delete", "filter": "task:greet"})
        path = f"/api/jobs/{made.json()['id']}"
        client.headers["Authorization"] = f"Bearer {tokens['operator']}"
        cancelled = await client.post(f"{path}/cancel", json={})
        again = [
            await client.post("/api/bulk", json={"verb": "delete", "filter": "task:greet"}),
            await client.post(f"{path}/start-again", json={}),
            await client.post(f"{path}/retry", json={}),
            await client.post("/api/bulk", json={"verb": "retry", "ids": [made.json()["id"]]}),
            await client.post("/api/bulk", json={"verb": "retry", "filter": "task:holdfast.bulk"}),
            await client.post("/api/bulk", json={"verb": "retry", "filter": "status:failed internal:true"}),
        ]
        client.headers["Authorization"] = f"Bearer {tokens['admin']}"
        by_admin = await client.post(f"{path}/start-again", json={})

    assert (made.status_code, cancelled.status_code, by_admin.status_code) == (202, 200, 200)
    assert [each.status_code for each in again] == [403] * len(again)
