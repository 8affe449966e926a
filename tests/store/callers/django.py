"""Django's connections, by alias and as objects; its users open `atomic()`, and savepoints as a second one in it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

from django.db import connections, transaction, utils

from tests.store.callers import psycopg, sqlite3
from tests.store.callers.interface import Caller, Can, Connect, Habit, Stack
from tests.support.databases import django_project

NUMBERS = count(1)


class DjangoCaller(Caller):
    """One alias of DATABASES."""

    def __init__(self, alias: str, connection: Any) -> None:
        self.connection = connection
        self._alias = alias
        self._blocks: list[Any] = []
        self._is_closed = False

    @property
    def driver(self) -> Any:
        """The driver's connection."""
        return connections[self._alias].connection

    async def execute(self, statement: str) -> list[Any]:
        """Run a statement, as Django has it by hand."""
        with connections[self._alias].cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    async def begin(self) -> None:
        """Open `atomic()`; PostgreSQL hears of it with the first statement."""
        self._blocks.append(transaction.atomic(using=self._alias))
        self._blocks[-1].__enter__()

    async def savepoint(self) -> None:
        """Open a second one in it."""
        await self.begin()

    async def rollback_to_savepoint(self) -> None:
        """Leave it as by an error."""
        self._leave(RuntimeError())

    async def commit(self) -> None:
        """Leave all."""
        while self._blocks:
            self._leave(None)

    async def rollback(self) -> None:
        """Leave all as by an error."""
        while self._blocks:
            self._leave(RuntimeError())

    async def close(self) -> None:
        """Close, and forget the alias."""
        if not self._is_closed:
            self._is_closed = True
            await self.rollback()
            django_project.remove(self._alias)

    async def cursor(self) -> Any:
        """Make a cursor of Django's."""
        return connections[self._alias].cursor()

    async def trace(self, hear: Callable[[str], object]) -> None:
        """Hear of each statement."""
        self.driver.set_trace_callback(hear)

    async def in_transaction(self) -> bool:
        """Ask Python's module."""
        return bool(self.driver.in_transaction)

    def _leave(self, error: Exception | None) -> None:
        self._blocks.pop().__exit__(error and type(error), error, None)


async def connect_alias(address: str, **options: Any) -> Caller:
    """Make an alias, which is passed as it is."""
    alias = _add(address, options)
    return DjangoCaller(alias, alias)


async def connect_object(address: str, **options: Any) -> Caller:
    """Make an alias, and pass this thread's connection of it."""
    alias = _add(address, options)
    return DjangoCaller(alias, connections[alias])


def _add(address: str, options: dict[str, Any]) -> str:
    alias = f"caller_{next(NUMBERS)}"
    django_project.add(alias, django_project.database(address, **options))
    connections[alias].ensure_connection()
    return alias


def on_driver(habit: Habit) -> Habit:
    """Make of a habit of a driver's users one of Django's, who reach for the driver."""

    async def changed(caller: Any) -> None:
        bare: Any = SimpleNamespace(connection=caller.driver)
        await habit(bare)

    changed.__name__ = habit.__name__
    return changed


def stack(name: str, connect: Connect, *more: Can, theirs: Any) -> Stack:
    """Make a stack over the driver of *theirs*."""
    is_sqlite = theirs is sqlite3
    missing = utils.OperationalError if is_sqlite else utils.ProgrammingError
    habits = tuple(map(on_driver, theirs.HABITS))
    can = frozenset({Can.CURSOR, *more})
    is_twin = connect is connect_object
    return Stack(name, "sqlite" if is_sqlite else "postgres", False, connect, missing, habits, can, is_twin)


STACKS = (
    stack("django-psycopg", connect_alias, theirs=psycopg),
    stack("django-psycopg-object", connect_object, Can.THREAD, theirs=psycopg),
    stack("django-sqlite", connect_alias, Can.DETECT_TYPES, theirs=sqlite3),
    stack("django-sqlite-object", connect_object, Can.DETECT_TYPES, Can.THREAD, theirs=sqlite3),
)
