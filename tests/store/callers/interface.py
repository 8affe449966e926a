"""What the contract of borrowed connections asks of a library: to connect, and to do what its users do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from holdfast.database.tx import Database


class Can(StrEnum):
    """What not every library can express; a test that needs it runs over those that can."""

    REFUSE_WITHOUT_TRANSACTION = "refuse without transaction"
    """With no transaction open we refuse it; where we do not, we open the library's own."""
    AUTOCOMMIT = "autocommit"
    """`connect(autocommit=True)`: each statement commits alone."""
    BEGIN_BY_HAND = "begin by hand"
    """On such a connection a BEGIN and a COMMIT that are executed make a transaction."""
    ENCODING = "encoding"
    """`connect(encoding="latin1")`: another encoding than UTF-8, in PostgreSQL's words."""
    CLOSE = "close"
    """Once closed it stays closed, and does not connect anew when it is used."""
    CURSOR = "cursor"
    """`cursor()`: it makes cursors."""
    ISOLATION_LEVEL = "isolation level"
    """`connect(isolation_level="DEFERRED")`: Python's module of SQLite begins transactions of itself."""
    DETECT_TYPES = "detect types"
    """`connect(detect_types=…)`: Python's module of SQLite converts what it reads."""
    THREAD = "thread"
    """It may be used in one thread only."""


class Caller(ABC):
    """A connection of the caller's own, under `await` in either colour."""

    connection: Any
    """What is passed as `connection=`."""

    @abstractmethod
    async def execute(self, statement: str) -> list[Any]:
        """Run a statement of the caller's, as it stands; give its rows, none if it has none."""

    @abstractmethod
    async def begin(self) -> None:
        """Open a transaction in the way that the library's users do."""

    @abstractmethod
    async def commit(self) -> None:
        """Commit."""

    @abstractmethod
    async def rollback(self) -> None:
        """Roll back, also a transaction that has failed."""

    @abstractmethod
    async def close(self) -> None:
        """Close; again, do nothing."""

    async def begin_repeatable_read(self) -> None:
        """Open a transaction in REPEATABLE READ."""
        await self.begin()
        await self.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")

    async def savepoint(self) -> None:
        """Mark a place in the transaction."""
        await self.execute("SAVEPOINT mine")

    async def rollback_to_savepoint(self) -> None:
        """Undo what was done since the place that was marked last."""
        await self.execute("ROLLBACK TO SAVEPOINT mine")

    async def cursor(self) -> Any:
        """Make a cursor, or what the library has in its place."""
        return self.connection.cursor()

    async def trace(self, hear: Callable[[str], object]) -> None:
        """Have *hear* called with each statement that goes to SQLite from now on; PostgreSQL's wire is listened to."""
        raise NotImplementedError

    async def in_transaction(self) -> bool:
        """Tell whether SQLite has a transaction open here."""
        raise NotImplementedError


Connect: TypeAlias = Callable[..., Coroutine[Any, Any, Caller]]
Habit: TypeAlias = Callable[[Caller], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Stack:
    """One kind of connection: a library's, on one database, in one colour."""

    name: str
    database: Database
    is_async: bool
    connect: Connect
    """Connects as a user would: `connect(address, **options)`, options as `Can` names them, else the library's own."""
    missing_table: type[Exception]
    """What the library raises when a table is not there."""
    habits: tuple[Habit, ...] = ()
    """What a caller may do to its connection, inside a transaction, that may change no result of ours."""
    can: frozenset[Can] = frozenset()
    is_twin: bool = False
    """Much like another one, so that it goes through the contract only in the long run."""

    def __str__(self) -> str:
        return self.name
