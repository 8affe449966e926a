"""Schedules: a rule in time with a call. Each of its times that has had its job is a tick.

*One commit, no leader.* Any worker takes up schedules that are due. Under a schedule's row lock it enumerates the times
up to now, inserts their ticks, starts the jobs of those that it could insert, and sets `next_at`. A crash leaves all or
nothing, and the key (schedule, at) is the backstop: a time has one job, whatever became of `next_at`.

*Late ticks.* One found more than a minute late is missed: `missed` says whether the last of them, none or each, the
last 1,000 at most, still starts its job. What is left out has no tick row, or a clock that ran ahead for a day would
silence that day when it comes. It is counted on the schedule.

*Clocks.* `next_at` is never trusted. It is compared with the rule now and then; if it is later than the rule's next
time, it goes back to the first one without a tick, of those to come and of the last minute: one may have come since the
clock was put back. So a clock that is put back repeats nothing, one that is put forward makes late ticks, and after a
visit to another year ticks go on.

*Pauses.* What would have come while a schedule was paused is left out, and not counted.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from holdfast.database.tx import Row, Tx, gives_way, repeatable
from holdfast.errors import InvalidInput, InvalidRule, ScheduleNotFound, TooMany, Unreadable, UsageError
from holdfast.logging import reason_of
from holdfast.models import Asked, Page, Start, StoredChain, TaskRecord
from holdfast.schedule_rules import ScheduleRule, jitter_of, next_after, next_times, read_rule, times_in
from holdfast.schedules import MOST_SCHEDULES, Missed, NewSchedule, ScheduleInfo, StoredCall, Tick
from holdfast.store import reads, task_rows
from holdfast.store.chains import creation
from holdfast.store.reads import Paging
from holdfast.store.rows import instant, maybe_instant
from holdfast.texts import UNSTORABLE, clean_text
from holdfast.times import instant_text
from holdfast.unreadable import CANNOT_READ, object_of, readable, reading

LATE_MS = 60_000
"""How late a tick may be found and still be on time."""
MOST_MISSED: dict[Missed, int] = {"one": 1, "skip": 0, "all": 1_000}
"""How many late ticks of a schedule start their jobs."""
MOST_AT_ONCE = 50
"""How many schedules one transaction takes up."""
MOST_STARTED = 1_000
"""With how many jobs it takes up no further schedule."""
UNREADABLE_MS = 60_000
"""When a schedule whose rule this release cannot read is looked at again."""
TROUBLE_LENGTH = 500


class Calls(Protocol):
    """Whoever turns stored calls into starts: it knows the tasks of this program, and makes ids."""

    def new_id(self) -> UUID:
        """Make an id."""

    def is_elsewhere(self, task: str) -> bool:
        """Tell whether the code of *task* is not here, so that its row is needed."""

    def stored_start(self, call: StoredCall, record: TaskRecord | None) -> Start:
        """Make the start of *call*; raise anything if it cannot be started: a user's own types check its arguments."""


# put, and what else people do

SCHEDULE = """holdfast_schedule.name, holdfast_schedule.task, holdfast_schedule.input, holdfast_schedule.options,
    holdfast_schedule.rule, holdfast_schedule.next_at, holdfast_schedule.missed, holdfast_schedule.jitter_ms,
    holdfast_schedule.paused_at, holdfast_schedule.paused_by, holdfast_schedule.reason, holdfast_schedule.until,
    holdfast_schedule.declared, holdfast_schedule.trouble, holdfast_schedule.left_out, holdfast_schedule.left_out_at,
    holdfast_schedule.created_at, holdfast_schedule.changed_at, holdfast_schedule.changed_by, $now"""
