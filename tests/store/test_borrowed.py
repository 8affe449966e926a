"""Starting inside the caller's transaction: it commits with it, vanishes with it, and never gets in its way."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql

from holdfast import (
    Busy,
    ChainNotFound,
    Holdfast,
    JobNotFound,
    Status,
    StillReferenced,
    StoreError,
    TransactionRequired,
    Unavailable,
    Unique,
    WrongConnection,
    WrongTask,
)
from holdfast.database import hints
from holdfast.database.borrowed import Borrowed
from holdfast.database.dialect import TABLES
from holdfast.database.tx import Tx
from holdfast.store import outbox
from tests.store.callers import STACKS, Caller, Can, Habit, Stack
from tests.store.wire import Wire
from tests.support.conditions import until
from tests.support.factories import TASKS, add, block, events_of, greet, make_job, row_of, whole_store
from tests.support.faults.fault_proxy import FaultProxy
from tests.support.outbox import empty_outbox
from tests.support.ways import Awaitable, Way
from tests.worker.test_hints import is_asleep


def param(stack: Stack, *more: Any, name: str | None = None) -> Any:
    """Make a parameter of a test; one over a twin is for the long run."""
    return pytest.param(stack, *more, id=name or str(stack), marks=[pytest.mark.long] if stack.is_twin else [])


def on(*needed: Can, database: str | None = None, is_async: bool | None = None) -> pytest.MarkDecorator:
    """Run a test over the stacks that have what it needs, and none but those."""
    chosen = [
        param(each)
        for each in STACKS
        if each.can.issuperset(needed) and database in (None, each.database) and is_async in (None, each.is_async)
    ]
    return pytest.mark.parametrize("stack", chosen, indirect=True)


on_postgres = on(database="postgres")
on_sqlite = on(database="sqlite")


@pytest.fixture(params=map(param, STACKS))
def stack(request: pytest.FixtureRequest) -> Stack:
    """One kind of connection."""
    chosen: Stack = request.param
    return chosen


@pytest.fixture
async def way(stack: Stack, new_holdfast: Callable[..., Holdfast]) -> AsyncIterator[Way]:
    """The database and the face that suit the connection, open and empty."""
    way = Way(new_holdfast(stack.database, tasks=[TASKS]), is_async=stack.is_async)
    await way.face.open()
    yield way
    await way.close()


Connect: TypeAlias = Callable[..., Coroutine[Any, Any, Caller]]


@pytest.fixture
async def connect(way: Way, stack: Stack) -> AsyncIterator[Connect]:
    """Make connections of the caller's, which are closed however the test ends."""
    made: list[Caller] = []

    async def connect(address: str | None = None, **options: Any) -> Caller:
        made.append(await stack.connect(address or way.hf.settings.database, **options))
        return made[-1]

    yield connect
    for each in made:
        await each.close()


@pytest.fixture
async def caller(connect: Connect) -> Caller:
    """A connection of the caller's with no transaction open."""
    return await connect()


@pytest.fixture
async def open_caller(caller: Caller) -> Caller:
    """A connection of the caller's with a transaction open."""
    await caller.begin()
    return caller


@pytest.fixture
def wire(way: Way) -> Iterator[Wire]:
    """An address of the store's PostgreSQL at which one connection is listened to."""
    with FaultProxy(way.hf.settings.database) as proxy:
        yield Wire(proxy)


async def is_usable(caller: Caller) -> bool:
    """Tell whether the user's next statement works."""
    return [tuple(row) for row in await caller.execute("SELECT 7")] == [(7,)]


# ---- it belongs to the transaction


@pytest.mark.source("PQ-11")
async def test_a_start_is_seen_with_its_event_once_the_caller_commits(way: Way, open_caller: Caller) -> None:
    """I-03, I-12."""
    chain = await way.face.start(greet(name="Ada"), connection=open_caller.connection)
    before = await whole_store(way)

    await open_caller.commit()

    assert not any(before.values())
    assert (await way.face.get_job(chain)).status is Status.PENDING
    assert await events_of(way, chain.id) == ["job:enqueued"]


async def test_a_caller_can_explain_a_job_that_nobody_else_knows_before_the_commit(
    way: Way, open_caller: Caller
) -> None:
    """I-57: `not_committed` is made, read and removed."""
    chain = await way.face.start(greet(name="Ada"), connection=open_caller.connection)

    mine = await way.face.explain(chain, connection=open_caller.connection)
    others = await way.face.explain(chain)
    await open_caller.commit()
    then = await way.face.explain(chain)

    found = [[each.code for each in one.reasons] for one in (mine, others, then)]
    assert found == [["no_worker"], ["not_committed"], ["no_worker"]]


async def test_a_worker_that_sleeps_is_woken_when_the_caller_commits_a_start(
    way: Way, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "STATEMENT_SECONDS", 0.2)  # after that it no longer looks of itself
    async with way.hf.worker(poll=60) as worker:
        await until(lambda: sleeps_long(way, worker), "the worker sleeps")
        await caller.begin()

        chain = await way.face.start(greet(name="Ada"), connection=caller.connection)
        await caller.commit()

        await until(lambda: has_ended(way, chain.id), "the worker was woken, and ran the job", timeout=5)
    assert (await way.face.get_chain(chain)).output == "Hello, Ada"


def sleeps_long(way: Way, worker: Any) -> bool:
    """Tell whether a worker has looked for the last time, and will not for 15 seconds unless it is hinted at.

    Which of its long sleeps it is, the seldom one or that of its poll, depends on the transactions that others have
    open anywhere on the server.
    """
    if not is_asleep(worker):
        return False
    rest = worker._wakeups._rest
    has_looked = way.database == "sqlite" or (rest._has_said_again and rest._marked_at is not None)
    return has_looked and bool(worker._wakeups.seconds() > hints.SELDOM_SECONDS / 2)


