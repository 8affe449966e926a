"""Two at once, step by step: whoever is half-way through, one chain holds a key, one job has an id, nobody deadlocks.

On PostgreSQL the steps are forced with real connections: a transaction is left open, another is seen to wait for it
by `pg_blocking_pids`, then the first one ends. On SQLite there is one writer at a time, and no half-way to be seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from holdfast import Busy, Chain, ChainNotFound, Holdfast, Unique, WrongTask
from holdfast.database.postgres import AsyncPostgresTx
from holdfast.database.tx import Row, Tx
from holdfast.store import reads, unique
from holdfast.store.chains import creation
from tests.support.conditions import until
from tests.support.factories import TASKS, a_start, add, greet, let_keys_expire
from tests.support.ways import Way


@pytest.fixture
async def way(new_holdfast: Callable[..., Holdfast]) -> AsyncIterator[Way]:
    """PostgreSQL, for async code."""
    way = Way(new_holdfast("postgres", tasks=[TASKS]), is_async=True)
    await way.hf.open()
    yield way
    await way.close()


class Transaction:
    """A caller's transaction that is left open; what waits for it goes on in the background."""

    def __init__(self, hf: Holdfast, connection: psycopg.AsyncConnection[Any]) -> None:
        self._hf = hf
        self._connection = connection
        self._under_way: asyncio.Task[list[Chain[Any]]] | None = None

    async def start(self, *calls: Any) -> list[Chain[Any]]:
        """Start, having waited for nobody."""
        await self._connection.execute("SELECT 1")
        return await self._hf.start_many(calls, connection=self._connection)

    async def start_and_wait(self, *calls: Any) -> None:
        """Start, and return as soon as the server says that this waits for another transaction."""
        self._under_way = asyncio.create_task(self.start(*calls))
        await until(self._is_waiting, "the second start waits for the first")

    @property
    def is_done(self) -> bool:
        """Tell whether the start that had to wait has ended."""
        return self._under_way is not None and self._under_way.done()

    async def started(self) -> list[Chain[Any]]:
        """Answer what the start that had to wait was given."""
        assert self._under_way is not None
        return await asyncio.wait_for(self._under_way, 10)

    async def delete(self, chain: Any) -> None:
        """Delete."""
        await self._connection.execute("SELECT 1")
        await self._hf.delete(chain, connection=self._connection)

    async def free(self, task: str, key: str, chain: Chain[Any]) -> None:
        """Let go of a key as a chain does that closes."""
        await unique.free(AsyncPostgresTx(self._connection, self._hf.store.dialect), [(task, key, chain.id)])

    async def end(self, ending: str) -> None:
        """Commit or roll back."""
        await (self._connection.commit() if ending == "commit" else self._connection.rollback())

    async def close(self) -> None:
        """End what is left."""
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.gather(self._under_way, return_exceptions=True)
        await self._connection.close()

    async def _is_waiting(self) -> bool:
        async with await psycopg.AsyncConnection.connect(self._hf.settings.database) as observer:
            pid = self._connection.info.backend_pid
            cursor = await observer.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", [pid])
            ((waiting,),) = await cursor.fetchall()
            return bool(waiting)


@pytest.fixture
async def begin(way: Way) -> AsyncIterator[Callable[[], Any]]:
    """Begin callers' transactions: `first = await begin()`."""
    begun: list[Transaction] = []

    async def begin() -> Transaction:
        connection = await psycopg.AsyncConnection.connect(way.hf.settings.database)
        begun.append(Transaction(way.hf, connection))
        return begun[-1]

    yield begin
    for each in reversed(begun):
        await each.close()


async def holders(way: Way) -> list[UUID]:
    """Name the chains that hold a key now."""
    rows = await way.rows("SELECT chain_id FROM holdfast_unique WHERE until IS NULL OR until > $now")
    return [UUID(chain_id) for (chain_id,) in rows]


# ---- one key


@pytest.mark.source("DF-3")
async def test_who_waits_for_a_key_is_given_the_chain_that_was_committed(way: Way, begin: Any) -> None:
    """I-05."""
    first, second = await begin(), await begin()
    (winner,) = await first.start(greet(name="first").options(unique="same"))
    await second.start_and_wait(greet(name="second").options(unique="same"))

    await first.end("commit")
    (given,) = await second.started()
    await second.end("commit")

    assert (given.id, given.deduplicated) == (winner.id, True)
    assert [job.id for job in await way.face.list_jobs()] == [winner.id]
    assert await holders(way) == [winner.id]