# with the same rule its next time stays: a program that begins just then must not skip it. What a person puts keeps the
# fingerprint of the declaration that it changes, and a pause always lives; but one that is over and has not been ended
# ends now if the rule is another one: that has no times from before it was put
PUT = """
    INSERT INTO holdfast_schedule (name, task, input, options, rule, next_at, missed, jitter_ms, declared, trouble,
        created_at, changed_at, changed_by)
    SELECT given.name, given.task, given.input, given.options, given.rule, given.next_at, given.missed,
        given.jitter_ms, given.declared, given.trouble, $now, $now, given.changed_by
    FROM $list(given: name text, task text, input text, options text, rule text, next_at bigint, missed text,
        jitter_ms bigint, declared text, trouble text, changed_by text)
    WHERE $hint_sleepers AND (SELECT count(*) FROM holdfast_schedule AS known
        WHERE NOT (known.name $any(names: text))) <= :room
    ORDER BY given.name
    ON CONFLICT (name) DO UPDATE SET task = excluded.task, input = excluded.input, options = excluded.options,
        rule = excluded.rule, missed = excluded.missed, jitter_ms = excluded.jitter_ms, trouble = excluded.trouble,
        next_at = CASE WHEN holdfast_schedule.rule = excluded.rule THEN holdfast_schedule.next_at
            ELSE excluded.next_at END,
        until = CASE WHEN holdfast_schedule.rule <> excluded.rule AND holdfast_schedule.until < $now THEN $now
            ELSE holdfast_schedule.until END,
        declared = coalesce(excluded.declared, holdfast_schedule.declared),
        changed_at = excluded.changed_at, changed_by = excluded.changed_by
    RETURNING name"""


@repeatable
async def put(tx: Tx, wanted: Sequence[NewSchedule], by: str | None = None) -> None:
    """Make the schedules *wanted*, or change those of their names; raise `TooMany` if that were too many."""
    if not wanted:
        return
    now = await reads.now_ms(tx)
    names = [each.name for each in wanted]
    given = [
        (
            each.name,
            *each.call,
            each.rule.json,
            next_after(each.rule, now),
            each.missed,
            each.jitter_ms,
            each.declared,
            each.trouble and _storable(each.trouble),
            by,
        )
        for each in wanted
    ]
    if not await tx.fetch_all(PUT, given=given, names=names, room=MOST_SCHEDULES - len(names)):
        raise TooMany(
            MOST_SCHEDULES + 1,
            MOST_SCHEDULES,
            f"there are {MOST_SCHEDULES:,} schedules, which is the limit; delete some, or let one schedule start a "
            "task that starts the others",
        )


DECLARED = """SELECT name, declared FROM holdfast_schedule WHERE name $any(names: text)"""


async def changed(tx: Tx, declared: Sequence[NewSchedule]) -> list[NewSchedule]:
    """Give those of *declared* that are not yet written down as they are; usually none, so usually no write."""
    if not declared:
        return []
    written: dict[str, str | None] = dict(await tx.fetch_all(DECLARED, names=[each.name for each in declared]))
    return [each for each in declared if written.get(each.name) != each.declared]


ONE = f"""SELECT {SCHEDULE} FROM holdfast_schedule WHERE name = :name"""
MANY = f"""SELECT {SCHEDULE} FROM holdfast_schedule WHERE name > :after ORDER BY name LIMIT :most"""


async def get(tx: Tx, name: str) -> ScheduleInfo:
    """Read the schedule *name*, or raise `ScheduleNotFound`."""
    return to_info(_the_one(name, await tx.fetch_all(ONE, name=name)))


async def list_all(tx: Tx, paging: Paging) -> Page[ScheduleInfo]:
    """List the schedules by their names."""
    after = "" if paging.cursor is None else _read_name(paging.cursor)
    rows = await tx.fetch_all(MANY, after=after, most=paging.limit + 1)
    shown = rows[: paging.limit]
    return Page(tuple(readable(shown, to_info)), _write_name(shown[-1][0]) if len(rows) > len(shown) else None)


TICKS = """
    SELECT schedule, at, outcome, chain_id, done_at FROM holdfast_tick
    WHERE schedule = :name AND at < :before ORDER BY at DESC LIMIT :most"""