async def has_ended(way: Way, job_id: UUID) -> bool:
    return (await way.face.get_job(job_id)).status is Status.COMPLETED


async def test_a_waiter_sees_what_the_caller_did_once_it_commits_and_not_before(way: Way, caller: Caller) -> None:
    chain = await way.face.start(greet(name="Ada"))
    waits = way.hf._waiter._here._waits
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(wait_for(way, chain.id))
        await until(lambda: len(waits) == 1, "a wait under way")
        await caller.begin()
        await way.face.cancel(chain, connection=caller.connection)
        assert not waiting.done()

        await caller.commit()

    assert await waiting == Status.CANCELLED


async def wait_for(way: Way, chain_id: UUID) -> str:
    """Wait as users of the face do: awaited, or in a thread of their own."""
    if way.is_async:
        return str((await way.hf.wait([chain_id], timeout=10))[0].status)
    return str((await asyncio.to_thread(way.hf.sync.wait, [chain_id], timeout=10))[0].status)


@pytest.mark.source("JC-1")
async def test_a_start_vanishes_when_the_caller_rolls_back(way: Way, open_caller: Caller) -> None:
    """I-02."""
    blocker = await make_job(way) if way.database == "postgres" else None
    options = {"unique": "ada", "blockers": [blocker] if blocker else []}
    before = await whole_store(way)

    await way.face.start(greet(name="Ada"), connection=open_caller.connection, **options)
    await open_caller.rollback()

    assert await whole_store(way) == before


async def test_a_start_vanishes_with_its_savepoint_and_the_rest_stays(way: Way, open_caller: Caller) -> None:
    """I-02."""
    kept = await way.face.start(greet(name="kept"), connection=open_caller.connection)

    await open_caller.savepoint()
    await way.face.start(greet(name="gone"), unique="gone", connection=open_caller.connection)
    await open_caller.rollback_to_savepoint()
    await open_caller.commit()

    assert [job.id for job in await way.face.list_jobs()] == [kept.id]
    assert await way.rows("SELECT name FROM holdfast_event") == [("job:enqueued",)]
    assert await way.rows("SELECT key FROM holdfast_unique") == []


async def test_the_caller_reads_what_it_has_started_before_anybody_else_does(way: Way, open_caller: Caller) -> None:
    """I-03."""
    chain = await way.face.start(greet(name="Ada"), connection=open_caller.connection)

    job = await way.face.get_job(chain, connection=open_caller.connection)

    assert job.input.name == "Ada"
    with pytest.raises(JobNotFound):
        await way.face.get_job(chain)


async def test_the_audit_of_an_act_commits_and_vanishes_with_it(way: Way, open_caller: Caller) -> None:
    ann = way.hf.acting(by="ann") if way.is_async else Awaitable(way.hf.sync.acting(by="ann"))
    chain: Any = await ann.start(greet(name="kept"), connection=open_caller.connection)
    await open_caller.savepoint()
    await ann.cancel(chain, connection=open_caller.connection)
    await open_caller.rollback_to_savepoint()
    assert await way.rows("SELECT action FROM holdfast_audit") == []

    await open_caller.commit()

    assert await way.rows("SELECT who, action, subject FROM holdfast_audit") == [("ann", "start", str(chain.id))]


async def test_many_starts_are_one_part_of_the_transaction(way: Way, open_caller: Caller) -> None:
    calls = [greet(name=str(number)) for number in range(100)]

    started = await way.face.start_many(calls, connection=open_caller.connection)
    await open_caller.commit()

    assert [job.id for job in await way.face.list_jobs(order="oldest", limit=100)] == [chain.id for chain in started]


ODD = "100% 'ü' \\ \" $1 %s %(name)s %% :name {a,NULL} 🜨 NULL"


@pytest.mark.parametrize("number", [1, 3])
async def test_odd_texts_arrive_as_they_are(way: Way, open_caller: Caller, number: int) -> None:
    calls = [greet(name=f"{ODD}{each}").options(unique=f"{ODD}{each}", tags=[ODD]) for each in range(number)]

    started = await way.face.start_many(calls, connection=open_caller.connection)
    await open_caller.commit()

    jobs = await way.face.list_jobs(order="oldest")
    assert [(job.id, job.input.name, job.tags) for job in jobs] == [
        (chain.id, f"{ODD}{each}", (ODD,)) for each, chain in enumerate(started)
    ]
    keys = await way.rows("SELECT key FROM holdfast_unique ORDER BY key")
    assert len(keys) == number


@pytest.mark.source("PQ-5", "JC-14")
async def test_every_verb_does_on_a_borrowed_connection_what_it_does_without(way: Way, caller: Caller) -> None:
    await caller.begin()
    borrowed = await do_everything(way, caller.connection)
    await caller.commit()

    own = await do_everything(way, None)

    assert [job.status for job in borrowed] == [job.status for job in own]
    assert [await events_of(way, job.id) for job in borrowed] == [await events_of(way, job.id) for job in own]