async def test_who_waits_for_a_key_has_a_chain_of_its_own_if_the_other_rolls_back(way: Way, begin: Any) -> None:
    first, second = await begin(), await begin()
    (loser,) = await first.start(greet(name="first").options(unique="same"))
    await second.start_and_wait(greet(name="second").options(unique="same"))

    await first.end("rollback")
    (given,) = await second.started()
    await second.end("commit")

    assert (given.id != loser.id, given.deduplicated) == (True, False)
    assert await holders(way) == [given.id]


async def test_a_key_of_another_task_is_not_waited_for(begin: Any) -> None:
    first, second = await begin(), await begin()
    await first.start(greet(name="first").options(unique="same"))

    (given,) = await second.start(add(a=1, b=2).options(unique="same"))

    assert given.deduplicated is False


async def test_batches_that_take_their_keys_crosswise_do_not_deadlock(way: Way, begin: Any) -> None:
    """I-05."""
    holder, forwards, backwards = await begin(), await begin(), await begin()
    await holder.start(greet(name="holder").options(unique="m"))  # keeps the others half-way through their batches
    await forwards.start_and_wait(*(greet(name=key).options(unique=key) for key in "amz"))
    await backwards.start_and_wait(*(greet(name=key).options(unique=key) for key in "zma"))

    await holder.end("rollback")
    taken = await forwards.started()
    await forwards.end("commit")
    met = await backwards.started()

    assert [chain.id for chain in met] == [chain.id for chain in reversed(taken)]
    assert [chain.deduplicated for chain in taken + met] == [False] * 3 + [True] * 3


# ---- a key that is being let go


async def test_who_meets_a_key_that_is_being_freed_takes_it_once_that_is_committed(way: Way, begin: Any) -> None:
    old = await way.face.start(greet(name="old"), unique="same")
    first, second = await begin(), await begin()
    await first.delete(old)
    await second.start_and_wait(greet(name="new").options(unique="same"))

    await first.end("commit")
    (given,) = await second.started()
    await second.end("commit")

    assert (given.id != old.id, given.deduplicated) == (True, False)
    assert await holders(way) == [given.id]


async def test_who_meets_a_key_that_is_being_freed_meets_its_holder_if_that_is_undone(way: Way, begin: Any) -> None:
    old = await way.face.start(greet(name="old"), unique="same")
    first, second = await begin(), await begin()
    await first.delete(old)
    await second.start_and_wait(greet(name="new").options(unique="same"))

    await first.end("rollback")
    (given,) = await second.started()
    await second.end("commit")

    assert (given.id, given.deduplicated) == (old.id, True)
    assert await holders(way) == [old.id]


@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_a_key_with_a_time_that_is_being_retired_has_one_holder(way: Way, begin: Any, ending: str) -> None:
    old = await way.face.start(greet(name="old"), unique=Unique("same", within=3600))
    first, second = await begin(), await begin()
    await first.delete(old)
    await second.start_and_wait(greet(name="new").options(unique="same"))

    await first.end(ending)
    (given,) = await second.started()
    await second.end("commit")

    assert (given.id == old.id) is (ending == "rollback")
    assert await holders(way) == [given.id]


async def test_a_chain_that_has_let_go_of_its_key_is_not_met_by_who_waited_for_that(way: Way, begin: Any) -> None:
    old = await way.face.start(greet(name="old"), unique=Unique("same", within=3600))
    first, second = await begin(), await begin()
    await first.free("greet", "same", old)
    await second.start_and_wait(greet(name="new").options(unique="same"))

    await first.end("commit")
    (given,) = await second.started()
    await second.end("commit")

    assert (given.id != old.id, given.deduplicated) == (True, False)
    assert await holders(way) == [given.id]


