"""Makes a caller's connection a `Runner`: finds what it is, asks it, and refuses it with the line to write."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, TypeAlias

from holdfast.errors import WrongConnection
from holdfast.store import migrations
from holdfast.store.borrowed.kinds import Driver, Lent, Library
from holdfast.store.borrowed.known import KNOWN
from holdfast.store.tx import ListOperation, Operation, P, R, Store, T

Identity: TypeAlias = Callable[[], Awaitable[str | None]]


class Borrowed:
    """A caller's open transaction in the shape of a `Runner`."""

    def __init__(self, lent: Lent, driver: Driver, store: Store) -> None:
        self.lent = lent
        self._driver = driver
        self._dialect = store.dialect

    async def run(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation* in the caller's transaction, once."""
        with self._transaction():
            return await self._driver.run(
                self.lent.connection, self._dialect, lambda tx: operation(tx, *args, **kwargs)
            )

    async def read(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation* in the caller's transaction, once: it sees what the caller has written."""
        return await self.run(operation, *args, **kwargs)

    async def gather(self, operation: ListOperation[T, R], items: Sequence[T]) -> Sequence[R]:
        """Run a list operation in the caller's transaction, once."""
        return await self.run(operation, items)

    def _transaction(self) -> AbstractContextManager[object]:
        return nullcontext() if self.lent.opens is None else self.lent.opens()


class Lender:
    """Makes `Borrowed` transactions out of callers' connections to one store's database."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._identity: str | None = None
        self._asked: weakref.WeakSet[Any] = weakref.WeakSet()

    async def borrow(self, connection: object, *, is_async: bool, identity: Identity) -> Borrowed:
        """Check *connection* and wrap it; *identity* reads which database is ours, when that is in question."""
        found = _find(connection)
        _refuse_colour(found, is_async)
        if isinstance(found, Library):
            lent = await found.lend(connection)
            driver = _driver_of(lent.connection)
        else:
            lent, driver = Lent(connection), found
        if driver.database != self._store.database:
            raise _another_database()
        if lent.opens is None:
            driver.refuse(lent.connection)
        borrowed = Borrowed(lent, driver, self._store)
        if lent.connection not in self._asked:
            await self._refuse_stranger(borrowed, identity)
            with suppress(TypeError):  # sqlite3's cannot be remembered weakly; to ask them costs no round trip
                self._asked.add(lent.connection)
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


def _find(connection: object) -> Driver | Library:
    for each in type(connection).__mro__:
        if (found := KNOWN.get(f"{each.__module__}.{each.__name__}")) is not None:
            return found
    known = ", ".join(sorted(KNOWN))
    raise WrongConnection(
        f"a {type(connection).__module__}.{type(connection).__qualname__} is no connection that Holdfast knows; "
        f"pass one of {known}"
    )


def _driver_of(connection: object) -> Driver:
    found = _find(connection)
    if isinstance(found, Library):
        raise WrongConnection(f"behind this object is a {found.type_name}, and no connection of a driver")
    return found


def _refuse_colour(found: Driver | Library, is_async: bool) -> None:
    if found.is_async and not is_async:
        raise WrongConnection("this connection is async; write `await hf.start(…, connection=connection)`")
    if is_async and not found.is_async:
        raise WrongConnection("this connection is blocking; write `hf.sync.start(…, connection=connection)`")