async def do_everything(way: Way, connection: Any) -> list[Any]:
    """Use every verb that takes a connection, once at least; give the jobs as they are then."""
    face, at = way.face, {"connection": connection}
    held = await face.start(greet(name="held"), delay=3600, lane="vm-7", priority=7, **at)
    first, second, third = await face.start_many([greet(name=name).options(delay=60) for name in "abc"], **at)
    blocked = await face.start(greet(name="blocked"), blockers=[first, second], on_blocker_failure="wait", **at)
    assert [each.id for each in await face.get_blockers(blocked, **at)] == [first.id, second.id]
    assert (await face.explain(blocked, **at)).reasons[0].code == "blocked"
    await face.pause_many([first.id, second.id], by="ada", why="lunch", **at)
    await face.resume(first, **at)
    await face.reschedule(first, after=120, **at)
    await face.reschedule_many([first.id, held.id], at=datetime.now(UTC) + timedelta(hours=1), **at)
    await face.trigger(first, **at)
    await face.cancel(second, by="ada", why="no more", **at)
    await face.retry(second, **at)
    await face.complete(greet, second, "done", by="ada", **at)
    again = await face.start_again(second, **at)
    several = await face.start_again_many([first, second], **at)
    await face.pause(several[0], **at)
    await face.resume_many([several[0]], **at)
    await face.trigger_many(several, **at)
    await face.cancel_many(several, **at)
    await face.retry_many(several, **at)
    await finish(way, third.id, connection)
    gone = await face.start_many([greet(name=name) for name in "xyz"], **at)
    await face.delete(gone[0], **at)
    await face.delete_many(gone[1:], cascade=True, **at)
    assert (await face.get_chain(third, **at)).output == "finished"
    return [await face.get_job(each, **at) for each in (held, first, second, third, blocked, again, *several)]


async def finish(way: Way, job_id: UUID, connection: Any) -> None:
    """Finish a job that is in the hand."""
    if way.is_async:
        async with way.hf.completing(greet, job_id, connection=connection) as held:
            await held.finish("finished")
    else:
        with way.hf.sync.completing(greet, job_id, connection=connection) as job:
            job.finish("finished")


@asynccontextmanager
async def in_hand(way: Way, job_id: UUID, connection: Any) -> AsyncIterator[Callable[[str], Coroutine[Any, Any, None]]]:
    """Take a job in the hand in the caller's transaction; give what finishes it."""
    if way.is_async:
        async with way.hf.completing(greet, job_id, connection=connection) as held:
            yield held.finish
    else:
        with way.hf.sync.completing(greet, job_id, connection=connection) as job:

            async def finish(output: str) -> None:
                job.finish(output)

            yield finish


async def test_a_completion_is_refused_once_the_caller_has_ended_the_transaction_of_its_block(
    way: Way, caller: Caller
) -> None:
    chain = await way.face.start(greet(name="Ada"))
    before = await whole_store(way)
    await caller.begin()

    async with in_hand(way, chain.id, caller.connection) as finish:
        await caller.commit()
        with pytest.raises(TransactionRequired, match="stays open around it"):
            await finish("done")

    await caller.begin()
    await caller.commit()
    assert await whole_store(way) == before


async def test_a_completion_is_refused_in_the_callers_next_transaction(way: Way, caller: Caller) -> None:
    chain = await way.face.start(greet(name="Ada"))
    await caller.begin()

    async with in_hand(way, chain.id, caller.connection) as finish:
        await caller.commit()
        await way.face.start(greet(name="Bob"))
        await caller.begin()
        await caller.execute("SELECT 7")
        with pytest.raises(TransactionRequired, match="stays open around it"):
            await finish("done")

    assert await is_usable(caller)
    await caller.commit()
    assert (await way.face.get_job(chain)).status is Status.PENDING


async def test_a_completion_in_a_savepoint_of_the_callers_vanishes_with_it(way: Way, caller: Caller) -> None:
    chain = await way.face.start(greet(name="Ada"))
    await caller.begin()

    async with in_hand(way, chain.id, caller.connection) as finish:
        await caller.savepoint()
        await finish("done")
        await caller.rollback_to_savepoint()
    await caller.commit()

    assert (await way.face.get_job(chain)).status is Status.PENDING


def test_every_verb_that_takes_a_connection_is_used_with_one() -> None:
    verbs = [
        name
        for name, verb in vars(Holdfast).items()
        if inspect.isfunction(verb) and not name.startswith("_") and "connection" in inspect.signature(verb).parameters
    ]
    used = inspect.getsource(do_everything) + inspect.getsource(finish)

    assert len(verbs) > 10
    assert not [name for name in verbs if not re.search(rf"\.{name}\(", used)]


async def test_a_delete_is_undone_when_the_caller_rolls_back(way: Way, caller: Caller) -> None:
    chain = await way.face.start(greet(name="Ada"), unique="ada")
    before = await whole_store(way)
    await caller.begin()

    assert await way.face.delete(chain, connection=caller.connection) == [chain.id]
    await caller.rollback()

    assert await whole_store(way) == before


async def test_a_delete_and_a_new_start_of_its_key_are_one_commit(way: Way, caller: Caller) -> None:
    old = await way.face.start(greet(name="Ada"), unique="ada")
    await caller.begin()

    await way.face.delete(old, connection=caller.connection)
    new = await way.face.start(greet(name="Ada"), unique="ada", connection=caller.connection)
    await caller.commit()

    assert (new.id != old.id, new.deduplicated) == (True, False)
    assert [chain.id for chain in await way.face.list_chains()] == [new.id]


async def test_a_connection_is_borrowed_again_in_its_next_transaction(way: Way, caller: Caller) -> None:
    started = []
    for name in ("one", "two"):
        await caller.begin()
        started.append(await way.face.start(greet(name=name), connection=caller.connection))
        await caller.commit()

    assert {job.id for job in await way.face.list_jobs()} == {chain.id for chain in started}


async def test_a_required_connection_is_enough(
    way: Way, open_caller: Caller, new_holdfast: Callable[..., Holdfast]
) -> None:
    strict = Way(new_holdfast(way.database, require_connection=True, tasks=[TASKS]), is_async=way.is_async)

    chain = await strict.face.start(greet(name="Ada"), connection=open_caller.connection)
    await strict.face.cancel(chain, connection=open_caller.connection)
    await open_caller.commit()

    assert (await way.face.get_job(chain)).status == "cancelled"
    await strict.close()


