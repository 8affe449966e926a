"""The real store, as the rule machine drives it: one database, its clock, its callers, and what can be seen of it.

Time is the same on both databases: SQLite is given a clock, and on PostgreSQL the fragment `$now` reads a sequence,
which whoever sets it sets for all at once, outside every transaction.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

import psycopg

from holdfast import Holdfast, HoldfastError, Tasks, Unique
from holdfast.database.dialect import Dialect
from holdfast.database.postgres import PostgresStore
from holdfast.database.sqlite.store import SqliteStore
from holdfast.database.tx import Operation, Store, Tx
from holdfast.errors import CursorExpired
from holdfast.models import Continuation, Event, Job, JobEvent, PhaseStatus, Start, StoredChain
from holdfast.outcomes import Retry
from holdfast.runtime import Runtime
from holdfast.settings import Settings
from holdfast.store import phase_rows
from holdfast.store import phases as engine_phases
from holdfast.store.jobs import claiming
from holdfast.store.log import reading
from holdfast.store.phase_rows import PhaseRow
from holdfast.store.rows import COLUMNS, FACTS, STORED, to_job
from holdfast.wire.cursors import read_cursor
from tests.store.rules.continuing import INHERITED, Next
from tests.store.rules.keeping import DELETE_MS, STALE_MS, Events
from tests.store.rules.phases import NAMES, PERCENT, next_phase, result
from tests.store.rules.running import BACKOFF_MS
from tests.store.rules.steering import Spec, Started
from tests.store.rules.world import POLICIES, USUAL_QUEUE, Refused, Token
from tests.support.log_rows import as_events

P = ParamSpec("P")
R = TypeVar("R")

SCHEMA = "rules"
CLOCK = f"{SCHEMA}.clock"
MOST_EVENTS = 7
"""How many the reader of the log takes at once."""
EMPTY_TABLES = ("job", "phase", "blocker", "unique", "lane", "queue", "event")


def make_tasks() -> Tasks:
    """Make the tasks of the model's policies, as a user would declare them."""
    tasks = Tasks()
    for name, policy in POLICIES.items():
        says: dict[str, Any] = {} if policy.queue == USUAL_QUEUE else {"queue": policy.queue}

        async def handler(text: str) -> str:
            return text

        tasks.task(
            name=name,
            **says,
            lease=policy.lease_ms / 1000,
            on_lost=policy.on_lost,
            cancel_running="pause" if policy.cancels_by_pausing else "cancel",
            halts_lane=policy.halts_lane,
            retry=Retry(attempts=policy.attempts, jitter=0, first=BACKOFF_MS / 1000),
        )(handler)
    return tasks


TASKS = make_tasks()


@dataclass(frozen=True)
class Seen:
    """What is stored: jobs with the columns that reads do not show, holders of keys, rows of lanes, new events."""

    jobs: dict[UUID, Job]
    hidden: dict[UUID, dict[str, Any]]
    phases: dict[UUID, list[str]]
    results: dict[UUID, dict[int, str]]
    holders: dict[tuple[str, str], UUID]
    lines: dict[str, list[UUID]]
    heads: dict[str, UUID]
    lanes: dict[str, bool]
    events: dict[UUID, list[tuple[Any, ...]]]
    others: Counter[tuple[Any, ...]]