async def list_ticks(tx: Tx, name: str, paging: Paging) -> Page[Tick]:
    """List the ticks of the schedule *name*, the newest first; or raise `ScheduleNotFound`."""
    _the_one(name, await tx.fetch_all(ONE, name=name))
    before = 2**63 - 1 if paging.cursor is None else reads.read_cursor(paging.cursor, "ticks")
    rows = await tx.fetch_all(TICKS, name=name, before=before, most=paging.limit + 1)
    shown = rows[: paging.limit]
    ticks = tuple(readable(shown, _to_tick))
    return Page(ticks, reads.write_cursor("ticks", shown[-1][1]) if len(rows) > len(shown) else None)


PAUSE = f"""
    UPDATE holdfast_schedule SET paused_at = coalesce(paused_at, $now), paused_by = :by, reason = :why, until = :until
    WHERE name = :name
    RETURNING {SCHEDULE}"""


async def pause(tx: Tx, name: str, until_ms: int | None, asked: Asked) -> ScheduleInfo:
    """Have the schedule *name* start nothing until it is resumed, or until then; or raise `ScheduleNotFound`."""
    row = _the_one(name, await tx.fetch_all(PAUSE, name=name, by=asked.by, why=asked.why, until=until_ms))
    if until_ms is not None and until_ms <= (now := _Row.of(row).now):
        raise InvalidInput(
            f"until={instant_text(instant(until_ms))} is not in the future: by the database's clock it is "
            f"{instant_text(instant(now))}; the schedule was not paused",
            "until",
        )
    return to_info(row)


LOCK_ONE = f"""SELECT {SCHEDULE} FROM holdfast_schedule WHERE name = :name $locked"""
RESUME = """
    UPDATE holdfast_schedule SET paused_at = NULL, paused_by = NULL, reason = NULL, until = NULL,
        next_at = given.next_at
    FROM $list(given: name text, next_at bigint)
    WHERE holdfast_schedule.name $is(given.name) AND holdfast_schedule.paused_at IS NOT NULL AND $hint_sleepers"""


async def resume(tx: Tx, name: str, asked: Asked) -> bool:
    """Have the schedule *name* go on with the next time to come; tell whether it was paused."""
    row = _Row.of(_the_one(name, await tx.fetch_all(LOCK_ONE, name=name)))
    if row.paused_at is None:
        return False
    await tx.execute(RESUME, given=[(name, next_after(_rule_of(row), row.now))])
    await tx.execute(TOUCH, name=name, by=asked.by)
    return True


TOUCH = """UPDATE holdfast_schedule SET changed_at = $now, changed_by = :by WHERE name = :name"""
DELETE = """DELETE FROM holdfast_schedule WHERE name = :name RETURNING name"""


async def delete(tx: Tx, name: str) -> None:
    """Forget the schedule *name*, or raise `ScheduleNotFound`.

    Its ticks stay until they are old: a schedule of this name that is made meanwhile repeats none of them.
    """
    _the_one(name, await tx.fetch_all(DELETE, name=name))


async def run(tx: Tx, name: str, calls: Calls, asked: Asked) -> StoredChain[Any]:
    """Start the call of the schedule *name* now, beside its rule: this is no tick, and a pause does not hinder it."""
    row = _Row.of(_the_one(name, await tx.fetch_all(ONE, name=name)))
    records = await _records(tx, [row.task], calls)
    with reading("holdfast_schedule", name):
        plain = calls.stored_start(row.call, records.get(row.task))
    facts = json.dumps({"schedule": name, **asked.said()})
    start = plain._replace(id=calls.new_id(), facts=facts)
    return creation.chain_of(start, (await creation.start(tx, [start]))[0])


# ticks


class NextTick(NamedTuple):
    """Whether a schedule is due, and in how many milliseconds the next one is; None if there is none."""

    next_ms: int | None

    @property
    def is_due(self) -> bool:
        """Tell whether one is due."""
        return self.next_ms is not None and self.next_ms <= 0