@on(Can.AUTOCOMMIT, Can.BEGIN_BY_HAND)
async def test_a_transaction_block_on_an_autocommit_connection_will_do(way: Way, connect: Connect) -> None:
    caller = await connect(autocommit=True)

    await caller.execute("BEGIN")
    chain = await way.face.start(greet(name="Ada"), connection=caller.connection)
    await caller.execute("COMMIT")

    assert (await way.face.get_job(chain)).task == "greet"


@on(Can.ISOLATION_LEVEL)
@pytest.mark.parametrize("level", ["DEFERRED", "IMMEDIATE", ""])
async def test_a_transaction_that_pythons_module_has_begun_will_do(way: Way, connect: Connect, level: str) -> None:
    caller = await connect(isolation_level=level)
    await caller.execute("CREATE TABLE mine (x)")
    await caller.execute("INSERT INTO mine VALUES (1)")

    chain = await way.face.start(greet(name="Ada"), connection=caller.connection)
    await caller.commit()

    assert (await way.face.get_job(chain)).task == "greet"


# ---- an expected outcome leaves the transaction usable


async def _meets_its_twin(way: Way, connection: Any, known: UUID) -> None:
    twin = await way.face.start(greet(name="x"), id=known, connection=connection)
    assert twin.deduplicated


async def _is_of_another_task(way: Way, connection: Any, known: UUID) -> None:
    with pytest.raises(WrongTask):
        await way.face.start(add(a=1, b=2), id=known, unique="add", connection=connection)


async def _has_an_unknown_blocker(way: Way, connection: Any, known: UUID) -> None:
    with pytest.raises(ChainNotFound):
        await way.face.start(greet(name="x"), blockers=[uuid4()], unique="x", connection=connection)


async def _is_not_there(way: Way, connection: Any, known: UUID) -> None:
    with pytest.raises(JobNotFound):
        await way.face.get_job(uuid4(), connection=connection)


async def _is_waited_for(way: Way, connection: Any, known: UUID) -> None:
    with pytest.raises(StillReferenced):
        await way.face.delete(known, connection=connection)


OUTCOMES = (_meets_its_twin, _is_of_another_task, _has_an_unknown_blocker, _is_not_there, _is_waited_for)


@pytest.mark.source("DF-23")
@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: outcome.__name__.strip("_"))
async def test_an_expected_outcome_leaves_the_transaction_as_it_was(way: Way, caller: Caller, outcome: Any) -> None:
    """I-53."""
    known, waiting = await make_job(way), await make_job(way, "blocked")
    await block(way, waiting, known)
    before = await whole_store(way)
    await caller.begin()

    await outcome(way, caller.connection, known)

    assert await is_usable(caller)
    await caller.commit()
    assert await whole_store(way) == before


# ---- refusals


@pytest.mark.source("JC-16")
@on(Can.REFUSE_WITHOUT_TRANSACTION)
async def test_without_a_transaction_the_job_would_commit_alone_so_it_is_refused(way: Way, caller: Caller) -> None:
    """Q-01, I-68."""
    with pytest.raises(TransactionRequired, match=r"no transaction is open.*write `"):
        await way.face.start(greet(name="Ada"), connection=caller.connection)

    assert await is_usable(caller)
    assert len(await way.face.list_jobs()) == 0


@on(Can.REFUSE_WITHOUT_TRANSACTION, Can.AUTOCOMMIT)
async def test_autocommit_is_no_transaction(way: Way, connect: Connect) -> None:
    """Q-01, I-68."""
    caller = await connect(autocommit=True)
    await caller.execute("SELECT 1")

    with pytest.raises(TransactionRequired, match="transaction"):
        await way.face.start(greet(name="Ada"), connection=caller.connection)

    assert await is_usable(caller)


@on_postgres
async def test_a_failed_transaction_is_refused_with_what_to_do(way: Way, stack: Stack, open_caller: Caller) -> None:
    """Q-01, I-68."""
    with pytest.raises(stack.missing_table):
        await open_caller.execute("SELECT * FROM nothing_of_this_name")

    with pytest.raises(TransactionRequired, match="has failed; roll it back"):
        await way.face.start(greet(name="Ada"), connection=open_caller.connection)

    await open_caller.rollback()
    assert await is_usable(open_caller)


@on(Can.CLOSE)
async def test_a_closed_connection_is_refused(way: Way, connect: Connect) -> None:
    """Q-01, I-68."""
    caller = await connect()
    await caller.close()

    with pytest.raises(WrongConnection, match="closed"):
        await way.face.start(greet(name="Ada"), connection=caller.connection)


@pytest.mark.parametrize("thing", [object(), "postgresql://localhost", 7], ids=["object", "address", "number"])
async def test_what_is_no_connection_is_refused_with_what_would_be_one(way: Way, thing: Any) -> None:
    with pytest.raises(WrongConnection, match=r"psycopg\.Connection.*sqlite3\.Connection"):
        await way.face.start(greet(name="Ada"), connection=thing)


@on(Can.CURSOR)
async def test_a_cursor_is_no_connection(way: Way, open_caller: Caller) -> None:
    cursor = await open_caller.cursor()

    with pytest.raises(WrongConnection, match="takes an open connection"):
        await way.face.start(greet(name="Ada"), connection=cursor)

    assert await is_usable(open_caller)


@on(is_async=True)
async def test_an_async_connection_is_refused_by_the_blocking_face(way: Way, open_caller: Caller) -> None:
    """Q-01, I-68."""
    with pytest.raises(WrongConnection, match=r"async; write `await hf\.start"):
        way.hf.sync.start(greet(name="Ada"), connection=open_caller.connection)

    assert await is_usable(open_caller)


