"""What is written by SQLAlchemy's ORM inside a block commits with the job's end, or not at all; by every driver."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event, exc, text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    SessionTransaction,
    mapped_column,
    scoped_session,
    sessionmaker,
)
from sqlalchemy.pool import QueuePool, SingletonThreadPool, StaticPool

from holdfast import (
    Busy,
    Holdfast,
    Misuse,
    Retry,
    TransactionBroken,
    TransactionRequired,
    TransactionTimeout,
    Unavailable,
    WrongConnection,
)
from holdfast.database.borrowed import Borrowed
from holdfast.database.tx import drive
from holdfast.integrations.sqlalchemy import SQLAlchemy
from tests.store.open_blocks import add_bill, make_table
from tests.support.conditions import until
from tests.support.faults.fault_proxy import FaultProxy
from tests.worker.colours import Colour, Witness
from tests.worker.providers.sqlalchemy import DRIVERS, engine_of

ONCE = Retry.never()
PAY = "INSERT INTO bill (id, amount) VALUES (:id, 1)"
LONG = ("psycopg", "psycopg2", "async psycopg")
LIKE_OTHERS = "aiosqlite"  # where all are asked for, one has its database and another its colour


class Base(DeclarativeBase):
    """The user's own tables."""


class Bill(Base):
    """A row of the user's own."""

    __tablename__ = "bill"
    id: Mapped[int] = mapped_column(primary_key=True)
    amount: Mapped[int]


class Shop(Colour):
    """One driver of SQLAlchemy's: an engine, and a Holdfast on the same database."""

    __slots__ = ("driver", "engine", "url")
    engine: Any
    driver: str
    url: str

    @property
    def database(self) -> str:
        """Which database it is on."""
        return DRIVERS[self.driver][0]

    def maker(self, **options: Any) -> Any:
        """Make a sessionmaker of the engine's colour."""
        return (async_sessionmaker if self.is_async else sessionmaker)(self.engine, **options)


def by_driver(database: str | None = None, *, is_async: bool | None = None) -> list[Any]:
    """List the drivers, or some of them, as parameters of a test."""
    long = LONG if database is not None or is_async is not None else (*LONG, LIKE_OTHERS)
    return [
        pytest.param(name, marks=[pytest.mark.long] if name in long else [])
        for name, (its_database, its_colour) in DRIVERS.items()
        if database in (None, its_database) and is_async in (None, its_colour)
    ]


@pytest.fixture(params=by_driver())
async def shop(
    request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast], tmp_path: Path
) -> AsyncIterator[Shop]:
    """A shop whose blocks are sessions of its engine; open, empty, and with an empty table `bill`."""
    async with opened_shop(request, new_holdfast, tmp_path) as shop:
        yield shop


@asynccontextmanager
async def opened_shop(
    request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast], folder: Path, **options: Any
) -> AsyncIterator[Shop]:
    driver = request.param
    database, is_async = DRIVERS[driver]
    url = request.getfixturevalue("empty_url") if database == "postgres" else str(folder / "jobs.db")
    async with engine_of(driver)(url, driver) as engine:
        hf = new_holdfast(database, transactions=SQLAlchemy(engine), **options)
        await hf.open()
        await hf.store.run(make_table)
        shop = Shop(hf, is_async)
        for name, value in (("engine", engine), ("driver", driver), ("url", url)):
            object.__setattr__(shop, name, value)
        yield shop
        if database == "postgres":
            await hf.store.read(end_what_sleeps)
        await hf.close()


async def orm(tx: Any, work: Callable[[Session], Any]) -> Any:
    """Do something with the session of *tx*, as its colour has it."""
    session = tx.session
    return await session.run_sync(work) if isinstance(session, AsyncSession) else work(session)


async def add(tx: Any, number: int, amount: int = 1) -> None:
    """Add a bill by the ORM; nothing is sent yet."""
    await orm(tx, lambda session: session.add(Bill(id=number, amount=amount)))


async def failed(shop: Shop, body: Callable[..., Any], *, output: Any = int) -> str:
    """Run a job whose handler is *body* until it has failed; tell its error."""
    task = shop.task(body, output, retry=ONCE)
    async with shop.hf.worker():
        chain = await shop.hf.start(task())
        await shop.until_status(chain, "failed")
    return await shop.error(chain)


async def result(shop: Shop, body: Callable[..., Any], *, output: Any = int) -> Any:
    """Run a job whose handler is *body*, and give its output."""
    task = shop.task(body, output, retry=ONCE)
    async with shop.hf.worker():
        return await (await shop.hf.start(task())).result(timeout=10)


async def test_what_the_orm_has_pending_commits_with_the_completion(shop: Shop) -> None:
    async def charge(ctx: Any, n: int) -> Any:
        async with ctx.prepare() as tx:
            await add(tx, 1)
        async with ctx.complete() as tx:
            bill = await orm(tx, lambda session: session.get_one(Bill, 1))
            bill.amount = 7
            await add(tx, 2)
            return tx.finish(bill.amount)

    assert await result(shop, charge) == 7
    assert await shop.bills() == [1, 2]