async def test_a_deleted_former_holder_does_not_let_a_second_one_in_beside_its_successor(way: Way, begin: Any) -> None:
    former = await way.face.start(greet(name="former"), unique=Unique("same", within=3600))
    await let_keys_expire(way)
    first, second = await begin(), await begin()
    (successor,) = await first.start(greet(name="successor").options(unique="same"))
    await way.face.delete(former)  # whose row must stay, or the next start would begin again at turn 0
    await second.start_and_wait(greet(name="late").options(unique="same"))

    await first.end("commit")
    (given,) = await second.started()
    await second.end("commit")

    assert (given.id, given.deduplicated) == (successor.id, True)
    assert await holders(way) == [successor.id]


async def test_a_retired_turn_is_not_begun_again_while_its_successor_is_half_way(way: Way, begin: Any) -> None:
    await way.face.start(greet(name="turn 0"), unique=Unique("same", within=3600))
    await let_keys_expire(way)
    retired = await way.face.start(greet(name="turn 1"), unique="same")
    await way.face.delete(retired)
    first, second = await begin(), await begin()
    (successor,) = await first.start(greet(name="turn 2").options(unique="same"))
    await second.start_and_wait(greet(name="late").options(unique="same"))

    await first.end("commit")
    (given,) = await second.started()
    await second.end("commit")

    assert given.id == successor.id
    assert await holders(way) == [successor.id]


# ---- one id


@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_two_starts_under_one_id_make_one_job(way: Way, begin: Any, ending: str) -> None:
    """I-04."""
    chosen = uuid4()
    first, second = await begin(), await begin()
    await first.start(greet(name="first").options(id=chosen))
    await second.start_and_wait(greet(name="second").options(id=chosen))

    await first.end(ending)
    (given,) = await second.started()
    await second.end("commit")

    assert (given.id, given.deduplicated) == (chosen, ending == "commit")
    assert [job.input.name for job in await way.face.list_jobs()] == ["first" if ending == "commit" else "second"]
    assert await way.rows("SELECT name FROM holdfast_event") == [("job:enqueued",)]


async def test_a_key_that_was_taken_for_an_id_that_came_too_late_is_let_go(way: Way, begin: Any) -> None:
    chosen = uuid4()
    first, second = await begin(), await begin()
    await first.start(greet(name="first").options(id=chosen, unique="a"))
    await second.start_and_wait(greet(name="second").options(id=chosen, unique="b"))

    await first.end("commit")
    await second.started()
    await second.end("commit")

    assert await way.rows("SELECT key FROM holdfast_unique") == [("a",)]


@pytest.mark.parametrize("unique", [None, "mine", Unique("mine", within=3600)])
async def test_who_loses_an_id_to_another_task_has_left_nothing_behind(way: Way, begin: Any, unique: Any) -> None:
    chosen = uuid4()
    first, second = await begin(), await begin()
    await first.start(add(a=1, b=2).options(id=chosen))
    await second.start_and_wait(
        greet(name="beside").options(unique="beside"),
        greet(name="second").options(id=chosen, **({} if unique is None else {"unique": unique})),
    )

    await first.end("commit")
    with pytest.raises(WrongTask):
        await second.started()
    await second.end("commit")

    assert [job.id for job in await way.face.list_jobs()] == [chosen]
    assert await way.rows("SELECT name FROM holdfast_event") == [("job:enqueued",)]
    assert await way.rows("SELECT key FROM holdfast_unique") == []


# ---- a twin that goes while it is being read


class Interrupted:
    """A transaction in which something else happens just before the first run of one statement."""

    def __init__(self, tx: Tx, before: str, happens: Callable[[], Any]) -> None:
        self._tx = tx
        self.database = tx.database
        self._before = before
        self._happens: Callable[[], Any] | None = happens

    async def execute(self, sql: str, /, **values: object) -> None:
        """Run *sql* and throw its rows away."""
        await self._tx.execute(sql, **values)

    async def fetch_all(self, sql: str, /, **values: object) -> list[Row]:
        """Run *sql* and return all of its rows."""
        if sql == self._before and self._happens is not None:
            happens, self._happens = self._happens, None
            await happens()
        return await self._tx.fetch_all(sql, **values)


