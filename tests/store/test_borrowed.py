"""Starting inside the caller's transaction: it commits with it, vanishes with it, and never gets in its way."""

from __future__ import annotations

import asyncio
import inspect
import re
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeAlias
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.adapt import Loader
from psycopg.rows import dict_row

from holdfast import (
    Busy,
    ChainNotFound,
    Holdfast,
    JobNotFound,
    Status,
    StillReferenced,
    TransactionRequired,
    Unique,
    WrongConnection,
    WrongTask,
)
from holdfast.store.dialect import TABLES
from tests.factories import TASKS, add, block, events_of, greet, make_job, whole_store
from tests.ways import Way

BOTH = ("sqlite-blocking", "postgres-async", "postgres-blocking")
ONLY_POSTGRES = ("postgres-async", "postgres-blocking")

on_both = pytest.mark.parametrize("way", BOTH, indirect=True)
on_postgres = pytest.mark.parametrize("way", ONLY_POSTGRES, indirect=True)
on_sqlite = pytest.mark.parametrize("way", ["sqlite-blocking"], indirect=True)


class Caller:
    """A connection of the caller's own, in the colour of the way; every method is awaited."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    @classmethod
    async def connect(cls, way: Way, address: str | None = None, **options: Any) -> Caller:
        """Connect as a user would, to the store's own database or to that at *address*."""
        where = address or way.hf.settings.database
        if way.database == "sqlite":
            return cls(sqlite3.connect(where, **{"isolation_level": None, **options}))
        if way.is_async:
            return cls(await psycopg.AsyncConnection.connect(where, **options))
        return cls(psycopg.connect(where, **options))

    async def execute(self, statement: str) -> list[Any]:
        """Run a statement of the caller's."""
        cursor = await self._finished(self.connection.execute(statement))
        return await self._finished(cursor.fetchall()) if cursor.description else []

    async def begin(self) -> None:
        """Open a transaction in the way that the driver's users do."""
        is_sqlite = isinstance(self.connection, sqlite3.Connection)
        await self.execute("BEGIN IMMEDIATE" if is_sqlite else "SELECT 1")

    async def commit(self) -> None:
        """Commit."""
        await self._finished(self.connection.commit())

    async def rollback(self) -> None:
        """Roll back."""
        await self._finished(self.connection.rollback())

    async def close(self) -> None:
        """Close."""
        await self._finished(self.connection.close())

    async def _finished(self, value: Any) -> Any:
        return await value if inspect.isawaitable(value) else value


Connect: TypeAlias = Callable[..., Coroutine[Any, Any, Caller]]


@pytest.fixture
async def connect(way: Way) -> AsyncIterator[Connect]:
    """Make connections of the caller's, which are closed however the test ends."""
    made: list[Caller] = []

    async def connect(address: str | None = None, **options: Any) -> Caller:
        made.append(await Caller.connect(way, address, **options))
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


async def is_usable(caller: Caller) -> bool:
    """Tell whether the user's next statement works."""
    return [tuple(row) for row in await caller.execute("SELECT 7")] == [(7,)]


# ---- it belongs to the transaction


@on_both
async def test_a_start_is_seen_with_its_event_once_the_caller_commits(way: Way, open_caller: Caller) -> None:
    chain = await way.face.start(greet(name="Ada"), connection=open_caller.connection)
    before = await whole_store(way)

    await open_caller.commit()

    assert not any(before.values())
    assert (await way.face.get_job(chain)).status is Status.PENDING
    assert await events_of(way, chain.id) == ["job:enqueued"]


@on_both
async def test_a_start_vanishes_when_the_caller_rolls_back(way: Way, open_caller: Caller) -> None:
    blocker = await make_job(way) if way.database == "postgres" else None
    options = {"unique": "ada", "blockers": [blocker] if blocker else []}
    before = await whole_store(way)

    await way.face.start(greet(name="Ada"), connection=open_caller.connection, **options)
    await open_caller.rollback()

    assert await whole_store(way) == before