async def test_the_row_of_the_job_is_locked_after_the_orm_has_written(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    run = Borrowed.run

    async def noted(self: Borrowed, operation: Any, *args: Any, **kwargs: Any) -> Any:
        done.append(getattr(operation, "func", operation).__name__)
        return await run(self, operation, *args, **kwargs)

    async def charge(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            await add(tx, 1)
            await orm(tx, lambda session: event.listen(session, "before_flush", lambda *_: done.append("flush")))
            connection = await orm(tx, lambda session: session.connection())
            event.listen(connection, "commit", lambda _: done.append("commit"))
            done.clear()
            return tx.finish(1)

    monkeypatch.setattr(Borrowed, "run", noted)
    assert await result(shop, charge) == 1
    assert done == ["flush", "finish", "commit", "is_marked"]  # ours is the last, whoever else listens


async def test_what_a_handler_has_loaded_can_be_read_after_the_block(shop: Shop) -> None:
    async def charge(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            await add(tx, 5)
            bill = await orm(tx, lambda session: session.get(Bill, 5, populate_existing=False))
            bill = bill or await orm(tx, lambda session: next(iter(session.new)))
            tx.finish(5)
        return bill.id

    assert await result(shop, charge) == 5


async def test_an_error_in_the_body_undoes_the_orm_s_writes_too(shop: Shop) -> None:
    async def charge(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            await add(tx, 1)
            await orm(tx, lambda session: session.flush())
            await tx.start(task(n=9), delay=60)
            raise OSError("the card was refused")

    task = shop.task(charge, int, retry=ONCE)
    async with shop.hf.worker():
        chain = await shop.hf.start(task())
        await shop.until_status(chain, "failed")

    assert await shop.error(chain) == "OSError: the card was refused"
    assert await shop.bills() == []
    assert len((await shop.hf.list_jobs()).items) == 1


async def test_statements_verbs_and_the_session_share_one_transaction(shop: Shop) -> None:
    async def charge(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            own = tx if shop.is_async else tx._inner
            await add(tx, 1)
            await tx.execute(PAY, id=2)
            seen = [row.id for row in await tx.fetch_all("SELECT id FROM bill ORDER BY id")]
            for connection in (own, tx.session):
                if shop.is_async:
                    await shop.hf.start(task(n=9), delay=60, connection=connection)
                else:
                    shop.hf.sync.start(task(n=9), delay=60, connection=connection)
            await tx.start(task(n=9), delay=60)
            if n == 0:
                raise OSError("no")
            return tx.finish(seen)

    task = shop.task(charge, list[int], retry=ONCE)
    async with shop.hf.worker():
        undone = await shop.hf.start(task(n=0))
        await shop.until_status(undone, "failed")
        assert len((await shop.hf.list_jobs()).items) == 1
        assert await (await shop.hf.start(task(n=1))).result(timeout=10) == [1, 2]

    assert len((await shop.hf.list_jobs()).items) == 5
    assert await shop.bills() == [1, 2]


@pytest.mark.parametrize("kind", ["prepare", "complete", "atomic"])
@pytest.mark.parametrize("verb", ["commit", "rollback", "close"])
async def test_who_ends_the_session_s_transaction_himself_is_told(shop: Shop, verb: str, kind: str) -> None:
    async def charge(ctx: Any, n: int) -> Any:
        async with getattr(ctx, kind)() as tx:
            session = tx.session
            await orm(tx, lambda session: getattr(session, verb)())
            if isinstance(session, AsyncSession):
                await session.run_sync(lambda each: each.add(Bill(id=2, amount=1)))
            else:
                session.add(Bill(id=2, amount=1))
        return n

    error = await failed(shop, charge)

    assert error.startswith("TransactionBroken: commit(), rollback() or close() on the session ended")
    assert await shop.bills() == []


@pytest.mark.parametrize("is_swallowed", [False, True])
async def test_a_commit_inside_the_block_commits_nothing(shop: Shop, is_swallowed: bool) -> None:
    async def charge(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            await add(tx, 1)
            try:
                await orm(tx, lambda session: session.commit())
            except TransactionBroken:
                if not is_swallowed:
                    raise
            return tx.finish(n)

    assert "ended the transaction of this block" in await failed(shop, charge)
    assert await shop.bills() == []


def swallowed(connection: Connection) -> None:
    with suppress(exc.DBAPIError):
        connection.exec_driver_sql("SELECT * FROM nothing_of_this_name")


def sent(*statements: str) -> Callable[[Connection], None]:
    """Make a hook that sends *statements*."""

    def send(connection: Connection) -> None:
        for sql in statements:
            connection.exec_driver_sql(sql)

    return send


HOOKS = {
    "swallows": (swallowed, "a statement of this block has failed"),
    "rolls back": (sent("ROLLBACK"), "ended the transaction of this block"),
    "begins anew": (sent("ROLLBACK", "BEGIN"), "ended the transaction of this block"),
}


@pytest.mark.parametrize("at", ["session's", "class's", "connection's"])
@pytest.mark.parametrize("hook", HOOKS)
async def test_what_a_hook_does_before_the_commit_is_seen(shop: Shop, hook: str, at: str) -> None:
    """PostgreSQL answers a COMMIT in a transaction that has failed, or in none, as if all were well."""
    run, said = HOOKS[hook]

    class Hooked(Session):
        """Has a hook without tx.session."""

    def before_commit(session: Session) -> None:
        run(session.connection())

    def listen(session: Session) -> None:
        if at == "session's":
            event.listen(session, "before_commit", before_commit)
        else:
            event.listen(session.connection(), "commit", run)

    if at == "class's":
        event.listen(Hooked, "before_commit", before_commit)
    maker = shop.maker(**{"sync_session_class" if shop.is_async else "class_": Hooked})

    async def charge(ctx: Any, n: int) -> Any:
        async with ctx.complete(using=maker) as tx:
            if at != "class's":
                await orm(tx, listen)
            await tx.execute(PAY, id=1)
            return tx.finish(n)

    assert said in await failed(shop, charge)
    assert await shop.bills() == []


async def test_a_session_that_has_its_connection_as_soon_as_it_begins_is_followed_too(shop: Shop) -> None:
    class Eager(Session):
        def begin(self, nested: bool = False) -> SessionTransaction:
            begun = super().begin(nested)
            self.connection()
            return begun

    maker = shop.maker(**{"sync_session_class" if shop.is_async else "class_": Eager})
    for number in (1, 2):
        block = await begin(shop, maker)
        await block.query(PAY, {"id": number})
        if number == 2:
            with pytest.raises(exc.IntegrityError):
                await block.query(PAY, {"id": 1})
            with pytest.raises(TransactionBroken):
                await block.commit()
        else:
            await block.commit()

    assert await shop.bills() == [1]


async def test_a_session_that_is_made_in_a_transaction_is_refused(shop: Shop) -> None:
    class Begun(Session):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.begin()

    maker = shop.maker(**{"sync_session_class" if shop.is_async else "class_": Begun})
    with pytest.raises(WrongConnection, match="are in a transaction already"):
        await begin(shop, maker)


async def test_a_savepoint_that_was_left_open_commits_with_the_block(shop: Shop) -> None:
    async def charge(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            await orm(tx, lambda session: session.begin_nested())
            await add(tx, 1)
            return tx.finish(n)

    assert await result(shop, charge) == 0
    assert await shop.bills() == [1]


async def test_a_session_that_is_kept_begins_nothing_after_its_block(shop: Shop) -> None:
    for end in ("commit", "roll_back"):
        block = await begin(shop)
        session = block.session
        await getattr(block, end)()

        for _ in range(2):  # also when the first refusal was swallowed
            with pytest.raises(Misuse, match="open your own session"):
                await pay(session)
        assert not session.in_transaction()
        assert shop.engine.pool.checkedout() == 0
    assert await shop.bills() == []


async def pay(session: Any) -> None:
    """Write by a session, as its colour has it."""
    found = session.execute(text(PAY), {"id": 1})
    if isinstance(session, AsyncSession):
        await found


async def test_the_commit_of_a_class_of_sessions_of_the_user_s_own_is_called(shop: Shop) -> None:
    called: list[str] = []

    class Blocking(Session):
        def commit(self) -> None:
            called.append("commit")
            super().commit()

    class Async(AsyncSession):
        async def commit(self) -> None:
            called.append("commit")
            await super().commit()

    block = await begin(shop, shop.maker(class_=Async if shop.is_async else Blocking))
    await block.query(PAY, {"id": 1})
    await block.commit()

    assert called == ["commit"]
    assert await shop.bills() == [1]


async def test_a_class_of_sessions_whose_commit_does_nothing_completes_nothing(shop: Shop) -> None:
    class Blocking(Session):
        def commit(self) -> None: ...

    class Async(AsyncSession):
        async def commit(self) -> None: ...

    block = await begin(shop, shop.maker(class_=Async if shop.is_async else Blocking))
    await block.query(PAY, {"id": 1})
    with pytest.raises(TransactionBroken, match="sent no COMMIT"):
        await block.commit()

    assert not block.is_committed
    assert await shop.bills() == []


@pytest.mark.parametrize("tag", ["/* shop.views * / */ ", "-- shop.views\n", "/* a */ /* b */\n"])
async def test_savepoints_are_seen_behind_comments(shop: Shop, tag: str) -> None:
    engine = shop.engine.sync_engine if shop.is_async else shop.engine

    @event.listens_for(engine, "before_cursor_execute", retval=True)
    def tagged(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> Any:
        return tag + statement, parameters

    block = await begin(shop)
    await block.query(PAY, {"id": 1})
    savepoint = await block.begin_savepoint()
    with pytest.raises(exc.IntegrityError):
        await block.query(PAY, {"id": 1})
    await block.roll_back_to(savepoint)
    await block.commit()

    assert await shop.bills() == [1]


@pytest.mark.parametrize("statements", [("COMMIT",), ("ROLLBACK",), ("COMMIT", "BEGIN"), ("ROLLBACK", "BEGIN")])
async def test_who_ends_it_by_a_statement_is_told(shop: Shop, statements: tuple[str, ...]) -> None:
    def end(session: Session) -> None:
        for sql in statements:
            session.connection().exec_driver_sql(sql)

    async def charge(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            await orm(tx, end)
            return tx.finish(n)

    assert "ended the transaction of this block" in await failed(shop, charge)


async def test_a_swallowed_error_of_the_session_keeps_the_block_from_committing(shop: Shop) -> None:
    async def charge(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            await tx.execute(PAY, id=1)
            with suppress(exc.IntegrityError):  # the mistake that is tested
                await orm(tx, lambda session: session.execute(text(PAY), {"id": 1}))
            return tx.finish(n)

    error = await failed(shop, charge)

    assert error.startswith("TransactionBroken: a statement of this block has failed")
    assert await shop.bills() == []


async def test_a_swallowed_flush_keeps_the_block_from_committing(shop: Shop) -> None:
    async def charge(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            await add(tx, 1, amount=-1)
            with suppress(exc.IntegrityError):  # the mistake that is tested
                await orm(tx, lambda session: session.flush())
            return tx.finish(n)

    assert (await failed(shop, charge)).startswith("TransactionBroken")
    assert await shop.bills() == []


@pytest.mark.parametrize("way_on", ["tx.savepoint", "session.begin_nested", "connection.begin_nested"])
async def test_a_savepoint_of_either_kind_lets_a_part_fail(shop: Shop, way_on: str) -> None:
    def of_session(session: Session) -> None:
        with suppress(exc.IntegrityError), session.begin_nested():
            session.add(Bill(id=2, amount=-1))
            session.flush()
        with session.begin_nested():
            session.add(Bill(id=3, amount=1))

    def of_connection(session: Session) -> None:
        connection = session.connection()
        with suppress(exc.IntegrityError), connection.begin_nested():
            connection.execute(text(PAY), {"id": 2})
            connection.execute(text(PAY), {"id": 1})
        with connection.begin_nested():
            connection.execute(text(PAY), {"id": 3})

    async def charge(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            await tx.execute(PAY, id=1)
            if way_on == "tx.savepoint":
                with suppress(exc.IntegrityError):
                    async with tx.savepoint():
                        await add(tx, 2, amount=-1)
                        await tx.fetch_all("SELECT id FROM bill")
                async with tx.savepoint():
                    await add(tx, 3)
            else:
                await orm(tx, of_session if way_on.startswith("session") else of_connection)
            return tx.finish(n)

    assert await result(shop, charge) == 0
    assert await shop.bills() == [1, 3]


async def test_an_error_outside_a_savepoint_is_not_mended_by_one(shop: Shop) -> None:
    """SQLite would let the rest be committed."""

    def swallow(session: Session) -> None:
        with suppress(exc.DBAPIError):
            session.execute(text(PAY), {"id": 1})
        with suppress(exc.DBAPIError, OSError), session.begin_nested():
            session.execute(text(PAY), {"id": 2})
            raise OSError

    async def charge(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            await tx.execute(PAY, id=1)
            await orm(tx, swallow)
            return tx.finish(n)

    assert (await failed(shop, charge)).startswith("TransactionBroken")
    assert await shop.bills() == []


async def test_a_constraint_that_fails_at_commit_is_the_user_s_error(shop: Shop) -> None:
    async def tables(tx: Any) -> None:
        await tx.execute("DROP TABLE IF EXISTS line")
        await tx.execute(
            "CREATE TABLE line (id integer PRIMARY KEY, bill integer NOT NULL "
            "REFERENCES bill (id) DEFERRABLE INITIALLY DEFERRED)"
        )

    async def drop(tx: Any) -> None:
        await tx.execute("DROP TABLE line")

    if shop.database == "sqlite":
        engine = shop.engine.sync_engine if shop.is_async else shop.engine
        event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA foreign_keys = ON"))
    await shop.hf.store.run(tables)

    async def charge(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            await tx.execute("INSERT INTO line (id, bill) VALUES (1, 404)")
            return tx.finish(n)

    try:
        assert (await failed(shop, charge)).startswith("IntegrityError")

        async def lines(tx: Any) -> list[Any]:
            return await tx.fetch_all("SELECT id FROM line")  # type: ignore[no-any-return]

        assert await shop.hf.store.read(lines) == []
    finally:
        await shop.hf.store.run(drop)


async def test_a_hook_that_raises_before_the_commit_undoes_everything(shop: Shop) -> None:
    def refuse(session: Session) -> None:
        raise ValueError("not like this")

    async def charge(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            await add(tx, 1)
            await orm(tx, lambda session: event.listen(session, "before_commit", refuse))
            return tx.finish(n)

    assert await failed(shop, charge) == "ValueError: not like this"
    assert await shop.bills() == []


async def test_a_hook_that_raises_after_the_commit_undoes_nothing(shop: Shop) -> None:
    def complain(session: Session) -> None:
        raise ValueError("too late")

    async def charge(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            await add(tx, 1)
            await orm(tx, lambda session: event.listen(session, "after_commit", complain))
            tx.finish(n)
        after.append("went on")
        return n

    after: list[str] = []
    assert await result(shop, charge) == 0
    assert after == ["went on"]
    assert await shop.bills() == [1]


# whose transaction it is


@pytest.mark.parametrize("kind", ["prepare", "complete", "atomic"])
async def test_one_block_may_use_another_kind_of_transaction(shop: Shop, kind: str) -> None:
    plain = Holdfast(settings=shop.hf.settings)
    other = Colour(plain, shop.is_async)
    given = [shop.engine, shop.maker(), SQLAlchemy(shop.engine), shop.engine.execution_options(logging_token="shop")]

    async def charge(ctx: Any, n: int) -> Any:
        async with getattr(ctx, kind)(using=given[n]) as tx:
            await add(tx, n)
        return n

    task = other.task(charge, int if kind == "prepare" else int | None, retry=ONCE)
    async with plain, plain.worker():
        for number in range(len(given)):
            chain = await plain.start(task(n=number))
            await chain.result(timeout=10)

    assert await shop.bills() == [0, 1, 2, 3]


async def test_a_scoped_session_is_refused_with_what_to_write(shop: Shop) -> None:
    """The block's session is another than that of the scope, by which the user's code would write."""
    if shop.is_async:
        scope: Any = async_scoped_session(shop.maker(), scopefunc=asyncio.current_task)
    else:
        scope = scoped_session(shop.maker())

    with pytest.raises(Misuse, match=r"scope\.session_factory"):
        await begin(shop, scope)
    with pytest.raises(Misuse, match=r"scope\.session_factory"):
        SQLAlchemy(scope)
    block = await begin(shop, scope.session_factory)
    await block.roll_back()


async def test_a_provider_of_the_other_colour_is_refused_with_what_to_write(shop: Shop) -> None:
    other = Colour(shop.hf, not shop.is_async)

    async def charge(ctx: Any, n: int) -> Any:
        async with ctx.complete(using=shop.engine):
            pass

    task = other.task(charge, int, retry=ONCE)
    async with shop.hf.worker():
        chain = await shop.hf.start(task())
        await shop.until_status(chain, "failed")

    words = "create_engine" if shop.is_async else "create_async_engine"
    assert (await shop.error(chain)).startswith("Misuse: this engine is")
    assert words in await shop.error(chain)


async def test_a_session_is_given_as_the_class_that_is_asked_for_or_refused(shop: Shop) -> None:
    wanted, other = (AsyncSession, Session) if shop.is_async else (Session, AsyncSession)

    async def charge(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            assert tx.session_as(wanted) is tx.session
            tx.session_as(other)
            return tx.finish(n)

    assert f"tx.session is a {wanted.__name__}, not a {other.__name__}" in await failed(shop, charge)


async def test_a_handler_that_the_provider_does_not_serve_has_a_transaction_of_ours(shop: Shop) -> None:
    other = Colour(shop.hf, not shop.is_async)
    said: list[str] = []

    async def charge(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            await tx.execute(PAY, id=1)
            try:
                _ = tx.session
            except Misuse as error:
                said.append(str(error))
            return tx.finish(n)

    task = other.task(charge, int, retry=ONCE)
    async with shop.hf.worker():
        assert await (await shop.hf.start(task())).result(timeout=10) == 0

    assert "SQLAlchemy(async_engine) for an async one" in said[0]
    assert await shop.bills() == [1]


def test_a_provider_takes_one_source_of_each_colour(tmp_path: Path) -> None:
    from sqlalchemy import create_engine
    from sqlalchemy.ext.asyncio import create_async_engine

    blocking = create_engine(f"sqlite:///{tmp_path}/a.db")
    both = SQLAlchemy(blocking, async_sessionmaker(create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/a.db")))

    assert both.serves(is_async=True)
    assert both.serves(is_async=False)
    assert repr(both) == "<SQLAlchemy for plain and async handlers>"
    with pytest.raises(Misuse, match="got two blocking engines"):
        SQLAlchemy(blocking, sessionmaker(blocking))
    with pytest.raises(Misuse, match="needs an engine"):
        SQLAlchemy()
    with pytest.raises(Misuse, match="cannot make sessions from a str"):
        SQLAlchemy("sqlite:///a.db")  # type: ignore[arg-type]
    with pytest.raises(Misuse, match="provides no transactions"):
        Holdfast(str(tmp_path / "a.db"), transactions=object())


async def test_whoever_completes_without_a_worker_has_the_session_too(shop: Shop) -> None:
    async def approve(ctx: Any, n: int) -> Any:
        return n

    task = shop.task(approve, int)
    for number, options in enumerate(({}, {"using": shop.maker()})):
        chain = await shop.hf.start(task(), delay=600)
        if shop.is_async:
            async with shop.hf.completing(task, chain, **options) as job:
                await add(job.tx, number)
                await job.finish(number)
        else:
            with shop.hf.sync.completing(task, chain, **options) as held:
                await add(held.tx, number)
                held.finish(number)
        assert await shop.status(chain) == "completed"

    assert await shop.bills() == [0, 1]


async def test_completing_that_raises_undoes_the_orm_s_writes(shop: Shop) -> None:
    async def approve(ctx: Any, n: int) -> Any:
        return n

    task = shop.task(approve, int)
    chain = await shop.hf.start(task(), delay=600)

    async def complete() -> None:
        if shop.is_async:
            async with shop.hf.completing(task, chain) as job:
                await add(job.tx, 1)
                await job.finish(1)
                raise OSError("no")
        with shop.hf.sync.completing(task, chain) as held:
            await add(held.tx, 1)
            held.finish(1)
            raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await complete()

    assert await shop.status(chain) == "pending"
    assert await shop.bills() == []


async def test_a_connection_and_a_provider_are_not_given_together(shop: Shop) -> None:
    async def approve(ctx: Any, n: int) -> Any:
        return n

    task = shop.task(approve, int)
    chain = await shop.hf.start(task(), delay=600)

    face: Any = shop.hf if shop.is_async else shop.hf.sync
    block = face.completing(task, chain, connection=object(), using=shop.engine)

    with pytest.raises(Misuse, match=r"give connection= .* or using= .*, not both"):
        await block.__aenter__() if shop.is_async else block.__enter__()


async def test_an_engine_says_where_the_database_is_and_provides_the_transactions(
    shop: Shop, empty_schema: dict[str, str]
) -> None:
    hf = Holdfast(shop.engine, **empty_schema)  # type: ignore[arg-type]
    own = Colour(hf, shop.is_async)

    async def charge(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            await add(tx, 1)
            return tx.finish(n)

    task = own.task(charge, int, retry=ONCE)
    async with hf, hf.worker():
        assert await (await hf.start(task())).result(timeout=10) == 0

    assert await shop.bills() == [1]
    assert len((await shop.hf.list_jobs()).items) == 1


@pytest.fixture
def empty_schema(shop: Shop) -> dict[str, str]:
    """The options that lead to the tables of the shop's own Holdfast."""
    return {"schema_name": shop.hf.settings.schema_name}


ADDRESSES = {
    "postgresql+psycopg://me:p%40ss@db.example:5433/shop?sslmode=require": {
        "host": "db.example", "port": "5433", "user": "me", "password": "p@ss", "dbname": "shop", "sslmode": "require",
    },
    "postgresql+asyncpg://me:p%40ss@db.example/shop?ssl=require&prepared_statement_cache_size=0": {
        "host": "db.example", "user": "me", "password": "p@ss", "dbname": "shop", "sslmode": "require",
    },
    "postgresql+psycopg2://me@/shop?host=one:5432&host=two:5433": {
        "host": "one,two", "port": "5432,5433", "user": "me", "dbname": "shop",
    },
    "postgresql+psycopg://me@/shop?host=/run/postgresql": {"host": "/run/postgresql", "user": "me", "dbname": "shop"},
}  # fmt: skip


@pytest.mark.parametrize("url", ADDRESSES)
def test_the_address_of_an_engine_is_read_from_its_url(url: str) -> None:
    from psycopg.conninfo import conninfo_to_dict
    from sqlalchemy import create_engine
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(url) if "asyncpg" in url else create_engine(url)
    hf = Holdfast(engine)

    assert {name: str(value) for name, value in conninfo_to_dict(hf.settings.database).items()} == ADDRESSES[url]
    assert "p@ss" not in repr(hf.settings)


def test_an_engine_whose_database_a_worker_would_not_find_is_refused() -> None:
    from sqlalchemy import create_engine

    with pytest.raises(Misuse, match="in memory"):
        Holdfast(create_engine("sqlite://"))
    with pytest.raises(Misuse, match=r"a builtins\.int is no database"):
        Holdfast(7)  # type: ignore[arg-type]


# what cannot be a block's


async def begin(shop: Shop, using: Any = None, lease: float = 30) -> Any:
    """Open a block, without a job."""
    opener = shop.hf._opener
    return await (opener.begin if shop.is_async else opener.begin_blocking)(lease, None, using)


@asynccontextmanager
async def another_engine(shop: Shop, **options: Any) -> AsyncIterator[Any]:
    """Make another engine for the database of *shop*."""
    async with engine_of(shop.driver)(shop.url, shop.driver, **options) as engine:
        yield engine


async def test_an_engine_that_commits_each_statement_alone_is_refused(shop: Shop) -> None:
    async with another_engine(shop, isolation_level="AUTOCOMMIT") as engine:
        with pytest.raises(TransactionRequired, match="AUTOCOMMIT"):
            await begin(shop, engine)


async def test_sessions_of_several_databases_or_of_none_are_refused(shop: Shop) -> None:
    maker: Any = async_sessionmaker if shop.is_async else sessionmaker

    for using in (maker(), maker(binds={Bill: shop.engine})):
        with pytest.raises(WrongConnection, match="several databases, or to none"):
            await begin(shop, using)


async def test_sessions_on_a_connection_of_the_user_s_are_refused(shop: Shop) -> None:
    """They join its transaction, as in a test that rolls back at the end: their commit commits nothing."""
    async with AsyncExitStack() as at_end:
        if shop.is_async:
            connection = await at_end.enter_async_context(shop.engine.connect())
            using: Any = async_sessionmaker(connection)
        else:
            using = sessionmaker(at_end.enter_context(shop.engine.connect()))
        with pytest.raises(WrongConnection, match="use a connection of yours"):
            await begin(shop, using)


@pytest.mark.parametrize("pool", [StaticPool, SingletonThreadPool])
async def test_a_pool_that_gives_one_connection_to_several_sessions_is_refused(shop: Shop, pool: Any) -> None:
    """Each would commit what the others have written so far."""
    if shop.is_async and pool is SingletonThreadPool:
        return  # SQLAlchemy has it for blocking engines only
    async with another_engine(shop, poolclass=pool) as engine:
        with pytest.raises(WrongConnection, match=pool.__name__):
            await begin(shop, engine)
        if not shop.is_async:
            with engine.connect():  # nothing was left open
                pass


@pytest.mark.parametrize("shop", by_driver("sqlite", is_async=False), indirect=True)
async def test_a_connection_that_is_in_another_block_is_refused(shop: Shop) -> None:
    from sqlalchemy import create_engine

    with closing(sqlite3.connect(shop.url, check_same_thread=False)) as shared:
        engine = create_engine("sqlite://", creator=lambda: shared, poolclass=QueuePool)
        first = await begin(shop, engine)
        await first.query(PAY, {"id": 1})
        with pytest.raises(WrongConnection, match="one would commit half of another"):
            await begin(shop, engine)
        with pytest.raises(TransactionBroken):
            await first.commit()

    assert await shop.bills() == []


@pytest.mark.parametrize("shop", by_driver("postgres"), indirect=True)
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_a_level_in_which_no_renewed_lease_can_be_completed_is_refused(shop: Shop, level: str) -> None:
    async with another_engine(shop, isolation_level=level) as engine:
        with pytest.raises(WrongConnection, match=f"the isolation level {level}"):
            await begin(shop, engine)
        block = await begin(shop, engine.execution_options(isolation_level="READ COMMITTED"))
        await block.query(PAY, {"id": 1})
        await block.commit()

    assert await shop.bills() == [1]


async def test_engines_with_options_of_their_own_leave_one_listener(shop: Shop) -> None:
    dialect = shop.engine.dialect
    for number in range(3):
        engine = shop.engine.execution_options(logging_token=str(number))
        block = await begin(shop, engine)
        with pytest.raises(exc.DBAPIError):
            await block.query("SELECT * FROM nothing_of_this_name", {})
        with pytest.raises(TransactionBroken, match="a statement of this block has failed"):
            await block.commit()

    assert len(list(dialect.dispatch.handle_error)) == 1


async def test_another_database_is_refused(shop: Shop, tmp_path: Path) -> None:
    driver = "aiosqlite" if shop.is_async else "pysqlite"
    async with engine_of(driver)(str(tmp_path / "other.db"), driver) as engine:
        with pytest.raises(WrongConnection, match="another database"):
            await begin(shop, engine)


async def test_a_pool_without_a_free_connection_is_told_as_busy_and_harms_nobody(shop: Shop) -> None:
    """F-24."""
    async with another_engine(shop, pool_size=1, max_overflow=0, pool_timeout=0.2) as engine:
        first = await begin(shop, engine)
        with pytest.raises(Busy, match="pool of the engine gave no connection"):
            await begin(shop, engine)
        await first.query(PAY, {"id": 1})
        await first.commit()

        for number in (2, 3):  # it goes back each time
            block = await begin(shop, engine)
            await block.query(PAY, {"id": number})
            await (block.commit() if number == 2 else block.roll_back())

    assert await shop.bills() == [1, 2]


# its time


@pytest.mark.parametrize("shop", by_driver("postgres"), indirect=True)
async def test_postgresql_ends_a_block_whose_process_stands_still(shop: Shop) -> None:
    block = await begin(shop, lease=0.1)
    await block.query(PAY, {"id": 1})

    async def is_ended(tx: Any) -> bool:
        rows = await tx.fetch_all("SELECT 1 FROM pg_stat_activity WHERE state = 'idle in transaction'")
        return not rows

    await until(lambda: shop.hf.store.read(is_ended), "the server has ended it")

    with pytest.raises((TransactionTimeout, Unavailable)):
        await block.query(PAY, {"id": 2})
    await block.roll_back()
    assert await shop.bills() == []


@pytest.mark.parametrize("shop", by_driver("sqlite"), indirect=True)
@pytest.mark.parametrize("by", ["tx", "session", "leaving"])
async def test_on_sqlite_a_block_that_is_late_is_ended_by_its_next_statement(shop: Shop, by: str) -> None:
    now = [0.0]
    shop.hf._opener._monotonic = lambda: now[0]

    async def charge(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            await add(tx, 1)
            await orm(tx, lambda session: session.flush())
            session = tx.session
            now[0] += shop.hf.settings.transaction_seconds + 0.1
            if by == "tx":
                await tx.execute(PAY, id=2)
            if by == "session":
                found = session.execute(text(PAY), {"id": 2})
                await found if shop.is_async else found
            return tx.finish(n)

    error = await failed(shop, charge)

    assert error.startswith("TransactionTimeout: this block was open for 5 s")
    assert await shop.bills() == []


@pytest.mark.parametrize("shop", by_driver("sqlite"), indirect=True)
async def test_on_sqlite_a_block_has_the_right_to_write_from_its_beginning(shop: Shop) -> None:
    """Also where a listener of the user's begins transactions, as SQLAlchemy's own pages show it."""
    engine = shop.engine.sync_engine if shop.is_async else shop.engine

    @event.listens_for(engine, "connect")
    def by_hand(connection: Any, record: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin_deferred(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")

    block = await begin(shop)
    hurried = Holdfast(settings=shop.hf.settings.model_copy(update={"deadline_seconds": 0.2}))

    with pytest.raises(Busy):
        hurried.store.run_sync(add_bill, 1)
    await block.query(PAY, {"id": 2})
    await block.commit()
    hurried.sync.close()

    assert await shop.bills() == [2]


# what goes wrong with the connection


@pytest.mark.parametrize("shop", by_driver("postgres"), indirect=True)
@pytest.mark.parametrize("at", ["statement", "end"])
async def test_a_backend_that_is_ended_inside_the_block_undoes_everything(shop: Shop, at: str) -> None:
    """F-15, I-66."""

    async def charge(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            await add(tx, 1)
            row = await tx.fetch_one("SELECT pg_backend_pid() AS pid")
            if ctx.job.attempt == 1:
                shop.hf.store.run_sync(terminate, row.pid)
                if at == "statement":
                    await tx.execute(PAY, id=2)
            return tx.finish(n)

    task = shop.task(charge, int, retry=Retry(attempts=3, first=0.01))
    async with shop.hf.worker(poll=0.1):
        chain = await shop.hf.start(task())
        assert await chain.result(timeout=15) == 0

    assert (await shop.hf.get_job(chain)).attempt == 2
    assert await shop.bills() == [1]


async def terminate(tx: Any, pid: int) -> None:
    """End a backend, and wait until it is gone."""
    await tx.fetch_all("SELECT pg_terminate_backend(CAST(:pid AS bigint)::int, 5000)", pid=pid)


@pytest.mark.parametrize("shop", by_driver("postgres"), indirect=True)
@pytest.mark.parametrize("cut", ["before", "after"])
async def test_if_the_answer_to_commit_is_lost_the_outcome_is_looked_up(shop: Shop, cut: Any) -> None:
    """F-16, I-55."""
    after: list[str] = []
    with FaultProxy(shop.url) as proxy:
        async with engine_of(shop.driver)(proxy.url, shop.driver) as engine:

            async def charge(ctx: Any, n: int) -> Any:
                async with ctx.complete(using=engine) as tx:
                    await add(tx, 1)
                    proxy.cut_at_commit = cut
                    tx.finish(n)
                after.append("went on")
                return n

            if cut == "after":
                assert await result(shop, charge) == 0
            else:
                assert "nothing of the block was saved" in await failed(shop, charge)

    assert await shop.bills() == ([1] if cut == "after" else [])
    assert after == (["went on"] if cut == "after" else [])


# several tasks at once


@pytest.mark.parametrize("shop", by_driver(is_async=True), indirect=True)
async def test_what_tasks_do_at_once_by_tx_is_done_in_turn(shop: Shop) -> None:
    async def charge(ctx: Any, n: int) -> Any:
        async with ctx.complete() as tx:
            writes = [tx.execute(PAY, id=number) for number in range(4)]
            await asyncio.gather(*writes, tx.start(task(n=9), delay=600), tx.start(task(n=9), delay=600))
            return tx.finish(n)

    task = shop.task(charge, int, retry=ONCE)
    async with shop.hf.worker():
        assert await (await shop.hf.start(task())).result(timeout=10) == 0

    assert await shop.bills() == [0, 1, 2, 3]
    assert len((await shop.hf.list_jobs()).items) == 3


@pytest.mark.parametrize("shop", by_driver("postgres", is_async=True), indirect=True)
async def test_a_statement_of_ours_that_meets_one_of_the_session_s_does_not_commit_the_rest(shop: Shop) -> None:
    """asyncpg refuses it, psycopg has it wait."""
    block = await begin(shop)
    await block.query(PAY, {"id": 1})
    stray = asyncio.create_task(block.session.execute(text("SELECT pg_sleep(1)")))
    await until(lambda: is_under_way(shop, threading.Event()), "the statement is under way")

    if shop.driver != "asyncpg":
        await block.run(add_bill, 2)
        await stray
        await block.commit()
        assert await shop.bills() == [1, 2]
        return

    with pytest.raises(WrongConnection, match="another statement is running"):
        await block.run(add_bill, 2)
    await stray
    with pytest.raises(TransactionBroken, match="another statement is running"):
        await block.commit()
    assert await shop.bills() == []


# cancellation


async def slow_statement(
    shop: Shop, tx: Any, reached: threading.Event, *, rows: int = 10**12, seconds: float = 30
) -> str:
    """Write a statement that takes long; on SQLite it sets *reached* when it has begun."""
    if shop.database == "postgres":
        return f"SELECT pg_sleep({seconds})"

    def reach() -> int:
        reached.set()
        return 1

    made = tx.connection.create_function("reach", 0, reach)
    if shop.is_async:
        await made
    return f"WITH RECURSIVE n(n) AS (SELECT reach() UNION ALL SELECT n + 1 FROM n LIMIT {rows}) SELECT max(n) FROM n"


SLEEPS = "datname = current_database() AND state = 'active' AND query LIKE 'SELECT pg_sleep%'"


async def end_what_sleeps(tx: Any) -> None:
    """End slow statements that go on at the server though nobody waits for them; the next test would see them."""
    await tx.fetch_all(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {SLEEPS}")


async def is_under_way(shop: Shop, reached: threading.Event) -> bool:
    """Tell whether the slow statement has reached the database."""

    async def sleeps(tx: Any) -> bool:
        return bool(await tx.fetch_all(f"SELECT 1 FROM pg_stat_activity WHERE {SLEEPS}"))

    return await shop.hf.store.read(sleeps) if shop.database == "postgres" else reached.is_set()


@pytest.mark.parametrize("shop", by_driver(is_async=True), indirect=True)
async def test_a_handler_that_is_cancelled_in_a_statement_of_its_session_leaves_nothing(shop: Shop) -> None:
    witness = Witness()

    async def charge(ctx: Any, n: int) -> Any:
        async with witness.watching(), ctx.complete() as tx:
            await add(tx, 1)
            await tx.session.flush()
            await tx.session.execute(text(await slow_statement(shop, tx, threading.Event(), rows=3_000_000)))
            return tx.finish(n)

    task = shop.task(charge, int, timeout=0.3, retry=ONCE)
    async with shop.hf.worker():
        chain = await shop.hf.start(task())
        await shop.until_status(chain, "failed")

    assert witness.codes == ["CancelledError"]
    assert await shop.bills() == []
    block = await begin(shop)  # the pool has a connection in order
    await block.query(PAY, {"id": 2})
    await block.commit()
    assert await shop.bills() == [2]


@pytest.mark.parametrize("shop", by_driver(is_async=True), indirect=True)
async def test_a_caller_cancelled_at_commit_waits_for_the_outcome(shop: Shop) -> None:
    block = await begin(shop)
    await block.query(PAY, {"id": 1})
    connection = await block.session.run_sync(lambda session: session.connection())
    sending = asyncio.Event()
    event.listen(connection, "commit", lambda _: sending.set())

    task = asyncio.create_task(block.commit())
    await sending.wait()
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert block.is_committed
    assert await shop.bills() == [1]


@pytest.mark.parametrize("shop", by_driver(is_async=True), indirect=True)
async def test_a_block_can_be_rolled_back_while_a_statement_is_under_way(shop: Shop) -> None:
    block, reached = await begin(shop), threading.Event()
    await block.query(PAY, {"id": 1})
    task = asyncio.create_task(block.query(await slow_statement(shop, block, reached), {}))
    await until(lambda: is_under_way(shop, reached), "the statement is under way")

    await block.roll_back()

    with pytest.raises(TransactionBroken, match="was interrupted"):
        await asyncio.wait_for(task, 10)
    assert await shop.bills() == []
    again = await begin(shop)
    await again.query(PAY, {"id": 2})
    await again.commit()
    assert await shop.bills() == [2]


@pytest.mark.parametrize("shop", by_driver(is_async=False), indirect=True)
async def test_a_block_can_be_rolled_back_from_another_thread(shop: Shop) -> None:
    block, reached = await begin(shop), threading.Event()
    drive(block.query(PAY, {"id": 1}))
    slow = await slow_statement(shop, block, reached)
    statement = asyncio.create_task(asyncio.to_thread(lambda: drive(block.query(slow, {}))))
    await until(lambda: is_under_way(shop, reached), "the statement is under way")

    await asyncio.to_thread(lambda: drive(block.roll_back()))

    with pytest.raises(TransactionBroken, match="was interrupted"):
        await asyncio.wait_for(statement, 10)
    assert await shop.bills() == []


@pytest.mark.parametrize("shop", by_driver(is_async=True), indirect=True)
async def test_who_is_cancelled_while_he_waits_for_a_block_leaves_none_open(shop: Shop) -> None:
    async with another_engine(shop, pool_size=1, max_overflow=0) as engine:
        first = await begin(shop, engine)
        second = asyncio.create_task(begin(shop, engine))
        await until(lambda: engine.pool.overflow() == 0 and not second.done(), "it waits for the pool")
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        await first.roll_back()

        block = await begin(shop, engine)
        await block.query(PAY, {"id": 1})
        await block.commit()

    assert await shop.bills() == [1]


@pytest.mark.parametrize("shop", by_driver(is_async=True), indirect=True)
async def test_a_task_that_is_left_behind_in_the_session_does_not_keep_the_block_open(shop: Shop) -> None:
    block, reached = await begin(shop), threading.Event()
    await block.query(PAY, {"id": 1})
    slow = await slow_statement(shop, block, reached, seconds=2)  # asyncpg's goes on for as long on the server
    stray = asyncio.create_task(block.session.execute(text(slow)))
    await until(lambda: is_under_way(shop, reached), "the statement is under way")

    await asyncio.wait_for(block.roll_back(), 10)

    with pytest.raises((exc.SQLAlchemyError, asyncio.CancelledError)):
        await asyncio.wait_for(stray, 10)
    await until(lambda: has_ended(shop), "the server has noticed")
    again = await begin(shop)
    await again.query(PAY, {"id": 1})
    await again.commit()
    assert await shop.bills() == [1]


async def has_ended(shop: Shop) -> bool:
    """Tell whether no slow statement is under way."""
    return not await is_under_way(shop, threading.Event())