@dataclass
class Side:
    """One database under the rule machine."""

    store: Store
    connection: Any
    now: list[int]
    hf: Holdfast = field(init=False)
    last_event: int = 0
    seqs: dict[int, UUID] = field(default_factory=dict)
    tokens: dict[Token, claiming.Token] = field(default_factory=dict)
    cursor: str = ""
    """Where the reader of the log stands."""

    @property
    def name(self) -> str:
        """Which database it is."""
        return self.store.database

    def begin(self, now: int) -> None:
        """Empty the database, and set its clock."""
        self.store.run_sync(_empty)
        self.set_time(now)
        runtime = Runtime(wall_ms=lambda: self.now[0], chance=random.Random(1))
        times = Settings(stale_after_seconds=STALE_MS / 1000, delete_after_seconds=DELETE_MS / 1000)
        self.hf = Holdfast(store=self.store, tasks=[TASKS], runtime=runtime, settings=times)
        self.last_event, self.seqs, self.tokens = 0, {}, {}
        self.cursor = self.store.read_sync(reading.now).text

    def set_time(self, now: int) -> None:
        """Let it be *now*."""
        self.now[0] = now
        if self.name == "postgres":
            self.connection.execute(f"SELECT setval('{CLOCK}', %s)", [now])

    def close(self) -> None:
        """Let go of everything."""
        self.connection.close()
        self.store.close_sync()

    # ---- callers

    @contextmanager
    def transaction(self, commits: bool) -> Iterator[Any]:
        """Open a caller's transaction, which ends as asked, also after a refusal: that leaves it usable."""
        self.connection.execute("BEGIN IMMEDIATE" if self.name == "sqlite" else "BEGIN")
        try:
            yield self.connection
            self.connection.execute("SELECT 1")
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT" if commits else "ROLLBACK")

    def call(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a store operation in a transaction of its own."""
        return self.store.run_sync(operation, *args, **kwargs)

    def calls(self, specs: Sequence[Spec]) -> list[Any]:
        """Write starts as a caller does."""
        return [self.hf.tasks.get(each.task)(text=each.text).options(**_options(each)) for each in specs]

    def call_of(self, next_: Next) -> Any:
        """Write what follows as a caller does; the engine makes its id."""
        given = {name: value for name, value in _chosen(next_).items() if name not in _inherits(next_)}
        return self.hf.tasks.get(next_.task)(text=next_.text).options(
            **given,
            delay=next_.delay / 1000 if next_.delay else None,
            paused=next_.paused,
            blockers=list(next_.blockers),
            on_blocker_failure=next_.on_blocker_failure,
        )

    # ---- looking

    def read_on(self) -> tuple[Events, Counter[tuple[Any, ...]]]:
        """Read what is new in the log behind the last place, a few events at a time; begin anew if some are gone."""
        told: list[Event] = []
        try:
            is_last = False
            while not is_last:
                found = self.store.read_sync(reading.since, read_cursor(self.cursor), MOST_EVENTS)
                told += [each.event for each in self.store.read_sync(reading.to_events, found)]
                self.cursor, is_last = found.cursor.text, found.is_last
        except CursorExpired:
            self.cursor = self.store.read_sync(reading.now).text
            raise
        events: Events = defaultdict(list)
        others: Counter[tuple[Any, ...]] = Counter()
        for each in told:
            if isinstance(each, JobEvent):
                assert each.job.version >= (each.version or 0), "a job is older than its event, by the law it may not"
                events[each.job.id].append((each.name, each.status and str(each.status), each.attempt))
            else:
                others[each.name, *_about(each.name, dict(each.facts))] += 1
        return dict(events), others

    def look(self) -> Seen:
        """Read all that is stored, and the events since the last look."""
        rows = self.store.read_sync(_look, self.last_event)
        seen = {UUID(row[ID_AT]): row for row in rows["job"] if not row[ID_AT].startswith("~")}
        width = -len(HIDDEN)
        found = {id_: to_job(row[:width]) for id_, row in seen.items()}
        self.seqs |= {job.seq: id_ for id_, job in found.items()}
        hidden = {id_: dict(zip(HIDDEN, row[width:], strict=True)) for id_, row in seen.items()}
        events: dict[UUID, list[tuple[Any, ...]]] = defaultdict(list)
        others: Counter[tuple[Any, ...]] = Counter()
        for seq, job, name, status, version, attempt, facts in rows["event"]:
            self.last_event = seq
            if job:
                events[self.seqs[job]].append((name, status, attempt, version, _continued(facts)))
            else:
                others[name, *_about(name, json.loads(facts))] += 1
        phases: dict[UUID, list[str]] = defaultdict(list)
        results: dict[UUID, dict[int, str]] = defaultdict(dict)
        for job, position, status, text in rows["phase"]:
            phases[self.seqs[job]].append(status)
            if text is not None:
                results[self.seqs[job]][position] = text
        return Seen(
            jobs=found,
            hidden=hidden,
            phases=dict(phases),
            results=dict(results),
            holders={(task, key): UUID(id_) for task, key, id_ in rows["unique"]},
            lines=_lines(hidden, found),
            heads={found[id_].lane or "": id_ for id_, each in hidden.items() if each["head"]},
            lanes={key: paused_at is not None for key, paused_at in rows["lane"]},
            events=dict(events),
            others=others,
        )


def _lines(hidden: dict[UUID, dict[str, Any]], found: dict[UUID, Job]) -> dict[str, list[UUID]]:
    lines: dict[str, list[UUID]] = defaultdict(list)
    for id_ in sorted(
        (id_ for id_ in hidden if hidden[id_]["place"] is not None), key=lambda id_: hidden[id_]["place"]
    ):
        lines[found[id_].lane or ""].append(id_)
    return dict(lines)


def _continued(facts: str | None) -> UUID | None:
    """Say by which job an event's own is continued."""
    continued = json.loads(facts).get("continued") if facts else None
    return None if continued is None else UUID(continued)


def _about(name: str, facts: dict[str, Any]) -> tuple[object, ...]:
    """Say what an event without a job is about, as the model does."""
    if name == "job:deleted":
        return (UUID(facts["id"]),)
    if name.startswith("queue:"):
        return (facts["queue"],)
    job = facts.get("job")
    return (facts["lane"],) if name == "lane:paused" else (facts["lane"], None if job is None else UUID(job))


ID_AT = STORED.index("id")
HIDDEN = (
    "place",
    "head",
    "gate",
    "wake_at",
    "sort_key",
    "closed_as",
    "unique_key",
    "wants_cancel",
    "wants_pause",
    "nonce",
)
JOBS = f"""
    SELECT {COLUMNS}, {FACTS}, holdfast_job.place, holdfast_job.head, holdfast_job.gate, holdfast_job.wake_at,
        holdfast_job.sort_key, holdfast_job.closed_as, holdfast_job.unique_key,
        holdfast_job.cancel_requested_at IS NOT NULL, holdfast_job.pause_requested_at IS NOT NULL, holdfast_job.nonce
    FROM holdfast_job ORDER BY holdfast_job.seq"""
PHASES = """SELECT job, position, status, result FROM holdfast_phase ORDER BY job, position"""
HOLDERS = """
    SELECT task, key, chain_id FROM holdfast_unique
    WHERE (until IS NULL OR until > $now) AND turn = (SELECT max(last.turn) FROM holdfast_unique AS last
        WHERE last.task = holdfast_unique.task AND last.key = holdfast_unique.key)"""
LANES = """SELECT key, paused_at FROM holdfast_lane"""
EVENT_COLUMNS = "seq, job, name, status, version, attempt, facts"
EVENTS = f"""SELECT {EVENT_COLUMNS} FROM holdfast_event WHERE seq > :after ORDER BY seq"""


async def _look(tx: Tx, after: int) -> dict[str, list[tuple[Any, ...]]]:
    return {
        "job": await tx.fetch_all(JOBS),
        "phase": await tx.fetch_all(PHASES),
        "unique": await tx.fetch_all(HOLDERS),
        "lane": await tx.fetch_all(LANES),
        "event": as_events(await tx.fetch_all(EVENTS, after=after), EVENT_COLUMNS),
    }


async def _empty(tx: Tx) -> None:
    for name in EMPTY_TABLES:
        await tx.execute(f"DELETE FROM holdfast_{name}")


async def begin_phase(tx: Tx, token: claiming.Token) -> str:
    """Begin the next phase as an attempt does that has read what is stored; say how the claim stands."""
    stored = {row.position: row for row in await phase_rows.read(tx, token.seq)}
    place = next_phase([str(row.status) for row in stored.values()]) or 0
    kept = [stored.get(at) for at in range(len(NAMES))]
    rows = [
        row if row is not None and row.status is PhaseStatus.COMPLETED else PhaseRow(at, NAMES[at])
        for at, row in enumerate(kept)
    ]
    rows[place] = PhaseRow(place, NAMES[place], PhaseStatus.RUNNING, 0)
    beginning = engine_phases.Beginning(token, NAMES[place], PERCENT[place], tuple(rows))
    return str((await engine_phases.begin(tx, [beginning]))[token])


async def complete_phase(tx: Tx, token: claiming.Token) -> str:
    """Complete the phase that is under way; say how the claim stands."""
    active = [row.position for row in await phase_rows.read(tx, token.seq) if row.status is PhaseStatus.RUNNING]
    place = active[0] if active else 0
    completion = engine_phases.Completion(token, NAMES[place], place, PERCENT[place + 1], result(token.attempt))
    return str((await engine_phases.complete(tx, [completion]))[token])


def _options(spec: Spec) -> dict[str, Any]:
    chosen: dict[str, Any] = {
        "id": spec.id,
        "lane": spec.lane,
        "priority": spec.priority,
        "delay": spec.delay / 1000 if spec.delay else None,
        "paused": spec.paused,
        "blockers": list(spec.blockers),
        "on_blocker_failure": spec.on_blocker_failure,
        "tags": list(spec.tags),
    }
    if spec.key is not None:
        within = None if spec.within is None else timedelta(milliseconds=spec.within)
        chosen["unique"] = Unique(spec.key, "any" if spec.scope == "any" else "open", within)
    return chosen


def _chosen(next_: Next) -> dict[str, Any]:
    return {
        "queue": next_.queue,
        "lane": next_.lane,
        "priority": next_.priority,
        "tags": None if next_.tags is None else list(next_.tags),
    }


def _inherits(next_: Next) -> frozenset[str]:
    """Name what was not chosen for what follows."""
    left = {"lane": INHERITED, "queue": None, "priority": None, "tags": None}
    return frozenset({name for name, value in left.items() if getattr(next_, name) == value} | {"webhook"})


def continuation_of(next_: Next) -> Continuation:
    """Write what follows as a worker gives it to the store."""
    start = Start(
        id=next_.id,
        task=next_.task,
        input=f'{{"text":{json.dumps(next_.text, ensure_ascii=False)}}}',
        queue=next_.queue or POLICIES[next_.task].queue,
        lane=next_.lane,
        priority=next_.priority or 0,
        tags=next_.tags or (),
        delay_ms=next_.delay,
        paused=next_.paused,
        blockers=next_.blockers,
        on_blocker_failure=next_.on_blocker_failure,
    )
    return Continuation(start, _inherits(next_))


# ---- answers


@dataclass(frozen=True)
class Error:
    """A refusal, as far as both databases and the model must agree on it."""

    code: str
    about: object = None


def answer_of(call: Callable[[], Any]) -> Any:
    """Give what *call* answers, or why it was refused, in words that can be compared."""
    try:
        return plain(call())
    except (HoldfastError, Refused) as error:
        return error_of(error)


def error_of(error: HoldfastError | Refused) -> Error:
    """Say a refusal, the store's or the model's, in words that can be compared."""
    names = ("about", "job_id", "chain_id", "key")
    return Error(error.code, next((getattr(error, name) for name in names if hasattr(error, name)), None))


def plain(value: Any) -> Any:
    """Say an answer of the face in the model's words."""
    match value:
        case Job():
            return str(value.status)
        case StoredChain():
            return Started(value.id, value.task, str(value.status), value.deduplicated)
        case list():
            return [plain(each) for each in value]
        case str():
            return str(value)
        case _:
            return value


def instant(milliseconds: int) -> datetime:
    """Write a time as a user gives it."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


# ---- making sides


def sqlite_side(folder: Path) -> Side:
    """Make a side on an SQLite file in *folder*."""
    now = [0]
    path = folder / "rules.db"
    store = SqliteStore(path, settings=Settings(synchronous="normal"), clock=lambda: now[0])
    store.open_sync()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.create_function("holdfast_now", 0, lambda: now[0])
    return _opened(Side(store, connection, now))


def postgres_side(url: str) -> Side:
    """Make a side on a PostgreSQL server; the clock is a sequence."""
    store = PostgresStore(Settings(database=url, schema_name=SCHEMA))
    store.migrate_sync()
    connection = psycopg.connect(url, autocommit=True)
    connection.execute(f"CREATE SEQUENCE IF NOT EXISTS {CLOCK}")
    # made anew where it stands, for the store has handed it on: its texts are not those of stores with the usual clock
    Dialect.__init__(store.dialect, {**store.dialect.fragments, "now": f"(SELECT last_value FROM {CLOCK})"})
    return _opened(Side(store, connection, [0]))


def _opened(side: Side) -> Side:
    side.begin(1)
    side.hf.sync.open()
    return side