@on_both
async def test_a_start_vanishes_with_its_savepoint_and_the_rest_stays(way: Way, open_caller: Caller) -> None:
    kept = await way.face.start(greet(name="kept"), connection=open_caller.connection)

    await open_caller.execute("SAVEPOINT mine")
    await way.face.start(greet(name="gone"), unique="gone", connection=open_caller.connection)
    await open_caller.execute("ROLLBACK TO SAVEPOINT mine")
    await open_caller.commit()

    assert [job.id for job in await way.face.list_jobs()] == [kept.id]
    assert await way.rows("SELECT name FROM holdfast_event") == [("job:enqueued",)]
    assert await way.rows("SELECT key FROM holdfast_unique") == []


@on_both
async def test_the_caller_reads_what_it_has_started_before_anybody_else_does(way: Way, open_caller: Caller) -> None:
    chain = await way.face.start(greet(name="Ada"), connection=open_caller.connection)

    job = await way.face.get_job(chain, connection=open_caller.connection)

    assert job.input.name == "Ada"
    with pytest.raises(JobNotFound):
        await way.face.get_job(chain)


@on_both
async def test_many_starts_are_one_part_of_the_transaction(way: Way, open_caller: Caller) -> None:
    calls = [greet(name=str(number)) for number in range(100)]

    started = await way.face.start_many(calls, connection=open_caller.connection)
    await open_caller.commit()

    assert [job.id for job in await way.face.list_jobs(order="oldest", limit=100)] == [chain.id for chain in started]


@on_both
async def test_a_delete_is_undone_when_the_caller_rolls_back(way: Way, caller: Caller) -> None:
    chain = await way.face.start(greet(name="Ada"), unique="ada")
    before = await whole_store(way)
    await caller.begin()

    assert await way.face.delete(chain, connection=caller.connection) == [chain.id]
    await caller.rollback()

    assert await whole_store(way) == before


@on_both
async def test_a_delete_and_a_new_start_of_its_key_are_one_commit(way: Way, caller: Caller) -> None:
    old = await way.face.start(greet(name="Ada"), unique="ada")
    await caller.begin()

    await way.face.delete(old, connection=caller.connection)
    new = await way.face.start(greet(name="Ada"), unique="ada", connection=caller.connection)
    await caller.commit()

    assert (new.id != old.id, new.deduplicated) == (True, False)
    assert [chain.id for chain in await way.face.list_chains()] == [new.id]


@on_both
async def test_a_connection_is_borrowed_again_in_its_next_transaction(way: Way, caller: Caller) -> None:
    started = []
    for name in ("one", "two"):
        await caller.begin()
        started.append(await way.face.start(greet(name=name), connection=caller.connection))
        await caller.commit()

    assert {job.id for job in await way.face.list_jobs()} == {chain.id for chain in started}


@on_both
async def test_a_required_connection_is_enough(
    way: Way, open_caller: Caller, new_holdfast: Callable[..., Holdfast]
) -> None:
    strict = Way(new_holdfast(way.database, require_connection=True, tasks=[TASKS]), is_async=way.is_async)

    chain = await strict.face.start(greet(name="Ada"), connection=open_caller.connection)
    await open_caller.commit()

    assert (await way.face.get_job(chain)).task == "greet"
    await strict.close()


@on_postgres
async def test_a_transaction_block_on_an_autocommit_connection_will_do(way: Way, connect: Connect) -> None:
    caller = await connect(autocommit=True)

    await caller.execute("BEGIN")
    chain = await way.face.start(greet(name="Ada"), connection=caller.connection)
    await caller.execute("COMMIT")

    assert (await way.face.get_job(chain)).task == "greet"


@on_sqlite
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


@on_both
@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: outcome.__name__.strip("_"))
async def test_an_expected_outcome_leaves_the_transaction_as_it_was(way: Way, caller: Caller, outcome: Any) -> None:
    known, waiting = await make_job(way), await make_job(way, "blocked")
    await block(way, waiting, known)
    before = await whole_store(way)
    await caller.begin()

    await outcome(way, caller.connection, known)

    assert await is_usable(caller)
    await caller.commit()
    assert await whole_store(way) == before


# ---- refusals


@on_both
async def test_without_a_transaction_the_job_would_commit_alone_so_it_is_refused(way: Way, caller: Caller) -> None:
    with pytest.raises(TransactionRequired, match=r"no transaction is open.*write `"):
        await way.face.start(greet(name="Ada"), connection=caller.connection)

    assert await is_usable(caller)
    assert len(await way.face.list_jobs()) == 0


