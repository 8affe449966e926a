"""Starts that are nothing but INSERTs keep their plans; whatever reads a table is planned anew each time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from holdfast import Holdfast
from holdfast.models import Start, Unique
from holdfast.store.tx import Tx

PLAIN = Start(id=UUID(int=1), task="work", input="{}", queue="default")
READING = {
    "a blocker": replace(PLAIN, blockers=(UUID(int=2),)),
    "a key": replace(PLAIN, unique=Unique("key")),
    "an id of the caller's": replace(PLAIN, named=True),
}


async def plan_cache_mode(tx: Tx, items: Sequence[Start]) -> list[Any]:
    found = await tx.fetch_all("SELECT current_setting('plan_cache_mode')")
    return [found[0][0] for _ in items]


async def test_a_plain_start_keeps_its_plans(new_holdfast: Callable[..., Holdfast]) -> None:
    async with new_holdfast("postgres") as hf:
        assert await hf.store.gather(plan_cache_mode, [PLAIN]) == ["auto"]


@pytest.mark.parametrize("start", READING.values(), ids=READING)
async def test_a_start_that_reads_does_not(new_holdfast: Callable[..., Holdfast], start: Start) -> None:
    async with new_holdfast("postgres") as hf:
        assert await hf.store.gather(plan_cache_mode, [PLAIN, start]) == ["force_custom_plan"] * 2


async def test_the_next_use_of_the_connection_is_planned_anew(new_holdfast: Callable[..., Holdfast]) -> None:
    async with new_holdfast("postgres", pool_size=1) as hf:
        await hf.store.gather(plan_cache_mode, [PLAIN])

        assert await hf.store.read(plan_cache_mode, [PLAIN]) == ["force_custom_plan"]
