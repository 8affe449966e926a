"""The one kind of operation: an open transaction, and how blocking code runs what is written for it.

A store operation is a straight-line coroutine: an `async def` whose first parameter is an open transaction and which
awaits only that, or another operation. Async callers await it. What never suspends, blocking code finishes with one
`send(None)`. So each operation is written once, for both databases, both colours, our connection and the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeAlias, TypeVar, cast

from holdfast.store.dialect import Dialect
from holdfast.store.hints import Hear, Watch

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Row: TypeAlias = tuple[Any, ...]
Database: TypeAlias = Literal["sqlite", "postgres"]


class Tx(Protocol):
    """An open transaction: it runs SQL, and can neither begin, commit nor roll back."""

    @property
    def database(self) -> Database:
        """Which database it is on, for the few statements that have a text for each."""

    async def execute(self, sql: str, /, **values: object) -> None:
        """Run *sql* and throw its rows away."""

    async def fetch_all(self, sql: str, /, **values: object) -> list[Row]:
        """Run *sql* and return all of its rows."""


Operation: TypeAlias = Callable[Concatenate[Tx, P], Coroutine[Any, Any, R]]
ListOperation: TypeAlias = Callable[[Tx, Sequence[T]], Coroutine[Any, Any, Sequence[R]]]


def drive(operation: Coroutine[Any, Any, R]) -> R:
    """Run *operation* to its end over a blocking transaction, whose awaits never suspend."""
    try:
        operation.send(None)
    except StopIteration as end:
        return cast("R", end.value)
    operation.close()
    raise RuntimeError("a store operation may await nothing but its transaction")


def repeatable(operation: Callable[P, R]) -> Callable[P, R]:
    """Mark *operation* as safe to run again after an unknown outcome: its rows are named by whoever calls it."""
    operation.__dict__["repeatable"] = True
    return operation


def is_repeatable(operation: Callable[..., object]) -> bool:
    """Tell whether *operation* was marked by `repeatable`."""
    return bool(getattr(operation, "repeatable", False))


class Runner(Protocol):
    """Whatever runs operations for who awaits them: a store, its blocking twin, a caller's open transaction."""

    async def run(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation* in a write transaction."""

    async def read(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation*, which only reads, over one consistent view."""

    async def gather(self, operation: ListOperation[T, R], items: Sequence[T]) -> Sequence[R]:
        """Run a list operation on *items*, sharing its commit with whoever else waits."""


class Store(Runner, Protocol):
    """A database that holds our tables, and transactions of our own on it, in both colours."""

    dialect: Dialect
    database: Database

    def run_sync(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation* in a write transaction, blocking."""

    def read_sync(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation*, which only reads, over one consistent view, blocking."""

    def gather_sync(self, operation: ListOperation[T, R], items: Sequence[T]) -> Sequence[R]:
        """Run a list operation on *items*, sharing its commit with whoever else waits, blocking."""

    async def open(self) -> None:
        """Connect and check the schema; the first use does it too."""

    def open_sync(self) -> None:
        """Connect and check the schema, blocking."""

    async def close(self) -> None:
        """Let go of every connection and thread; the next use opens it again."""

    def close_sync(self) -> None:
        """Let go of every connection and thread, blocking."""

    async def migrate(self) -> list[str]:
        """Bring the schema up to date; return the names of the steps that were taken."""

    def migrate_sync(self) -> list[str]:
        """Bring the schema up to date, blocking."""

    def watch(self, hear: Hear) -> Watch:
        """Have *hear* called, in any thread, whenever something may have grown here, until the watch is stopped."""

    def standing_sync(self) -> Standing:
        """Tell how far the schema has been brought; makes and changes nothing."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a database has been brought, and the oldest code that suits it; 0 where there is nothing yet."""

    schema: int
    oldest_code: int


class Blocking:
    """A store's blocking side in the shape of a `Runner`: nothing that is awaited here suspends."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def run(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation* in a write transaction."""
        return self._store.run_sync(operation, *args, **kwargs)

    async def read(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation*, which only reads, over one consistent view."""
        return self._store.read_sync(operation, *args, **kwargs)

    async def gather(self, operation: ListOperation[T, R], items: Sequence[T]) -> Sequence[R]:
        """Run a list operation on *items*, sharing its commit with whoever else waits."""
        return self._store.gather_sync(operation, items)
