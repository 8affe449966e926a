"""What happens to a user's transaction while it is open: its savepoints, its errors, its time.

A library tells it of each statement as it runs, whoever has sent it. So SQLite, which goes on after an error, commits
no half of a block either.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from holdfast.database.tx import Database
from holdfast.errors import TransactionBroken, TransactionTimeout

SAVEPOINT = re.compile(
    r"(\s|/\*([^*]|\*(?!/))*\*/|--[^\n]*\n)*"  # a listener may tag each statement with who has sent it
    r"(?P<verb>SAVEPOINT|RELEASE|ROLLBACK(\s+(WORK|TRANSACTION))?\s+TO)(\s+SAVEPOINT)?\s+(?P<name>[^\s;]+)",
    re.IGNORECASE,
)


class TransactionWatch:
    """What happens to a user's transaction while it is open: its savepoints, its errors, its time."""

    def __init__(self, database: Database, monotonic: Callable[[], float], seconds: float) -> None:
        self.database = database
        self._monotonic = monotonic
        self._seconds = seconds
        self._until = monotonic() + seconds
        self._savepoints: list[str] = []
        self._broken: tuple[int, str] | None = None

    def ran(self, sql: str) -> None:
        """Note that *sql* has run, by whomever: savepoints are learnt from it, those of the library too."""
        if (found := SAVEPOINT.match(sql)) is None:
            return
        name = found["name"].strip('"').casefold()
        match found["verb"].upper():
            case "SAVEPOINT":
                self._savepoints.append(name)
            case "RELEASE":
                self._kept(self._depth_of(name))
            case _:
                self._undone(self._depth_of(name))

    def failed(self, error: BaseException) -> None:
        """Note that a statement has failed, if it has reached the database: what was never sent breaks nothing."""
        if (said := said_by_database(error)) is not None:
            self.spoil(said)

    def spoil(self, what: str) -> None:
        """Note that *what* happened, after which only an outer savepoint can be rolled back."""
        if self._broken is None or self._broken[0] > len(self._savepoints):
            self._broken = (len(self._savepoints), what)

    def refuse_late(self) -> None:
        """Raise `TransactionTimeout` if it has kept SQLite's other writers waiting for too long."""
        if self.database == "sqlite" and self._monotonic() >= self._until:
            raise TransactionTimeout(
                f"this block was open for {self._seconds:g} s, the longest time that a block may make other SQLite "
                "writers wait, so it is rolled back; do the long work before the block, or raise transaction_seconds"
            )

    def refuse_broken(self) -> None:
        """Raise `TransactionBroken` if a statement has failed and no savepoint has undone it."""
        if self._broken is not None:
            raise TransactionBroken(
                f"a statement of this block has failed ({self._broken[1]}), so the block cannot be committed; let "
                "the error leave the block, or write `tx.savepoint()` around a statement that may fail"
            )

    def _kept(self, depth: int) -> None:
        """Forget the savepoints from *depth* on; an error inside them is now one of what is around them."""
        if self._broken is not None and self._broken[0] > depth:
            self._broken = (depth, self._broken[1])
        del self._savepoints[depth:]

    def _undone(self, depth: int) -> None:
        """Forget the errors inside the savepoint at *depth*, which is still there, and the savepoints inside it."""
        if self._broken is not None and self._broken[0] > depth:
            self._broken = None
        del self._savepoints[depth + 1 :]

    def _depth_of(self, name: str) -> int:
        """Tell how many savepoints are around the last one of this *name*; one that is unknown is inside all."""
        places = [place for place, each in enumerate(self._savepoints) if each == name]
        return places[-1] if places else len(self._savepoints)


def said_by_database(error: BaseException) -> str | None:
    """Give what the database itself said in *error*, by whichever driver; None if it was never asked."""
    for each in reversed(causes(error)):  # the driver's own first: what a library makes of it has the code too
        if getattr(each, "sqlite_errorcode", None) is not None:
            return f"SQLite: {each}"
        if getattr(each, "severity", "unknown") is None:  # asyncpg has refused a value itself, in the server's words
            return None
        if _state(each) is not None:
            return str(each).strip().partition("\n")[0]
    return None


def sqlstate_of(error: BaseException) -> str | None:
    """Find PostgreSQL's own code of *error*, by whichever driver."""
    return next((state for each in causes(error) if (state := _state(each)) is not None), None)


def causes(error: BaseException) -> list[BaseException]:
    """List *error* and what it was raised from, down to the driver's own."""
    found: list[BaseException] = []
    following: object = error
    while isinstance(following, BaseException) and following not in found:
        found.append(following)
        following = getattr(following, "orig", None) or following.__cause__
    return found


def _state(error: BaseException) -> str | None:
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return state if isinstance(state, str) else None
