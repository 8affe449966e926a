"""Why a job does not run, and why a queue does not move: every reason that holds, of one snapshot.

At most ten statements for a job, index probes only; what is counted is counted up to `MOST_COUNTED`. Obstacles that
last (a pause, a halted lane, no worker) are told wherever the job stands. Those that pass by themselves (its place in
the lane, busy workers) are told only of a job that is at them: to a job that is due tomorrow, the workers of today say
nothing.

Whether a stranger's transaction holds the row cannot be read, only tried: `find_lock` does, on PostgreSQL, in a
transaction that is rolled back, and only for a job that nothing else keeps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal, NamedTuple
from uuid import UUID

from holdfast.database.tx import Row, Tx
from holdfast.explanations import (
    MOST_COUNTED,
    MOST_LISTED,
    MOST_TASKS,
    Arriving,
    AsksAPerson,
    BackingOff,
    Blocked,
    Ended,
    Explanation,
    LaneBehind,
    LaneHalted,
    LanePaused,
    Locked,
    Moving,
    NotCommitted,
    NotDue,
    NoWorker,
    OpenBlocker,
    Paused,
    QueueExplanation,
    QueuePaused,
    Reason,
    Running,
    ServingWorker,
    Stopping,
    Suspect,
    TaskUnknown,
    WorkersBusy,
)
from holdfast.models import RESERVED, Job, StoredChain
from holdfast.outcomes import MOST_CRASHES, why_it_halts
from holdfast.questions import Question
from holdfast.states import TERMINAL, Gate, Status
from holdfast.store import lanes, polls, reads, task_rows, workers
from holdfast.store.rows import COLUMNS, FACTS_WITH_RESULTS, STORED_WIDTH, instant, maybe_instant, to_job
from holdfast.store.workers import IN_CHILD, LivingWorker
from holdfast.unreadable import object_of, readable

OVERDUE_MS = 10_000
"""For how long nobody has taken up a job that nothing keeps, before that is worth a word."""


async def explain(tx: Tx, job_id: UUID, hosts: Sequence[LivingWorker] = ()) -> Explanation:
    """Say why the current job of the chain of *job_id* does not run; *hosts* serve the tenant whose job it is."""
    rows = await tx.fetch_all(CURRENT, id=str(job_id))
    if not rows:
        return Explanation(None, (NotCommitted(job_id),))
    found = _standing(rows[0])
    if found.job.status is Status.RUNNING:
        return Explanation(found.job, tuple(await _running(tx, found)))
    if found.job.status in TERMINAL:
        return Explanation(found.job, (await _ended(tx, found),))
    reasons = await _waiting(tx, found, await workers.living(tx, hosts))
    return Explanation(found.job, tuple(await _beside_hosts(tx, reasons)))


async def explain_many(tx: Tx, job_ids: Sequence[UUID], hosts: Sequence[LivingWorker] = ()) -> list[Explanation]:
    """Explain a few jobs, as `explain` does, of one snapshot."""
    return [await explain(tx, each, hosts) for each in job_ids]


class Standing(NamedTuple):
    """A job, and what of its row, and right beside it, people are not shown."""

    job: Job
    gate: str | None
    cancel_requested_at: int | None
    pause_requested_at: int | None
    now: int
    wake_at: int | None
    place: int | None
    is_head: bool
    policy: Mapping[str, Any]
    worker_seen_at: int | None
    receiver: str | None

    @property
    def is_due(self) -> bool:
        return self.job.run_at <= instant(self.now)


# scalar subqueries stay probes; the worker of a suspect in a child is named by its own name and IN_CHILD
BESIDE = f"""holdfast_job.wake_at, holdfast_job.place, holdfast_job.head,
        (SELECT known.policy FROM holdfast_task AS known WHERE known.name = holdfast_job.task),
        (SELECT owner.seen_at FROM holdfast_worker AS owner
            WHERE owner.id = replace(holdfast_job.worker, '{IN_CHILD}', '')),
        (SELECT about.receiver FROM holdfast_delivery AS about WHERE about.job = holdfast_job.seq)"""
BESIDE_WIDTH = 6
# as `steering.CURRENT` finds it: the last job of the chain that the named one belongs to
CURRENT = f"""
    SELECT {COLUMNS}, {FACTS_WITH_RESULTS}, {BESIDE}
    FROM holdfast_job
    WHERE holdfast_job.seq = (SELECT coalesce(
            (SELECT later.seq FROM holdfast_job AS later
                WHERE later.chain_id = asked.chain_id AND later.chain_index > 0
                ORDER BY later.chain_index DESC LIMIT 1),
            asked.seq)
        FROM holdfast_job AS asked WHERE asked.id = :id)"""


def _standing(row: Row) -> Standing:
    job = to_job(row[:-BESIDE_WIDTH])
    gate, cancel_requested_at, pause_requested_at, now = row[STORED_WIDTH : STORED_WIDTH + 4]
    wake_at, place, head, policy, seen_at, receiver = row[-BESIDE_WIDTH:]
    known = {} if policy is None else task_rows.read_policy(job.task, policy)
    asked = cancel_requested_at, pause_requested_at
    return Standing(job, gate, *asked, now, wake_at, place, bool(head), known, seen_at, receiver)


async def _running(tx: Tx, found: Standing) -> list[Reason]:
    job, worker = found.job, (found.job.worker or "").removesuffix(IN_CHILD)
    asked_at = found.cancel_requested_at or found.pause_requested_at
    if asked_at is not None:
        request: Literal["cancel", "pause"] = "pause" if found.cancel_requested_at is None else "cancel"
        event = await _last_event(tx, job, {"cancel": "job:cancelling", "pause": "job:pausing"}[request])
        return [Stopping(request, event.by, job.reason, instant(asked_at), worker)]
    is_overdue = job.lease_until is not None and job.lease_until < instant(found.now)
    running = Running(worker, job.started_at, job.lease_until, maybe_instant(found.worker_seen_at), is_overdue)
    return [running, *(_suspect(job) if job.started_at is None else ())]


async def _ended(tx: Tx, found: Standing) -> Ended:
    job = found.job
    event = await _last_event(tx, job, f"job:{job.status}")
    error = job.error if isinstance(job.error, dict) else None
    by_blocker = await tx.fetch_all(FAILED_BY, job=job.seq) if job.status is Status.FAILED and error is None else []
    blocker = UUID(by_blocker[0][0]) if by_blocker else None
    return Ended(job.id, job.status, event.by or job.completed_by, job.reason, error, job.finished_at, blocker)


async def _waiting(tx: Tx, found: Standing, living: Sequence[LivingWorker]) -> list[Reason]:
    """Say what keeps a job that is pending, blocked or paused, in the order in which the engine would meet it."""
    job = found.job
    reasons: list[Reason] = []
    if job.status is Status.PAUSED:
        event = await _last_event(tx, job, "job:paused")
        reasons.append(Paused(job.id, event.by, job.reason, event.at))
    if job.status is Status.BLOCKED:
        reasons.append(await _blocked(tx, job))
    if not found.is_due:
        reasons.append(_not_due(found))
    if job.lane is not None:
        reasons += await _lane(tx, found, job.lane)
    reasons += await _queue_paused(tx, job.queue, found.now)
    if (title := _title(found.policy)) is not None:  # such a task has no handler
        return [*reasons, AsksAPerson(job.id, job.task, title, job.created_at)]
    nobody = nobody_runs(job.queue, job.task, found.policy, living)
    if nobody is not None:
        reasons.append(nobody)
    elif found.gate == Gate.READY:
        reasons += await _busy(tx, job.queue, [job.task], living)
    reasons += _suspect(job)
    return [*reasons, *_arriving(found, reasons)]


class Said(NamedTuple):
    """Who asked for what happened to a job, and when; both None where nobody has written it down."""

    by: str | None = None
    at: datetime | None = None


# what has happened last to a job that stands still is near the end of its log; behind it come webhooks at most. One
# that is to be paused may go on for long, and say how far it is
LAST_EVENT = """
    SELECT recent.at, recent.facts FROM (
        SELECT name, at, facts FROM holdfast_event WHERE job = :job ORDER BY seq DESC LIMIT :most) AS recent
    WHERE recent.name = :name LIMIT 1"""


async def _last_event(tx: Tx, job: Job, name: str) -> Said:
    for at, facts in await tx.fetch_all(LAST_EVENT, job=job.seq, name=name, most=MOST_COUNTED):
        by = object_of(facts).get("by")
        return Said(by if isinstance(by, str) else None, instant(at))
    return Said()


FAILED_BY = """
    SELECT chain_id FROM holdfast_blocker WHERE job = :job AND state = 'failed' ORDER BY position LIMIT 1"""
# with how the chain has ended: of those that were given first many may have, and the job was not told yet
OPEN_LINKS = """
    SELECT chain_id, (SELECT first.closed_as FROM holdfast_job AS first WHERE first.id = holdfast_blocker.chain_id)
    FROM holdfast_blocker
    WHERE job = :job AND coalesce(state, 'armed') = 'armed' ORDER BY position LIMIT :most"""


async def _blocked(tx: Tx, job: Job) -> Blocked:
    links = await tx.fetch_all(OPEN_LINKS, job=job.seq, most=MOST_COUNTED)
    # what has ended is nobody that it waits for, unless it is to be tried again
    ends = {Status.COMPLETED} if job.on_blocker_failure == "wait" else {*TERMINAL}
    waiting = list(dict.fromkeys(UUID(chain_id) for chain_id, closed_as in links if closed_as not in ends))
    listed = waiting[:MOST_LISTED]
    rows = await tx.fetch_all(reads.CHAINS_BY_ID, ids=[str(each) for each in listed]) if listed else []
    chains = {each.id: each for each in readable(rows, reads.to_chain)}
    return Blocked(tuple(_open_blocker(each, chains.get(each)) for each in listed), len(waiting))


def _open_blocker(chain_id: UUID, chain: StoredChain[Any] | None) -> OpenBlocker:
    return OpenBlocker(chain_id, None, None) if chain is None else OpenBlocker(chain_id, chain.last_task, chain.status)


def _not_due(found: Standing) -> Reason:
    job = found.job
    if isinstance(job.error, dict) and job.error:
        return BackingOff(job.id, job.run_at, job.attempt, job.error, found.receiver)
    return NotDue(job.id, job.run_at, found.receiver)


AHEAD = """
    SELECT count(*) FROM (SELECT place FROM holdfast_job
        WHERE lane = :key AND gate = 'lane' AND place < :place ORDER BY place LIMIT :most) AS ahead"""


async def _lane(tx: Tx, found: Standing, key: str) -> list[Reason]:
    """Say what of its lane keeps a job: its place behind others, a head that halts it, a pause."""
    reasons: list[Reason] = []
    ((_, id_, status, because, error, _),) = await tx.fetch_all(lanes.HEADS, keys=[key]) or [(None,) * 6]
    head = None if id_ is None else UUID(id_)
    if found.gate == Gate.LANE:
        ((ahead,),) = await tx.fetch_all(AHEAD, key=key, place=found.place, most=MOST_COUNTED)
        place = min(ahead + 1 + (head is not None), MOST_COUNTED)
        reasons.append(LaneBehind(key, place, head, None if status is None else Status(status)))
    if head is not None and head != found.job.id and status in (Status.FAILED, Status.PAUSED):
        reasons.append(LaneHalted(key, head, Status(status), why_it_halts(because, object_of(error))))
    for _, paused_at, paused_by, reason in await tx.fetch_all(lanes.PAUSED, keys=[key]):
        if paused_at is not None:
            reasons.append(LanePaused(key, paused_by, reason, instant(paused_at)))
    return reasons


QUEUE_PAUSED = """
    SELECT paused_by, reason, paused_at, until FROM holdfast_queue
    WHERE name = :queue AND paused_at IS NOT NULL AND (until IS NULL OR until > :now)"""


async def _queue_paused(tx: Tx, queue: str, now: int) -> list[QueuePaused]:
    rows = await tx.fetch_all(QUEUE_PAUSED, queue=queue, now=now)
    return [QueuePaused(queue, by, why, instant(at), maybe_instant(until)) for by, why, at, until in rows]


def nobody_runs(
    queue: str, task: str, policy: Mapping[str, Any], living: Sequence[LivingWorker]
) -> NoWorker | TaskUnknown | None:
    """Say why none of *living* would run jobs of *task* in *queue*; None if one would.

    *policy* is what the task itself says: a queue that it names is no typo.
    """
    serving = [each for each in living if each.serves(queue)]
    if any(each.runs(queue, task) for each in serving):
        return None
    if serving:
        known = {name for each in serving for name in each.tasks or ()}
        return TaskUnknown(task, queue, tuple(_near(task, known, 3)))
    return _no_worker(queue, policy, living)


def _no_worker(queue: str, policy: Mapping[str, Any], living: Sequence[LivingWorker]) -> NoWorker:
    others = [ServingWorker(each.id, each.name, _own_queues(each)) for each in living[:MOST_LISTED]]
    served = {name for each in living for name in _own_queues(each)}
    near = [] if policy.get("queue") == queue else _near(queue, served, 1)
    return NoWorker(queue, near[0] if near else None, tuple(others), is_internal=queue.startswith(RESERVED))


async def _beside_hosts(tx: Tx, reasons: list[Reason]) -> list[Reason]:
    """Have a lack of workers say if there are some, and they serve tenants alone."""
    if not any(isinstance(each, NoWorker) for each in reasons) or not await workers.serve_tenants_alone(tx):
        return reasons
    return [replace(each, beside_hosts=True) if isinstance(each, NoWorker) else each for each in reasons]


def _own_queues(worker: LivingWorker) -> tuple[str, ...]:
    """Name the queues that it serves, without the engine's."""
    return tuple(sorted(name for name in worker.queues if not name.startswith(RESERVED)))


