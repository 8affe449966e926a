"""The one kind of operation: an open transaction, and how blocking code runs what is written for it.

A store operation is a straight-line coroutine: an `async def` whose first parameter is an open transaction and which
awaits only that, or another operation. Async callers await it. What never suspends, blocking code finishes with one
`send(None)`. So each operation is written once, for both databases, both colours, our connection and the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Concatenate, Literal, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar, cast

from holdfast.database.dialect import Dialect
from holdfast.database.hints import HintListener, OnHint
from holdfast.database.records import Record
from holdfast.errors import Misuse
from holdfast.fault_points import is_armed, watched

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
First: TypeAlias = Callable[[Tx], Coroutine[Any, Any, object]]
"""What is looked at as a transaction opens; it raises to refuse it."""
Last: TypeAlias = First
"""What is written right before COMMIT; it raises to refuse it."""
RemovePlace: TypeAlias = Callable[[Tx], Coroutine[Any, Any, None]]
"""Removes the place of a tenant, within a transaction of the control place."""
ListOperation: TypeAlias = Callable[[Tx, Sequence[T]], Coroutine[Any, Any, Sequence[R]]]


def drive(operation: Coroutine[Any, Any, R]) -> R:
    """Run *operation* to its end over a blocking transaction, whose awaits never suspend."""
    try:
        operation.send(None)
    except StopIteration as end:
        return cast("R", end.value)
    operation.close()
    raise RuntimeError("a store operation may await nothing but its transaction")


def bound(operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> Callable[[Tx], Coroutine[Any, Any, R]]:
    """Give *operation* its arguments, so that it lacks only a transaction; every operation that writes comes by here.

    While a crash point is armed, its statements are points.
    """
    if is_armed():
        return lambda tx: operation(watched(operation, args, tx), *args, **kwargs)
    return lambda tx: operation(tx, *args, **kwargs)


async def commit_with(tx: Tx, sql: str, /, **values: object) -> bool:
    """Run *sql* and COMMIT behind it in one round trip, where *tx* can do that; tell whether both have happened.

    Where it is not to be committed, *sql* divides by zero. Then, and where *tx* cannot do it, nothing has happened.
    """
    run = getattr(tx, "commit_with", None)
    return run is not None and bool(await run(sql, **values))


def repeatable(operation: Callable[P, R]) -> Callable[P, R]:
    """Mark *operation* as safe to run again after an unknown outcome: its rows are named by whoever calls it."""
    operation.__dict__["repeatable"] = True
    return operation


def is_repeatable(operation: Callable[..., object]) -> bool:
    """Tell whether *operation* was marked by `repeatable`."""
    return bool(getattr(operation, "repeatable", False))


def one_write(operation: Callable[P, R]) -> Callable[P, R]:
    """Mark *operation* as one that writes by one statement, so that it needs no BEGIN and no COMMIT around it."""
    operation.__dict__["one_write"] = True
    return operation


def is_one_write(operation: Callable[..., object]) -> bool:
    """Tell whether *operation* was marked by `one_write`."""
    return bool(getattr(operation, "one_write", False))


def patient(operation: Callable[P, R]) -> Callable[P, R]:
    """Mark *operation* as one that may take longer than others: what it writes may be large, and cannot be less."""
    operation.__dict__["patient"] = True
    return operation


def is_patient(operation: Callable[..., object]) -> bool:
    """Tell whether *operation* was marked by `patient`."""
    return bool(getattr(operation, "patient", False))


def gives_way(operation: Callable[P, R]) -> Callable[P, R]:
    """Mark *operation* as one that soon raises `Busy` if another has a lock: others wait for what it holds itself."""
    operation.__dict__["gives_way"] = True
    return operation


def is_giving_way(operation: Callable[..., object]) -> bool:
    """Tell whether *operation* was marked by `gives_way`."""
    return bool(getattr(operation, "gives_way", False))


Execute: TypeAlias = Callable[[str, Sequence[object]], Any]
"""Runs one statement with its values by place, at once; gives the driver's cursor."""


def brief(form: Callable[[Execute, T], R]) -> Callable[[Callable[P, Any]], Callable[P, Any]]:
    """Give a list operation a brief *form* for a single plain item, where no statement has to be awaited.

    It does the same by as few steps as can be: on a caller's SQLite connection the steps cost more than the statements.
    """

    def mark(operation: Callable[P, Any]) -> Callable[P, Any]:
        operation.__dict__["brief"] = form
        return operation

    return mark


def brief_form(operation: Callable[..., Any], items: Sequence[object]) -> Callable[[Execute, Any], Any] | None:
    """Give the form that `brief` has marked, if it suits *items*; none while a crash point is armed."""
    if len(items) == 1 and getattr(items[0], "is_plain", False) and not is_armed():
        return cast("Callable[[Execute, Any], Any] | None", getattr(operation, "brief", None))
    return None


def size_of(items: Sequence[object]) -> int:
    """Say about how many bytes are sent for *items* of a list operation, as far as they know it themselves."""
    return sum(getattr(item, "size", 0) for item in items)


def nothing() -> None:
    """Take no note."""