@on(is_async=False)
async def test_a_blocking_connection_is_refused_by_the_async_face(way: Way, open_caller: Caller) -> None:
    """Q-01, I-68."""
    with pytest.raises(WrongConnection, match=r"blocking; write `hf\.sync\.start"):
        await way.hf.start(greet(name="Ada"), connection=open_caller.connection)

    assert await is_usable(open_caller)


@pytest.fixture(scope="module")
def other_url(postgres_server: str) -> Iterator[str]:
    """Another database on the same server, with nothing in it."""
    name = f"holdfast_other_{uuid4().hex[:12]}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    yield urlsplit(postgres_server)._replace(path=f"/{name}").geturl()
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def empty(way: Way, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database of the same kind that has nothing of ours."""
    return request.getfixturevalue("postgres_server") if way.database == "postgres" else str(tmp_path / "empty.db")


@pytest.fixture
def elsewhere(way: Way, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of another database of the same kind."""
    return request.getfixturevalue("other_url") if way.database == "postgres" else str(tmp_path / "other.db")


async def test_a_connection_to_the_database_of_another_holdfast_is_refused(
    way: Way, connect: Connect, elsewhere: str
) -> None:
    """Q-01, I-68."""
    theirs = Holdfast(elsewhere, schema_name=way.hf.settings.schema_name).sync
    theirs.migrate()
    theirs.close()
    caller = await connect(elsewhere)
    await caller.begin()

    with pytest.raises(WrongConnection, match="another database"):
        await way.face.start(greet(name="Ada"), connection=caller.connection)

    assert await is_usable(caller)


async def test_a_connection_to_a_database_without_our_tables_is_refused(way: Way, connect: Connect, empty: str) -> None:
    """Q-01, I-68."""
    caller = await connect(empty)
    await caller.begin()

    with pytest.raises(WrongConnection, match=r"without the Holdfast tables.*holdfast migrate"):
        await way.face.start(greet(name="Ada"), connection=caller.connection)

    assert await is_usable(caller)


async def test_a_connection_is_known_after_the_database_was_made_anew(way: Way, connect: Connect) -> None:
    first = await connect()
    await first.begin()
    await way.face.start(greet(name="Ada"), connection=first.connection)
    await first.rollback()
    identity = "holdfast_meta" if way.database == "sqlite" else f"{way.hf.settings.schema_name}.holdfast_meta"
    await first.begin()
    await first.execute(f"UPDATE {identity} SET value = 'another' WHERE key = 'identity'")
    await first.commit()
    second = await connect()
    await second.begin()

    assert (await way.face.start(greet(name="Ada"), connection=second.connection)).task == "greet"


@on(Can.ENCODING)
@pytest.mark.parametrize("encoding", ["latin1", "sql_ascii"])
async def test_a_connection_that_does_not_know_every_character_is_refused(
    way: Way, connect: Connect, encoding: str
) -> None:
    caller = await connect(encoding=encoding)
    await caller.begin()

    with pytest.raises(WrongConnection, match='client_encoding="utf8"'):
        await way.face.start(greet(name="Ada"), connection=caller.connection)

    assert await is_usable(caller)


@on_postgres
async def test_a_connection_that_may_not_read_our_tables_is_refused_and_stays_usable(
    way: Way, open_caller: Caller
) -> None:
    await open_caller.execute("CREATE ROLE without_rights")
    await open_caller.execute("SET LOCAL ROLE without_rights")

    with pytest.raises(WrongConnection, match="may not read them"):
        await way.face.start(greet(name="Ada"), connection=open_caller.connection)

    assert await is_usable(open_caller)
    await open_caller.rollback()


@on(Can.THREAD)
async def test_a_connection_of_another_thread_is_refused(way: Way, open_caller: Caller) -> None:
    def start_elsewhere() -> None:
        way.hf.sync.start(greet(name="Ada"), connection=open_caller.connection)

    with pytest.raises(WrongConnection, match="another thread"):
        await asyncio.to_thread(start_elsewhere)

    assert await is_usable(open_caller)


@on_postgres
async def test_a_connection_may_look_at_another_schema_for_ours_is_named_in_every_statement(
    way: Way, open_caller: Caller
) -> None:
    await open_caller.execute("SET LOCAL search_path TO pg_catalog")

    chain = await way.face.start(greet(name="Ada"), connection=open_caller.connection)
    await open_caller.commit()

    assert (await way.face.get_job(chain)).task == "greet"


async def test_a_connection_to_the_other_kind_of_database_is_refused(
    way: Way, open_caller: Caller, new_holdfast: Callable[..., Holdfast]
) -> None:
    other = "sqlite" if way.database == "postgres" else "postgres"
    theirs = Way(new_holdfast(other, tasks=[TASKS]), is_async=way.is_async)

    with pytest.raises(WrongConnection, match="another database"):
        await theirs.face.start(greet(name="Ada"), connection=open_caller.connection)

    assert await is_usable(open_caller)
    await theirs.close()


@on(Can.REFUSE_WITHOUT_TRANSACTION)
async def test_a_refused_connection_sees_the_calls_as_used(way: Way, caller: Caller) -> None:
    call = greet(name="Ada")

    with pytest.raises(TransactionRequired):
        await way.face.start_many([call], connection=caller.connection)

    del call  # would warn, and a warning is an error here


# ---- the caller's habits change nothing


on_every_habit = pytest.mark.parametrize(
    ("stack", "habit"),
    [param(stack, habit, name=f"{stack}-{habit.__name__}") for stack in STACKS for habit in stack.habits],
    indirect=["stack"],
)


@on_every_habit
async def test_the_callers_row_factory_and_codecs_change_no_result(way: Way, caller: Caller, habit: Habit) -> None:
    """Q-01, I-68."""
    holder = await way.face.start(greet(name="holder"), unique="held", tags=["ü"])
    await caller.begin()
    await habit(caller)
    calls = [greet(name="ü").options(unique="held"), greet(name="b").options(blockers=[holder], lane="x")]

    twin, new = await way.face.start_many(calls, connection=caller.connection)
    job = await way.face.get_job(holder, connection=caller.connection)

    assert (twin.id, twin.deduplicated, new.status) == (holder.id, True, Status.BLOCKED)
    assert job == await way.face.get_job(holder)


@on_every_habit
async def test_the_callers_row_factory_and_codecs_are_as_they_were_afterwards(
    way: Way, open_caller: Caller, habit: Habit
) -> None:
    await habit(open_caller)
    before = await open_caller.execute("SELECT 'x' AS one")

    await way.face.start(greet(name="Ada"), connection=open_caller.connection)

    assert await open_caller.execute("SELECT 'x' AS one") == before


@on(Can.DETECT_TYPES)
@pytest.mark.parametrize("kind", ["text", "bigint", "integer"])
async def test_a_connection_that_converts_what_is_read_is_told_so(
    way: Way, connect: Connect, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sqlite3.converters, kind.upper(), lambda value: ("converted", value))
    caller = await connect(detect_types=sqlite3.PARSE_DECLTYPES)
    await caller.begin()

    with pytest.raises(WrongConnection, match="detect_types"):
        await way.face.start(greet(name="Ada"), connection=caller.connection)
    await caller.commit()

    assert len(await way.face.list_jobs()) == 0


@on(Can.DETECT_TYPES)
async def test_converters_for_other_types_change_nothing(way: Way, connect: Connect) -> None:
    sqlite3.register_converter("holdfast_tests_own", lambda value: ("converted", value))
    caller = await connect(detect_types=sqlite3.PARSE_DECLTYPES | sqlite3.PARSE_COLNAMES)
    await caller.begin()

    chain = await way.face.start(greet(name="Ada"), unique="ada", connection=caller.connection)
    met = await way.face.start(greet(name="Ada"), unique="ada", connection=caller.connection)

    assert (met.id, met.deduplicated) == (chain.id, True)


@on_sqlite
async def test_a_temporary_table_of_the_callers_does_not_stand_in_for_ours(way: Way, connect: Connect) -> None:
    caller = await connect()
    await caller.begin()
    await caller.execute("CREATE TEMP TABLE holdfast_job AS SELECT * FROM holdfast_job")
    await caller.execute("CREATE TEMP TABLE holdfast_event AS SELECT * FROM holdfast_event")

    chain = await way.face.start(greet(name="Ada"), connection=caller.connection)
    await way.face.cancel(chain, connection=caller.connection)
    await caller.commit()

    assert (await way.face.get_job(chain)).status == "cancelled"
    assert await caller.execute("SELECT * FROM temp.holdfast_job") == []


# ---- isolation


@on_postgres
async def test_a_start_works_in_repeatable_read(way: Way, caller: Caller) -> None:
    """Q-01, I-68."""
    await caller.begin_repeatable_read()

    chain = await way.face.start(greet(name="Ada"), unique="ada", id=uuid4(), connection=caller.connection)
    await caller.commit()

    assert (await way.face.get_job(chain)).task == "greet"


@on_postgres
async def test_a_serialisation_failure_is_handed_on_typed_and_once(way: Way, wire: Wire, connect: Connect) -> None:
    """F-21, I-68."""
    caller = await connect(wire.url)
    await caller.begin_repeatable_read()
    await caller.execute("SELECT 1")
    await way.face.start(greet(name="Bob"), unique="same")

    with wire, pytest.raises(Busy) as refused:
        await way.face.start(greet(name="Ada"), unique="same", connection=caller.connection)

    assert state_of(refused.value.__cause__) == "40001"
    assert wire.verbs.count("INSERT") == 1
    await caller.rollback()
    assert await is_usable(caller)


def state_of(error: BaseException | None) -> str | None:
    """Give the SQLSTATE that a driver's error carries."""
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)