def _near(word: str, known: Collection[str], most: int) -> list[str]:
    from difflib import get_close_matches  # 3 ms that a job with a worker need not pay

    return get_close_matches(word, sorted(known), most)


# as many as there are leases at most, and no more than are counted
TAKEN = """
    SELECT worker, task, count(*), min(started_at) FROM (
        SELECT worker, task, started_at FROM holdfast_job
        WHERE lease_until IS NOT NULL ORDER BY lease_until LIMIT :most) AS taken
    GROUP BY worker, task"""


async def _busy(tx: Tx, queue: str, tasks: Sequence[str], living: Sequence[LivingWorker]) -> list[WorkersBusy]:
    """Say that every slot in which jobs of one of *tasks* could run is taken, also by jobs that were claimed ahead.

    Tasks that share their slots are told of once.
    """
    rows = [(worker.removesuffix(IN_CHILD), *rest) for worker, *rest in await tx.fetch_all(TAKEN, most=MOST_COUNTED)]
    found = [_busy_for(task, queue, rows, living) for task in tasks]
    return list(dict.fromkeys(each for each in found if each is not None))


def _busy_for(task: str, queue: str, rows: Sequence[Row], living: Sequence[LivingWorker]) -> WorkersBusy | None:
    able = {each.id: each for each in living if each.runs(queue, task)}
    kinds = {each.kind_of(task) for each in able.values()}
    sizes = [getattr(each.slots, each.kind_of(task)) for each in able.values()]
    if not able or None in sizes:  # one of an older release does not say how many it has
        return None
    beside = [row for row in rows if row[0] in able and _share_slots(able[row[0]], row[1], task)]
    slots, taken = sum(sizes), sum(count for _, _, count, _ in beside)
    oldest = min((at for *_, at in beside if at is not None), default=None)
    if taken < slots:
        return None
    return WorkersBusy(queue, slots, min(taken, slots), maybe_instant(oldest), in_children=kinds == {"children"})


