"""Blocks on PostgreSQL: the server keeps plans for them, but not for long, and what they begin with prepared (I-72)."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.database.postgres import PostgresStore
from holdfast.database.postgres.address import PLANS_SECONDS
from holdfast.database.postgres.beginning import MOST_PREPARED
from holdfast.database.tx import First, OpenTx, Tx
from holdfast.runtime import Runtime
from tests.store.conftest import MakeStore
from tests.store.open_blocks import LEASE
from tests.store.samples import Stranger
from tests.support.faults.fault_proxy import FaultProxy

MANY = 50_000
UNTIL_GENERIC = 15  # the driver prepares after five times, and the server looks at values five times more
PREPARED = "SELECT count(*) AS number FROM pg_prepared_statements WHERE name LIKE 'holdfast%'"


@pytest.fixture(params=["async", "blocking"])
def is_async(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "async")


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def pay(tx: Tx) -> None:
    await tx.execute("UPDATE sample SET amount = amount + 1 WHERE id = :id", id="1")


async def nothing(tx: Tx) -> None:
    """Look at nothing."""


async def look(tx: Tx) -> None:
    ((amount,),) = await tx.fetch_all("SELECT amount + :more FROM sample WHERE amount % 2 = :odd", more=7, odd=0)
    assert amount == 7


async def open_block(store: PostgresStore, first: First, *, is_async: bool) -> OpenTx:
    return await store.begin(LEASE, first) if is_async else store.begin_sync(LEASE, first)


async def ask(block: OpenTx, sql: str) -> Any:
    ((value,),) = await block.query(sql, {})
    return value


async def count_scans(store: PostgresStore, *, is_async: bool) -> int:
    """Pay in a block; count how often the table was read from end to end for it."""
    scans = "SELECT coalesce(sum(seq_scan), 0) FROM pg_stat_xact_user_tables WHERE relname = 'sample'"
    block = await open_block(store, nothing, is_async=is_async)
    before = await ask(block, scans)
    await block.run(pay)
    after = await ask(block, scans)
    await block.commit()
    return int(after - before)


async def test_a_plan_that_was_made_while_a_table_was_tiny_is_forgotten(
    make_store: MakeStore, stranger: Stranger, is_async: bool
) -> None:
    clock = Clock()
    store = make_store(runtime=Runtime(monotonic=clock), pool_size=1)
    stranger.do("ALTER TABLE sample SET (autovacuum_enabled = false)")
    stranger.do("INSERT INTO sample SELECT n, 0 FROM generate_series(1, 10) AS n")
    stranger.do("ANALYZE sample")
    for _ in range(UNTIL_GENERIC):
        await count_scans(store, is_async=is_async)
    stranger.do(f"INSERT INTO sample SELECT n, 0 FROM generate_series(11, {MANY}) AS n")

    kept = await count_scans(store, is_async=is_async)
    clock.now += PLANS_SECONDS
    renewed = await count_scans(store, is_async=is_async)

    assert kept > 0  # or this test could not fail
    assert renewed == 0


async def do_nothing(block: OpenTx) -> None:
    await block.commit()


async def roll_back(block: OpenTx) -> None:
    await block.roll_back()


async def undo_a_part(block: OpenTx) -> None:
    await block.roll_back_to(await block.begin_savepoint())
    await block.commit()


async def alter(block: OpenTx) -> None:
    await block.query("ALTER TABLE sample ADD COLUMN IF NOT EXISTS more bigint", {})
    await block.commit()


async def deallocate(block: OpenTx) -> None:
    await block.query("DEALLOCATE ALL", {})
    await block.commit()


@pytest.mark.parametrize("end", [do_nothing, roll_back, undo_a_part, alter, deallocate])
async def test_a_block_begins_in_one_round_trip_whatever_was_done_before(
    make_store: MakeStore, proxy: FaultProxy, stranger: Stranger, is_async: bool, end: Any
) -> None:
    store = make_store(proxy.url, pool_size=1)
    stranger.do("INSERT INTO sample VALUES ('1', 0)")
    for _ in range(UNTIL_GENERIC):  # then the driver has prepared statements of its own, and forgets them all at once
        block = await open_block(store, look, is_async=is_async)
        await block.run(look)
        await block.commit()
    block = await open_block(store, look, is_async=is_async)
    assert await ask(block, PREPARED) == 1
    await end(block)

    proxy.round_trips = 0
    block = await open_block(store, look, is_async=is_async)

    assert proxy.round_trips == 1
    await block.commit()


async def test_a_block_begins_though_a_function_has_thrown_away_what_was_prepared(
    make_store: MakeStore, stranger: Stranger, is_async: bool
) -> None:
    store = make_store(pool_size=1)
    stranger.do("INSERT INTO sample VALUES ('1', 0)")
    stranger.do(
        "CREATE OR REPLACE FUNCTION forget_all() RETURNS bigint LANGUAGE plpgsql AS"
        " $$ BEGIN EXECUTE 'DEALLOCATE ALL'; RETURN 1; END $$"
    )
    block = await open_block(store, look, is_async=is_async)
    await ask(block, "SELECT forget_all()")
    await block.commit()

    block = await open_block(store, look, is_async=is_async)

    assert await ask(block, PREPARED) == 1
    await block.commit()


async def test_what_is_prepared_does_not_add_up(make_store: MakeStore, stranger: Stranger, is_async: bool) -> None:
    store = make_store(pool_size=1)
    stranger.do("INSERT INTO sample VALUES ('1', 0)")
    for _ in range(MOST_PREPARED + 5):
        await roll_back(await open_block(store, look, is_async=is_async))

    block = await open_block(store, look, is_async=is_async)

    assert await ask(block, PREPARED) <= MOST_PREPARED
    await block.commit()


async def test_texts_are_bound_as_ever(make_store: MakeStore, stranger: Stranger, is_async: bool) -> None:
    store = make_store(pool_size=1)
    found: list[Any] = []

    async def find(tx: Tx) -> None:
        found.extend(await tx.fetch_all("SELECT amount FROM sample WHERE id = :id", id=r"o'\"%s"))

    stranger.do(r"INSERT INTO sample VALUES ('o''\"%s', 5)")
    for _ in range(2):
        block = await open_block(store, find, is_async=is_async)
        await block.commit()

    assert found == [(5,), (5,)]
