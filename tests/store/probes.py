"""Every statement whose plan is tested, with values that hit the middle of the crowd."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

from holdfast.models import ChainFilter, JobFilter, Start
from holdfast.states import State, Status
from holdfast.store import blockers, chains, deletes, reads, rows, task_rows, unique
from holdfast.store.reads import Paging
from holdfast.store.tx import Row, Tx, drive
from tests.store import coming
from tests.store.crowd import CYCLE, MIXED, job_id
from tests.store.plans import JOB_CHAIN, JOB_ID, JOB_PKEY, Probe


class Listening:
    """A transaction that finds nothing and remembers what it was asked last."""

    def __init__(self) -> None:
        self.sql = ""
        self.values: dict[str, object] = {}

    async def execute(self, sql: str, /, **values: object) -> None:
        """Remember *sql*."""
        self.sql, self.values = sql, values

    async def fetch_all(self, sql: str, /, **values: object) -> list[Row]:
        """Remember *sql*, find nothing."""
        await self.execute(sql, **values)
        return []


def asked(operation: Callable[[Tx], Coroutine[Any, Any, object]]) -> tuple[str, dict[str, object]]:
    """Give the statement that *operation* makes at run time, with its values."""
    tx = Listening()
    drive(operation(tx))
    return tx.sql, tx.values


ONE_CYCLE = range(MIXED // 2, MIXED // 2 + CYCLE)  # one job of each kind
SEQS = list(ONE_CYCLE)
IDS = [str(job_id(each)) for each in ONE_CYCLE]
CHAINS = [str(job_id(each)) for each in ONE_CYCLE if each % CYCLE < 16]
HOLDER = MIXED // 2 + 7  # holds its key
KEYS = [(f"task-{HOLDER // 20 % 10}", f"key-{HOLDER}"), ("task-1", "nobody's")]
UNIQUE, BLOCKER = "holdfast_unique_pkey", "holdfast_blocker_pkey"


def on_borrowed(name: str, sql: str, values: Mapping[str, object], *indexes: str, **more: Any) -> Probe:
    """Make a probe of a statement of a start or a delete."""
    return Probe(name, sql, values, frozenset(indexes), on_borrowed=True, **more)


def on_ours(name: str, sql: str, values: Mapping[str, object], *indexes: str, **more: Any) -> Probe:
    """Make a probe of a statement that runs on our own connections only."""
    return Probe(name, sql, values, frozenset(indexes), **more)


def start_probes() -> Iterator[Probe]:
    """Give what a start runs."""
    wishes = [(*key, str(job_id(900_000_000 + n)), "open", None) for n, key in enumerate(KEYS)]
    new = Start(id=job_id(900_000_001), task="task-1", input="{}", queue="default")
    twin = Start(id=job_id(MIXED // 2), task="task-1", input="{}", queue="default")
    sql, given = asked(partial(rows.insert, starts=[new, twin]))
    held = {"given": [(*key, str(job_id(HOLDER))) for key in KEYS]}
    yield on_borrowed("chains.EXISTING", chains.EXISTING, {"ids": IDS}, JOB_ID)
    yield on_borrowed("blockers.CHAINS", blockers.CHAINS, {"ids": IDS}, JOB_ID)
    yield on_borrowed("rows.INSERT", sql, given, JOB_ID, conflict=JOB_ID)
    yield on_borrowed("unique.TAKE", unique.TAKE, {"given": wishes}, UNIQUE)
    yield on_borrowed("unique.HOLDERS", unique.HOLDERS, {"given": KEYS}, UNIQUE)
    yield on_borrowed("unique.DELETE", unique.DELETE, held, UNIQUE)
    yield on_borrowed("unique.RETIRE", unique.RETIRE, held, UNIQUE)
    yield on_borrowed("reads.CHAINS_BY_ID", reads.CHAINS_BY_ID, {"ids": CHAINS}, JOB_ID, JOB_CHAIN, JOB_PKEY)


def delete_probes() -> Iterator[Probe]:
    """Give what a delete runs."""
    yield on_borrowed("deletes.CHAINS", deletes.CHAINS, {"ids": IDS}, JOB_ID)
    yield on_borrowed("deletes.JOBS", deletes.JOBS, {"chains": CHAINS}, JOB_ID, JOB_CHAIN)
    yield on_borrowed("deletes.WAITED_FOR", deletes.WAITED_FOR, {"jobs": SEQS}, BLOCKER)
    yield on_borrowed("deletes.REFERENCES", deletes.REFERENCES, {"chains": CHAINS}, "holdfast_blocker_chain", JOB_PKEY)
    yield on_borrowed("deletes.LOCK", deletes.LOCK, {"seqs": SEQS}, JOB_PKEY)
    yield on_borrowed("deletes.DELETE", deletes.DELETE, {"seqs": SEQS}, JOB_PKEY)
    yield on_borrowed("deletes.BURY", deletes.BURY, {"seqs": SEQS}, JOB_PKEY)
    yield on_borrowed("deletes.FORGET_PHASES", deletes.FORGET_PHASES, {"seqs": SEQS}, "holdfast_phase_pkey")
    yield on_borrowed("deletes.FORGET_BLOCKERS", deletes.FORGET_BLOCKERS, {"seqs": SEQS}, BLOCKER)


JOB_LISTS = {
    "all": JobFilter(),
    "of a task": JobFilter(tasks=("task-3",)),
    "of a queue and tasks": JobFilter(queues=("mails",), tasks=("task-0", "task-1", "task-2")),
    "completed or failed": JobFilter(states=(State.COMPLETED, State.FAILED)),
    "continued": JobFilter(states=(State.CONTINUED,)),
    "waiting or scheduled": JobFilter(states=(State.WAITING, State.SCHEDULED)),
    "running": JobFilter(states=(State.RUNNING,)),
    "created lately": JobFilter(created_from=datetime(1970, 1, 1, tzinfo=UTC)),
    "of a lane": JobFilter(lanes=("lane-1",)),
    "everything at once": JobFilter(
        tasks=("task-1",), queues=("default",), states=(State.PENDING,), created_from=datetime(1970, 1, 1, tzinfo=UTC)
    ),
}
CHAIN_LISTS = {
    "all": ChainFilter(),
    "open": ChainFilter(is_open=True),
    "closed": ChainFilter(is_open=False),
    "blocked": ChainFilter(statuses=(Status.BLOCKED,)),
    "failed": ChainFilter(statuses=(Status.FAILED,)),
    "blocked or failed": ChainFilter(statuses=(Status.BLOCKED, Status.FAILED)),
    "of a task": ChainFilter(tasks=("task-3",)),
    "roots": ChainFilter(roots_only=True),
    "open roots": ChainFilter(is_open=True, roots_only=True),
}
OPEN_CHAINS = {"open", "blocked", "open roots"}
PAGES = {
    "newest": Paging(limit=10),
    "newest, a long page": Paging(limit=200),
    "oldest": Paging(limit=10, order="oldest"),
    "newest after a cursor": Paging(limit=10, cursor=reads._write_cursor("newest", MIXED // 2)),
    "oldest after a cursor": Paging(limit=10, order="oldest", cursor=reads._write_cursor("oldest", MIXED // 2)),
}


def read_probes() -> Iterator[Probe]:
    """Give what reads of single jobs, chains and tasks run."""
    steps = {"chain_id": str(job_id(MIXED // 2 + 15)), "after": 0}
    yield on_ours("reads.JOB", reads.JOB, {"id": IDS[0]}, JOB_ID, JOB_CHAIN)
    yield on_ours("reads.CHAIN_OF_JOB", reads.CHAIN_OF_JOB, {"id": IDS[0]}, JOB_ID)
    yield on_ours("reads.STEPS", reads.STEPS, {**steps, "most": 10}, JOB_CHAIN, is_ordered=True)
    yield on_ours("reads.FIRST", reads.FIRST, {**steps, "after": -1}, JOB_ID)
    yield on_ours("reads.CHAIN_JOBS", reads.CHAIN_JOBS, {"seqs": SEQS}, JOB_PKEY, JOB_CHAIN)
    yield on_ours("task_rows.VERSIONS", task_rows.VERSIONS, {"names": ["task-1", "task-2"]})
    yield on_ours("task_rows.FIND", task_rows.FIND, {"names": ["task-1", "task-2"]})
    timeline = {"job": SEQS[0], "most": 50}
    for database, index in (("postgres", "holdfast_event_pkey"), ("sqlite", "holdfast_event_job")):
        yield on_ours(f"events of a job, {database}", coming.TIMELINE, timeline, index, is_ordered=True, only=database)


def list_probes() -> Iterator[Probe]:
    """Give lists, narrowed in many ways, a page at the beginning and one in the middle, in both orders."""
    for page, paging in PAGES.items():
        for name, jobs in JOB_LISTS.items():
            sql, values = asked(partial(reads.list_jobs, wanted=jobs, paging=paging))
            walks = None if name != "all" else 5 * paging.limit
            yield on_ours(
                f"jobs, {name}, {page}", sql, values, JOB_PKEY, JOB_CHAIN, is_ordered=True, is_list=True, reads=walks
            )
        for name, which in CHAIN_LISTS.items():
            sql, values = asked(partial(reads.list_chains, wanted=which, paging=paging))
            blocking = {"holdfast_blocker_chain"} if which.roots_only else set()
            along = frozenset({JOB_PKEY, JOB_CHAIN, *blocking})
            walks = 10 * paging.limit if name in {"all", "open"} else None
            by = along | {"holdfast_job_open"} if name in OPEN_CHAINS else along
            more = {"is_ordered": True, "is_list": True, "reads": walks}
            yield on_ours(f"chains, {name}, {page}", sql, values, *by, or_by=along, **more)


def engine_probes() -> Iterator[Probe]:
    """Give what the engine will run."""
    token = {"nonce": "n", "worker": "w"}
    known = [(queue, f"task-{n}", 10) for queue in ("default", "mails", "paused") for n in range(10)]
    one = {"queue": "default", "task": "task-1", "floor": -(2**62), "most": 10}
    lanes = [(f"lane-{n}",) for n in range(10)]
    claim = {"given": known, "floor": -(2**62)}
    ready = "holdfast_job_ready"
    yield on_ours("look", coming.LOOK, {**claim, "most": 50}, ready, reads=600, only="postgres")
    yield on_ours("claim", coming.CLAIM, {**claim, **token}, ready, JOB_PKEY, reads=1000, only="postgres")
    yield on_ours("look by task", coming.LOOK_BY_TASK, one, ready, is_ordered=True)
    yield on_ours("claim by seq", coming.CLAIM_BY_SEQ, {"seqs": SEQS, **token}, JOB_PKEY)
    yield on_ours("complete", coming.COMPLETE, {"given": [(each, 1, "nonce", "null") for each in SEQS]}, JOB_PKEY)
    yield on_ours(
        "arrivals", coming.ARRIVALS, {"queue": "default", "most": 50}, "holdfast_job_arrival", is_ordered=True
    )
    yield on_ours("lane head", coming.LANE_HEAD, {"given": lanes}, "holdfast_job_head")
    yield on_ours("lane next", coming.LANE_NEXT, {"given": lanes}, "holdfast_job_lane", is_ordered=True)
    yield on_ours("expired leases", coming.EXPIRED, {"most": 50}, "holdfast_job_leased", is_ordered=True)
    before = {"before": MIXED, "most": 50}
    yield on_ours(
        "retention", coming.RETENTION, before, "holdfast_job_closed", "holdfast_blocker_chain", is_ordered=True
    )
    yield on_ours("dependents", coming.DEPENDENTS, {"chains": CHAINS, "most": 500}, "holdfast_blocker_chain")
    fresh = {"xmax": 2**40, "in_progress": [2**40, 2**40 + 1]}
    yield on_ours("new events", coming.NEW_EVENTS, fresh, "holdfast_event_xid", only="postgres")
    yield on_ours(
        "new events by seq",
        coming.NEW_EVENTS_BY_SEQ,
        {"after": MIXED - 10, "most": 50},
        "holdfast_event_pkey",
        only="sqlite",
        is_ordered=True,
    )


def probes(database: str) -> list[Probe]:
    """Give every probe for *database*."""
    every = [*start_probes(), *delete_probes(), *read_probes(), *list_probes(), *engine_probes()]
    return [each for each in every if each.only in ("", database)]