def _share_slots(worker: LivingWorker, one: str, other: str) -> bool:
    return worker.kind_of(one) == worker.kind_of(other)


def _suspect(job: Job) -> list[Suspect]:
    return [Suspect(job.crashes)] if job.crashes >= MOST_CRASHES - 1 else []


def _arriving(found: Standing, reasons: Iterable[Reason]) -> list[Arriving]:
    """Say that nothing is left but that the engine looks at a job; also at one whose blockers have all ended."""
    others = list(reasons)
    is_arrival = found.gate == Gate.ARRIVAL and found.is_due and found.job.status is not Status.PAUSED
    if any(not (is_arrival and isinstance(each, Blocked) and not each.blockers) for each in others):
        return []
    wake_at = instant(found.wake_at) if is_arrival and found.wake_at is not None else found.job.run_at
    return [Arriving(wake_at, wake_at < instant(found.now - OVERDUE_MS))]


async def explain_or_doubt(tx: Tx, job_id: UUID, hosts: Sequence[LivingWorker] = ()) -> tuple[Explanation, bool]:
    """Explain a job; tell whether nothing that can be read keeps it, so that `find_lock` has to look."""
    found = await explain(tx, job_id, hosts)
    is_arriving = any(isinstance(each, Arriving) for each in found.reasons)
    is_alone = all(isinstance(each, Arriving | Blocked) for each in found.reasons)
    return found, tx.database == "postgres" and is_arriving and is_alone


