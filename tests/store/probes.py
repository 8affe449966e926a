"""Every statement whose plan is tested, with values that hit the middle of the crowd."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

from holdfast.database.tx import Database, Row, Tx, drive
from holdfast.figures import Counts
from holdfast.models import ChainQuery, JobQuery, Order, Start
from holdfast.states import State, Status
from holdfast.store import (
    access,
    admission,
    audit,
    delivery_backlog,
    journal,
    lanes,
    lists,
    outbox,
    phase_rows,
    phases,
    polls,
    reads,
    retention,
    rows,
    schedules,
    search,
    task_rows,
    unique,
    webhooks,
)
from holdfast.store.chains import blockers, chain_ends, continuations, creation, deletes, dependents
from holdfast.store.insight import explain, gauges, inbox, inventory, lane_lists, tallies
from holdfast.store.jobs import block_ends, bulk_pages, claiming, completing, journaling, reaping, settling, steering
from holdfast.store.log import events, fan_out, pruning, reading, snapshot
from holdfast.store.reads import Paging
from tests.store.crowd import CYCLE, IN_FRONT, MIXED, job_id
from tests.store.plans import JOB_CHAIN, JOB_ID, JOB_PKEY, Probe


class Listening:
    """A transaction that finds nothing and remembers what it was asked last."""

    database: Database = "postgres"

    def __init__(self, *answers: list[Row]) -> None:
        self.sql = ""
        self.values: dict[str, object] = {}
        self._answers = list(answers)

    async def execute(self, sql: str, /, **values: object) -> None:
        """Remember *sql*."""
        self.sql, self.values = sql, values

    async def fetch_all(self, sql: str, /, **values: object) -> list[Row]:
        """Remember *sql*, find what was given for it, or nothing."""
        await self.execute(sql, **values)
        return self._answers.pop(0) if self._answers else []


def asked(operation: Callable[[Tx], Coroutine[Any, Any, object]], *answers: list[Row]) -> tuple[str, dict[str, object]]:
    """Give the last statement that *operation* makes at run time, if earlier ones find *answers*, with its values."""
    tx = Listening(*answers)
    drive(operation(tx))
    return tx.sql, tx.values


ONE_CYCLE = range(MIXED // 2, MIXED // 2 + CYCLE)  # one job of each kind
SEQS = list(ONE_CYCLE)
IDS = [str(job_id(each)) for each in ONE_CYCLE]
CHAINS = [str(job_id(each)) for each in ONE_CYCLE if each % CYCLE < 16]
HOLDER = MIXED // 2 + 7  # holds its key
KEYS = [(f"task-{HOLDER // 20 % 10}", f"key-{HOLDER}"), ("task-1", "nobody's")]
UNIQUE, BLOCKER, PHASE = "holdfast_unique_pkey", "holdfast_blocker_pkey", "holdfast_phase_pkey"


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
    plain = {"given": rows.insert_plain_values([new, twin])}
    held = {"given": [(*key, str(job_id(HOLDER))) for key in KEYS], "scopes": ["open", "any"]}
    yield on_borrowed("creation.UNDO", creation.UNDO, {"seqs": SEQS}, JOB_PKEY)
    yield on_borrowed("creation.OWN_KEYS", creation.OWN_KEYS, {"ids": IDS}, JOB_ID, UNIQUE)
    yield on_borrowed("unique.TAKE_BACK", unique.TAKE_BACK, {"given": held["given"]}, UNIQUE, JOB_ID)
    yield on_borrowed("unique.HELD_BY", unique.HELD_BY, {"given": held["given"]}, UNIQUE)
    yield on_borrowed("creation.EXISTING", creation.EXISTING, {"ids": IDS}, JOB_ID)
    yield on_borrowed("blockers.CHAINS", blockers.CHAINS, {"ids": IDS}, JOB_ID)
    yield on_borrowed("rows.INSERT", sql, given, JOB_ID, conflict=JOB_ID)
    yield on_borrowed("rows.INSERT_PLAIN", rows.INSERT_PLAIN, plain, JOB_ID, conflict=JOB_ID)
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
    yield on_borrowed("deletes.EDGES", deletes.EDGES, {"jobs": SEQS}, BLOCKER)
    yield on_borrowed("deletes.CHAIN_OF", deletes.CHAIN_OF, {"seqs": SEQS}, JOB_PKEY)
    yield on_borrowed("deletes.LOCK_FREE", deletes.LOCK_FREE, {"seqs": SEQS}, JOB_PKEY)
    yield on_borrowed("deletes.REFERENCES", deletes.REFERENCES, {"chains": CHAINS}, "holdfast_blocker_chain", JOB_PKEY)
    yield on_borrowed("deletes.LOCK", deletes.LOCK, {"seqs": SEQS}, JOB_PKEY)
    yield on_borrowed("deletes.DELETE", deletes.DELETE, {"seqs": SEQS}, JOB_PKEY)
    yield on_borrowed("deletes.BURY", deletes.BURY, {"seqs": SEQS}, JOB_PKEY)
    yield on_borrowed("deletes.FORGET_PHASES", deletes.FORGET_PHASES, {"seqs": SEQS}, "holdfast_phase_pkey")
    yield on_borrowed("deletes.FORGET_JOURNAL", deletes.FORGET_JOURNAL, {"seqs": SEQS}, JOURNAL)
    yield on_borrowed("deletes.FORGET_BLOCKERS", deletes.FORGET_BLOCKERS, {"seqs": SEQS}, BLOCKER)
    for database, index in EVENTS_OF.items():
        yield on_borrowed("deletes.FORGET_EVENTS", deletes.FORGET_EVENTS, {"seqs": SEQS}, index, only=database)
    yield on_borrowed("deletes.FORGET_DELIVERIES", deletes.FORGET_DELIVERIES, {"seqs": SEQS}, ABOUT)
    yield on_borrowed("deletes.FORGET_DELIVERED", deletes.FORGET_DELIVERED, {"seqs": SEQS}, DELIVERY)


JOB_PARENT = "holdfast_job_parent"
PARENT = job_id(MIXED // 2)
JOB_LISTS = {
    "all": JobQuery(),
    "of a task": JobQuery(tasks=("task-3",)),
    "of a queue and tasks": JobQuery(queues=("mails",), tasks=("task-0", "task-1", "task-2")),
    "completed or failed": JobQuery(states=(State.COMPLETED, State.FAILED)),
    "continued": JobQuery(states=(State.CONTINUED,)),
    "waiting or scheduled": JobQuery(states=(State.WAITING, State.SCHEDULED)),
    "running": JobQuery(states=(State.RUNNING,)),
    "created lately": JobQuery(created_from=datetime(1970, 1, 1, tzinfo=UTC)),
    "of a lane": JobQuery(lanes=("lane-1",)),
    "of a tag": JobQuery(tags=("red",)),
    "of an error": JobQuery(errors=("ValueError",)),
    "of an input": JobQuery(inputs=((("user_id",), 42),)),
    "of a chain's task": JobQuery(chain_tasks=("task-3",)),
    "failed": JobQuery(states=(State.FAILED,)),
    "of a worker": JobQuery(workers=("worker",)),
    "of a parent": JobQuery(parent=PARENT),
    "by id": JobQuery(ids=(job_id(1),)),
    "everything at once": JobQuery(
        tasks=("task-1",), queues=("default",), states=(State.PENDING,), created_from=datetime(1970, 1, 1, tzinfo=UTC)
    ),
}
CHAIN_LISTS = {
    "all": ChainQuery(),
    "open": ChainQuery(is_open=True),
    "closed": ChainQuery(is_open=False),
    "blocked": ChainQuery(statuses=(Status.BLOCKED,)),
    "failed": ChainQuery(statuses=(Status.FAILED,)),
    "blocked or failed": ChainQuery(statuses=(Status.BLOCKED, Status.FAILED)),
    "of a task": ChainQuery(tasks=("task-3",)),
    "roots": ChainQuery(roots_only=True),
    "open roots": ChainQuery(is_open=True, roots_only=True),
}
BY_NUMBERS = {"running", "failed", "of a worker", "of a parent", "by id"}
OPEN_CHAINS = {"open", "blocked", "open roots"}
PAGES = {
    "newest": Paging(limit=10),
    "newest, a long page": Paging(limit=200),
    "oldest": Paging(limit=10, order="oldest"),
    "newest after a cursor": Paging(limit=10, cursor=reads.write_cursor("newest", MIXED // 2)),
    "oldest after a cursor": Paging(limit=10, order="oldest", cursor=reads.write_cursor("oldest", MIXED // 2)),
}


def read_probes() -> Iterator[Probe]:
    """Give what reads of single jobs, chains and tasks run."""
    steps = {"chain_id": str(job_id(MIXED // 2 + 15)), "after": 0}
    yield on_ours("reads.JOB", reads.JOB, {"id": IDS[0]}, JOB_ID, JOB_CHAIN, PHASE)
    yield on_ours("reads.CHAIN_OF_JOB", reads.CHAIN_OF_JOB, {"id": IDS[0]}, JOB_ID)
    yield on_ours("reads.STEPS", reads.STEPS, {**steps, "most": 10}, JOB_CHAIN, is_ordered=True)
    yield on_ours("reads.FIRST", reads.FIRST, {**steps, "after": -1}, JOB_ID)
    yield on_ours("reads.CHAIN_JOBS", reads.CHAIN_JOBS, {"seqs": SEQS}, JOB_PKEY, JOB_CHAIN, PHASE)
    named = {"jobs": IDS[:3], "chains": CHAINS[:3], "given": [(str(PARENT),)], "most": 100}  # each child twice
    yield on_ours("snapshot.NAMED", snapshot.NAMED, named, JOB_ID, JOB_CHAIN, JOB_PARENT, JOB_PKEY)
    yield on_ours("task_rows.VERSIONS", task_rows.VERSIONS, {"names": ["task-1", "task-2"]})
    yield on_ours("task_rows.FIND", task_rows.FIND, {"names": ["task-1", "task-2"]})


STUCK, LEASED = "holdfast_job_stuck", "holdfast_job_leased"
SPANS = {"from an end": (0, 2**62), "from the middle": (0, MIXED // 2), "to the middle": (MIXED // 2, 2**62)}
SOME = [[(MIXED // 2 + each,) for each in (-6, -4, -2, 2, 4, 6)]]  # what a path finds that gives numbers


def list_probes() -> Iterator[Probe]:
    """Give lists, narrowed in many ways, a page at the beginning and one in the middle, in both orders."""
    for span, (low, high) in SPANS.items():
        between: dict[str, object] = {"low": low, "high": high}
        yield on_ours(f"search.ENDS, {span}", search.ENDS, between, JOB_PKEY, is_ordered=True, is_list=True, reads=5)
        for order in ("newest", "oldest"):
            yield from path_probes(f"{order}, {span}", order, between)
    yield on_ours("lists.BY_ID", lists.BY_ID, {"ids": IDS}, JOB_ID)
    yield on_ours("lists.CHAINS_OF", lists.CHAINS_OF, {"ids": IDS}, JOB_ID)
    yield on_ours("lists.OF_CHAINS", lists.OF_CHAINS, {"chains": CHAINS, "most": 200}, JOB_ID, JOB_CHAIN)
    yield on_ours("lists.LEASED", lists.LEASED, {"most": 200}, LEASED, is_ordered=True, is_list=True)
    for page, paging in PAGES.items():
        for name, wanted in JOB_LISTS.items():
            answers = SOME if name in BY_NUMBERS else [[(MIXED + 2 * IN_FRONT, 1)]]
            sql, values = asked(partial(lists.list_jobs, wanted=wanted, paging=paging), *answers)
            is_by_numbers = "seqs" in values
            walks = 5 * paging.limit if name == "all" else 100 * CYCLE if is_by_numbers else None
            more = {"is_ordered": not is_by_numbers, "is_list": True, "reads": walks}
            first = {JOB_ID} if wanted.chain_tasks else set()
            yield on_ours(f"jobs, {name}, {page}", sql, values, JOB_PKEY, JOB_CHAIN, PHASE, *first, **more)
        for name, which in CHAIN_LISTS.items():
            answers = SOME if name in OPEN_CHAINS else [[(MIXED + 2 * IN_FRONT, 1)]]
            sql, values = asked(partial(lists.list_chains, wanted=which, paging=paging), *answers)
            blocking = {"holdfast_blocker_chain"} if which.roots_only else set()
            is_by_numbers = "seqs" in values
            walks = 10 * paging.limit if name == "all" else 100 * CYCLE if is_by_numbers else None
            more = {"is_ordered": not is_by_numbers, "is_list": True, "reads": walks}
            yield on_ours(f"chains, {name}, {page}", sql, values, JOB_PKEY, JOB_CHAIN, *blocking, **more)
    for name in ("all", "of a lane", "of an input"):
        ids = partial(lists.newest_ids, wanted=JOB_LISTS[name], more=[], most=10)
        sql, values = asked(ids, [(MIXED + 2 * IN_FRONT, 1)])
        walks = 50 if name == "all" else None
        yield on_ours(f"newest ids, {name}", sql, values, JOB_PKEY, is_ordered=True, is_list=True, reads=walks)


def path_probes(name: str, order: Order, between: Mapping[str, object]) -> Iterator[Probe]:
    """Give what leads to the rows that may fit, along an index that has them by number."""
    more = {"is_list": True, "reads": 60}
    wanted = {**between, "most": 20}
    for states, ways in lists.STUCK.items():
        yield on_ours(
            f"lists.STUCK, {', '.join(sorted(states))}, {name}", ways[order], wanted, STUCK, **more | {"reads": 120}
        )
    by, along = "holdfast_job_open", frozenset({JOB_PKEY})
    yield on_ours(
        f"lists.OPEN_CHAINS, {name}", lists.OPEN_CHAINS[order], wanted, by, or_by=along, is_ordered=True, **more
    )
    children = {**wanted, "parent": str(PARENT)}
    yield on_ours(f"lists.CHILDREN, {name}", lists.CHILDREN[order], children, JOB_PARENT, is_ordered=True, **more)


READY, ARRIVAL, LANE, HEAD = "holdfast_job_ready", "holdfast_job_arrival", "holdfast_job_lane", "holdfast_job_head"
LINKS_TO = "holdfast_blocker_chain"
LANES = [(f"lane-{n}",) for n in range(10)]
ARRIVED = [each for each in range(MIXED // 2, MIXED // 2 + 20 * CYCLE) if each % CYCLE == 9]
TOKENS = [(each, 1, "nonce") for each in SEQS]


def claim_probes() -> Iterator[Probe]:
    """Give what admission and claim run, among due jobs of a task that nobody knows and of a queue that is paused."""
    wanted = [(queue, f"task-{n}") for queue in ("default", "mails", "paused") for n in range(10)]
    floor = {"floor_key": claiming.LOWEST[0], "floor_seq": claiming.LOWEST[1]}
    claim = {**floor, "nonce": "n", "worker": "w", "lease": [(f"task-{n}", 30_000) for n in range(10)]}
    shares = [(*each, 10) for each in wanted]
    one = {"queue": "default", "task": "task-1", "most": 10}
    queue = {"queue": "default", "most": 50}
    yield on_ours(
        "jobs.PEEK",
        claiming.PEEK["postgres"],
        {"given": wanted, **floor, "most": 50},
        READY,
        reads=1600,
        only="postgres",
    )
    yield on_ours(
        "jobs.CLAIM",
        events._with_events(claiming.CLAIM["postgres"], tuple(claiming.STARTED)),
        {"given": shares, **claim, "facts": None},
        READY,
        JOB_PKEY,
        reads=1000,
        only="postgres",
    )
    yield on_ours("jobs.PEEK", claiming.PEEK["sqlite"], {**one, **floor}, READY, is_ordered=True, only="sqlite")
    yield on_ours("jobs.CLAIM", claiming.CLAIM["sqlite"], {**one, **claim}, READY, JOB_PKEY, reads=600, only="sqlite")
    yield on_ours("claiming.NEXT_ARRIVAL", claiming.NEXT_ARRIVAL, {"given": [("default",), ("mails",)]}, ARRIVAL)
    yield on_ours("admission.ARRIVALS", admission.ARRIVALS, queue, ARRIVAL, is_ordered=True)
    kind = {"queue": "default", "task": "task-1"}
    yield on_ours("polls.LEFT_WAITING", polls.LEFT_WAITING, kind, READY, is_ordered=True)
    crowded = {"queue": "default", "task": "unknown"}
    yield on_ours("polls.NEXT_KIND", polls.NEXT_KIND, crowded, READY, JOB_PKEY, is_ordered=True)
    yield on_ours("admission.READY", admission.READY, {"seqs": ARRIVED}, JOB_PKEY)
    yield on_ours("admission.NAMED", admission.NAMED, {"ids": IDS}, JOB_ID, JOB_PKEY)
    yield on_ours("admission.WAIT", admission.WAIT, {"seqs": ARRIVED}, JOB_PKEY)
    yield on_ours("admission.BACK", admission.BACK, {"seqs": SEQS, "running": ["lane-1"]}, JOB_PKEY)
    yield on_ours("admission.DONE", admission.DONE, {"given": [(seq, "failed", None) for seq in SEQS]}, JOB_PKEY)
    yield on_ours("admission.REMOVE", admission.REMOVE, {"seqs": SEQS}, JOB_PKEY)
    yield on_ours("admission.NEXT_QUEUE", admission.NEXT_QUEUE, {"after": ""}, ARRIVAL, is_ordered=True)
    leave = rows.LEAVE_TO_ADMISSION
    yield on_borrowed("rows.LEAVE_TO_ADMISSION", leave, {"seqs": ARRIVED, "milliseconds": 25}, JOB_PKEY)


def lane_probes() -> Iterator[Probe]:
    """Give what lanes run."""
    key = {"key": "lane-1"}
    joining = [(each, each, 0, "lane") for each in ARRIVED]
    yield on_borrowed("lanes.HEAD_AND_NEXT", lanes.HEAD_AND_NEXT, {"given": LANES}, LANE, HEAD, is_ordered=True)
    yield on_borrowed("lanes.NEXT", lanes.NEXT, {"given": LANES}, LANE, HEAD, is_ordered=True)
    yield on_ours("lanes.JOIN", lanes.JOIN, {"given": joining}, JOB_PKEY)
    yield on_borrowed("lanes.PROMOTE", lanes.PROMOTE, {"seqs": SEQS, "running": ["lane-1"]}, JOB_PKEY)
    yield on_ours("lanes.PARK", lanes.PARK, key, HEAD)
    yield on_ours("lanes.UNPARK", lanes.UNPARK, key, HEAD)
    yield on_ours("lanes.SKIP", lanes.SKIP, key, HEAD)
    yield on_ours("lanes.HALTING", lanes.HALTING, key, HEAD)
    some = [f"head-{each}" for each in range(MIXED // 2 + 11, MIXED // 2 + 11 + 10 * CYCLE, CYCLE)]
    yield on_ours("lanes.HEADS", lanes.HEADS, {"keys": some}, HEAD)
    behind = {"given": LANES, "most": 10}
    yield on_ours("lanes.BEHIND", lanes.BEHIND, behind, LANE, is_ordered=True)
    standing = {**key, "after": 0, "most": 10}
    of_jobs = (JOB_CHAIN, PHASE)
    yield on_ours("lane_lists.STANDING", lane_lists.STANDING, standing, LANE, *of_jobs, is_ordered=True)
    yield on_ours("lane_lists.HEAD", lane_lists.HEAD, {"key": some[0]}, HEAD, *of_jobs)
    for after in (0, MIXED // 2):
        yield on_ours(f"lane_lists.HALTED, {after}", lane_lists.HALTED, {"after": after, "most": 20}, STUCK, reads=60)


def lane_list_probes() -> Iterator[tuple[Probe, str]]:
    """Give what lists of lanes run on their own table, and the index that each goes by."""
    behind = {"after": "row-5", "most": 20}
    yield on_ours("lane_lists.PAUSED", lane_lists.PAUSED, behind, is_list=True, reads=None), "holdfast_lane_paused"
    yield on_ours("lane_lists.ALL", lane_lists.ALL, behind, is_list=True, reads=None), "holdfast_lane_pkey"


def inventory_probes() -> Iterator[Probe]:
    """Give what lists of queues and workers run."""
    yield on_ours("inventory.RUNNING", inventory.RUNNING, {"most": 200}, LEASED, is_list=True)
    for gate, sql in inventory.QUEUES.items():
        by = {"ready": READY, "arrival": ARRIVAL}[gate]
        yield on_ours(f"inventory.QUEUES, {gate}", sql, {"most": 100}, by, is_ordered=True, is_list=True, reads=60)


def blocker_probes() -> Iterator[Probe]:
    """Give what blockers run."""
    some = {"ids": CHAINS}
    most = {"most": 50}
    marks = [(each, 0, "armed") for each in SEQS]
    moves = [(each, 0, "pending", None) for each in SEQS]
    yield on_ours("blockers.LINKS", blockers.LINKS, {"jobs": SEQS}, BLOCKER)
    yield on_ours("blockers.LOCK_CHAINS", blockers.LOCK_CHAINS, some, JOB_ID)
    yield on_ours("blockers.EXIST", blockers.EXIST, some, JOB_ID)
    yield on_ours("blockers.WATCH", blockers.WATCH, some, JOB_ID)
    yield on_borrowed("blockers.MARK", blockers.MARK, {"given": marks}, BLOCKER)
    yield on_borrowed(
        "blockers.DEPENDENTS", blockers.DEPENDENTS, {**some, "completed": CHAINS, **most}, LINKS_TO, JOB_PKEY
    )
    yield on_borrowed("blockers.LOCK_DEPENDENTS", blockers.LOCK_DEPENDENTS, {"seqs": SEQS}, JOB_PKEY)
    yield on_borrowed("blockers.MOVE", blockers.MOVE, {"given": moves}, JOB_PKEY)
    yield on_ours("blockers.FAILED_BY", blockers.FAILED_BY, {**some, **most}, LINKS_TO)
    yield on_ours("blockers.LOCK_FAILED", blockers.LOCK_FAILED, {"seqs": SEQS}, JOB_PKEY)
    yield on_ours("blockers.BLOCK_AGAIN", blockers.BLOCK_AGAIN, {"seqs": SEQS}, JOB_PKEY)


def run_probes() -> Iterator[Probe]:
    """Give what settling, renewing and reaping run."""
    how = ("complete", "completed", None, 0, "null", None, None, None, 0, 0, 0, 0, "completed", 1, 1)
    leaving = [(*each, *how) for each in TOKENS]
    reports = {"given": [(*each, 50, None, "run") for each in TOKENS], "seqs": SEQS}
    closing = [(each, "completed") for each in CHAINS]
    tell, told = {"facts": None}, events.COMPLETED[:1]
    ended = {"given": [(seq, 1, "n", "null") for seq in SEQS], "seqs": SEQS}
    yield on_ours("settling.COMPLETE", settling.COMPLETE, ended, JOB_PKEY, only="sqlite")
    complete = events._with_events(settling.COMPLETE, told)
    yield on_ours("settling.COMPLETE", complete, {**ended, **tell}, JOB_PKEY, only="postgres")
    ended_in_block = {"given": ended["given"][:1]}
    yield on_borrowed("settling.COMPLETE_BLOCK", settling.COMPLETE_BLOCK, ended_in_block, JOB_PKEY, only="sqlite")
    complete = events._with_events(settling.COMPLETE_BLOCK, told)
    yield on_borrowed("settling.COMPLETE_BLOCK", complete, {**ended_in_block, **tell}, JOB_PKEY, only="postgres")
    complete = events._with_events(settling.COMPLETE_ALONE, told)
    yield on_borrowed("settling.COMPLETE_ALONE", complete, {**ended_in_block, **tell}, JOB_PKEY, only="postgres")
    yield on_ours("events.APPEND_MOVED", events._events_of_jobs(told), {"jobs": SEQS, **tell}, JOB_PKEY, only="sqlite")
    yield on_ours("settling.LOCK_RUNNING", settling.LOCK_RUNNING, {"seqs": SEQS}, JOB_PKEY)
    yield on_ours("settling.FIRSTS", settling.FIRSTS, {"ids": CHAINS}, JOB_ID)
    yield on_borrowed("settling.WRITE_ENDS", settling.WRITE_ENDS, {"given": leaving}, JOB_PKEY)
    yield on_borrowed("chain_ends.CLOSE", chain_ends.CLOSE, {"given": closing}, JOB_ID)
    yield on_ours("claiming.CLAIM_STATES", claiming.CLAIM_STATES, {"seqs": SEQS}, JOB_PKEY)
    yield on_ours("claiming.RENEW", claiming.RENEW, {"given": TOKENS}, JOB_PKEY)
    yield on_borrowed("claiming.PROGRESS", claiming.PROGRESS, reports, JOB_PKEY)
    yield from phase_probes()
    expired = {"quiet_ms": 2**53, "spared": SEQS[:3], "most": 50}
    for database in ("sqlite", "postgres"):
        peek = reaping.PEEK[database]
        yield on_ours("reaping.PEEK", peek, {"after": ""}, LEASED, ARRIVAL, is_ordered=True, only=database)
    yield on_ours("reaping.FIND", reaping.FIND, expired, LEASED, is_ordered=True)
    yield on_ours("reaping.EXPIRED", reaping.EXPIRED, {"seqs": SEQS}, JOB_PKEY)


def phase_probes() -> Iterator[Probe]:
    """Give what phases run."""
    begins = {"given": [(*each, "encode", 50) for each in TOKENS], "seqs": SEQS}
    completes = {"given": [(*each, 50) for each in TOKENS], "seqs": SEQS}
    laid = [(seq, 0, "encode", "running", 0, None, None, None, None, None) for seq in SEQS]
    yield on_ours("phases.BEGIN", phases.BEGIN, begins, JOB_PKEY)
    yield on_ours("phases.COMPLETE", phases.COMPLETE, completes, JOB_PKEY)
    yield on_ours("phase_rows.READ", phase_rows.READ, {"job": SEQS[0]}, PHASE)
    yield on_ours("phase_rows.WRITE", phase_rows.WRITE, {"given": laid}, PHASE, conflict=PHASE)
    cut = {"jobs": SEQS, "given": [(seq, 1) for seq in SEQS]}
    yield on_ours("phase_rows.DELETE_FROM", phase_rows.DELETE_FROM, cut, PHASE)
    said = [(seq, 0, "run", 50, None) for seq in SEQS]
    yield on_ours("phase_rows.PROGRESS", phase_rows.PROGRESS, {"given": said}, PHASE, conflict=PHASE)
    results = [(seq, 0, '"done"') for seq in SEQS]
    yield on_ours("phase_rows.COMPLETE", phase_rows.COMPLETE, {"given": results}, PHASE)
    ends = [(seq, "failed", None) for seq in SEQS]
    yield on_ours("phase_rows.END", phase_rows.END, {"given": ends, "jobs": SEQS}, PHASE)


def steering_probes() -> Iterator[Probe]:
    """Give what people's verbs run, also in their own transactions."""
    yield on_borrowed("steering.CURRENT", steering.CURRENT, {"ids": IDS}, JOB_ID, JOB_CHAIN, JOB_PKEY)
    yield on_borrowed("steering.LOCK", steering.LOCK, {"seqs": SEQS}, JOB_PKEY)
    yield on_borrowed("steering.LOCK_FREE", steering.LOCK_FREE, {"seqs": SEQS}, JOB_PKEY)
    yield on_ours("bulk_pages.HIGHEST", bulk_pages.HIGHEST, {}, JOB_PKEY)
    yield on_borrowed("steering.CANCEL", steering.CANCEL, {"seqs": SEQS, "reason": None}, JOB_PKEY)
    yield on_borrowed("phase_rows.CANCEL", phase_rows.CANCEL, {"jobs": SEQS}, PHASE)
    yield on_borrowed("steering.REQUEST_CANCEL", steering.REQUEST_CANCEL, {"seqs": SEQS, "reason": None}, JOB_PKEY)
    yield on_borrowed("steering.REQUEST_PAUSE", steering.REQUEST_PAUSE, {"seqs": SEQS, "reason": None}, JOB_PKEY)
    yield on_borrowed("steering.PAUSE", steering.PAUSE, {"seqs": SEQS, "reason": None}, JOB_PKEY)
    yield on_borrowed("steering.RESUME", steering.RESUME, {"seqs": SEQS}, JOB_PKEY, BLOCKER)
    yield on_borrowed("steering.RETRY", steering.RETRY, {"seqs": SEQS}, JOB_PKEY, BLOCKER)
    yield on_borrowed("steering.KEYS", steering.KEYS, {"ids": CHAINS}, JOB_ID)
    yield on_borrowed("steering.RESCHEDULE", steering.RESCHEDULE, {"seqs": SEQS, "run_at": 0, "delay": 0}, JOB_PKEY)
    yield on_borrowed("chain_ends.REOPEN", chain_ends.REOPEN, {"ids": CHAINS}, JOB_ID)
    yield on_borrowed("creation.FIRSTS", creation.FIRSTS, {"ids": IDS}, JOB_ID)
    yield on_borrowed("reads.JOBS", reads.JOBS, {"ids": IDS}, JOB_ID, JOB_CHAIN, PHASE)
    yield on_borrowed("dependents.FAILED_BY", dependents.FAILED_BY, {"ids": CHAINS}, LINKS_TO, JOB_PKEY, JOB_ID)
    yield on_borrowed("dependents.WANTED_BACK", dependents.WANTED_BACK, {"seqs": SEQS}, BLOCKER, JOB_PKEY, JOB_ID)
    yield on_borrowed("dependents.LOCK_FIRSTS", dependents.LOCK_FIRSTS, {"ids": CHAINS}, JOB_ID)


