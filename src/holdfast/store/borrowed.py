"""A caller's own connection, known by its type and asked before the first statement.

We only run statements on it: no COMMIT, ROLLBACK or close, no retry. So it must already be in a transaction that can
go on, of the face's colour, on this store's database. The object itself is asked first, with nothing sent; then one
read that cannot fail asks which database it is. Every refusal says what to write, and leaves the connection usable.
"""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from holdfast.errors import TransactionRequired, WrongConnection
from holdfast.store import migrations
from holdfast.store.tx import Database, ListOperation, Operation, P, R, Store, T, Tx

Identity: TypeAlias = Callable[[], Awaitable[str | None]]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of connection: how it is known, asked, and made into a transaction of ours."""

    type_name: str
    database: Database
    is_async: bool
    refuse: Callable[[Any], None]
    transaction: Callable[[Any, Store], Tx]
    around: Callable[[Any], AbstractContextManager[object]]
    """A context for our statements, in which the driver's errors are ours and its values are plain."""


class Borrowed:
    """A caller's open transaction in the shape of a `Runner`."""

    def __init__(self, tx: Tx, connection: Any, kind: Kind) -> None:
        self._tx = tx
        self._connection = connection
        self._kind = kind

    async def run(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation* in the caller's transaction, once."""
        with self._kind.around(self._connection):
            return await operation(self._tx, *args, **kwargs)

    async def read(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation* in the caller's transaction, once: it sees what the caller has written."""
        return await self.run(operation, *args, **kwargs)

    async def gather(self, operation: ListOperation[T, R], items: Sequence[T]) -> Sequence[R]:
        """Run a list operation in the caller's transaction, once."""
        return await self.run(operation, items)


class Lender:
    """Makes `Borrowed` transactions out of callers' connections to one store's database."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._identity: str | None = None
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    async def borrow(self, connection: object, *, is_async: bool, identity: Identity) -> Borrowed:
        """Check *connection* and wrap it; *identity* reads which database is ours, when that is in question."""
        kind = _kind_of(connection)
        _refuse_colour(connection, kind, is_async)
        if kind.database != self._store.database:
            raise _another_database()
        kind.refuse(connection)
        borrowed = Borrowed(kind.transaction(connection, self._store), connection, kind)
        if connection not in self._known:
            await self._refuse_stranger(borrowed, identity)
            with suppress(TypeError):  # sqlite3's cannot be remembered weakly; to ask them costs no round trip
                self._known.add(connection)
        return borrowed

    async def _refuse_stranger(self, borrowed: Borrowed, identity: Identity) -> None:
        found = await borrowed.read(migrations.identity, self._store.database)
        if found is None:  # we may not make our tables now: the caller may hold SQLite's only write lock
            raise WrongConnection(
                "this connection leads to another database, or to one without our tables, or may not read them; if it "
                "is the right one, open hf before the transaction begins (`async with hf:`, `with hf.sync:`), or run "
                "`holdfast migrate`"
            )
        if found != self._identity:  # ours may be unknown still, or a new file in the place of the one it was
            self._identity = await identity()
        if found != self._identity:
            raise _another_database()


def _another_database() -> WrongConnection:
    return WrongConnection(
        "this connection leads to another database than hf does; pass one to hf's own, or make a Holdfast for it"
    )


def _kind_of(connection: object) -> Kind:
    for each in type(connection).__mro__:
        if (kind := KINDS.get(f"{each.__module__}.{each.__name__}")) is not None:
            return kind
    known = ", ".join(sorted(KINDS))
    raise WrongConnection(
        f"a {type(connection).__module__}.{type(connection).__qualname__} is no connection that Holdfast knows; "
        f"pass one of {known}"
    )


def _refuse_colour(connection: object, kind: Kind, is_async: bool) -> None:
    if kind.is_async and not is_async:
        raise WrongConnection("this connection is async; write `await hf.start(…, connection=connection)`")
    if is_async and not kind.is_async:
        raise WrongConnection("this connection is blocking; write `hf.sync.start(…, connection=connection)`")


IDLE, FAILED, UNKNOWN = 0, 3, 4  # libpq's words for the state of a transaction


def _refuse_psycopg(connection: Any) -> None:
    if connection.closed:
        raise WrongConnection("this connection is closed; pass one that is open and in a transaction")
    if connection.info.parameter_status("client_encoding") != "UTF8":  # part of a start would be done by then
        raise WrongConnection(
            'this connection\'s encoding does not know every character; connect with client_encoding="utf8"'
        )
    status = connection.info.transaction_status
    if status == FAILED:
        raise TransactionRequired(
            "the transaction on this connection has failed; roll it back, or to a savepoint, and start the job anew"
        )
    if status in (IDLE, UNKNOWN):
        raise TransactionRequired(
            "no transaction is open on this connection; write `with connection.transaction():` around your statements "
            "and this one (`async with` for an async connection)"
        )


def _refuse_sqlite(connection: Any) -> None:
    try:
        is_open = connection.in_transaction
        connection.total_changes  # noqa: B018 - raises on a closed connection, and asks the database nothing
    except Exception as error:
        raise WrongConnection("this connection is closed; pass one that is open and in a transaction") from error
    if not is_open:
        raise TransactionRequired(
            'no transaction is open on this connection; write `connection.execute("BEGIN IMMEDIATE")` before your '
            "statements and this one"
        )


def _async_psycopg(connection: Any, store: Store) -> Tx:
    from holdfast.store.postgres import AsyncPostgresTx

    return AsyncPostgresTx(connection, store.dialect)


def _psycopg(connection: Any, store: Store) -> Tx:
    from holdfast.store.postgres import PostgresTx

    return PostgresTx(connection, store.dialect)


def _sqlite(connection: Any, store: Store) -> Tx:
    from holdfast.store.sqlite import SqliteTx

    try:
        return SqliteTx(connection, store.dialect)
    except sqlite3.ProgrammingError as error:
        raise WrongConnection(
            "this connection belongs to another thread; start the job there, or connect with check_same_thread=False"
        ) from error


def _psycopg_errors(connection: Any) -> AbstractContextManager[object]:
    from holdfast.store.postgres import translated

    return translated()


@contextmanager
def _texts_as_texts(connection: Any) -> Iterator[None]:
    text_factory, connection.text_factory = connection.text_factory, str
    try:
        yield
    finally:
        connection.text_factory = text_factory


KINDS: dict[str, Kind] = {
    kind.type_name: kind
    for kind in (
        Kind("psycopg.AsyncConnection", "postgres", True, _refuse_psycopg, _async_psycopg, _psycopg_errors),
        Kind("psycopg.Connection", "postgres", False, _refuse_psycopg, _psycopg, _psycopg_errors),
        Kind("sqlite3.Connection", "sqlite", False, _refuse_sqlite, _sqlite, _texts_as_texts),
    )
}