HOLD = """SELECT seq FROM holdfast_job WHERE seq = :seq $skip_locked"""
# by the row itself: its last locker is in xmax, if there is only one. Others' transactions are shown to few users
HOLDER = """
    SELECT holder.pid, CAST(extract(epoch FROM holder.xact_start) * 1000 AS bigint)
    FROM holdfast_job LEFT JOIN pg_stat_activity AS holder ON holder.backend_xid = holdfast_job.xmax
    WHERE holdfast_job.seq = :seq AND holdfast_job.version = :version"""


class LockLook(Exception):
    """What `find_lock` has found; it is raised, so that the transaction in which it tried is rolled back."""

    def __init__(self, lock: Locked | None) -> None:
        super().__init__(lock)
        self.lock = lock


async def find_lock(tx: Tx, seq: int, version: int) -> None:
    """Try to lock a job that was just read in *version*, and raise whose lock it met as `LockLook`."""
    if await tx.fetch_all(HOLD, seq=seq):
        raise LockLook(None)
    rows = await tx.fetch_all(HOLDER, seq=seq, version=version)
    raise LockLook(Locked(maybe_instant(rows[0][1]), rows[0][0]) if rows else None)


# a loose scan: the next task behind the last one, so that it costs a probe for each task and not for each row
WAITING_TASKS = """
    WITH RECURSIVE waiting(task, number) AS (
        SELECT (SELECT first.task FROM holdfast_job AS first
            WHERE first.queue = :queue AND first.gate = 'ready' ORDER BY first.task LIMIT 1), 1
        UNION ALL
        SELECT (SELECT next.task FROM holdfast_job AS next
            WHERE next.queue = :queue AND next.gate = 'ready' AND next.task > waiting.task
            ORDER BY next.task LIMIT 1), waiting.number + 1
        FROM waiting WHERE waiting.task IS NOT NULL AND waiting.number < :most)
    SELECT waiting.task, (SELECT known.policy FROM holdfast_task AS known WHERE known.name = waiting.task), $now
    FROM waiting ORDER BY waiting.number"""