async def test_a_twin_that_is_deleted_while_it_is_read_makes_room_for_a_new_chain(way: Way) -> None:
    old = await way.face.start(greet(name="old"), unique="same")
    start = a_start(unique=Unique("same"))

    async def interrupted(tx: Tx) -> list[creation.Started]:
        return await creation.start(Interrupted(tx, reads.CHAINS_BY_ID, lambda: way.face.delete(old)), [start])

    given = creation.chain_of(start, *await way.call(interrupted))

    assert (given.id, given.deduplicated) == (start.id, False)
    assert await holders(way) == [start.id]


async def test_an_id_that_is_deleted_while_it_is_read_can_be_used_again(way: Way) -> None:
    old = await way.face.start(greet(name="old"))
    start = a_start(id=old.id, named=True)

    async def interrupted(tx: Tx) -> list[creation.Started]:
        return await creation.start(Interrupted(tx, reads.CHAINS_BY_ID, lambda: way.face.delete(old)), [start])

    given = creation.chain_of(start, *await way.call(interrupted))

    assert (given.id, given.deduplicated) == (old.id, False)
    assert [job.input.name for job in await way.face.list_jobs()] == ["Ada"]


async def test_a_start_that_is_repeated_while_its_chain_is_deleted_is_told_to_try_again(way: Way) -> None:
    start, beside = a_start(), a_start()
    await way.call(creation.start, [start])

    async def interrupted(tx: Tx) -> list[creation.Started]:
        return await creation.start(
            Interrupted(tx, creation.EXISTING, lambda: way.face.delete(start.id)), [start, beside]
        )

    with pytest.raises(Busy, match="try again"):
        await way.call(interrupted)
    assert len(await way.face.list_jobs()) == 0

    again = await way.call(creation.start, [start, beside])
    assert [each.met for each in again] == [None, None]


async def test_who_takes_several_keys_lets_them_go_before_it_takes_one_that_has_come_free(way: Way, begin: Any) -> None:
    old = await way.face.start(greet(name="old"), unique="a")
    starts = [a_start(unique=Unique(key)) for key in "ab"]
    second = await begin()

    async def another_takes_the_lower_one() -> None:
        await way.face.delete(old)
        await second.start_and_wait(*(greet(name=key).options(unique=key) for key in "ab"))  # it has a, and waits for b

    async with await psycopg.AsyncConnection.connect(way.hf.settings.database) as connection:
        tx = AsyncPostgresTx(connection, way.hf.store.dialect)
        first = asyncio.create_task(
            creation.start(Interrupted(tx, unique.HOLDERS, another_takes_the_lower_one), starts)  # type: ignore[arg-type]
        )
        await until(lambda: second.is_done, "the second start has both keys")
        taken = await second.started()
        await second.end("commit")
        given = [each.met or each for each in await asyncio.wait_for(first, 10)]

    assert [chain.id for chain in given] == [chain.id for chain in taken]
    assert [chain.deduplicated for chain in taken + given] == [False] * 2 + [True] * 2


# ---- deletes


async def test_of_two_deletes_of_one_chain_the_second_finds_nothing(way: Way, begin: Any) -> None:
    chain = await way.face.start(greet(name="Ada"), unique="ada")
    first = await begin()
    await first.delete(chain)
    second = asyncio.create_task(way.face.delete(chain))

    async def waits() -> bool:
        waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        return bool(await way.rows(waiting))

    await until(waits, "the second delete waits for the first")
    await first.end("commit")

    with pytest.raises(ChainNotFound):
        await second
    assert await way.rows("SELECT name FROM holdfast_event ORDER BY seq") == [("job:deleted",)]


# ---- many at once, on both databases


@pytest.mark.source("DF-3")
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
@pytest.mark.parametrize("options", [{"unique": "same"}, {"id": UUID(int=7)}], ids=["key", "id"])
async def test_of_many_racing_starts_one_makes_the_chain_and_all_are_given_it(
    new_holdfast: Callable[..., Holdfast], database: str, options: dict[str, Any]
) -> None:
    """I-04, I-05."""
    hf = new_holdfast(database, tasks=[TASKS])

    async with hf:
        given = await asyncio.gather(*(hf.start(greet(name=str(number)), **options) for number in range(30)))

        assert len({chain.id for chain in given}) == 1
        assert [chain.deduplicated for chain in given].count(False) == 1
        assert len(await hf.list_jobs()) == 1