def chain_probes() -> Iterator[Probe]:
    """Give what continuing, completing without a worker and looking at blockers run."""
    following = [
        (seq, str(job_id(900_000_100 + n)), "task-1", None, None, None, 1, None, "pending", "ready", None, 0, None, 0,
         "{}", 1, None, None, "fail", 1, None)
        for n, seq in enumerate(SEQS[:5])
    ]  # fmt: skip
    by_chain = {"chain_id": CHAINS[0], "most": 50}
    one = {"seq": MIXED // 2 + 13}
    yield on_borrowed("continuations.INSERT", continuations.INSERT, {"given": following}, JOB_PKEY)
    yield on_borrowed("blockers.WAITED_FOR", blockers.WAITED_FOR, {"ids": CHAINS}, LINKS_TO)
    yield on_borrowed("blockers.AHEAD", blockers.AHEAD, {"ids": CHAINS}, JOB_PKEY, JOB_ID, JOB_CHAIN, BLOCKER)
    yield on_borrowed("block_ends.LOCK_WITH_FIRST", block_ends.LOCK_WITH_FIRST, one, JOB_PKEY, JOB_ID)
    yield on_borrowed("block_ends.CHECK", block_ends.CHECK, one, JOB_PKEY)
    yield on_borrowed("block_ends.LOCK_OWN", block_ends.LOCK_OWN, one, JOB_PKEY)
    own = {**one, "attempt": 0, "nonce": "n"}
    yield on_borrowed("block_ends.HELD", block_ends.HELD.replace("1 / count", "count"), own, JOB_PKEY, only="postgres")
    yield on_borrowed(
        "completing.COMPLETE", completing.COMPLETE, {**one, "output": None, "closed_as": "completed"}, JOB_PKEY
    )
    yield on_borrowed("reads.BLOCKERS", reads.BLOCKERS, {"job": MIXED // 2 + 12}, BLOCKER)
    for order, after in (("newest", 2**62), ("oldest", 0)):
        asked_for = {**by_chain, "after": after}
        yield on_borrowed(f"reads.DEPENDENTS, {order}", reads.DEPENDENTS[order], asked_for, LINKS_TO)


DELIVERY, ABOUT = "holdfast_delivery_pkey", "holdfast_delivery_target"


def webhook_probes() -> Iterator[Probe]:
    """Give what making deliveries, ending them and asking for them runs."""
    recorded = [(900_000_200 + n, seq, "job:completed", None, "host:443/") for n, seq in enumerate(SEQS)]
    facts = [(seq, "job:failed", "failed", 2, 1, None) for seq in SEQS]
    append = events.APPEND["$hint_sleepers"]
    yield on_borrowed("events.APPEND", append, {"given": facts}, JOB_PKEY)
    for database in ("sqlite", "postgres"):
        yield on_borrowed("fan_out.WANT", fan_out.WANT[database], {"given": facts}, JOB_PKEY, only=database)
    yield on_borrowed("fan_out.RECORD", fan_out.RECORD, {"given": recorded})
    yield on_borrowed("fan_out.TARGETS", fan_out.TARGETS, {"jobs": SEQS}, DELIVERY)
    yield on_borrowed("fan_out.LOCK_TARGETS", fan_out.LOCK_TARGETS, {"seqs": SEQS}, JOB_PKEY)
    yield on_borrowed("fan_out.EXIST", fan_out.EXIST, {"seqs": SEQS}, JOB_PKEY)
    yield on_borrowed("fan_out.MARK", fan_out.MARK, {"given": [(seq, 1) for seq in SEQS]}, JOB_PKEY)
    yield on_ours("delivery_backlog.NEXT", delivery_backlog.NEXT, {"most": 200}, READY, DELIVERY, is_ordered=True)
    moving = {"given": [(seq, 1_000, 1_000) for seq in SEQS], "seqs": SEQS}
    yield on_ours("delivery_backlog.PUT_OFF", delivery_backlog.PUT_OFF, moving, JOB_PKEY)
    yield on_ours("fan_out.OVERTAKING", fan_out.OVERTAKING, {"jobs": SEQS}, DELIVERY, ABOUT, JOB_PKEY)
    about = {"job": job_id(MIXED // 2), "subscription": None, "paging": Paging(limit=10)}
    found = [(MIXED // 2,)]
    sql, values = asked(partial(webhooks.list_deliveries, **about), found)
    yield on_ours("deliveries of a job", sql, values, ABOUT, DELIVERY)
    subscribed = {"job": None, "subscription": job_id(1), "paging": Paging(limit=10)}
    sql, values = asked(partial(webhooks.list_deliveries, **subscribed))
    yield on_ours("deliveries for a subscription", sql, values, DELIVERY, is_ordered=True, is_list=True)
    yield on_ours("webhooks.DELIVERIES", webhooks.DELIVERIES, {"jobs": SEQS[:10]}, DELIVERY, JOB_PKEY)
    yield on_ours("webhooks.ONE_DELIVERY", webhooks.ONE_DELIVERY, {"id": IDS[6]}, JOB_ID, DELIVERY)


OUTBOX, UNMADE = "holdfast_outbox_pkey", "holdfast_outbox_job"


def outbox_probes() -> Iterator[Probe]:
    """Give what a step runs that makes deliveries of the events in the outbox, and who asks how many wait."""
    oldest = {"passed": [], "most": 50}
    for database, sql in outbox.OLDEST.items():
        yield on_ours("outbox.OLDEST", sql, oldest, OUTBOX, JOB_PKEY, is_ordered=True, only=database)
    yield on_ours("outbox.JOBS", outbox.JOBS, {"seqs": SEQS}, JOB_PKEY, JOB_CHAIN, "holdfast_phase_pkey")
    yield on_ours("outbox.LOCK", outbox.LOCK, {"seqs": SEQS}, OUTBOX)
    yield on_ours("outbox.EARLIER", outbox.EARLIER, {"seqs": SEQS}, OUTBOX, UNMADE)
    yield on_ours("outbox.DELETE", outbox.DELETE, {"seqs": SEQS}, OUTBOX)
    yield on_ours("outbox.HELD", outbox.HELD, {"seqs": SEQS}, OUTBOX)
    # on SQLite the plan has nothing to say but that the subselect, which is bounded, is scanned
    yield on_ours("outbox.BACKLOG", outbox.BACKLOG, {"most": 50}, OUTBOX, is_ordered=True, only="postgres")
    yield on_ours("outbox.LEFT_WAITING", outbox.LEFT_WAITING, {}, OUTBOX, is_ordered=True)


def log_probes() -> Iterator[Probe]:
    """Give what readers of the log run."""
    timeline = {"job": SEQS[0], "after": 0, "most": 50}
    job_events = {"postgres": "holdfast_event_pkey", "sqlite": "holdfast_event_job"}
    for database, index in job_events.items():
        sql = reading.TIMELINE[database]
        yield on_ours(f"events of a job, {database}", sql, timeline, index, is_ordered=True, only=database)
    yield on_ours("reading.JOBS", reading.JOBS, {"seqs": SEQS}, JOB_PKEY, JOB_CHAIN, "holdfast_phase_pkey")
    yield on_ours("reading.HAS_HISTORY", reading.HAS_HISTORY, {"id": IDS[0]}, JOB_ID)
    unseen = {"xmax": 2**40, "in_progress": [2**40 - 3, 2**40 - 2], "after": 0, "most": 50}
    whole, page = {"end": 2**63 - 1, "left_out": []}, {"end": 2**40 + 9, "left_out": [2**40 + 1]}
    for name, upper in (("new events", whole), ("new events of a page", page)):
        yield on_ours(name, reading.SINCE["postgres"], unseen | upper, "holdfast_event_xid", only="postgres")
    since = {"after": MIXED - 10, "most": 50}
    yield on_ours(
        "new events by seq", reading.SINCE["sqlite"], since, "holdfast_event_pkey", only="sqlite", is_ordered=True
    )


SCHEDULE, NEXT, TICK = "holdfast_schedule_pkey", "holdfast_schedule_next", "holdfast_tick_pkey"


def schedule_probes() -> Iterator[Probe]:
    """Give what schedules run: those that are due, in their order, and a few ticks."""
    name = f"schedule-{MIXED // 2}"
    some = [f"schedule-{MIXED // 2 + each}" for each in (0, 10, 20, 110)]
    given = [(each, MIXED // 2 + 5) for each in some]
    ticks = [(each, MIXED // 2 + nr, IDS[0]) for nr, each in enumerate(some)]
    page = {"after": name, "most": 50}
    yield on_ours("schedules.DECLARED", schedules.DECLARED, {"names": some}, SCHEDULE)
    for text in ("ONE", "LOCK_ONE", "DELETE", "DUE_ONE"):
        yield on_ours(f"schedules.{text}", getattr(schedules, text), {"name": name}, SCHEDULE)
    for text in ("MANY", "STANDING"):
        yield on_ours(f"schedules.{text}", getattr(schedules, text), page, SCHEDULE, is_ordered=True)
    yield on_ours("schedules.PAUSE", schedules.PAUSE, {"name": name, "by": "", "why": "", "until": 5}, SCHEDULE)
    yield on_ours("schedules.RESUME", schedules.RESUME, {"given": given}, SCHEDULE)
    yield on_ours("schedules.TOUCH", schedules.TOUCH, {"name": name, "by": ""}, SCHEDULE)
    yield on_ours("schedules.EARLIEST", schedules.EARLIEST, {"since": 0}, NEXT, is_ordered=True)
    for text in ("DUE", "DUE_NAMES"):
        values = {"held": some, "most": 50}
        yield on_ours(f"schedules.{text}", getattr(schedules, text), values, NEXT, is_ordered=True)
    yield on_ours(
        "schedules.TICKS", schedules.TICKS, {"name": name, "before": MIXED, "most": 50}, TICK, is_ordered=True
    )
    yield on_ours("schedules.TICK", schedules.TICK, {"given": ticks}, TICK, conflict=TICK)
    yield on_ours("schedules.MET", schedules.MET, {"given": ticks}, TICK)
    dated = {"given": [(each, 5) for each in IDS]}
    yield on_ours("schedules.SCHEDULED_AT", schedules.SCHEDULED_AT, dated, JOB_ID)
    moved = {"given": [(each, 5, None, 0) for each in some]}
    yield on_ours("schedules.MOVE_ON", schedules.MOVE_ON, moved, SCHEDULE)
    yield on_ours("schedules.LOCK", schedules.LOCK, {"names": some}, SCHEDULE)
    yield on_ours("schedules.PUT_BACK", schedules.PUT_BACK, {"given": given}, SCHEDULE)
    yield on_ours("schedules.AHEAD", schedules.AHEAD, {"given": given, "most": 50}, TICK)
    walk = {"after": name, "most": 20, "offset": 99}
    yield on_ours("schedules.TICKED", schedules.TICKED, walk, TICK, SCHEDULE, reads=5_000)
    yield on_ours("schedules.OLD", schedules.OLD, {"given": given, "most": 50}, TICK)
    yield on_ours("schedules.FORGET", schedules.FORGET, {"given": given}, TICK)


GRANT, SESSION = "holdfast_token_pkey", "holdfast_session_pkey"


def access_probes() -> Iterator[Probe]:
    """Give what is asked of tokens, links and sessions; where tokens are few, all of them are as good as an index."""
    people, few = "holdfast_token_people", {"or_by": frozenset(["holdfast_token_people"])}
    one, own = {"id": IDS[0]}, {"tenant": "tenant-20"}
    page, some = {"before": IDS[0], "most": 50}, {"most": 50}
    hashed, session = {"hash": f"hash-{MIXED // 2}"}, {"hash": f"session-{MIXED // 2}"}
    tokens, links = "holdfast_token_tokens", "holdfast_token_links"
    yield on_ours("access.TOKENS", access.TOKENS, page, people)
    yield on_ours("access.LINKS", access.LINKS, page, GRANT, is_ordered=True)
    yield on_ours("access.TOKENS_OF", access.TOKENS_OF, page | own, tokens, **few)
    yield on_ours("access.LINKS_OF", access.LINKS_OF, page | own, links)
    yield on_ours("access.ONE", access.ONE, one, GRANT)
    yield on_ours("access.REVOKE_TOKEN", access.REVOKE_TOKEN, one | own, GRANT)
    yield on_ours("access.REVOKE_LINK", access.REVOKE_LINK, one | own, GRANT)
    yield on_ours("access.USED", access.USED, one, GRANT)
    yield on_ours("access.FIND", access.FIND, hashed, "holdfast_token_hash_key")
    yield on_ours("access.FIND_SESSION", access.FIND_SESSION, session, SESSION, GRANT)
    yield on_ours("access.ANY_THAT_HOLDS", access.ANY_THAT_HOLDS, {"before": "g"}, people)
    yield on_ours("access.SEEN", access.SEEN, session, SESSION)
    yield on_ours("access.END", access.END, session, SESSION)
    yield on_ours("access.FORGET_TOKENS_OF", access.FORGET_TOKENS_OF, own, tokens, **few)
    yield on_ours("access.FORGET_LINKS_OF", access.FORGET_LINKS_OF, own, links, reads=1_000)
    yield on_ours("access.OLD_SESSIONS", access.OLD_SESSIONS, some, "holdfast_session_created", is_ordered=True)
    yield on_ours("access.OLD_EXPIRED", access.OLD_EXPIRED, some, "holdfast_token_expired", is_ordered=True)
    yield on_ours("access.OLD_REVOKED", access.OLD_REVOKED, some, "holdfast_token_revoked", is_ordered=True)
    yield on_ours("access.DELETE_SESSIONS", access.DELETE_SESSIONS, {"hashes": [session["hash"], "none"]}, SESSION)
    yield on_ours("access.DELETE_TOKENS", access.DELETE_TOKENS, {"ids": IDS}, GRANT)


def audit_probes() -> Iterator[Probe]:
    """Give what the audit runs: a row beside an act, a page of a bounded stretch, and the oldest of all."""
    index, by_id = "holdfast_audit_pkey", "holdfast_audit_id"
    told: dict[str, object] = dict.fromkeys(("why", "request", "facts")) | {"subject": "x"}
    row = {"id": "new", "who": "ann", "action": "cancel"} | told
    anybody = dict.fromkeys(("who", "action", "subject", "since_ms", "until_ms"))
    stretch = {"top": MIXED // 10, "bottom": MIXED // 10 - 100, "most": 51}
    yield on_borrowed("audit.WRITE", audit.WRITE, row, by_id, conflict=by_id)
    yield on_ours("audit.HIGHEST", audit.HIGHEST, {"behind": 0}, index)
    yield on_ours("audit.ENTRIES", audit.ENTRIES, anybody | stretch, index)
    yield on_ours("audit.ENTRIES of one", audit.ENTRIES, anybody | stretch | {"who": "ann"}, index)
    yield on_ours("audit.OLDEST", audit.OLDEST, {"age": 0}, index, is_ordered=True)
    yield on_ours("audit.DELETE_OLD", audit.DELETE_OLD, {"age": 0, "most": 100}, index)


def explain_probes() -> Iterator[Probe]:
    """Give what an explanation runs, also on a caller's connection; what it counts here is counted to 50."""
    lane, most = {"key": "lane-1"}, {"most": 50}
    step, last = str(job_id(MIXED // 2 + 16)), {"job": SEQS[0], "name": "job:paused", **most}
    along = (JOB_ID, JOB_CHAIN, JOB_PKEY, PHASE, DELIVERY)
    yield on_borrowed("explain.CURRENT", explain.CURRENT, {"id": IDS[0]}, *along)
    yield on_borrowed("explain.CURRENT of a chain", explain.CURRENT, {"id": step}, *along)
    for database, index in EVENTS_OF.items():
        yield on_borrowed("explain.LAST_EVENT", explain.LAST_EVENT, last, index, is_ordered=True, only=database)
    links = {"job": MIXED // 2 + 12, **most}
    # both may sort those of one job
    yield on_borrowed("explain.OPEN_LINKS", explain.OPEN_LINKS, links, BLOCKER, JOB_ID)
    yield on_borrowed("explain.FAILED_BY", explain.FAILED_BY, {"job": links["job"]}, BLOCKER)
    yield on_borrowed("explain.AHEAD", explain.AHEAD, {**lane, "place": MIXED, **most}, LANE, is_ordered=True)
    yield on_borrowed("lanes.HEADS of a caller", lanes.HEADS, {"keys": ["lane-1"]}, HEAD)
    yield on_borrowed("explain.TAKEN", explain.TAKEN, most, LEASED)
    waiting = {"queue": "default", "most": explain.MOST_TASKS}
    yield on_ours("explain.WAITING_TASKS", explain.WAITING_TASKS, waiting, READY)
    yield on_ours("explain.HOLD", explain.HOLD, {"seq": SEQS[0]}, JOB_PKEY)
    held = {"seq": SEQS[0], "version": 1}
    yield on_ours("explain.HOLDER", explain.HOLDER, held, JOB_PKEY, only="postgres")


STAGES = {"stale": "holdfast_job_ended", "delete": "holdfast_job_stale"}
EVENTS_OF = {"postgres": "holdfast_event_pkey", "sqlite": "holdfast_event_job"}


def retention_probes() -> Iterator[Probe]:
    """Give what a pass of retention runs."""
    line = {"task": "task-1", "outcome": "completed", "age": 0, "since": MIXED // 2, "passed": [MIXED], "most": 50}
    ends = {"ends": [("completed",), ("failed",), ("cancelled",)]}
    due = {"seqs": SEQS, "outcome": "completed", "age": 0}
    for stage, index in STAGES.items():
        yield on_ours(f"retention.GROUPS, {stage}", retention.GROUPS[stage], ends, index)
        find = retention.FIND[stage]
        yield on_ours(f"retention.FIND, {stage}", find, line, index, JOB_CHAIN, is_ordered=True)
        yield on_ours(f"retention.LOCK_FIRSTS, {stage}", retention.LOCK_FIRSTS[stage], due, JOB_PKEY)
        blocking = retention.BLOCKING[stage]
        yield on_ours(f"retention.BLOCKING, {stage}", blocking, {"chains": CHAINS}, LINKS_TO, JOB_PKEY)
    yield on_ours("retention.FIRSTS", retention.FIRSTS, {"seqs": SEQS}, JOB_PKEY)
    yield on_ours("retention.LATER", retention.LATER, {"chains": CHAINS}, JOB_CHAIN)
    yield on_ours("retention.LOCK_LATER", retention.LOCK_LATER, {"seqs": SEQS}, JOB_PKEY)
    yield on_ours("retention.UNDELIVERED", retention.UNDELIVERED, {"seqs": SEQS}, ABOUT, JOB_PKEY, UNMADE)
    yield on_ours("retention.MARK", retention.MARK, {"seqs": SEQS}, JOB_PKEY)
    yield on_ours("retention.JOBS", retention.JOBS, {"seqs": SEQS}, JOB_PKEY, JOB_CHAIN, "holdfast_phase_pkey")
    yield on_borrowed("chain_ends.UNMARK", chain_ends.UNMARK, {"ids": CHAINS}, JOB_ID, JOB_CHAIN, JOB_PKEY)
    turns = [(*key, 0) for key in KEYS]
    walk = {"task": "task-1", "key": "key-", "turn": -1, "most": 50}
    yield on_ours("unique.WALK", unique.WALK, walk, UNIQUE, JOB_ID, is_ordered=True)
    yield on_ours("unique.LOCK", unique.LOCK, {"given": [(*key, str(job_id(HOLDER))) for key in KEYS]}, UNIQUE)
    yield on_ours("unique.SWEEP", unique.SWEEP, {"given": turns}, UNIQUE)


JOURNAL = "holdfast_journal_pkey"


def journal_probes() -> Iterator[Probe]:
    """Give what journals run: a few rows of one job, and the oldest of all in their order."""
    job = SEQS[0] - SEQS[0] % 10
    given = [(99, 1, 1, "said", "1")]
    some = {"job": job, "after": 3, "most": 5}
    yield on_borrowed("journal.LAST", journal.LAST, {"job": job}, JOURNAL, is_ordered=True)
    yield on_borrowed(
        "journal.WRITE", journal.WRITE, {"job": job, "attempt": 1, "given": given}, JOURNAL, conflict=JOURNAL
    )
    yield on_ours("journal.TRIM", journal.TRIM, {"job": job, "most": 2}, JOURNAL)
    for kind in (None, "said"):
        # PostgreSQL may sort what one job has, if it takes the table for a tiny one
        yield on_ours(f"journal.READ {kind}", journal.READ, {**some, "kind": kind}, JOURNAL)
    old = {"age": 0, "at": MIXED // 2, "job": 0, "most": 50}
    yield on_ours("journal.OLD", journal.OLD, old, "holdfast_journal_at", is_ordered=True)
    yield on_ours("journal.ENDED", journal.ENDED, {"jobs": SEQS}, JOB_PKEY, JOB_ID)
    yield on_ours("journal.LOCK_ENDED", journal.LOCK_ENDED, {"seqs": SEQS}, JOB_PKEY)
    yield on_ours("journal.AGED", journal.AGED, {"given": [(each,) for each in SEQS], "age": 0}, JOURNAL)
    yield on_ours("journal.DELETE", journal.DELETE, {"jobs": SEQS}, JOURNAL)
    yield on_ours("journaling.LOCK", journaling.LOCK, {"seq": job}, JOB_PKEY)
    yield on_ours("journaling.JOB", journaling.JOB, {"id": IDS[0]}, JOB_ID)
    yield on_borrowed("steering.INPUT", steering.INPUT, {"seq": job}, JOB_PKEY)
    yield on_borrowed("steering.CHANGE_INPUT", steering.CHANGE_INPUT, {"seq": job, "input": "{}"}, JOB_PKEY)


def trimming_probes() -> Iterator[Probe]:
    """Give what trimming the log runs."""
    for database, index in EVENTS_OF.items():
        old = {"age": 0, "most": 50}
        yield on_ours("pruning.OLD", pruning.OLD, old, index, is_ordered=True, only=database)
        yield on_ours("trimming.REMOVE", pruning.REMOVE[database], {"seqs": SEQS}, index, only=database)
        yield on_ours("pruning.JOBS", pruning.JOBS, {"after": MIXED // 2, "most": 50}, index, JOB_PKEY, only=database)
        yield on_ours("pruning.DELETE_EVENTS", pruning.DELETE_EVENTS, {"jobs": SEQS}, index, only=database)


STUCK, LANE = "holdfast_job_stuck", "holdfast_job_lane"


def inbox_probes() -> Iterator[Probe]:
    """Give what the inbox runs: a few rows for each task that asks, and of what is stuck no more than it looks at."""
    asking = {"given": [("default", f"task-{n}") for n in range(10)], "key": MIXED // 2, "seq": 0}
    yield on_ours("inbox.FIRST_ASKED", inbox.FIRST_ASKED, asking, READY, reads=50)
    yield on_ours("inbox.ASKED", inbox.ASKED, {**asking, "most": 6}, READY, reads=200)
    from_first, pinned = {"last": inbox.NEWEST, "most": 20}, {"last": MIXED // 2, "most": 20}
    for database, events_of in EVENTS_OF.items():
        for name, values in (("newest", from_first), ("pinned", pinned)):
            yield on_ours(f"inbox.FAILED, {name}", inbox.FAILED, values, STUCK, is_ordered=True, only=database)
        after = {"after": MIXED // 2, "most": 10}
        yield on_ours("inbox.HALTED", inbox.HALTED, after, STUCK, events_of, LANE, only=database)
        yield on_ours("inbox.PAUSED", inbox.PAUSED, after, STUCK, events_of, is_ordered=True, only=database)
    yield on_ours("inbox.RECEIVERS", inbox.RECEIVERS, {"jobs": SEQS}, DELIVERY)


TALLY = "holdfast_tally_pkey"


def figure_probes() -> Iterator[Probe]:
    """Give what figures run: probes along the primary key, and counts that stop at their bound."""
    numbers = (1,) * len(Counts._fields)
    now = 10**13  # later than any clock: an interval that is young
    written = [(now + n, "default", "task-1", *numbers, None, None) for n in range(20)]
    yield on_ours("tallies.WRITE", tallies.WRITE, {"source": "worker", "given": written}, TALLY, conflict=TALLY)
    yield on_ours("tallies.DUE", tallies.DUE, {"given": list(tallies.KEPT_MS.items())}, TALLY, is_ordered=True)
    oldest = {"width": tallies.OPEN, "kept_ms": 60_000, "most": 100}
    yield on_ours("tallies.OLDEST", tallies.OLDEST, oldest, TALLY)
    last = {"ats": list(range(0, 3000, 500)), "at": 3000, "queue": "default", "task": "task-3000", "source": "worker"}
    yield on_ours("tallies.TAKE", tallies.TAKE, last, TALLY)
    yield on_ours("tallies.EXPIRE", tallies.EXPIRE, {"width": 10, **last}, TALLY)
    so_far = {"width": 60, "ats": list(range(60_000, 60_100)), "tasks": ["task-60005"]}
    so_far |= {"first": 60_000, "last": 60_100}
    places = [(width, n, "default", f"task-{n}") for width in (10, 3600, 0) for n in range(60_000, 60_100)]
    yield on_ours("tallies.SO_FAR", tallies.SO_FAR, so_far, TALLY)
    added = [(*place, *numbers, None, None) for place in places[:20]]
    yield on_ours("tallies.ADD", tallies.ADD, {"given": added}, TALLY, conflict=TALLY)
    between = {"width": 10, "since": 60_000, "until": 63_000, "queue": None, "task": None, "most": 1000}
    yield on_ours("tallies.BETWEEN", tallies.BETWEEN, between, TALLY)
    yield on_ours("tallies.TOTALS", tallies.TOTALS, {"for_ever": 0, "open": -10}, TALLY, reads=None)
    yield on_ours("gauges.LATEST", gauges.LATEST, {"width": -1}, TALLY, is_ordered=True)
    yield on_ours("gauges.OWN", gauges.OWN, {}, TALLY, conflict=TALLY)
    yield on_ours("gauges.KEEP", gauges.KEEP, {"at": 5, "gauge": "{}"}, TALLY)
    yield on_ours("gauges.FRONT", gauges.FRONT, {"most": 100}, READY, JOB_PKEY)
    yield on_ours("gauges.READY_KINDS", gauges.READY_KINDS, {"most": 100}, READY, JOB_PKEY)
    yield on_ours("gauges.SCHEDULED", gauges.SCHEDULED, {"most": 100}, ARRIVAL)
    queues = [("default",), ("mails",), ("nobody's",)]
    yield on_ours("gauges.WAITING", gauges.WAITING, {"given": queues, "most": 50}, READY, ARRIVAL)
    yield on_ours("gauges.RUNNING", gauges.RUNNING, {"most": 100}, LEASED, is_list=True)
    open_chains, or_by = "holdfast_job_open", frozenset((LANE, STUCK, JOB_PKEY))
    yield on_ours("gauges.IN_ALL", gauges.IN_ALL, {"most": 50}, LANE, STUCK, open_chains, is_list=True, or_by=or_by)


def probes(database: str) -> list[Probe]:
    """Give every probe for *database*."""
    every = [
        *start_probes(),
        *delete_probes(),
        *read_probes(),
        *list_probes(),
        *claim_probes(),
        *lane_probes(),
        *inventory_probes(),
        *blocker_probes(),
        *run_probes(),
        *steering_probes(),
        *chain_probes(),
        *webhook_probes(),
        *outbox_probes(),
        *inbox_probes(),
        *log_probes(),
        *retention_probes(),
        *trimming_probes(),
        *journal_probes(),
        *schedule_probes(),
        *access_probes(),
        *audit_probes(),
        *explain_probes(),
        *figure_probes(),
    ]
    several = [each for each in every if each.only in ("", database)]
    return several + [one for each in several if (one := each.with_one_row()) is not None]