@on(Can.BEGIN_BY_HAND, database="sqlite")
async def test_a_plain_begin_that_has_read_before_another_wrote_is_told_to_begin_immediate(
    way: Way, caller: Caller
) -> None:
    """F-32, I-68."""
    await caller.execute("BEGIN")
    await caller.execute("SELECT count(*) FROM holdfast_job")
    await way.face.start(greet(name="Bob"))

    with pytest.raises(Busy, match="BEGIN IMMEDIATE"):
        await way.face.start(greet(name="Ada"), connection=caller.connection)

    assert await caller.in_transaction()
    await caller.rollback()
    assert await is_usable(caller)


# ---- we run statements on it, and nothing else


@on_postgres
async def test_no_transaction_is_begun_or_ended_on_a_callers_postgresql_connection(
    way: Way, wire: Wire, connect: Connect
) -> None:
    """I-53."""
    known = await make_job(way)
    caller = await connect(wire.url)
    await caller.begin()
    await caller.execute("SELECT 7")

    with wire:
        chain = await way.face.start(greet(name="Ada"), unique="a", connection=caller.connection)
        await way.face.delete(chain, connection=caller.connection)
        await _is_of_another_task(way, caller.connection, known)

    assert set(wire.verbs) == {"SELECT", "INSERT", "UPDATE", "DELETE"}
    await caller.rollback()
    assert await way.rows("SELECT id FROM holdfast_job") == [(str(known),)]


