"""What there is to know about a caller's object: how to run our statements on it, and when not to."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from holdfast.store.dialect import Dialect
from holdfast.store.tx import Database, Tx

R = TypeVar("R")


class Run(Protocol):
    """Runs work of ours in the transaction of a driver's connection, with our errors; on a blocking one, at once."""

    async def __call__(self, connection: Any, dialect: Dialect, work: Callable[[Tx], Coroutine[Any, Any, R]]) -> R: ...


@dataclass(frozen=True, slots=True)
class Driver:
    """The connections of one driver, by the name of their type."""

    type_name: str
    database: Database
    is_async: bool
    refuse: Callable[[Any], None]
    """Raises if it cannot be used: closed, failed, in no transaction; nothing is sent."""
    run: Run


@dataclass(frozen=True, slots=True)
class Lent:
    """The driver's connection behind a library's object."""

    connection: Any
    opens: Callable[[], AbstractContextManager[object]] | None = None
    """Opens and ends the library's transaction around a verb of ours, where none is open; None where one is."""


@dataclass(frozen=True, slots=True)
class Library:
    """The objects of a library that stand for a driver's connection, by the name of their type."""

    type_name: str
    is_async: bool
    lend: Callable[[Any], Coroutine[Any, Any, Lent]]
    """Reaches the driver's connection, in the transaction that the object has open, or raises why not.

    It never suspends where the object is blocking.
    """
