"""Makes a caller's connection a `Runner`: finds what it is, asks it, and refuses it with the line to write."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, TypeAlias

from holdfast.database import migrations
from holdfast.database.borrowed.adapters import Driver, DriverConnection, Intent, Library
from holdfast.database.tx import ListOperation, Operation, P, R, Store, T, Tx, bound, brief_form
from holdfast.errors import TransactionRequired, WrongConnection

Identity: TypeAlias = Callable[[], Awaitable[str | None]]
Lend: TypeAlias = Callable[[], Coroutine[Any, Any, DriverConnection]]


class Borrowed:
    """A caller's open transaction in the shape of a `Runner`; *lend* reaches it anew, if a library stands before it."""

    def __init__(self, lent: DriverConnection, driver: Driver, store: Store, lend: Lend | None = None) -> None:
        self.lent = lent
        self._driver = driver
        self._store = store
        self._lend = lend

    async def run(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation* in the caller's transaction, once."""
        with self._transaction("write"):
            return await self._run(operation, *args, **kwargs)

    async def read(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation* in the caller's transaction, once: it sees what the caller has written."""
        with self._transaction("read"):
            return await self._run(operation, *args, **kwargs)

    async def ask(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation*, a read that needs no transaction, in the one that is open, or in none."""
        return await self._run(operation, *args, **kwargs)

    async def gather(self, operation: ListOperation[T, R], items: Sequence[T]) -> Sequence[R]:
        """Run a list operation in the caller's transaction, once; by its brief form, if it has one that suits."""
        run_brief = self._driver.run_brief
        if run_brief is None or self._lend is not None or (form := brief_form(operation, items)) is None:
            return await self.run(operation, items)
        self.refuse_ended()
        return [run_brief(self.lent.connection, self._store.dialect, lambda execute: form(execute, items[0]))]

    def refuse_ended(self) -> None:
        """Raise if the driver is no longer in a transaction that can go on, as far as it knows; nothing is sent."""
        self._driver.refuse(self.lent.connection)

    @contextmanager
    def held(self) -> Iterator[Borrowed]:
        """Give one transaction for several operations: the caller's, or the one that is opened here, and ended."""
        with self._transaction("write"):
            yield KeptTransaction(self.lent._replace(opens=None), self._driver, self._store, self._lend)

    async def _run(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        with self.lent.watches():
            return await self._driver.run(self.lent.connection, self._store.dialect, bound(operation, *args, **kwargs))

    def _transaction(self, intent: Intent) -> AbstractContextManager[object]:
        if self.lent.opens is not None:
            return self.lent.opens(intent)
        self.refuse_ended()
        return nullcontext()


class KeptTransaction(Borrowed):
    """The same around code of the caller's, which may have ended the transaction by the time of an operation.

    Then our statements would go into another one: of the caller's, who does not know of it, or of whoever has got the
    connection from its pool. So the driver and the library are asked again before each operation, with nothing sent;
    and each that writes asks the database first, whether it is still the transaction of the first one.
    """

    _mark: str | None = None

    async def run(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation* in the caller's transaction, once, if it is still the one that it was."""
        await self._refuse_another()
        return await self._run(self._marked, operation, *args, **kwargs)

    async def read(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation* in the caller's transaction, once: it sees what the caller has written."""
        await self._refuse_another()
        return await self._run(operation, *args, **kwargs)

    async def gather(self, operation: ListOperation[T, R], items: Sequence[T]) -> Sequence[R]:
        """Run a list operation in the caller's transaction, once, if it is still the one that it was."""
        return await self.run(operation, items)

    async def _refuse_another(self) -> None:
        if self._mark is None:
            return  # it was lent just now, and a driver may begin with the first statement
        try:
            self.refuse_ended()
            lent = self.lent if self._lend is None else await self._lend()
        except (TransactionRequired, WrongConnection) as error:
            raise _ended() from error
        if lent.connection is not self.lent.connection:
            raise _ended()

    async def _marked(self, tx: Tx, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._mark is not None and await _mark(tx) != self._mark:
            raise _ended()
        result = await operation(tx, *args, **kwargs)
        self._mark = self._mark or await _mark(tx)
        return result


async def _mark(tx: Tx) -> str:
    """Read what stays the same in a transaction.

    On SQLite it is another if somebody else has committed between two transactions: if nobody has, what was read in the
    first holds in the second.
    """
    sql = "PRAGMA data_version" if tx.database == "sqlite" else "SELECT CAST(pg_current_xact_id() AS text)"
    ((mark,),) = await tx.fetch_all(sql)
    return str(mark)


class Borrower:
    """Makes `Borrowed` transactions out of callers' connections to one store's database; *file* is it, on SQLite."""

    def __init__(self, store: Store, file: str | None = None) -> None:
        self._store = store
        self._file = file
        self._identity: str | None = None
        self._asked: weakref.WeakSet[Any] = weakref.WeakSet()

    async def know(self, identity: Identity) -> None:
        """Read which database is ours, unless that is known: whoever borrows next need not ask for it meanwhile."""
        if self._identity is None:
            self._identity = await identity()

    async def borrow(self, connection: object, *, is_async: bool, identity: Identity) -> Borrowed:
        """Check *connection* and wrap it; *identity* reads which database is ours, when that is in question."""
        found = _find(connection)
        _refuse_colour(found, is_async)
        lend = partial(found.lend, connection) if isinstance(found, Library) else None
        lent = DriverConnection(connection) if lend is None else await lend()
        driver = _driver_of(lent.connection) if isinstance(found, Library) else found
        if driver.database != self._store.database:
            raise _another_database(self._file)
        if lent.opens is None:
            driver.refuse(lent.connection)
        borrowed = Borrowed(lent, driver, self._store, lend)
        if not self._is_known(lent.connection, driver):
            await self._refuse_stranger(borrowed, identity)
            with suppress(TypeError):  # sqlite3's cannot be remembered weakly
                self._asked.add(lent.connection)
        return borrowed

    def _is_known(self, connection: object, driver: Driver) -> bool:
        """Tell whether *connection* leads to our database, as far as that needs no question to a server."""
        if driver.leads_to is None:
            return connection in self._asked
        return self._identity is not None and driver.leads_to(connection, self._store.dialect, self._identity)

    async def _refuse_stranger(self, borrowed: Borrowed, identity: Identity) -> None:
        found = await borrowed.ask(migrations.identity, self._store.database)
        if found is None:  # we may not make our tables now: the caller may hold SQLite's only write lock
            raise WrongConnection(
                "this connection leads to another database, or to one without the Holdfast tables, or may not read "
                "them; if it is the right one, open hf before the transaction begins (`async with hf:`, `with "
                "hf.sync:`), or run `holdfast migrate`"
            )
        if found != self._identity:  # ours may be unknown still, or a new file in the place of the one it was
            self._identity = await identity()
        if found != self._identity:
            raise _another_database(self._file)


def _ended() -> TransactionRequired:
    return TransactionRequired(
        "the transaction in which this block locked the job has ended or failed; end your transaction after the block, "
        "not inside it: enter `with hf.sync.completing(…)` (`async with hf.completing(…)`) again, in a transaction "
        "that stays open around it"
    )


def _another_database(file: str | None) -> WrongConnection:
    right = "pass a connection to the database of hf"
    if file is not None:  # each tenant has a file: of a tenant, that of `hf` is another one
        right = f"connect to the file {file} (hf.database, or hf.tenant(name).database)"
    return WrongConnection(
        f"this connection leads to another database than hf; {right}, or create another Holdfast for this one"
    )


def _known() -> dict[str, Driver | Library]:
    from holdfast.database.borrowed.known import (
        KNOWN,  # all adapters; only a program that lends a connection needs them
    )

    return KNOWN


def _find(connection: object) -> Driver | Library:
    known = _known()
    for each in type(connection).__mro__:
        if (found := known.get(f"{each.__module__}.{each.__name__}")) is not None:
            why_not = found.is_none(connection) if isinstance(found, Library) else None
            if why_not is not None:
                raise _no_connection(why_not)
            return found
    kind = type(connection)
    raise _no_connection(f"got a {kind.__module__}.{kind.__qualname__}")


def _no_connection(why: str) -> WrongConnection:
    names = ", ".join(sorted(name for name in _known() if name != "builtins.str"))
    return WrongConnection(
        f"connection= takes an open connection, but {why}; Holdfast knows {names}, and Django aliases"
    )


def _driver_of(connection: object) -> Driver:
    found = _find(connection)
    if isinstance(found, Library):
        raise WrongConnection(
            f"this object wraps a {found.type_name}, not a connection of a driver; pass the connection itself"
        )
    return found


def _refuse_colour(found: Driver | Library, is_async: bool) -> None:
    if found.is_async and not is_async:
        raise WrongConnection("this connection is async; write `await hf.start(…, connection=connection)`")
    if is_async and not found.is_async:
        special = found.in_async_code if isinstance(found, Library) else None
        raise WrongConnection(special or "this connection is blocking; write `hf.sync.start(…, connection=connection)`")
