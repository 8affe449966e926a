"""A lone surrogate, which UTF-8 has no form for: no start takes one, but whatever the tables hold is answered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import httpx
import pytest

from holdfast import Holdfast
from tests.http.api import api
from tests.support.factories import make_job
from tests.support.ways import Way

INPUT = {"name": "\ud800"}


@pytest.fixture
async def job(hf: Holdfast) -> UUID:
    """A failed job that another program has written."""
    return await make_job(Way(hf, is_async=True), "failed", input='{"name":"\\ud800"}', error='{"type":"\\ud800"}')


@pytest.fixture
async def client(hf: Holdfast) -> AsyncIterator[httpx.AsyncClient]:
    """An operator; what is answered is not held against its model, for pydantic reads no lone surrogate."""
    async with api(hf, role="operator") as client:
        client.event_hooks = {}
        yield client


async def test_it_is_answered(client: httpx.AsyncClient, job: UUID) -> None:
    assert (await client.get(f"/api/jobs/{job}")).json()["input"] == INPUT


async def test_it_is_answered_in_a_problem(client: httpx.AsyncClient, job: UUID) -> None:
    refused = await client.post(f"/api/jobs/{job}/pause", json={"if_state": "failed:9"})

    assert (refused.status_code, refused.json()["facts"]["job"]["input"]) == (412, INPUT)


async def test_it_is_exported(client: httpx.AsyncClient, job: UUID) -> None:
    assert (await client.get(f"/api/chains/{job}/export")).json()["jobs"][0]["input"] == INPUT


async def test_it_is_streamed(hf: Holdfast, job: UUID) -> None:
    async with hf.event_stream() as stream:
        snapshot = await anext(stream)

    assert b'"name":"\\ud800"' in snapshot