@on_postgres
async def test_autocommit_is_no_transaction(way: Way, connect: Connect) -> None:
    caller = await connect(autocommit=True)
    await caller.execute("SELECT 1")

    with pytest.raises(TransactionRequired, match="transaction"):
        await way.face.start(greet(name="Ada"), connection=caller.connection)

    assert await is_usable(caller)


@on_postgres
async def test_a_failed_transaction_is_refused_with_what_to_do(way: Way, open_caller: Caller) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable):
        await open_caller.execute("SELECT * FROM nothing_of_this_name")

    with pytest.raises(TransactionRequired, match="has failed; roll it back"):
        await way.face.start(greet(name="Ada"), connection=open_caller.connection)

    await open_caller.rollback()
    assert await is_usable(open_caller)


@on_both
async def test_a_closed_connection_is_refused(way: Way, connect: Connect) -> None:
    caller = await connect()
    await caller.close()

    with pytest.raises(WrongConnection, match="closed"):
        await way.face.start(greet(name="Ada"), connection=caller.connection)


@on_both
@pytest.mark.parametrize("thing", [object(), "postgresql://localhost", 7], ids=["object", "address", "number"])
async def test_what_is_no_connection_is_refused_with_what_would_be_one(way: Way, thing: Any) -> None:
    with pytest.raises(WrongConnection, match=r"psycopg\.Connection.*sqlite3\.Connection"):
        await way.face.start(greet(name="Ada"), connection=thing)


@on_both
async def test_a_cursor_is_no_connection(way: Way, open_caller: Caller) -> None:
    with pytest.raises(WrongConnection, match="Cursor is no connection"):
        await way.face.start(greet(name="Ada"), connection=open_caller.connection.cursor())

    assert await is_usable(open_caller)


@pytest.mark.parametrize("way", ["postgres-async"], indirect=True)
async def test_an_async_connection_is_refused_by_the_blocking_face(way: Way, open_caller: Caller) -> None:
    with pytest.raises(WrongConnection, match=r"async; write `await hf\.start"):
        way.hf.sync.start(greet(name="Ada"), connection=open_caller.connection)

    assert await is_usable(open_caller)


@pytest.mark.parametrize("way", ["postgres-blocking", "sqlite-blocking"], indirect=True)
async def test_a_blocking_connection_is_refused_by_the_async_face(way: Way, open_caller: Caller) -> None:
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


@on_both
async def test_a_connection_to_the_database_of_another_holdfast_is_refused(
    way: Way, connect: Connect, elsewhere: str
) -> None:
    theirs = Holdfast(elsewhere, schema_name=way.hf.settings.schema_name).sync
    theirs.migrate()
    theirs.close()
    caller = await connect(elsewhere)
    await caller.begin()

    with pytest.raises(WrongConnection, match="another database"):
        await way.face.start(greet(name="Ada"), connection=caller.connection)

    assert await is_usable(caller)


@on_both
async def test_a_connection_to_a_database_without_our_tables_is_refused(way: Way, connect: Connect, empty: str) -> None:
    caller = await connect(empty)
    await caller.begin()

    with pytest.raises(WrongConnection, match=r"without our tables.*holdfast migrate"):
        await way.face.start(greet(name="Ada"), connection=caller.connection)

    assert await is_usable(caller)


@on_both
async def test_a_connection_is_known_after_the_database_was_made_anew(way: Way, connect: Connect) -> None:
    first = await connect()
    await first.begin()
    await way.face.start(greet(name="Ada"), connection=first.connection)
    await first.rollback()
    identity = "holdfast_meta" if way.database == "sqlite" else f"{way.hf.settings.schema_name}.holdfast_meta"
    await first.execute(f"UPDATE {identity} SET value = 'another' WHERE key = 'identity'")
    await first.commit()
    second = await connect()
    await second.begin()

    assert (await way.face.start(greet(name="Ada"), connection=second.connection)).task == "greet"


@on_postgres
@pytest.mark.parametrize("encoding", ["latin1", "sql_ascii"])
async def test_a_connection_that_does_not_know_every_character_is_refused(
    way: Way, connect: Connect, encoding: str
) -> None:
    caller = await connect(client_encoding=encoding)
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


@on_sqlite
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


