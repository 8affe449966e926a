"""A verb that waits for a job which is deleted meanwhile finds nobody; it does not trip over the tombstone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.errors import JobNotFound
from tests.store import engine
from tests.support.conditions import until
from tests.support.factories import TASKS, greet
from tests.support.ways import Way


async def test_a_verb_that_waits_for_a_head_that_is_deleted_meanwhile_says_that_it_is_gone(
    new_holdfast: Callable[..., Holdfast], empty_url: str
) -> None:
    hf = new_holdfast("postgres", tasks=[TASKS])
    async with hf:
        chain = await hf.start(greet(name="Ada"), lane="lane")
        await engine.admit(Way(hf, is_async=True))
        async with await psycopg.AsyncConnection.connect(empty_url) as person:
            await person.execute("SELECT 1")
            await hf.delete(chain, connection=person)
            verb = asyncio.create_task(hf.cancel(chain))
            await until(lambda: waits(empty_url), "the verb waits for the row")
            await person.commit()
        with pytest.raises(JobNotFound):
            await verb


async def test_a_delete_that_waits_for_another_of_the_same_head_finds_nothing_left(
    new_holdfast: Callable[..., Holdfast], empty_url: str
) -> None:
    hf = new_holdfast("postgres", tasks=[TASKS])
    async with hf:
        chain = await hf.start(greet(name="Ada"), lane="lane")
        await engine.admit(Way(hf, is_async=True))
        async with await psycopg.AsyncConnection.connect(empty_url) as person:
            await person.execute("SELECT 1")
            await hf.delete(chain, connection=person)
            second = asyncio.create_task(hf.delete_many([chain]))
            await until(lambda: waits(empty_url), "the second delete waits for the row")
            await person.commit()

        assert await second == []


def waits(url: str) -> bool:
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()
    return bool(found and found[0])
