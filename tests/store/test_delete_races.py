"""A verb that waits for a job which is deleted meanwhile finds nobody; it does not trip over the tombstone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.errors import ChainNotFound, JobNotFound
from tests.store import engine
from tests.support.conditions import until
from tests.support.factories import TASKS, greet
from tests.support.ways import Way

R = TypeVar("R")


@pytest.fixture
async def hf(new_holdfast: Callable[..., Holdfast]) -> AsyncIterator[Holdfast]:
    """An open face on PostgreSQL, where a row can be waited for."""
    async with new_holdfast("postgres", tasks=[TASKS]) as face:
        yield face


async def while_it_is_deleted(hf: Holdfast, url: str, verb: Callable[[Any], Coroutine[Any, Any, R]]) -> R:
    """Have *verb* wait for the head of a lane that somebody else deletes and then commits; give what it comes to."""
    chain = await hf.start(greet(name="Ada"), lane="lane")
    await engine.admit(Way(hf, is_async=True))
    async with await psycopg.AsyncConnection.connect(url) as person:
        await person.execute("SELECT 1")
        await hf.delete(chain, connection=person)
        waiting = asyncio.create_task(verb(chain))
        await until(lambda: waits(url), "the verb waits for the row")
        await person.commit()
    return await waiting


async def test_a_verb_that_waits_for_a_head_that_is_deleted_meanwhile_says_that_it_is_gone(
    hf: Holdfast, empty_url: str
) -> None:
    with pytest.raises(JobNotFound):
        await while_it_is_deleted(hf, empty_url, hf.cancel)


async def test_a_delete_that_waits_for_another_of_the_same_head_finds_nothing_left(
    hf: Holdfast, empty_url: str
) -> None:
    assert await while_it_is_deleted(hf, empty_url, lambda chain: hf.delete_many([chain])) == []


async def test_a_delete_of_one_chain_that_waits_for_another_says_that_it_is_gone(hf: Holdfast, empty_url: str) -> None:
    """A9."""
    with pytest.raises(ChainNotFound):
        await while_it_is_deleted(hf, empty_url, hf.delete)


def waits(url: str) -> bool:
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()
    return bool(found and found[0])