@pytest.mark.parametrize("way", ["postgres-blocking"], indirect=True)
async def test_a_connection_to_the_other_kind_of_database_is_refused(way: Way, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "other.db", isolation_level=None)
    connection.execute("BEGIN")

    with pytest.raises(WrongConnection, match="another database"):
        way.hf.sync.start(greet(name="Ada"), connection=connection)

    assert connection.execute("SELECT 7").fetchall() == [(7,)]
    connection.close()


@on_both
async def test_a_refused_connection_sees_the_calls_as_used(way: Way, caller: Caller) -> None:
    call = greet(name="Ada")

    with pytest.raises(TransactionRequired):
        await way.face.start_many([call], connection=caller.connection)

    del call  # would warn, and a warning is an error here


# ---- the caller's habits change nothing


class Shouting(Loader):
    """A loader of the caller's that makes nonsense of what it reads."""

    def load(self, data: Any) -> str:
        """Make nonsense."""
        return "NONSENSE"


def _dict_rows(connection: Any) -> None:
    connection.row_factory = dict_row


def _own_loaders(connection: Any) -> None:
    for name in ("text", "varchar", "int8", "int4", "bool"):
        connection.adapters.register_loader(name, Shouting)


def _own_cursors(connection: Any) -> None:
    connection.cursor_factory = (
        psycopg.AsyncRawCursor if isinstance(connection, psycopg.AsyncConnection) else psycopg.RawCursor
    )


def _prepared_at_once(connection: Any) -> None:
    connection.prepare_threshold = 0


def _never_prepared(connection: Any) -> None:
    connection.prepare_threshold = None


def _sqlite_rows(connection: Any) -> None:
    connection.row_factory = sqlite3.Row


def _sqlite_dicts(connection: Any) -> None:
    connection.row_factory = lambda cursor, row: {"row": row}


def _sqlite_bytes(connection: Any) -> None:
    connection.text_factory = bytes


POSTGRES_HABITS = (_dict_rows, _own_loaders, _own_cursors, _prepared_at_once, _never_prepared)
SQLITE_HABITS = (_sqlite_rows, _sqlite_dicts, _sqlite_bytes)
HABITS = [
    *((way, habit) for way in ONLY_POSTGRES for habit in POSTGRES_HABITS),
    *(("sqlite-blocking", habit) for habit in SQLITE_HABITS),
]


@pytest.mark.parametrize(("way", "habit"), HABITS, indirect=["way"], ids=lambda each: getattr(each, "__name__", each))
async def test_the_callers_row_factory_and_codecs_change_no_result(way: Way, caller: Caller, habit: Any) -> None:
    holder = await way.face.start(greet(name="holder"), unique="held", tags=["ü"])
    await caller.begin()
    habit(caller.connection)
    calls = [greet(name="ü").options(unique="held"), greet(name="b").options(blockers=[holder], lane="x")]

    twin, new = await way.face.start_many(calls, connection=caller.connection)
    job = await way.face.get_job(holder, connection=caller.connection)

    assert (twin.id, twin.deduplicated, new.status) == (holder.id, True, Status.BLOCKED)
    assert job == await way.face.get_job(holder)


@on_sqlite
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


@on_sqlite
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
    await caller.execute("CREATE TEMP TABLE holdfast_job AS SELECT * FROM holdfast_job")
    await caller.execute("CREATE TEMP TABLE holdfast_event AS SELECT * FROM holdfast_event")
    await caller.begin()

    chain = await way.face.start(greet(name="Ada"), connection=caller.connection)
    await way.face.cancel(chain, connection=caller.connection)
    await caller.commit()

    assert (await way.face.get_job(chain)).status == "cancelled"
    assert await caller.execute("SELECT * FROM temp.holdfast_job") == []


@on_sqlite
async def test_the_callers_text_factory_is_as_it_was_afterwards(way: Way, open_caller: Caller) -> None:
    open_caller.connection.text_factory = bytes

    await way.face.start(greet(name="Ada"), connection=open_caller.connection)

    assert await open_caller.execute("SELECT 'x'") == [(b"x",)]


@on_postgres
async def test_the_callers_own_cursor_is_left_alone(way: Way, open_caller: Caller) -> None:
    open_caller.connection.row_factory = dict_row

    await way.face.start(greet(name="Ada"), connection=open_caller.connection)

    assert await open_caller.execute("SELECT 1 AS one") == [{"one": 1}]


# ---- isolation


