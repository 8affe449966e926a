"""Connections that tests hand on to each other are as new, and none is handed on that was lost or is to be new."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast
from tests.support.databases.kept_connections import KeptConnections
from tests.support.ways import Way

SET = "SELECT pg_backend_pid(), set_config('own.mark', 'left behind', false)"
READ = "SELECT pg_backend_pid(), coalesce(current_setting('own.mark', true), '')"

both = pytest.mark.parametrize("is_async", [True, False], ids=["async", "blocking"])


@pytest.fixture
def ask(
    new_holdfast: Callable[..., Holdfast], kept_connections_of_run: KeptConnections | None, is_async: bool
) -> Callable[[str], Any]:
    """Ask on a store of its own, which is closed then."""
    if kept_connections_of_run is None:
        pytest.skip("through a pooler no connections are kept")
    kept_connections_of_run.close()

    async def ask(sql: str) -> tuple[int, str]:
        way = Way(new_holdfast("postgres"), is_async)
        ((process, mark),) = await way.rows(sql)
        await way.close()
        return process, mark

    return ask


@both
async def test_what_one_store_closes_the_next_one_uses_as_if_it_were_new(ask: Callable[[str], Any]) -> None:
    before, mark = await ask(SET)

    after, left = await ask(READ)

    assert (before, mark, left) == (after, "left behind", "")


@both
async def test_a_connection_that_the_server_has_ended_is_not_handed_on(
    ask: Callable[[str], Any], empty_url: str
) -> None:
    before, _ = await ask(SET)
    with psycopg.connect(empty_url, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 10000)", [before])

    after, _ = await ask(READ)

    assert after != before


@both
async def test_who_wants_connections_of_its_own_has_them(ask: Callable[[str], Any], own_connections: None) -> None:
    before, _ = await ask(SET)

    after, _ = await ask(READ)

    assert after != before
