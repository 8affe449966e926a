"""`/api/tokens` and `/api/audit`: who makes tokens for whom, and what is written down of every act."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.http.api import api
from tests.support.factories import TASKS, greet


async def test_a_token_is_shown_once_holds_and_is_revoked(hf: Holdfast) -> None:
    async with api(hf, role="admin") as client:
        made = await client.post("/api/tokens", json={"name": "ci", "role": "operator", "expires": 3600})
        token, info = made.json()["token"], made.json()["info"]
        mine = await client.get("/api", headers={"Authorization": f"Bearer {token}"})
        listed = {each["name"]: each for each in (await client.get("/api/tokens")).json()["items"]}
        revoked = (await client.delete(f"/api/tokens/{info['id']}?why=lost")).json()

    assert made.status_code == 201
    assert mine.json()["who"]["role"] == "operator"
    assert token not in str(listed)
    assert listed["ci"]["expires_at"] is not None
    assert revoked["revoked_at"] is not None


async def test_nobody_makes_a_token_that_may_do_more(hf: Holdfast) -> None:
    async with api(hf, role="admin", payloads=False) as client:
        own = await client.post("/api/tokens", json={"name": "ci"})
        more = await client.post("/api/tokens", json={"name": "ci", "payloads": True})

    assert own.json()["info"]["payloads"] is False
    assert (more.status_code, more.json()["code"]) == (403, "forbidden")


@pytest.mark.parametrize(
    "body",
    [
        {"name": "ci", "role": "guest"},
        {"name": "", "role": "viewer"},
        {"name": "ci", "expires": -1},
        {"name": "ci", "tenant": "acme"},
        {"name": "ci", "rloe": "viewer"},
    ],
)
async def test_a_wrong_token_is_refused(hf: Holdfast, body: dict[str, object]) -> None:
    async with api(hf, role="admin") as client:
        answer = await client.post("/api/tokens", json=body)

    assert answer.status_code in (400, 403), answer.text


async def test_every_act_is_in_the_audit_with_who_and_why(hf: Holdfast) -> None:
    chain = await hf.start(greet(name="Ada"))
    async with api(hf, role="admin") as client:
        done = await client.post(f"/api/jobs/{chain.id}/cancel", json={"why": "not needed"})
        await client.post("/api/queue/pause?name=sums", json={"why": "full"})
        found = (await client.get("/api/audit")).json()["items"]
        one = (await client.get(f"/api/audit?subject={chain.id}")).json()["items"]

    acts = {each["action"]: (each["who"], each["subject"], each["why"]) for each in found}
    assert acts["cancel"] == ("ada", str(chain.id), "not needed")
    assert acts["queue.pause"] == ("ada", "sums", "full")
    assert [each["request"] for each in one] == [done.headers["x-request-id"]]


async def test_only_an_admin_reads_the_audit_and_tokens(hf: Holdfast) -> None:
    async with api(hf, role="operator") as client:
        assert (await client.get("/api/audit")).status_code == 403
        assert (await client.get("/api/tokens")).status_code == 403
        assert (await client.post("/api/tokens", json={"name": "ci"})).status_code == 403


# ---- tenants


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Holdfast]:
    """A control place without tenants."""
    hf = Holdfast(str(tmp_path / "control.db"), tenants=True, tasks=[TASKS])
    hf.sync.migrate()
    yield hf
    hf.sync.close()


async def test_a_tenant_is_created_suspended_resumed_and_dropped(control: Holdfast) -> None:
    async with control, api(control, role="admin") as client:
        made = await client.post("/api/tenants", json={"name": "acme", "host": "acme.example.com", "why": "new"})
        again = await client.post("/api/tenants", json={"name": "acme"})
        suspended = (await client.post("/api/tenants/acme/suspend", json={"why": "unpaid"})).json()
        resumed = (await client.post("/api/tenants/acme/resume")).json()
        active = await client.delete("/api/tenants/acme?confirm=acme")
        await client.post("/api/tenants/acme/suspend")
        mistyped = await client.delete("/api/tenants/acme?confirm=acne")
        dropped = await client.delete("/api/tenants/acme?confirm=acme")
        rest = (await client.get("/api/tenants")).json()["items"]

    assert (made.status_code, made.json()["host"], made.json()["state"]) == (201, "acme.example.com", "active")
    assert (again.status_code, active.status_code, mistyped.status_code) == (409, 409, 400)
    assert (suspended["state"], suspended["reason"], suspended["changed_by"]) == ("suspended", "unpaid", "ada")
    assert resumed["state"] == "active"
    assert (dropped.status_code, rest) == (204, [])


async def test_without_tenants_their_list_is_refused_with_what_to_do(hf: Holdfast) -> None:
    async with api(hf, role="admin") as client:
        answer = await client.get("/api/tenants")

    assert answer.status_code == 400
    assert "tenants=True" in answer.json()["detail"]


async def test_an_admin_of_a_tenant_makes_tokens_for_it_alone(control: Holdfast) -> None:
    async with control:
        await control.tenants.create("acme")
        await control.tenants.create("other")
        token = (await control.tokens.create("boss", role="admin", tenant="acme")).token
        async with api(control, token=token) as client:
            own = await client.post("/t/acme/api/tokens", json={"name": "ci"})
            other = await client.post("/t/acme/api/tokens", json={"name": "ci", "tenant": "other"})
            every = await client.post("/t/acme/api/tokens", json={"name": "ci", "tenant": "*"})
            at_control = await client.post("/api/tokens", json={"name": "ci"})
            listed = (await client.get("/t/acme/api/tokens")).json()["items"]
            managed = await client.get("/t/acme/api/tenants")

    assert own.json()["info"]["tenant"] == "acme"
    assert [each.status_code for each in (other, every, at_control)] == [403] * 3
    assert {each["tenant"] for each in listed} == {"acme"}
    assert managed.status_code == 404


async def test_an_admin_of_the_control_place_makes_no_token_for_a_tenant(control: Holdfast) -> None:
    async with control:
        await control.tenants.create("acme")
        async with api(control, role="admin") as client:
            refused = await client.post("/api/tokens", json={"name": "ci", "tenant": "acme"})
        token = (await control.tokens.create("root", role="admin", tenant="*")).token
        async with api(control, token=token) as client:
            made = await client.post("/api/tokens", json={"name": "ci", "tenant": "acme"})

    assert (refused.status_code, made.status_code) == (403, 201)