# a statement without parameters keeps the plan that it was prepared with: while the table was tiny, to read all of it
EARLIEST = """
    SELECT next_at - $now FROM holdfast_schedule
    WHERE paused_at IS NULL AND next_at > CAST(:since AS bigint) ORDER BY next_at LIMIT 1"""


async def earliest(tx: Tx) -> NextTick:
    """Look when the next schedule is due."""
    rows = await tx.fetch_all(EARLIEST, since=0)
    return NextTick(rows[0][0] if rows else None)


class LeftOut(NamedTuple):
    """How many late ticks of a schedule started nothing."""

    schedule: str
    ticks: int


class TickTrouble(NamedTuple):
    """Why the call of a schedule could not be started."""

    schedule: str
    task: str
    reason: str


@dataclass(slots=True)
class Ticked:
    """What was done with schedules that were due."""

    names: list[str] = field(default_factory=list)
    """The schedules that were taken up."""
    started: int = 0
    """How many jobs were started."""
    is_suspended: bool = False
    """Whether nothing was looked at, because nothing may be started here."""
    left_out: list[LeftOut] = field(default_factory=list)
    troubles: list[TickTrouble] = field(default_factory=list)


DUE = f"""
    SELECT {SCHEDULE} FROM holdfast_schedule
    WHERE paused_at IS NULL AND next_at > 0 AND next_at <= $now AND NOT (name $any(held: text))
    ORDER BY next_at LIMIT :most $skip_locked"""
# coalesce: plainly written it may go by the index of all that are due
DUE_ONE = f"""
    SELECT {SCHEDULE} FROM holdfast_schedule
    WHERE name = :name AND coalesce(paused_at, -1) = -1 AND coalesce(next_at, $now + 1) <= $now $skip_locked"""


async def due_names(tx: Tx, held: Collection[str] = ()) -> list[str]:
    """Name the next schedules that are due, but none of *held*."""
    rows = await tx.fetch_all(DUE_NAMES, held=sorted(held), most=MOST_AT_ONCE)
    return [name for (name,) in rows]


DUE_NAMES = """
    SELECT name FROM holdfast_schedule
    WHERE paused_at IS NULL AND next_at > 0 AND next_at <= $now AND NOT (name $any(held: text))
    ORDER BY next_at LIMIT :most"""


@gives_way
async def tick(tx: Tx, calls: Calls, held: Collection[str] = ()) -> Ticked:
    """Take up the next schedules that are due and that nobody else has locked, but none of *held*."""
    rows = await tx.fetch_all(DUE, held=sorted(held), most=MOST_AT_ONCE)
    return await _take_up(tx, rows, calls)


@gives_way
async def tick_one(tx: Tx, name: str, calls: Calls) -> Ticked:
    """Take up the schedule *name*, if it is due and nobody else has locked it."""
    return await _take_up(tx, await tx.fetch_all(DUE_ONE, name=name), calls)


