"""Wrong engines that only PostgreSQL shows (GUARANTEES §5.3, †): each turns the stepped test red that it names.

The steps are forced with real connections: a transaction is left open half-way, another goes on beside it. What
`race_mutants.py` needs and no other file has is tested here first.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast, Unique
from holdfast.database.tx import Tx
from holdfast.errors import LeaseLost
from holdfast.store import admission, unique
from holdfast.store.chains import creation
from holdfast.store.jobs import block_ends, claiming
from holdfast.store.jobs.settling import Settlement
from tests.mutants import RACES, Race, load
from tests.store.callers.psycopg import connect_async, connect_blocking
from tests.store.engine import DONE, GIVE_BACK, WANTS, claim, claim_one, settle
from tests.store.half import Half
from tests.store.test_admission import settle_down
from tests.store.test_chain_races import Actor, next_id, then
from tests.store.test_interleavings import Interrupted
from tests.support.factories import TASKS, a_start, greet
from tests.support.ways import Way

BEFORE_ANYBODY_WAITS_LONG = "SET LOCAL lock_timeout = '300ms'"


@pytest.fixture
async def way_pg(new_holdfast: Callable[..., Holdfast]) -> AsyncIterator[Way]:
    """PostgreSQL, for async code; an engine that waits where it should not is soon told so."""
    way = Way(new_holdfast("postgres", tasks=[TASKS], deadline_seconds=1), is_async=True)
    await way.hf.open()
    yield way
    await way.close()


@pytest.fixture
def begin(begin: Callable[[], Any]) -> Callable[[], Any]:
    """Begin transactions that are left open, and wait no longer than the engine does."""

    async def begin_and_wait_briefly() -> Half:
        half: Half = await begin()
        await half.connection.execute(BEFORE_ANYBODY_WAITS_LONG)
        return half

    return begin_and_wait_briefly


@pytest.fixture
async def actor(way_pg: Way) -> AsyncIterator[Callable[[], Any]]:
    """Let somebody come in whose transaction stays open: `ada = await actor()`."""
    made: list[Actor] = []

    async def come() -> Actor:
        made.append(Actor(way_pg, await psycopg.AsyncConnection.connect(way_pg.hf.settings.database)))
        return made[-1]

    yield come
    for each in reversed(made):
        await each.close()


async def test_a_key_goes_once(way_pg: Way) -> None:
    start = a_start(unique=Unique("same"))

    async def interrupted(tx: Tx) -> list[creation.Started]:
        first = way_pg.face.start
        return await creation.start(
            Interrupted(tx, unique.TAKE, lambda: first(greet(name="x"), unique="same")), [start]
        )

    await way_pg.call(interrupted)

    holders = await way_pg.rows("SELECT chain_id FROM holdfast_unique WHERE until IS NULL")
    assert len(holders) == 1, "two chains hold one key"


async def test_two_claimers_never_run_one_lane_twice(way_pg: Way, begin: Any) -> None:
    await way_pg.face.start_many([greet(name="x").options(lane="a") for _ in range(2)])
    await way_pg.call(admission.admit, "default")
    one, other = await begin(), await begin()

    first = await one.run(claiming.claim, WANTS, 1, "worker-1", "one")
    second = await other.run(claiming.claim, WANTS, 1, "worker-2", "other")
    await one.commit()
    await other.commit()

    assert len(first) == 1
    assert second == [], "lane a runs twice"


async def test_who_joins_a_lane_in_which_another_is_just_joining_waits_for_nobody(way_pg: Way, begin: Any) -> None:
    await way_pg.face.start(greet(name="head"), lane="a")
    await claim(way_pg)
    one, other = await begin(), await begin()

    await way_pg.face.start(greet(name="x"), lane="a")
    await one.run(admission.admit, "default")
    await way_pg.face.start(greet(name="y"), lane="a")
    await other.run(admission.admit, "default")
    await one.commit()
    await other.commit()
    await settle_down(way_pg)

    assert await way_pg.rows("SELECT place FROM holdfast_job ORDER BY seq") == [(1,), (2,), (3,)]


async def test_of_two_who_continue_one_job_one_does(way_pg: Way, actor: Any) -> None:
    """JC-49: a block, and the block of the same attempt whose connection was given up for lost."""
    await way_pg.face.start(greet(name="x"))
    job = await claim_one(way_pg)
    lost, again = await actor(), await actor()
    first, second = then(), then()

    await lost.do(block_ends.finish_block, Settlement(job.token, first))
    await again.wait_for_others(block_ends.finish_block, Settlement(job.token, second))
    await lost.commit()

    with pytest.raises(LeaseLost, match="already_completed"):
        await again.answer()
    await again.rollback()
    steps = await way_pg.rows("SELECT id FROM holdfast_job WHERE chain_index > 0")
    assert steps == [(str(next_id(first)),)]


async def test_a_plain_block_whose_job_is_to_be_cancelled_is_undone(way_pg: Way, actor: Any) -> None:
    chain = await way_pg.face.start(greet(name="x"))
    job = await claim_one(way_pg)
    worker = await actor()
    await worker.do(block_ends.check, job.token)
    await way_pg.face.cancel(chain)

    with pytest.raises(LeaseLost, match="cancelled"):
        await worker.do(block_ends.finish_block, Settlement(job.token, DONE, is_plain=True))


async def test_a_plain_block_whose_job_was_taken_meanwhile_is_undone(way_pg: Way, actor: Any) -> None:
    await way_pg.face.start(greet(name="x"))
    job = await claim_one(way_pg)
    worker = await actor()
    await worker.do(block_ends.check, job.token)
    await settle(way_pg, (job.token, GIVE_BACK))
    await claim_one(way_pg, "another")

    with pytest.raises(LeaseLost, match="taken_by_another_worker"):
        await worker.do(block_ends.finish_block, Settlement(job.token, DONE, is_plain=True))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Name the mutants late: they name tests of this file."""
    if "race" in metafunc.fixturenames:
        load()
        metafunc.parametrize("race", RACES, ids=lambda race: race.name)


@pytest.mark.long
async def test_a_wrong_engine_turns_its_test_red(
    race: Race, way_pg: Way, begin: Any, actor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = connect_async if way_pg.is_async else connect_blocking
    caller = await connect(way_pg.hf.settings.database)
    ways = {"way_pg": way_pg, "way": way_pg, "postgres": way_pg}
    given = {**ways, "begin": begin, "actor": actor, "caller": caller, **race.given}
    arguments = {name: given[name] for name in inspect.signature(race.test).parameters}

    race.apply(monkeypatch)
    try:
        with pytest.raises((Exception, pytest.fail.Exception), match=race.says):
            await race.test(**arguments)
    finally:
        await caller.close()