@on_sqlite
async def test_no_transaction_is_begun_or_ended_on_a_callers_sqlite_connection(way: Way, open_caller: Caller) -> None:
    """I-53."""
    sent: list[str] = []
    known = UUID(int=1)
    await open_caller.trace(sent.append)

    chain = await way.face.start(greet(name="Ada"), id=known, unique="a", connection=open_caller.connection)
    await _is_of_another_task(way, open_caller.connection, known)
    await way.face.delete(chain, connection=open_caller.connection)

    verbs = ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE")
    ended = [each for each in sent if each.lstrip().upper().startswith(verbs)]
    save, undo, release = (f"{verb} holdfast_whole" for verb in ("SAVEPOINT", "ROLLBACK TO", "RELEASE"))
    assert ended == [save, release, save, undo, release, save, release]  # a savepoint of ours for each operation
    assert await open_caller.in_transaction()


# ---- half an operation is none


on_every_breach = pytest.mark.parametrize("error", [asyncio.CancelledError, TimeoutError, KeyboardInterrupt])


@on_postgres
@on_every_breach
async def test_an_operation_that_breaks_off_half_way_cannot_be_committed(
    way: Way, open_caller: Caller, error: type[BaseException]
) -> None:
    borrowed = await borrow(way, open_caller)

    with pytest.raises((error, Unavailable)):
        await borrowed.run(_make_lane_and_break_off, "half", error)
    with pytest.raises(TransactionRequired, match="has failed; roll it back"):
        await way.face.start(greet(name="Ada"), connection=open_caller.connection)

    await open_caller.rollback()
    assert await is_usable(open_caller)
    assert await way.rows("SELECT key FROM holdfast_lane") == []


@on_sqlite
@on_every_breach
async def test_an_operation_that_breaks_off_half_way_is_undone_and_the_rest_is_kept(
    way: Way, open_caller: Caller, error: type[BaseException]
) -> None:
    kept = await way.face.start(greet(name="kept"), connection=open_caller.connection)
    borrowed = await borrow(way, open_caller)

    with pytest.raises(error):
        await borrowed.run(_make_lane_and_break_off, "half", error)
    await open_caller.commit()

    assert await way.rows("SELECT key FROM holdfast_lane") == []
    assert [job.id for job in await way.face.list_jobs()] == [kept.id]


@on_sqlite
@pytest.mark.parametrize("options", [{}, {"unique": "ada"}], ids=["plain", "unique"])
async def test_a_start_that_sqlite_refuses_half_way_is_undone(
    way: Way, caller: Caller, options: dict[str, Any]
) -> None:
    with closing(sqlite3.connect(way.hf.settings.database)) as stranger:
        stranger.execute(
            "CREATE TRIGGER refusing BEFORE INSERT ON holdfast_event BEGIN SELECT RAISE(ABORT, 'no events'); END"
        )
    await caller.begin()

    with pytest.raises(StoreError, match="no events"):
        await way.face.start(greet(name="Ada"), connection=caller.connection, **options)
    await caller.commit()

    assert not any((await whole_store(way)).values())


COLUMNS = """chain_id = id, chain_index, input, task, queue, lane, priority, tags, webhook, history, status, gate,
    wake_at, run_at - created_at, sort_key - created_at, on_blocker_failure, unique_key, trace, version, attempt"""


async def test_a_start_in_a_callers_transaction_writes_what_a_start_of_ours_writes(
    way: Way, open_caller: Caller
) -> None:
    call = greet(name="Ada").options(queue="mail", priority=5, tags=["a"], webhook=None)

    theirs = await way.face.start(call.options(), connection=open_caller.connection)
    await open_caller.commit()
    ours = await way.face.start(call)

    assert await row_of(way, theirs.id, COLUMNS) == await row_of(way, ours.id, COLUMNS)
    assert theirs == await way.face.get_chain(theirs)
    events = [(await way.face.timeline(chain)).items for chain in (theirs, ours)]
    assert [[(each.name, each.version, each.attempt) for each in found] for found in events] == [
        [("job:enqueued", 1, 0)]
    ] * 2


@pytest.mark.parametrize("stack", [param(each) for each in STACKS if str(each) == "sqlite3"], indirect=True)
async def test_a_plain_start_in_a_callers_sqlite_transaction_takes_six_statements(
    way: Way, open_caller: Caller
) -> None:
    await way.face.start(greet(name="first"), connection=open_caller.connection)
    sent: list[str] = []
    await open_caller.trace(sent.append)

    await way.face.start(greet(name="Ada"), connection=open_caller.connection)

    assert [each.split()[0] for each in sent] == ["SELECT", "SAVEPOINT", "SELECT", "INSERT", "INSERT", "RELEASE"]


async def borrow(way: Way, caller: Caller) -> Borrowed:
    """Borrow the caller's transaction, as a face does."""
    return await way.hf._lender.borrow(caller.connection, is_async=way.is_async, identity=way.hf._identity)


@on(database="postgres", is_async=True)
async def test_a_read_that_is_cancelled_leaves_the_transaction_usable(way: Way, open_caller: Caller) -> None:
    borrowed = await borrow(way, open_caller)

    with pytest.raises(asyncio.CancelledError):
        await borrowed.read(_read_and_be_cancelled)

    assert await is_usable(open_caller)


async def _make_lane_and_break_off(tx: Tx, key: str, error: type[BaseException]) -> None:
    await _make_lane(tx, key)
    raise error  # as it comes when the server had answered by then


async def _read_and_be_cancelled(tx: Tx) -> None:
    await tx.fetch_all("SELECT 1")
    raise asyncio.CancelledError


