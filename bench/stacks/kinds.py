"""What is to be known of a library: its transaction, and the two INSERTs of a start in it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Store: TypeAlias = Literal["SQLite", "PostgreSQL"]


@dataclass(frozen=True, slots=True)
class Means:
    """An open engine or connection of a blocking library."""

    transaction: Callable[[], AbstractContextManager[Any]]
    """Opens a transaction, commits it in the end, and gives what is passed as `connection=`."""
    insert: Callable[[Any, str], None]
    """Inserts a job with this text as its input, and its event, in that transaction."""


@dataclass(frozen=True, slots=True)
class AsyncMeans:
    """The same of an async library."""

    transaction: Callable[[], AbstractAsyncContextManager[Any]]
    insert: Callable[[Any, str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Stack:
    """A blocking library over a driver, by the name that the command line knows it by."""

    name: str
    store: Store
    open: Callable[[str], AbstractContextManager[Means]]
    """Connects to the database at this address."""


@dataclass(frozen=True, slots=True)
class AsyncStack:
    """The same of an async library."""

    name: str
    store: Store
    open: Callable[[str], AbstractAsyncContextManager[AsyncMeans]]


AnyStack: TypeAlias = Stack | AsyncStack