class _Row(NamedTuple):
    """A row of SCHEDULE."""

    name: str
    task: str
    input: str
    options: str
    rule: str
    next_at: int | None
    missed: str
    jitter_ms: int
    paused_at: int | None
    paused_by: str | None
    reason: str | None
    until: int | None
    declared: str | None
    trouble: str | None
    left_out: int
    left_out_at: int | None
    created_at: int
    changed_at: int | None
    changed_by: str | None
    now: int

    @classmethod
    def of(cls, row: Row) -> _Row:
        return cls._make(row)

    @property
    def call(self) -> StoredCall:
        return StoredCall(self.task, self.input, self.options)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What one schedule comes to: the jobs of the times that are taken up, and the time that is next."""

    row: _Row
    next_at: int | None
    starts: dict[int, Start] = field(default_factory=dict)
    left_out: int = 0
    trouble: str | None = None


async def _take_up(tx: Tx, rows: Sequence[Row], calls: Calls) -> Ticked:
    due = [_Row.of(row) for row in rows]
    records = await _records(tx, [each.task for each in due], calls)
    plans: list[_Plan] = []
    jobs = 0
    for each in due:
        if jobs >= MOST_STARTED:
            break
        plans.append(_plan(each, records.get(each.task), calls))
        jobs += len(plans[-1].starts)
    started = await _start(tx, plans)
    await _move_on(tx, plans)
    return Ticked(
        names=[each.row.name for each in plans],
        started=started,
        left_out=[LeftOut(each.row.name, each.left_out) for each in plans if each.left_out],
        troubles=[
            TickTrouble(each.row.name, each.row.task, each.trouble) for each in plans if each.trouble is not None
        ],
    )


async def _records(tx: Tx, tasks: Iterable[str], calls: Calls) -> dict[str, TaskRecord]:
    """Read what is written down of those of *tasks* whose code is not here."""
    strange = sorted({each for each in tasks if calls.is_elsewhere(each)})
    return {each.name: each for each in await task_rows.find(tx, strange)} if strange else {}


def _plan(row: _Row, record: TaskRecord | None, calls: Calls) -> _Plan:
    """Say what becomes of a schedule that is due; one that cannot start its call goes on with its next time."""
    try:
        rule, missed = _rule_of(row), MOST_MISSED[row.missed]  # type: ignore[index]
    except (InvalidRule, Unreadable, KeyError) as error:  # a newer release may read it, and puts it right
        return _Plan(row, row.now + UNREADABLE_MS, trouble=_words(error))
    assert row.next_at is not None  # noqa: S101 - it is due
    next_at, on_time_ms = next_after(rule, row.now), max(row.next_at, row.now - LATE_MS)
    late = times_in(rule, row.next_at, on_time_ms, missed)
    on_time = times_in(rule, on_time_ms, row.now + 1, LATE_MS)
    left_out = late.many - len(late.last)
    try:
        plain = calls.stored_start(row.call, record)
    except Exception as error:  # noqa: BLE001 - the types of its arguments are a user's, and may raise anything
        return _Plan(row, next_at, left_out=left_out, trouble=_words(error))
    facts = json.dumps({"schedule": row.name})
    times = [*late.last, *on_time.last]
    starts = {at: _start_of(plain, row, at)._replace(id=calls.new_id(), facts=facts) for at in times}
    return _Plan(row, next_at, starts, left_out)


def _start_of(plain: Start, row: _Row, at: int) -> Start:
    """Give the start of the job of the tick *at*: its delay is counted from there."""
    delay_ms = plain.delay_ms + jitter_of(row.name, at, row.jitter_ms)
    return (
        plain._replace(run_at_ms=at + delay_ms, delay_ms=0) if at + delay_ms > row.now else plain._replace(delay_ms=0)
    )


TICK = """
    INSERT INTO holdfast_tick (schedule, at, chain_id, outcome, done_at)
    SELECT given.schedule, given.at, given.chain_id, 'started', $now
    FROM $list(given: schedule text, at bigint, chain_id text)
    WHERE true
    ORDER BY given.schedule, given.at
    ON CONFLICT (schedule, at) DO NOTHING
    RETURNING chain_id"""
MET = """
    UPDATE holdfast_tick SET chain_id = given.chain_id, outcome = 'met'
    FROM $list(given: schedule text, at bigint, chain_id text)
    WHERE holdfast_tick.schedule $is(given.schedule) AND holdfast_tick.at $is(given.at)"""
# beside the INSERT of a start, which no other job then pays for
SCHEDULED_AT = """
    UPDATE holdfast_job SET scheduled_at = given.at
    FROM $list(given: id text, at bigint)
    WHERE holdfast_job.id $is(given.id)"""


async def _start(tx: Tx, plans: Sequence[_Plan]) -> int:
    """Insert the ticks of *plans*, and start the jobs of those that had none; tell how many were started."""
    wanted = {str(start.id): (each.row.name, at, start) for each in plans for at, start in each.starts.items()}
    if not wanted:
        return 0
    given = [(schedule, at, id_) for id_, (schedule, at, _) in wanted.items()]
    fresh = [wanted[id_] for (id_,) in await tx.fetch_all(TICK, given=given)]
    fresh.sort(key=lambda each: each[1])
    answers = await creation.start(tx, [start for _, _, start in fresh]) if fresh else []
    ended = list(zip(fresh, answers, strict=True))
    met = [(schedule, at, str(answer.met.id)) for (schedule, at, _), answer in ended if answer.met is not None]
    if met:
        await tx.execute(MET, given=met)
    made = [(str(start.id), at) for (_, at, start), answer in ended if answer.met is None]
    if made:
        await tx.execute(SCHEDULED_AT, given=made)
    return len(made)


MOVE_ON = """
    UPDATE holdfast_schedule SET next_at = given.next_at, trouble = given.trouble,
        left_out = left_out + given.more, left_out_at = CASE WHEN given.more > 0 THEN $now ELSE left_out_at END
    FROM $list(given: name text, next_at bigint, trouble text, more bigint)
    WHERE holdfast_schedule.name $is(given.name)"""


async def _move_on(tx: Tx, plans: Sequence[_Plan]) -> None:
    if plans:
        given = [(each.row.name, each.next_at, each.trouble, each.left_out) for each in plans]
        await tx.execute(MOVE_ON, given=given)


async def give_up(tx: Tx, name: str, reason: str) -> TickTrouble | None:
    """Write that a schedule which is due cannot be started, and go on with its next time; None if it is not due."""
    rows = [_Row.of(row) for row in await tx.fetch_all(DUE_ONE, name=name)]
    plans = [_given_up(row, reason) for row in rows]
    await _move_on(tx, plans)
    return TickTrouble(rows[0].name, rows[0].task, reason) if rows else None


def _given_up(row: _Row, reason: str) -> _Plan:
    try:
        next_at = next_after(_rule_of(row), row.now)
    except (InvalidRule, Unreadable):
        next_at = row.now + UNREADABLE_MS
    return _Plan(row, next_at, trouble=_storable(reason))


# repair


class ScheduleStanding(NamedTuple):
    """How a schedule stands: whether `next_at` is as its rule says, and until when it is paused."""

    name: str
    rule: str
    next_at: int | None
    paused_at: int | None
    until: int | None
    changed_at: int | None
    now: int

    @property
    def since(self) -> int:
        """After which its times are on time: of the last minute, but not from before it was put or resumed."""
        changed_at = self.changed_at or 0
        return self.now if changed_at > self.now else max(changed_at, self.now - LATE_MS)

    @property
    def is_wrong(self) -> bool:
        """Tell whether something is to be put right: its next time is too late, or its pause is over."""
        if self.paused_at is not None:
            return self.until is not None and self.until <= self.now
        try:
            right = next_after(read_rule(self.rule), self.now)
        except (InvalidRule, *CANNOT_READ):
            return False
        return right is not None and (self.next_at is None or self.next_at > right)


MOST_COMPARED = 500
MOST_AHEAD = 1_000
"""How many ticks to come are looked at: a time behind these that has one is found by its key, and starts nothing."""
STANDING = """
    SELECT name, rule, next_at, paused_at, until, changed_at, $now FROM holdfast_schedule
    WHERE name > :after ORDER BY name LIMIT :most"""


async def standing(tx: Tx, after: str = "") -> list[ScheduleStanding]:
    """Read how the next schedules by name, at most 500, stand."""
    return [ScheduleStanding._make(row) for row in await tx.fetch_all(STANDING, after=after, most=MOST_COMPARED)]


LOCK = """
    SELECT name, rule, next_at, paused_at, until, changed_at, $now FROM holdfast_schedule
    WHERE name $any(names: text) ORDER BY name $skip_locked"""
# scalar subqueries stay probes; a join read all ticks where statistics said that there were few
AHEAD = """
    SELECT given.name, (SELECT CAST($json_rows(ahead.at) AS text) FROM (
        SELECT tick.at FROM holdfast_tick AS tick WHERE tick.schedule = given.name AND tick.at > given.since
        ORDER BY tick.at LIMIT :most) AS ahead)
    FROM $list(given: name text, since bigint)"""
PUT_BACK = """
    UPDATE holdfast_schedule SET next_at = given.next_at
    FROM $list(given: name text, next_at bigint)
    WHERE holdfast_schedule.name $is(given.name)"""


class Repaired(NamedTuple):
    """How many schedules were put right, and whether others could not be: somebody has them locked, or deleted."""

    many: int
    has_locked: bool


async def repair(tx: Tx, names: Sequence[str]) -> Repaired:
    """Put right those of *names* that are wrong and that nobody else has locked.

    A next time that is too late goes back to the first one of the last minute, or to come, that has no tick: a time
    may have come since the clock was put back. A pause that is over ends, and the schedule goes on with the first time
    since.
    """
    found = [ScheduleStanding._make(row) for row in await tx.fetch_all(LOCK, names=sorted(names))]
    wrong = [each for each in found if each.is_wrong]
    over = [each for each in wrong if each.paused_at is not None]
    if over:
        await tx.execute(RESUME, given=[(each.name, _after_pause(each)) for each in over])
    back = await _put_back(tx, [each for each in wrong if each.paused_at is None])
    return Repaired(len(over) + back, len(found) < len(names))


async def _put_back(tx: Tx, late: Sequence[ScheduleStanding]) -> int:
    """Set the schedules *late* to the first time that has no tick; tell for how many that is another one."""
    if not late:
        return 0
    given = [(each.name, each.since) for each in late]
    rows = await tx.fetch_all(AHEAD, given=given, most=MOST_AHEAD)
    had = {name: set(json.loads(times)) if times else set() for name, times in rows}
    first = {each.name: _first_free(each, had[each.name]) for each in late}
    moved = [(each.name, first[each.name]) for each in late if first[each.name] != each.next_at]
    if moved:
        await tx.execute(PUT_BACK, given=moved)
    return len(moved)


def _first_free(schedule: ScheduleStanding, had: Collection[int]) -> int | None:
    """Give the first time of a schedule that is not late, or to come, and has had no tick."""
    rule = read_rule(schedule.rule)
    at = next_after(rule, schedule.since)
    while at is not None and at in had:
        at = next_after(rule, at)
    return at


def _after_pause(schedule: ScheduleStanding) -> int | None:
    """Give the first time of a schedule whose pause is over: it may have been while nobody looked."""
    assert schedule.until is not None  # noqa: S101 - it is over
    try:
        return next_after(read_rule(schedule.rule), schedule.until - 1)
    except (InvalidRule, *CANNOT_READ):
        return schedule.now


# retention

KEPT_MS = 7 * 86_400_000
MOST_KEPT = 100
MOST_NAMES, MOST_PRUNED = 100, 1_000
# a loose scan: a probe for each schedule, and not for each of its ticks
TICKED = """
    WITH RECURSIVE ticked(name, nr) AS (
        SELECT (SELECT first.schedule FROM holdfast_tick AS first
            WHERE first.schedule > :after ORDER BY first.schedule LIMIT 1), 1
        UNION ALL
        SELECT (SELECT next.schedule FROM holdfast_tick AS next
            WHERE next.schedule > ticked.name ORDER BY next.schedule LIMIT 1), ticked.nr + 1
        FROM ticked WHERE ticked.name IS NOT NULL AND ticked.nr < :most)
    SELECT name, $now,
        (SELECT known.name FROM holdfast_schedule AS known WHERE known.name = ticked.name),
        (SELECT kept.at FROM holdfast_tick AS kept
            WHERE kept.schedule = ticked.name ORDER BY kept.at DESC LIMIT 1 OFFSET :offset)
    FROM ticked WHERE name IS NOT NULL"""
OLD = """
    SELECT given.name, (SELECT CAST($json_rows(old.at) AS text) FROM (
        SELECT tick.at FROM holdfast_tick AS tick WHERE tick.schedule = given.name AND tick.at < given.below
        ORDER BY tick.at LIMIT :most) AS old)
    FROM $list(given: name text, below bigint)"""


class OldTicks(NamedTuple):
    """Ticks that may be forgotten, and behind which schedule to go on; None at the end."""

    ticks: list[tuple[str, int]]
    after: str | None


async def old_ticks(tx: Tx, after: str = "") -> OldTicks:
    """Find ticks older than 7 days of the next schedules by name; the last 100 of a schedule that exists are kept."""
    rows = await tx.fetch_all(TICKED, after=after, most=MOST_NAMES, offset=MOST_KEPT - 1)
    below = [
        (name, now - KEPT_MS if known is None else min(now - KEPT_MS, kept))
        for name, now, known, kept in rows
        if known is None or kept is not None
    ]
    old = await tx.fetch_all(OLD, given=below, most=MOST_PRUNED) if below else []
    found = [(name, at) for name, times in old if times for at in json.loads(times)][:MOST_PRUNED]
    if len(found) == MOST_PRUNED:
        return OldTicks(found, after)  # these schedules may have more
    return OldTicks(found, rows[-1][0] if len(rows) == MOST_NAMES else None)


FORGET = """
    DELETE FROM holdfast_tick WHERE (schedule, at) IN (
        SELECT given.schedule, given.at FROM $list(given: schedule text, at bigint))"""


async def forget_ticks(tx: Tx, ticks: Sequence[tuple[str, int]]) -> None:
    """Forget *ticks*."""
    if ticks:
        await tx.execute(FORGET, given=list(ticks))


# rows


def to_info(row: Row) -> ScheduleInfo:
    """Make a `ScheduleInfo` of a row of SCHEDULE; or raise `Unreadable`."""
    each = _Row.of(row)
    rule = _rule_of(each)
    with reading("holdfast_schedule", each.name):
        return ScheduleInfo(
            name=each.name,
            task=each.task,
            input=json.loads(each.input),
            options=object_of(each.options),
            rule=rule,
            words=rule.words,
            next_at=None if each.paused_at is not None else maybe_instant(each.next_at),
            is_late=each.paused_at is None and each.next_at is not None and each.next_at < each.now - LATE_MS,
            next_times=tuple(map(instant, next_times(rule, each.now))),
            missed=each.missed,  # type: ignore[arg-type]
            jitter=each.jitter_ms / 1000,
            paused_at=maybe_instant(each.paused_at),
            paused_by=each.paused_by,
            reason=each.reason,
            paused_until=maybe_instant(each.until),
            is_declared=each.declared is not None,
            trouble=each.trouble,
            left_out=each.left_out,
            left_out_at=maybe_instant(each.left_out_at),
            created_at=instant(each.created_at),
            changed_at=maybe_instant(each.changed_at),
            changed_by=each.changed_by,
        )


def _to_tick(row: Row) -> Tick:
    schedule, at, outcome, chain_id, done_at = row
    with reading("holdfast_tick", f"{schedule} {at}"):
        return Tick(
            schedule=schedule, at=instant(at), outcome=outcome, chain_id=UUID(chain_id), done_at=maybe_instant(done_at)
        )


def _rule_of(row: _Row) -> ScheduleRule:
    with reading("holdfast_schedule", row.name):
        return read_rule(row.rule)


def _the_one(name: str, rows: list[Row]) -> Row:
    if not rows:
        raise ScheduleNotFound(name)
    return rows[0]


def _words(error: Exception) -> str:
    return _storable(reason_of(error))


def _storable(trouble: str) -> str:
    """Make *trouble* storable: it may be in a user's words."""
    return clean_text(trouble, TROUBLE_LENGTH)


def _write_name(name: str) -> str:
    return base64.urlsafe_b64encode(json.dumps(["schedules", name]).encode()).decode().rstrip("=")


def _read_name(cursor: str) -> str:
    try:
        kind, name = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if kind == "schedules" and isinstance(name, str) and not UNSTORABLE.search(name):
            return name
    except (binascii.Error, ValueError, TypeError, RecursionError):
        pass
    raise UsageError("this cursor is not one of a list of schedules; take next_cursor of the page before")
