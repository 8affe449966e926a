"""What is wrong with a request is said so that whoever sent it can mend it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import Holdfast
from holdfast.http import asgi
from tests.support.factories import TASKS

OPERATOR, NOBODY = "operator", "nobody"


@pytest.mark.parametrize(
    ("who", "method", "path", "body", "said"),
    [
        (NOBODY, "POST", "/api/session", {"token": "hf_x"}, "does not say which site it comes from"),
        (NOBODY, "POST", "/api/session", {"token": "hf_x"}, "the header Origin: http://localhost"),
        (OPERATOR, "GET", "/api/jobs.csv?limit=3", None, "input.<path>"),
        (OPERATOR, "GET", "/api/jobs?created_from=yesterday", None, "created_from: it must be a time with its zone"),
        (OPERATOR, "GET", "/api/jobs?created_to=2026-05-04T12:00", None, "such as 2026-05-04T12:00:00Z"),
        (
            OPERATOR,
            "POST",
            "/api/jobs",
            {"task": "elsewhere"},
            "start its worker once, which records it in the database",
        ),
        (OPERATOR, "GET", "/api/tokens", None, "ask an admin for that role, or for a token that has it"),
    ],
)
async def test_an_error_says_what_to_do(
    tmp_path: Path, who: str, method: str, path: str, body: dict[str, Any] | None, said: str
) -> None:
    async with Holdfast(str(tmp_path / "jobs.db"), tasks=[TASKS]) as hf:
        secret = (await hf.tokens.create("ada", role="operator")).token
        headers = {} if who == NOBODY else {"Authorization": f"Bearer {secret}"}
        transport = httpx.ASGITransport(asgi(hf))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
            answer = await client.request(method, path, json=body)

    assert answer.is_client_error
    assert said in answer.json()["detail"]


async def test_a_token_of_a_tenant_is_sent_to_its_tenant(tmp_path: Path) -> None:
    async with Holdfast(str(tmp_path / "jobs.db"), tasks=[TASKS], tenants=True) as hf:
        await hf.tenants.create("acme")
        made = await hf.tokens.create("shop", tenant="acme")
        headers = {"Authorization": f"Bearer {made.token}"}
        transport = httpx.ASGITransport(asgi(hf))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
            answer = await client.get("/api/jobs")

    assert answer.status_code == 403
    assert "shop may use the tenant 'acme' only; ask below /t/acme/" in answer.json()["detail"]
