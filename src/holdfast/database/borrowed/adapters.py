"""What there is to know about a caller's object: how to run our statements on it, and when not to."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from holdfast.database.dialect import Dialect
from holdfast.database.tx import Database, Execute, Tx

R = TypeVar("R")

Intent: TypeAlias = Literal["read", "write"]
"""What work of ours is going to do in the transaction that is opened for it."""


class RunWork(Protocol):
    """Runs work of ours in the transaction of a driver's connection, with our errors; on a blocking one, at once."""

    async def __call__(self, connection: Any, dialect: Dialect, work: Callable[[Tx], Coroutine[Any, Any, R]]) -> R: ...


class Driver(NamedTuple):
    """The connections of one driver, by the name of their type."""

    type_name: str
    database: Database
    is_async: bool
    refuse: Callable[[Any], None]
    """Raises if it cannot be used: closed, failed, in no transaction; nothing is sent."""
    run: RunWork
    leads_to: Callable[[Any, Dialect, str], bool] | None = None
    """Tells by one statement whether it leads to the database of this identity, where that costs no round trip."""
    run_brief: Callable[[Any, Dialect, Callable[[Execute], Any]], Any] | None = None
    """Runs the brief form of an operation, where nothing has to be awaited."""


class DriverConnection(NamedTuple):
    """The driver's connection behind a library's object."""

    connection: Any
    opens: Callable[[Intent], AbstractContextManager[object]] | None = None
    """Opens and ends the library's transaction around work of ours, where the driver is in none; None where it is."""
    watches: Callable[[], AbstractContextManager[object]] = nullcontext
    """Is entered around each work of ours, to tell the library of an error that has broken its transaction."""


class Library(NamedTuple):
    """The objects of a library that stand for a driver's connection, by the name of their type."""

    type_name: str
    is_async: bool
    lend: Callable[[Any], Coroutine[Any, Any, DriverConnection]]
    """Reaches the driver's connection, in the transaction that the object has open, or raises why not.

    It never suspends where the object is blocking.
    """
    is_none: Callable[[Any], str | None] = lambda _: None
    """Says why an object of this type is none of the library's after all, such as a text that is no alias."""
    in_async_code: str | None = None
    """What to write in async code instead, if that is not the usual."""