class Runner(Protocol):
    """Whatever runs operations for who awaits them: a store, its blocking twin, a caller's open transaction."""

    async def run(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation* in a write transaction."""

    async def read(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation*, which only reads, over one consistent view."""

    async def gather(self, operation: ListOperation[T, R], items: Sequence[T]) -> Sequence[R]:
        """Run a list operation on *items*, sharing its commit with whoever else waits."""


class OpenTx(Runner, Protocol):
    """A write transaction, ours or of the user's own kind, that stays open around a user's code.

    It is also a `Runner`: operations of ours run in it, a whole one in a single hop where there are threads, with our
    deadline, and the driver's errors come out as ours. The user's statements have no deadline but the one of the block,
    and come out with the driver's own errors, save that the connection is gone or the block's time over. Whoever has
    one ends it, by `commit` or `roll_back`, in every case. Its coroutines never suspend on the blocking side.
    """

    @property
    def tx(self) -> Tx:
        """The transaction as operations see it, for who must run them one by one."""

    @property
    def connection(self) -> Any:
        """The driver's own connection, of the block's colour; sqlite3's is always blocking."""

    @property
    def session(self) -> Any:
        """The object of the user's own library that is the transaction; `Misuse` where the transaction is ours."""

    @property
    def is_committed(self) -> bool:
        """Tell whether COMMIT has succeeded, also if whoever waited for it was cancelled meanwhile."""

    async def query(self, sql: str, values: Mapping[str, object]) -> list[Record]:
        """Run the user's *sql* and return its rows; none, if it is a statement that gives none."""

    async def begin_savepoint(self) -> str:
        """Mark a place to which one may roll back; return its name."""

    async def release(self, name: str) -> None:
        """Forget the savepoint *name* and keep what was done since."""

    async def roll_back_to(self, name: str) -> None:
        """Undo what was done since the savepoint *name*, errors included, and forget it."""

    def refuse_unusable(self) -> None:
        """Raise if it cannot be committed: `TransactionBroken`, `TransactionTimeout`, `Unavailable` or `Misuse`."""

    async def commit(self, last: Last | None = None, begin_commit: Callable[[], None] = nothing) -> None:
        """Run *last*, commit, and give the connection back; raise `UnknownOutcome` if the answer to COMMIT was lost.

        Where a hop or a round trip can be saved, *last* and COMMIT are one. *Begin_commit* is called right before what
        nobody can break off any more: a caller who is cancelled then waits for the outcome. Any other error means that
        everything was rolled back.
        """

    async def roll_back(self) -> None:
        """Undo everything and give the connection back, whatever state it is in; again, or after its end, do nothing.

        It may be called from any thread or task, also while a statement is under way, which then fails at once.
        """


def no_session() -> Misuse:
    """Make the error for who asks for the session of a block whose transaction is ours."""
    return Misuse(
        "this block's transaction is Holdfast's own, without a session: give `using=` or `transactions=` of this "
        "handler's colour, such as SQLAlchemy(engine) for a plain handler and SQLAlchemy(async_engine) for an async one"
    )


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

    async def begin(self, lease_seconds: float, first: First | None = None) -> OpenTx:
        """Open a transaction that stays open around a user's code; wait for it as long as the caller does.

        A process that stands still for *lease_seconds* meanwhile loses it, as it loses its lease. *First* runs in it
        before anybody has it, without a round trip or a hop of its own; if it raises, nothing is open.
        """

    def begin_sync(self, lease_seconds: float, first: First | None = None) -> OpenTx:
        """Open a transaction that stays open around a user's code, blocking."""

    async def open(self) -> None:
        """Connect and check the schema; the first use does it too."""

    def open_sync(self) -> None:
        """Connect and check the schema, blocking."""

    async def close(self) -> None:
        """Let go of every connection and thread; the next use opens it again."""

    def close_sync(self) -> None:
        """Let go of every connection and thread, blocking."""

    async def migrate(self) -> list[str]:
        """Migrate the schema to this release; return the names of the applied steps."""

    def migrate_sync(self) -> list[str]:
        """Bring the schema up to date, blocking."""

    def watch(self, on_hint: OnHint, *, follows_log: bool = False) -> HintListener:
        """Have *on_hint* called, in any thread, whenever something may have grown here, until the listener is stopped.

        One that *follows_log* also hears of what makes only the log grow.
        """

    def tidy(self) -> None:
        """Keep the files of the database small, where that is ours to do; waits for nothing."""

    def standing_sync(self) -> SchemaVersion:
        """Tell how far the schema has been brought; makes and changes nothing."""


class SchemaVersion(NamedTuple):
    """How far a database has been brought, and the oldest code that suits it; 0 where there is nothing yet."""

    schema: int
    oldest_code: int


def plain(runner: Runner) -> Runner:
    """Give what runs operations and nothing else, behind what adds to them."""
    found: Runner = getattr(runner, "plain", runner)
    return found


class Blocking:
    """A store's blocking side in the shape of a `Runner`: nothing that is awaited here suspends."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def plain(self) -> Runner:
        """The same of what runs operations and nothing else."""
        return Blocking(cast("Store", plain(self._store)))

    async def run(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return self._store.run_sync(operation, *args, **kwargs)

    async def read(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return self._store.read_sync(operation, *args, **kwargs)

    async def gather(self, operation: ListOperation[T, R], items: Sequence[T]) -> Sequence[R]:
        return self._store.gather_sync(operation, items)
