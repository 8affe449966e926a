"""Makes what tests begin with: tasks, starts, and rows in every state.

A test that can begin with `start`, a claim or a verb does so. `make_job` and `continue_chain` write a row with SQL in
the state that a test asks for, with any column as the test gives it. The rows satisfy every CHECK of the schema.
No operation makes some of these states (a lease that was over before it began, a pending job that no claim sees), and
the test of one operation must not need another one to begin. SQL of this kind stands here and nowhere else.
"""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID, uuid4

from holdfast import Tasks
from holdfast.database.tx import Row, Tx
from holdfast.models import Start
from holdfast.states import OPEN, Status
from holdfast.store import lanes
from holdfast.store.jobs.steering import Asked
from tests.support.log_rows import as_events
from tests.support.ways import Way

TASKS = Tasks()
"""What every way knows."""


@TASKS.task(name="greet")
async def greet(name: str) -> str:
    """Greet *name*."""
    return f"Hello, {name}"


@TASKS.task(name="add", queue="sums", priority=3)
async def add(a: int, b: int) -> int:
    """Add two numbers; its jobs have a queue and a priority of their own."""
    return a + b


HOUR_MS = 3_600_000


def now_ms() -> int:
    """Read this machine's clock, which is also the database's in tests."""
    return time.time_ns() // 1_000_000


def a_start(**given: Any) -> Start:
    """Make a start as the verbs hand it to the store."""
    fields: dict[str, Any] = {"id": uuid4(), "task": "greet", "input": '{"name":"Ada"}', "queue": "default"}
    return Start(**(fields | given))


class CountingTx:
    """Counts the statements that an operation runs, and keeps their texts."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self.database = tx.database
        self.statements: list[str] = []

    async def execute(self, sql: str, /, **values: object) -> None:
        """Run *sql* and throw its rows away."""
        self.statements.append(sql)
        await self._tx.execute(sql, **values)

    async def fetch_all(self, sql: str, /, **values: object) -> list[Row]:
        """Run *sql* and return all of its rows."""
        self.statements.append(sql)
        return await self._tx.fetch_all(sql, **values)


async def counted(tx: Tx, operation: Any, *args: Any) -> list[str]:
    """Run *operation*; give the statements that it took."""
    counting = CountingTx(tx)
    await operation(counting, *args)
    return counting.statements


async def make_job(way: Way, status: str = "pending", **columns: Any) -> UUID:
    """Make a chain of one job in *status*; *columns* are set as they are given."""
    return await way.call(_insert, Status(status), columns)


async def continue_chain(way: Way, chain_id: UUID, status: str = "pending", **columns: Any) -> UUID:
    """Complete the last job of a chain with a successor in *status*; give the successor's id."""
    return await way.call(_continue, chain_id, Status(status), columns)


async def change_job(way: Way, job_id: UUID, **columns: Any) -> None:
    """Set *columns* of a job."""
    await way.call(_change, job_id, columns)


async def pause_queue(way: Way, name: str) -> None:
    """Pause a queue."""
    await way.call(lanes.pause_queue, name, None, Asked())


async def pause_lane(way: Way, key: str) -> None:
    """Pause a lane."""
    await way.call(lanes.pause_lane, key, Asked())


async def make_phase(way: Way, job_id: UUID, name: str) -> None:
    """Give a job a finished phase."""
    await way.call(_execute, MAKE_PHASE, {"id": str(job_id), "name": name})


async def block(way: Way, job_id: UUID, *chains: UUID) -> None:
    """Let a job, of any step of a chain, wait for *chains*."""
    for position, chain_id in enumerate(chains):
        values = {"id": str(job_id), "position": position, "chain_id": str(chain_id)}
        await way.call(_execute, MAKE_BLOCKER, values)


async def let_keys_expire(way: Way) -> None:
    """Let the time of every unique key that has one run out."""
    await way.call(_execute, "UPDATE holdfast_unique SET until = $now - 1 WHERE until IS NOT NULL", {})


async def seq_of(way: Way, job_id: UUID) -> int:
    """Give the number under which other tables know a job."""
    ((seq,),) = await way.rows("SELECT seq FROM holdfast_job WHERE id = :id", id=str(job_id))
    return int(seq)


async def row_of(way: Way, job_id: UUID, *columns: str) -> tuple[Any, ...]:
    """Read *columns* of a job as they are stored."""
    ((*values,),) = await way.rows(f"SELECT {', '.join(columns)} FROM holdfast_job WHERE id = :id", id=str(job_id))
    return tuple(values)