@on(database="postgres", is_async=True)
async def test_a_start_that_is_cancelled_while_it_waits_leaves_nothing_behind(
    way: Way, open_caller: Caller, new_holdfast: Callable[..., Holdfast]
) -> None:
    with psycopg.connect(way.hf.settings.database) as stranger:
        stranger.execute("SELECT 1")
        way.hf.sync.start(greet(name="Bob"), unique="same", connection=stranger)
        starting = asyncio.ensure_future(
            way.face.start(greet(name="Ada"), unique="same", connection=open_caller.connection)
        )
        await until(lambda: _waits_for_a_lock(way), "the start waits for the key")

        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        stranger.rollback()

    with pytest.raises(TransactionRequired, match="has failed; roll it back"):
        await way.face.start(greet(name="Ada"), connection=open_caller.connection)
    await open_caller.rollback()
    assert await is_usable(open_caller)
    assert not any((await whole_store(way)).values())


async def _waits_for_a_lock(way: Way) -> bool:
    waiting = """SELECT 1 AS one FROM pg_stat_activity
                 WHERE datname = current_database() AND wait_event_type = 'Lock'"""
    return bool(await way.rows(waiting))


# ---- an open transaction of a caller's is in nobody's way


@pytest.mark.source("JC-16")
@on_postgres
async def test_while_a_start_is_not_committed_every_row_can_be_locked_by_another(way: Way, caller: Caller) -> None:
    """I-60."""
    blocker = await way.face.start(greet(name="blocker"), lane="vm-7", unique="blocker")
    expired = await way.face.start(greet(name="x"), unique=Unique("later", within=0.001))
    await way.call(_make_lane, "vm-7")
    await caller.begin()

    calls = [
        greet(name="lane").options(lane="vm-7"),
        greet(name="blocked").options(blockers=[blocker, expired], on_blocker_failure="wait"),
        greet(name="unique").options(unique="new"),
        greet(name="turn").options(unique=Unique("later", within=60)),
        greet(name="twin").options(unique="blocker"),
        greet(name="named").options(id=uuid4()),
        greet(name="again").options(id=blocker.id),
        greet(name="later").options(delay=60, webhook="https://example.org"),
        add(a=1, b=2),
    ]
    await way.face.start_many(calls, connection=caller.connection)

    with psycopg.connect(way.hf.settings.database) as stranger:
        for name in TABLES:
            if name != "jobs":
                stranger.execute(f"SELECT 1 FROM contract.holdfast_{name} FOR UPDATE NOWAIT")
        waiting = "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        assert stranger.execute(waiting).fetchall() == []


@on_postgres
async def test_what_a_verb_tells_the_world_only_inserts(way: Way, open_caller: Caller) -> None:
    """I-60: but for the job that it names, which is locked until the commit."""
    subscribed = way.hf.sync.webhooks.subscribe("https://example.com", events=["job:cancelled"])
    chain, other = await way.face.start_many(
        [greet(name="Ada"), greet(name="Bob").options(webhook="https://a.example")]
    )
    await way.face.cancel(other)

    await way.face.cancel(chain, connection=open_caller.connection)

    with psycopg.connect(way.hf.settings.database) as stranger:
        for name in TABLES:
            but = f"WHERE id <> '{chain.id}'" if name == "job" else ""
            if name != "jobs":
                stranger.execute(f"SELECT 1 FROM contract.holdfast_{name} {but} FOR UPDATE NOWAIT")
    empty_outbox(way.hf)
    assert [each.target for each in way.hf.sync.webhooks.deliveries()] == [other.id]
    assert subscribed.is_enabled


async def test_a_delivery_belongs_to_the_callers_transaction(way: Way, caller: Caller) -> None:
    """I-02, I-12."""
    hooks = way.hf.sync.webhooks
    hooks.subscribe("https://example.com/%s?a=%25", events=["job:cancelled"])
    chain = await way.face.start(greet(name="100% Ada"))

    await caller.begin()
    await way.face.cancel(chain, connection=caller.connection)
    await caller.rollback()
    undone = way.hf.store.read_sync(outbox.backlog)
    await caller.begin()
    await way.face.cancel(chain, connection=caller.connection)
    await caller.commit()

    empty_outbox(way.hf)
    (delivery,) = hooks.deliveries()
    assert undone == 0
    assert (delivery.event, delivery.target, delivery.url) == (
        "job:cancelled",
        chain.id,
        "https://example.com/%s?a=%25",
    )
    posted = json.loads(way.hf.sync.get_job(delivery.id).input["body"])
    assert posted["data"]["job"]["input"] == {"name": "100% Ada"}


@on_postgres
async def test_while_a_start_is_not_committed_others_start_read_and_delete(way: Way, open_caller: Caller) -> None:
    """I-60."""
    kept = await way.face.start(greet(name="kept"), lane="vm-7")
    await way.face.start(greet(name="Ada"), lane="vm-7", blockers=[kept], connection=open_caller.connection)

    other = await way.face.start(greet(name="Bob"), lane="vm-7", blockers=[kept])

    assert set(await way.face.delete_many([kept, other])) == {kept.id, other.id}
    await open_caller.commit()
    assert len(await way.face.list_jobs()) == 1


@on_postgres
async def test_who_wants_a_key_that_an_open_transaction_has_taken_waits_alone_and_not_for_ever(
    way: Way, open_caller: Caller, new_holdfast: Callable[..., Holdfast]
) -> None:
    """I-60."""
    hurried = Way(new_holdfast("postgres", deadline_seconds=1, tasks=[TASKS]), is_async=way.is_async)
    await way.face.start(greet(name="Ada"), unique="ada", connection=open_caller.connection)

    with pytest.raises(Busy):
        await hurried.face.start(greet(name="Bob"), unique="ada")

    assert (await hurried.face.start(greet(name="Cid"))).deduplicated is False
    await hurried.close()


async def _make_lane(tx: Tx, key: str) -> None:
    await tx.execute("INSERT INTO holdfast_lane (key) VALUES (:key)", key=key)
