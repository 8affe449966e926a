"""What writes by one statement is sent without BEGIN and COMMIT; whatever reads before it writes has both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import pytest

from holdfast import Holdfast
from holdfast.database.tx import Tx, one_write
from holdfast.models import Start, Unique

PLAIN = Start(id=UUID(int=1), task="work", input="{}", queue="default")
OTHERS = {
    "a blocker": PLAIN._replace(blockers=(UUID(int=2),)),
    "a key": PLAIN._replace(unique=Unique("key")),
    "an id of the caller's": PLAIN._replace(named=True),
    "a time": PLAIN._replace(run_at_ms=4_000_000_000_000),
    "a delay": PLAIN._replace(delay_ms=1),
    "a pause": PLAIN._replace(paused=True),
}

# in a transaction both statements have the same time
TIME = "SELECT CAST(now() AS text)"


async def is_one_transaction(tx: Tx, items: Sequence[Start]) -> list[Any]:
    times = [await tx.fetch_all(TIME) for _ in range(2)]
    return [times[0] == times[1] for _ in items]


@one_write
async def has_a_transaction(tx: Tx) -> bool:
    times = [await tx.fetch_all(TIME) for _ in range(2)]
    return times[0] == times[1]


async def isolation(tx: Tx, items: Sequence[Start]) -> list[Any]:
    found = await tx.fetch_all("SELECT current_setting('transaction_isolation')")
    return [found[0][0] for _ in items]


async def test_a_plain_start_has_no_transaction_around_it(new_holdfast: Callable[..., Holdfast]) -> None:
    async with new_holdfast("postgres") as hf:
        assert await hf.store.gather(is_one_transaction, [PLAIN]) == [False]


async def test_an_operation_of_one_write_has_none_either(new_holdfast: Callable[..., Holdfast]) -> None:
    async with new_holdfast("postgres") as hf:
        assert await hf.store.run(has_a_transaction) is False


@pytest.mark.parametrize("start", OTHERS.values(), ids=OTHERS)
async def test_a_start_of_several_statements_has_one(new_holdfast: Callable[..., Holdfast], start: Start) -> None:
    async with new_holdfast("postgres") as hf:
        assert await hf.store.gather(is_one_transaction, [PLAIN, start]) == [True, True]


async def test_behind_a_pooler_the_settings_travel_with_a_begin(new_holdfast: Callable[..., Holdfast]) -> None:
    async with new_holdfast("postgres", transaction_pooler=True) as hf:
        assert await hf.store.gather(is_one_transaction, [PLAIN]) == [True]


async def test_the_isolation_is_ours_whatever_the_database_has(new_holdfast: Callable[..., Holdfast]) -> None:
    async with new_holdfast("postgres") as hf:
        await hf.store.run(set_isolation, "SET default_transaction_isolation = serializable")

    async with new_holdfast("postgres") as hf:
        found = await hf.store.gather(isolation, [PLAIN])
        await hf.store.run(set_isolation, "RESET default_transaction_isolation")  # other tests have the same database

    assert found == ["read committed"]


async def set_isolation(tx: Tx, change: str) -> None:
    ((name,),) = await tx.fetch_all("SELECT current_database()")
    await tx.execute(f'ALTER DATABASE "{name}" {change}')
