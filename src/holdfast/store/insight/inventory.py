"""Lists of tasks, queues and workers, at most 1,000 of each; nothing is counted but what runs, and that is bounded.

The names of queues come from a loose index scan: a probe for each name, whatever the number of jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.database.tx import Row, Tx
from holdfast.inventory import QueueInfo, TaskInfo, WorkerInfo
from holdfast.models import INTERNAL_QUEUE
from holdfast.store import task_rows, workers
from holdfast.store.rows import instant, maybe_instant
from holdfast.store.workers import LivingWorker
from holdfast.unreadable import object_of, readable, reading

MOST_LISTED = 1_000
MOST_RUNNING = 10_000

# who only waits for results or follows the log is no worker, and says so; who sleeps for a tenant is one elsewhere
WORKERS = f"""
    SELECT id, name, host, pid, facts, started_at, seen_at, CASE WHEN seen_at > $now - :alive_ms THEN 1 ELSE 0 END
    FROM holdfast_worker
    WHERE $position(facts, '"looks_out_as"') = 0 AND NOT {workers.IS_WATCH}
    ORDER BY seen_at DESC, id LIMIT :most"""
# a beat is a minute old, and says nothing of what runs now
RUNNING = """
    SELECT leased.worker, count(*) FROM (SELECT worker FROM holdfast_job
        WHERE lease_until IS NOT NULL ORDER BY lease_until LIMIT :most) AS leased
    GROUP BY leased.worker"""


async def list_workers(tx: Tx) -> list[WorkerInfo]:
    """List the workers that are known, those seen last first."""
    running: Counter[str] = Counter()
    for worker, count in await tx.fetch_all(RUNNING, most=MOST_RUNNING):
        running[worker.removesuffix(workers.IN_CHILD)] += count
    rows = await tx.fetch_all(WORKERS, alive_ms=workers.ALIVE_MS, most=MOST_LISTED)
    return readable(rows, lambda row: _worker(row, running[row[0]]))


def _worker(row: Row, running: int) -> WorkerInfo:
    id_, name, host, pid, text, started_at, seen_at, is_alive = row
    facts = object_of(text)
    said = workers.read_worker(id_, name, facts)
    with reading("holdfast_worker", id_):
        return WorkerInfo(
            id=id_,
            name=name,
            host=host,
            pid=pid,
            started_at=instant(started_at),
            seen_at=instant(seen_at),
            is_alive=bool(is_alive),
            queues=tuple(sorted(said.queues)),
            tasks=tuple(sorted(said.tasks or ())),
            slots=None if said.slots.handlers is None else sum(count or 0 for count in said.slots),
            running=running,
            version=_text(facts.get("version")),
            hint_mode=_text(facts.get("hint_mode")),
            tenants=said.tenants,
        )


def _text(value: object) -> str | None:
    """Give a text if it is one; another release may write something else."""
    return value if isinstance(value, str) else None


class Serving(NamedTuple):
    """Who serves what, by what the living workers say of themselves: their ids, by queue and by task."""

    queues: dict[str, list[str]]
    tasks: dict[str, list[str]]


async def serving(tx: Tx, hosts: Sequence[LivingWorker]) -> Serving:
    """Read which living workers serve which queues, and have the code of which tasks; *hosts* serve this tenant."""
    found = Serving({}, {})
    for worker in await workers.living(tx, hosts):
        for queue in worker.queues:
            found.queues.setdefault(queue, []).append(worker.id)
        for task in worker.tasks or ():
            found.tasks.setdefault(task, []).append(worker.id)
    return found


TASKS = """
    SELECT name, version, policy, input_schema, output_schema, updated_at FROM holdfast_task
    ORDER BY name LIMIT :most"""


async def list_tasks(tx: Tx, hosts: Sequence[LivingWorker] = ()) -> list[TaskInfo]:
    """List the tasks that some program has written down, by their names."""
    served = (await serving(tx, hosts)).tasks
    rows = await tx.fetch_all(TASKS, most=MOST_LISTED)
    return readable(rows, lambda row: _task(row, tuple(sorted(served.get(row[0], ())))))


def _task(row: Row, served_by: tuple[str, ...]) -> TaskInfo:
    name, version, policy_text, input_schema, output_schema, updated_at = row
    policy = task_rows.read_policy(name, policy_text)
    with reading("holdfast_task", name):
        return TaskInfo(
            name=name,
            queue=_text(policy.get("queue")),
            policy=policy,
            input_schema=object_of(input_schema),
            output_schema=object_of(output_schema),
            version=version,
            updated_at=instant(updated_at),
            served_by=served_by,
        )


# the next name behind the last one, so that it costs a probe for each name and not for each row
QUEUES = {
    gate: f"""
    WITH RECURSIVE names(name) AS (
        SELECT (SELECT first.queue FROM holdfast_job AS first WHERE first.gate = '{gate}' ORDER BY first.queue LIMIT 1)
        UNION ALL
        SELECT (SELECT next.queue FROM holdfast_job AS next
            WHERE next.gate = '{gate}' AND next.queue > names.name ORDER BY next.queue LIMIT 1)
        FROM names WHERE names.name IS NOT NULL)
    SELECT name FROM names WHERE name IS NOT NULL LIMIT :most"""
    for gate in ("ready", "arrival")
}
PAUSED = """
    SELECT name, paused_at, paused_by, reason, until, CASE WHEN coalesce(until, $now + 1) > $now THEN 1 ELSE 0 END
    FROM holdfast_queue WHERE paused_at IS NOT NULL ORDER BY name LIMIT :most"""


async def list_queues(tx: Tx, hosts: Sequence[LivingWorker] = ()) -> list[QueueInfo]:
    """List the queues that have jobs waiting, are paused, named by a task, or served; by their names."""
    served = (await serving(tx, hosts)).queues
    rows = await tx.fetch_all(PAUSED, most=MOST_LISTED)
    paused = {name: pause for name, *pause in rows if pause[-1]}
    waiting = [name for sql in QUEUES.values() for (name,) in await tx.fetch_all(sql, most=MOST_LISTED)]
    policies = (policy.get("queue") for policy in (await task_rows.policies(tx)).values())
    named = [name for name in policies if isinstance(name, str)]
    names = sorted({*served, *paused, *waiting, *named} - {INTERNAL_QUEUE})[:MOST_LISTED]
    return [_queue(name, paused.get(name), tuple(sorted(served.get(name, ())))) for name in names]


def _queue(name: str, pause: list[Any] | None, served_by: tuple[str, ...]) -> QueueInfo:
    paused_at, paused_by, reason, until, _ = pause or [None] * 5
    return QueueInfo(
        name=name,
        is_paused=pause is not None,
        paused_at=maybe_instant(paused_at),
        paused_by=paused_by,
        reason=reason,
        paused_until=maybe_instant(until),
        served_by=served_by,
    )
