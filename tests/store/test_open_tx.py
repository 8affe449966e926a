"""A transaction that stays open around a user's code: one contract, four ways, and over every provider's too."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import django.db
import psycopg
import pytest
from sqlalchemy import exc

from holdfast import Holdfast
from holdfast.database.tx import Tx
from holdfast.errors import InvalidInput, Misuse, TransactionBroken, WrongTask
from holdfast.store import reads
from holdfast.store.chains import creation
from tests.store.open_blocks import add_bill, begin_with, bills, insert, make_table, on_connection, opened
from tests.support.factories import TASKS, a_start
from tests.support.ways import WAYS, Way
from tests.worker.providers import Often, database_and_options, provided

DriverError = (sqlite3.Error, psycopg.Error, exc.StatementError, django.db.Error)
IntegrityError = (
    sqlite3.IntegrityError,
    psycopg.IntegrityError,
    exc.IntegrityError,
    django.db.IntegrityError,
)


@pytest.fixture(params=[*WAYS, *provided(None, Often.EVERYWHERE, Often.CHEAP)])
async def way(
    request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast], tmp_path: Path
) -> AsyncIterator[Way]:
    """One of the four ways, or the transactions of a library; open and empty."""
    async with AsyncExitStack() as at_end:
        database, is_async, options = await database_and_options(request, tmp_path, at_end)
        way = Way(new_holdfast(database, tasks=[TASKS], **options), is_async=is_async)
        await way.face.open()
        yield way
        await way.close()


@pytest.fixture(autouse=True)
async def table(way: Way) -> None:
    await way.call(make_table)


async def test_what_a_block_commits_is_there_with_what_our_operations_did_in_it(way: Way) -> None:
    start = a_start()

    async with opened(way) as block:
        await insert(block, 1)
        await block.run(creation.start, [start])
        assert await way.read(bills) == []
        await block.commit()

    assert block.is_committed
    assert await way.read(bills) == [1]
    assert [each.id for each in await way.read(reads.chains_by_id, [start.id])] == [start.id]


async def test_what_a_block_rolls_back_never_was(way: Way) -> None:
    start = a_start()

    async with opened(way) as block:
        await insert(block, 1)
        await block.run(creation.start, [start])
        await block.roll_back()

    assert not block.is_committed
    assert await way.read(bills) == []
    assert await way.read(reads.chains_by_id, [start.id]) == []


async def test_operations_run_also_statement_by_statement(way: Way) -> None:
    async with opened(way) as block:
        await add_bill(block.tx, 1)
        assert await bills(block.tx) == [1]
        assert block.tx.database == way.database
        await block.commit()

    assert await way.read(bills) == [1]


async def test_rows_come_as_records(way: Way) -> None:
    async with opened(way) as block:
        await insert(block, 1, amount=5)
        (record,) = await block.query("SELECT id, amount AS euros FROM bill WHERE id = :id", {"id": 1})

        assert tuple(record) == (1, 5)
        assert (record.id, record["euros"]) == (1, 5)
        assert await block.query("SELECT id FROM bill WHERE id = :id", {"id": 2}) == []
        assert await block.query("UPDATE bill SET amount = 6", {}) == []
        assert await block.query("UPDATE bill SET amount = 7 RETURNING amount", {}) == [(7,)]


async def test_colons_and_percent_signs_reach_the_database_as_they_are(way: Way) -> None:
    sql = r"""SELECT CAST(:a AS text) || '%:a' || ':b' AS "x:y%" /* :c */ -- :d"""

    async with opened(way) as block:
        (record,) = await block.query(sql, {"a": "it's"})
        assert record["x:y%"] == "it's%:a:b"
        assert await block.query("SELECT 7 % 4", {}) == [(3,)]


async def test_a_missing_or_unknown_name_is_refused_and_costs_nothing(way: Way) -> None:
    async with opened(way) as block:
        with pytest.raises(InvalidInput, match="no value is given for :a; the statement does not name :b"):
            await block.query("SELECT :a", {"b": 1})
        await insert(block, 1)
        await block.commit()

    assert await way.read(bills) == [1]


async def test_a_value_that_the_driver_cannot_send_costs_nothing(way: Way) -> None:
    async with opened(way) as block:
        with pytest.raises(DriverError):
            await block.query("SELECT :a", {"a": object()})
        await insert(block, 1)
        await block.commit()

    assert await way.read(bills) == [1]


async def test_an_error_of_the_user_s_statement_is_the_driver_s_own(way: Way) -> None:
    async with opened(way) as block:
        with pytest.raises(IntegrityError):
            await insert(block, 1, amount=-1)
    async with opened(way) as block:
        with pytest.raises(DriverError):
            await block.query("SELECT nothing FROM nowhere", {})


async def test_a_swallowed_error_breaks_the_block(way: Way) -> None:
    async with opened(way) as block:
        await insert(block, 1)
        with pytest.raises(IntegrityError):
            await insert(block, 1)

        with pytest.raises(TransactionBroken, match="has failed"):
            block.refuse_unusable()
        with pytest.raises(TransactionBroken, match="has failed"):
            await insert(block, 2)
        with pytest.raises(TransactionBroken, match="has failed"):
            await block.run(bills)
        with pytest.raises(TransactionBroken, match="has failed"):
            await block.begin_savepoint()
        with pytest.raises(TransactionBroken, match="has failed"):
            await block.commit()

    assert await way.read(bills) == []


async def test_an_error_that_reached_no_database_breaks_nothing(way: Way) -> None:
    start = a_start()
    await way.call(creation.start, [start])

    async with opened(way) as block:
        with pytest.raises(WrongTask):
            await block.run(creation.start, [a_start(id=start.id, task="add", named=True)])
        await insert(block, 1)
        await block.commit()

    assert await way.read(bills) == [1]


async def test_a_savepoint_keeps_an_error_from_breaking_the_block(way: Way) -> None:
    async with opened(way) as block:
        await insert(block, 1)
        outer = await block.begin_savepoint()
        await insert(block, 2)
        inner = await block.begin_savepoint()
        with pytest.raises(IntegrityError):
            await insert(block, 3, amount=-1)
        await block.roll_back_to(inner)
        await insert(block, 4)
        await block.release(outer)
        again = await block.begin_savepoint()
        await insert(block, 5)
        await block.roll_back_to(again)
        await block.commit()

    assert await way.read(bills) == [1, 2, 4]


async def test_a_block_that_has_ended_cannot_be_used(way: Way) -> None:
    async with opened(way) as block:
        await block.commit()

        for use in (insert(block, 1), block.run(bills), block.begin_savepoint(), block.commit()):
            with pytest.raises(Misuse, match="has ended"):
                await use
        with pytest.raises(Misuse, match="has ended"):
            block.refuse_unusable()
        with pytest.raises(Misuse, match="has ended"):
            _ = block.connection
        await block.roll_back()
        await block.roll_back()

    assert await way.read(bills) == []


@pytest.mark.parametrize("sql", ["COMMIT", "ROLLBACK", "BEGIN", "SAVEPOINT a"])
async def test_a_block_is_not_ended_by_a_statement(way: Way, sql: str) -> None:
    async with opened(way) as block:
        await insert(block, 1)
        with pytest.raises(Misuse, match="only Holdfast may end"):
            await block.query(sql, {})
        await block.commit()

    assert await way.read(bills) == [1]


async def add_two_bills(tx: Tx) -> None:
    """Write, by two statements."""
    await add_bill(tx, 1)
    await add_bill(tx, 2)


async def test_what_is_run_first_belongs_to_the_block(way: Way) -> None:
    block = await begin_with(way, add_two_bills)
    assert await block.run(bills) == [1, 2]
    await block.roll_back()
    assert await way.read(bills) == []

    block = await begin_with(way, add_two_bills)
    await block.commit()
    assert await way.read(bills) == [1, 2]


async def test_what_runs_no_statement_first_opens_a_block_all_the_same(way: Way) -> None:
    async def nothing(tx: Tx) -> None:
        """Look at nothing."""

    block = await begin_with(way, nothing)
    await insert(block, 1)
    await block.roll_back()

    assert await way.read(bills) == []


async def test_what_is_written_last_is_in_the_commit(way: Way) -> None:
    begun: list[bool] = []
    async with opened(way) as block:
        await insert(block, 3)
        await block.commit(add_two_bills, lambda: begun.append(block.is_committed))

    assert (block.is_committed, begun) == (True, [False])
    assert await way.read(bills) == [1, 2, 3]


async def test_what_refuses_the_commit_last_undoes_the_block(way: Way) -> None:
    async def refuse(tx: Tx) -> None:
        await add_bill(tx, 1)
        raise Misuse("not any more")

    for number in range(10):  # more than there are connections
        block = await begin_with(way, None)
        await insert(block, 100 + number)
        with pytest.raises(Misuse, match="not any more"):
            await block.commit(refuse)
        assert not block.is_committed
        await block.roll_back()

    assert await way.read(bills) == []
    await way.call(add_bill, 2)
    assert await way.read(bills) == [2]


async def test_a_block_that_is_refused_was_never_open(way: Way) -> None:
    async def refuse(tx: Tx) -> None:
        await add_bill(tx, 1)
        raise Misuse("not now")

    for _ in range(10):  # more than there are connections
        with pytest.raises(Misuse, match="not now"):
            await begin_with(way, refuse)

    assert await way.read(bills) == []
    await way.call(add_bill, 2)
    async with opened(way) as block:
        await insert(block, 3)
        await block.commit()
    assert await way.read(bills) == [2, 3]


async def test_blocks_come_one_after_another(way: Way) -> None:
    for number in range(5):
        async with opened(way) as block:
            await insert(block, number)
            await block.commit()
        async with opened(way) as block:
            await insert(block, -number - 1)

    assert await way.read(bills) == [0, 1, 2, 3, 4]


async def test_the_driver_s_own_connection_is_in_the_same_transaction(way: Way) -> None:
    async with opened(way) as block:
        await insert(block, 1)
        assert await on_connection(block, "SELECT id FROM bill") == [(1,)]
        await on_connection(block, "INSERT INTO bill (id, amount) VALUES (2, 1)")
        assert await block.run(bills) == [1, 2]
        await block.commit()

    assert await way.read(bills) == [1, 2]


@pytest.mark.parametrize("way", WAYS, indirect=True)  # a provider's connection is the user's own
async def test_what_a_user_sets_on_the_connection_troubles_nobody(way: Way) -> None:
    async with opened(way) as block:
        block.connection.row_factory = sqlite3.Row if way.database == "sqlite" else psycopg.rows.dict_row
        if way.database == "sqlite":
            block.connection.text_factory = bytes
        await insert(block, 1)
        assert await bills(block.tx) == [1]
        (name,) = await block.tx.fetch_all("SELECT CAST('x' AS text)")
        assert name == ("x",)
        await block.commit()

    async with opened(way) as block:
        assert await on_connection(block, "SELECT id FROM bill") == [(1,)]


LEFT = {"sqlite": ["CREATE TEMP TABLE bill (id int, amount int)", "PRAGMA case_sensitive_like = 1"],
        "postgres": ["CREATE TEMP TABLE bill (id int, amount int)", "SET search_path TO nowhere"]}  # fmt: skip


@pytest.mark.parametrize("way", WAYS, indirect=True)
@pytest.mark.parametrize("which", [0, 1])
async def test_what_a_statement_leaves_on_its_connection_the_next_block_does_not_find(way: Way, which: int) -> None:
    async with opened(way) as block:
        await block.query(LEFT[way.database][which], {})
        await block.commit()

    async with opened(way) as block:
        await insert(block, 1)
        assert [
            row[0] for row in await block.query("SELECT 1 WHERE 'a' LIKE 'A' OR :pg", {"pg": way.database != "sqlite"})
        ]
        await block.commit()

    assert await way.read(bills) == [1]


async def test_a_savepoint_on_the_connection_itself_is_the_user_s_right(way: Way) -> None:
    async with opened(way) as block:
        await on_connection(block, "SAVEPOINT mine")
        await insert(block, 1)
        await on_connection(block, "ROLLBACK TO mine")
        await insert(block, 2)
        await block.commit()

    assert await way.read(bills) == [2]


@pytest.mark.parametrize("statements", [("COMMIT",), ("ROLLBACK",), ("COMMIT", "BEGIN"), ("ROLLBACK", "BEGIN")])
async def test_a_user_who_ends_the_transaction_himself_is_told(way: Way, statements: tuple[str, ...]) -> None:
    """SQLite's connection refuses at once; on PostgreSQL it is found out at the block's end."""

    async def use() -> None:
        async with opened(way) as block:
            for sql in statements:
                await on_connection(block, sql)
            await block.commit()

    with pytest.raises((Misuse, TransactionBroken), match="only Holdfast may end"):
        await use()

    async with opened(way) as block:
        await insert(block, 7)
        await block.commit()
    assert await way.read(bills) == [7]


async def test_a_block_is_a_runner(way: Way) -> None:
    starts: list[Any] = [a_start(), a_start()]

    async with opened(way) as block:
        assert len(await block.gather(creation.start, starts)) == 2
        assert len(await block.read(reads.chains_by_id, [each.id for each in starts])) == 2