async def events_of(way: Way, job_id: UUID) -> list[str]:
    """Name the events of a job, in their order."""
    seq = await seq_of(way, job_id)
    rows = await way.rows("SELECT name, facts FROM holdfast_event WHERE job = :job ORDER BY seq", job=seq)
    return [name for name, _ in as_events(rows, "name, facts")]


async def whole_store(way: Way) -> dict[str, list[tuple[Any, ...]]]:
    """Read every table that a start or a delete writes, to see that nothing has changed."""
    tables = ("job", "phase", "journal", "blocker", "unique", "event")
    return {name: sorted(await way.rows(f"SELECT * FROM holdfast_{name}"), key=repr) for name in tables}


MAKE_PHASE = """
    INSERT INTO holdfast_phase (job, position, name, status)
    SELECT seq, 0, :name, 'completed' FROM holdfast_job WHERE id = :id"""
MAKE_BLOCKER = """
    INSERT INTO holdfast_blocker (job, position, chain_id, state)
    SELECT seq, :position, :chain_id, 'armed' FROM holdfast_job WHERE id = :id"""


async def _execute(tx: Tx, sql: str, values: dict[str, Any]) -> None:
    await tx.execute(sql, **values)


async def _insert(tx: Tx, status: Status, columns: dict[str, Any]) -> UUID:
    job_id = columns.get("id") or uuid4()
    is_first = not columns.get("chain_index")
    values: dict[str, Any] = {
        "id": str(job_id),
        "chain_id": str(job_id),
        "task": "greet",
        "queue": "default",
        "status": str(status),
        "input": '{"name":"Ada"}',
        "created_at": now_ms(),
        "run_at": now_ms() - 1_000,  # a clock that steps back by a millisecond would make it a scheduled one
        **_belonging_to(status),
        **({"closed_as": str(status), "closed_at": now_ms()} if is_first and status not in OPEN else {}),
        **columns,
    }
    values = {name: str(value) if isinstance(value, UUID) else value for name, value in values.items()}
    names, marks = ", ".join(values), ", ".join(f":{name}" for name in values)
    await tx.execute(f"INSERT INTO holdfast_job ({names}) VALUES ({marks})", **values)
    return UUID(str(job_id))


def _belonging_to(status: Status) -> dict[str, Any]:
    """Give the columns without which a row cannot be in *status*."""
    match status:
        case Status.PENDING:
            return {"gate": "ready", "sort_key": now_ms()}
        case Status.BLOCKED:
            return {"open_blockers": 1}
        case Status.PAUSED:
            return {}
        case Status.RUNNING:
            leased = {"worker": "worker-1", "lease_until": now_ms() + 30_000, "lease_ms": 30_000}
            return {"attempt": 1, "used": 1, "nonce": "nonce-1", "started_at": now_ms(), **leased}
        case _:
            return {"attempt": 1, "used": 1, "nonce": "nonce-1", "started_at": now_ms(), "finished_at": now_ms()}


LAST = """
    SELECT seq, chain_index FROM holdfast_job
    WHERE id = :chain_id OR (chain_id = :chain_id AND chain_index > 0)
    ORDER BY chain_index DESC LIMIT 1"""
HAND_ON = """
    UPDATE holdfast_job
    SET status = 'completed', gate = NULL, worker = NULL, lease_until = NULL, finished_at = $now, version = version + 1
    WHERE seq = :seq"""
CLOSE = """UPDATE holdfast_job SET closed_as = :status, closed_at = $now WHERE id = :chain_id"""


async def _continue(tx: Tx, chain_id: UUID, status: Status, columns: dict[str, Any]) -> UUID:
    ((seq, index),) = await tx.fetch_all(LAST, chain_id=str(chain_id))
    await tx.execute(HAND_ON, seq=seq)
    if status not in OPEN:
        await tx.execute(CLOSE, status=str(status), chain_id=str(chain_id))
    return await _insert(tx, status, {"chain_id": str(chain_id), "chain_index": index + 1, **columns})


async def _change(tx: Tx, job_id: UUID, columns: dict[str, Any]) -> None:
    settings = ", ".join(f"{name} = :{name}" for name in columns)
    await tx.execute(f"UPDATE holdfast_job SET {settings} WHERE id = :job_id", job_id=str(job_id), **columns)