@on_postgres
async def test_a_start_works_in_repeatable_read(way: Way, caller: Caller) -> None:
    await caller.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")

    chain = await way.face.start(greet(name="Ada"), unique="ada", id=uuid4(), connection=caller.connection)
    await caller.commit()

    assert (await way.face.get_job(chain)).task == "greet"


@on_postgres
async def test_a_serialisation_failure_is_handed_on_typed_and_once(way: Way, caller: Caller) -> None:
    await caller.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    await caller.execute("SELECT 1")
    await way.face.start(greet(name="Bob"), unique="same")

    with Wire(caller.connection) as wire, pytest.raises(Busy) as refused:
        await way.face.start(greet(name="Ada"), unique="same", connection=caller.connection)

    assert isinstance(refused.value.__cause__, psycopg.errors.SerializationFailure)
    assert wire.verbs.count("INSERT") == 1
    await caller.rollback()
    assert await is_usable(caller)


@on_sqlite
async def test_a_plain_begin_that_has_read_before_another_wrote_is_told_to_begin_immediate(
    way: Way, caller: Caller
) -> None:
    await caller.execute("BEGIN")
    await caller.execute("SELECT count(*) FROM holdfast_job")
    await way.face.start(greet(name="Bob"))

    with pytest.raises(Busy, match="BEGIN IMMEDIATE"):
        await way.face.start(greet(name="Ada"), connection=caller.connection)

    assert caller.connection.in_transaction
    await caller.rollback()
    assert await is_usable(caller)


# ---- we run statements on it, and nothing else


class Wire:
    """Writes down what goes to PostgreSQL on a connection, as libpq sends it."""

    def __init__(self, connection: Any) -> None:
        self._pgconn = connection.pgconn
        self.verbs: list[str] = []

    def __enter__(self) -> Wire:
        self._file = TemporaryFile("w+b")
        self._pgconn.trace(self._file.fileno())
        return self

    def __exit__(self, *_: object) -> None:
        self._pgconn.untrace()
        self._file.seek(0)
        self.verbs = SENT.findall(self._file.read().decode(errors="replace"))
        self._file.close()


# a message of ours, with the first word of its statement
SENT = re.compile(r'^[^\n]*\tF\t\d+\t(?:Parse\t "[^"]*"|Query\t) "\s*(\w+)', re.MULTILINE)


@on_postgres
async def test_no_transaction_is_begun_or_ended_on_a_callers_postgresql_connection(
    way: Way, open_caller: Caller
) -> None:
    known = await make_job(way)

    with Wire(open_caller.connection) as wire:
        chain = await way.face.start(greet(name="Ada"), unique="a", connection=open_caller.connection)
        await way.face.delete(chain, connection=open_caller.connection)
        await _is_of_another_task(way, open_caller.connection, known)

    assert set(wire.verbs) == {"SELECT", "INSERT", "UPDATE", "DELETE"}


@on_sqlite
async def test_no_transaction_is_begun_or_ended_on_a_callers_sqlite_connection(way: Way, open_caller: Caller) -> None:
    sent: list[str] = []
    known = UUID(int=1)
    open_caller.connection.set_trace_callback(sent.append)

    chain = await way.face.start(greet(name="Ada"), id=known, unique="a", connection=open_caller.connection)
    await _is_of_another_task(way, open_caller.connection, known)
    await way.face.delete(chain, connection=open_caller.connection)

    assert sent
    assert not [each for each in sent if each.lstrip().upper().startswith(("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT"))]
    assert open_caller.connection.in_transaction


# ---- an open transaction of a caller's is in nobody's way


@on_postgres
async def test_while_a_start_is_not_committed_every_row_can_be_locked_by_another(way: Way, caller: Caller) -> None:
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
async def test_while_a_start_is_not_committed_others_start_read_and_delete(way: Way, open_caller: Caller) -> None:
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
    hurried = Way(new_holdfast("postgres", deadline_seconds=0.3, tasks=[TASKS]), is_async=way.is_async)
    await way.face.start(greet(name="Ada"), unique="ada", connection=open_caller.connection)

    with pytest.raises(Busy):
        await hurried.face.start(greet(name="Bob"), unique="ada")

    assert (await hurried.face.start(greet(name="Cid"))).deduplicated is False
    await hurried.close()


async def _make_lane(tx: Any, key: str) -> None:
    await tx.execute("INSERT INTO holdfast_lane (key) VALUES (:key)", key=key)