async def explain_queue(tx: Tx, queue: str, hosts: Sequence[LivingWorker] = ()) -> QueueExplanation:
    """Say why the jobs of *queue* that could be claimed are not; of its first tasks, in the order of their names."""
    rows = await tx.fetch_all(WAITING_TASKS, queue=queue, most=MOST_TASKS)
    waiting = {task: {} if policy is None else task_rows.read_policy(task, policy) for task, policy, _ in rows if task}
    living = await workers.living(tx, hosts)
    reasons: list[Reason] = [*await _queue_paused(tx, queue, rows[0][2])]
    titles = {task: title for task, policy in waiting.items() if (title := _title(policy)) is not None}
    reasons += [AsksAPerson(None, task, title, None) for task, title in titles.items()]
    unable = {task: nobody_runs(queue, task, waiting[task], living) for task in waiting if task not in titles}
    if not waiting and not any(each.serves(queue) for each in living):
        reasons.append(_no_worker(queue, {}, living))
    reasons += [each for each in unable.values() if isinstance(each, NoWorker)][:1]
    reasons += [each for each in unable.values() if isinstance(each, TaskUnknown)]
    if able := [task for task, why in unable.items() if why is None]:
        reasons += await _busy(tx, queue, able, living)
    return QueueExplanation(queue, tuple(await _beside_hosts(tx, reasons) or [Moving(queue, is_empty=not waiting)]))


def _title(policy: Mapping[str, Any]) -> str | None:
    """Give the question that a task asks people; None if it asks none."""
    question = Question.of_policy(policy)
    return None if question is None else question.title


async def unserved(
    tx: Tx, own: LivingWorker, known: Collection[tuple[str, str]], milliseconds: int
) -> list[tuple[str, str, Reason]]:
    """Name kinds of jobs that could be claimed for *milliseconds* and that nobody runs, not *own* either, and why.

    Those that are *known* are left out, and the engine's own.
    """
    kinds = [each for each in await polls.waiting_kinds(tx) if each not in known and not each[0].startswith(RESERVED)]
    if not kinds:
        return []
    living = [own, *(each for each in await workers.living(tx) if each.id != own.id)]
    policies = await task_rows.policies_of(tx, {task for _, task in kinds})
    found = [(queue, task, nobody_runs(queue, task, policies[task], living)) for queue, task in kinds]
    return [
        (queue, task, reason)
        for queue, task, reason in found
        if reason is not None
        and _title(policies[task]) is None
        and await polls.is_left_waiting(tx, queue, task, milliseconds)
    ]
