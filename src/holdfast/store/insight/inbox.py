"""The inbox: what waits for a person, a page at a time, whatever the tables hold.

Questions are found by the index of what is ready: a probe for each task that asks, in its queue and wherever else its
jobs are ready, then the oldest of those that come first. All else is in the index of what is stuck. Jobs that halt a
lane stand together there, and so do paused ones; both are walked in their order. Of the others, failed jobs and
deliveries that were given up, the newest 2,000 are looked at: these are the *window*, and a cursor keeps its ends, so
that what fails while somebody reads moves nothing. An entry is seen twice only if somebody has dealt with its oldest
job meanwhile.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, assert_never
from uuid import UUID

from holdfast.database.tx import Row, Tx
from holdfast.errors import UsageError
from holdfast.models import DELIVER, Job, Page
from holdfast.questions import (
    KINDS,
    PEOPLE,
    Ask,
    DeadLetter,
    Failure,
    Halt,
    InboxEntry,
    InboxKind,
    PausedJob,
)
from holdfast.store import task_rows
from holdfast.store.insight import gauges
from holdfast.store.reads import CHAIN_JOBS
from holdfast.store.rows import PRIORITY_MS, instant, to_job
from holdfast.store.stuck import BESIDE, HALTING, stuck
from holdfast.texts import UNSTORABLE
from holdfast.unreadable import object_of, readable, reading

MOST_FAILED = 2_000
"""How many failed jobs, in no lane that they halt, are looked at."""
MOST_KINDS = 50
"""Of how many tasks at once questions are read; a page ends where those of another task would come in."""
MOST_BEHIND = 100
NEWEST = 2**63 - 1


class Place(NamedTuple):
    """Where a page ended, and which failed jobs its walk looks at, by the ends of their `seq`."""

    kind: InboxKind
    key: int = -NEWEST
    """The order key of a question; 0 for all else."""
    seq: int = 0
    first: int = 0
    """0 if there were no more than are looked at."""
    last: int = NEWEST

    @property
    def text(self) -> str:
        """The cursor."""
        return base64.urlsafe_b64encode(":".join(map(str, self)).encode()).decode().rstrip("=")

    @classmethod
    def read(cls, cursor: str, kinds: Sequence[InboxKind]) -> Place:
        """Read a cursor of a walk over *kinds*, or raise `UsageError`."""
        try:
            kind, *numbers = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode().split(":")
            key, seq, first, last = map(int, numbers)
            known = {each: each for each in kinds}[kind]  # type: ignore[index]  # it may be anything
            if -NEWEST <= key <= NEWEST and all(0 <= each <= NEWEST for each in (seq, first, last)):
                return cls(known, key, seq, first, last)
        except (binascii.Error, ValueError, TypeError, KeyError):
            pass
        raise UsageError(
            "this cursor is not one of this inbox; take next_cursor of the page before, and pass the same kind="
        )


Make: TypeAlias = Callable[[Mapping[int, Job]], InboxEntry | None]


class Found(NamedTuple):
    """An entry that was found: where it stands in its kind, and how it is made once its job has been read."""

    key: int
    seq: int
    make: Make
    needs_job: bool = True


async def inbox(tx: Tx, kind: InboxKind | None, limit: int, cursor: str | None) -> Page[InboxEntry]:
    """Read one page of what waits for a person: of one *kind*, or of all in their order, the oldest first in each.

    A page may be shorter than *limit* although another follows.
    """
    kinds = KINDS if kind is None else (kind,)
    after = Place(kinds[0]) if cursor is None else Place.read(cursor, kinds)
    walk = _Walk(tx, after)
    found: list[tuple[InboxKind, Found]] = []
    is_cut = False
    for each in kinds[kinds.index(after.kind) :]:
        more, is_cut = await walk.find(each, limit + 1 - len(found))
        found += [(each, one) for one in more]
        if is_cut or len(found) > limit:
            break
    shown = found[:limit]
    jobs = await _jobs(tx, [one.seq for _, one in shown if one.needs_job])
    entries = [entry for _, one in shown if (entry := one.make(jobs)) is not None]
    if not is_cut and len(found) <= limit:
        return Page(tuple(entries))
    last_kind, last = shown[-1]
    return Page(tuple(entries), Place(last_kind, last.key, last.seq, *walk.window_ends).text)


async def _jobs(tx: Tx, seqs: Sequence[int]) -> dict[int, Job]:
    rows = await tx.fetch_all(CHAIN_JOBS, seqs=list(seqs)) if seqs else []
    return {job.seq: job for job in readable(rows, to_job)}


class _Walk:
    """One page's walk over the kinds, from the place where the page before ended."""

    def __init__(self, tx: Tx, after: Place) -> None:
        self._tx = tx
        self._after = after
        self._window: Window | None = None

    @property
    def window_ends(self) -> tuple[int, int]:
        """The ends of the window, for the cursor."""
        return (self._after.first, self._after.last) if self._window is None else self._window.ends

    async def find(self, kind: InboxKind, most: int) -> tuple[list[Found], bool]:
        """Find at most *most* entries of *kind* behind the place; tell whether the page has to end with them."""
        after = self._after if self._after.kind == kind else self._after._replace(kind=kind, key=-NEWEST, seq=0)
        match kind:
            case "asked":
                return await _asked(self._tx, after, most)
            case "halted":
                return await _halted(self._tx, after, most), False
            case "paused":
                return await _paused(self._tx, after, most), False
            case "failed":
                every = _failures(await self._read_window())
            case "dead_letter":
                every = await _dead_letters(self._tx, await self._read_window())
            case _:
                assert_never(kind)
        behind = [each for each in every if each.seq > after.seq]
        return sorted(behind, key=lambda each: each.seq)[:most], False

    async def _read_window(self) -> Window:
        if self._window is None:
            self._window = await _window(self._tx, self._after.first, self._after.last)
        return self._window


BEHIND_PLACE = """FROM holdfast_job AS ready
        WHERE ready.queue = given.queue AND ready.task = given.task AND ready.gate = 'ready'
            AND (ready.sort_key, ready.seq) > (:key, :seq)
        ORDER BY ready.sort_key, ready.seq"""
# a probe for each task that asks
FIRST_ASKED = f"""
    SELECT given.queue, given.task, (SELECT CAST($json_array(ready.sort_key, ready.seq) AS text) {BEHIND_PLACE} LIMIT 1)
    FROM $list(given: queue text, task text)"""
ASKED = f"""
    SELECT given.task, (SELECT CAST($json_rows($json_array(next.sort_key, next.seq)) AS text)
        FROM (SELECT ready.sort_key, ready.seq {BEHIND_PLACE} LIMIT :most) AS next)
    FROM $list(given: queue text, task text)"""


async def _asked(tx: Tx, after: Place, most: int) -> tuple[list[Found], bool]:
    """Find the oldest questions of all tasks; a higher priority makes one older, as it does for the jobs of workers.

    Those of a task that had another queue, or a handler, when they were asked are found where they wait.
    """
    asking = await task_rows.asking(tx)
    kinds = await tx.fetch_all(gauges.READY_KINDS, most=gauges.MOST_KINDS) if asking else []
    usual = {(queue, each.name) for each in asking.values() for queue in (PEOPLE, each.queue)}
    given = sorted(usual | {(queue, task) for queue, task in kinds if task in asking})
    place = {"key": after.key, "seq": after.seq}
    firsts = await tx.fetch_all(FIRST_ASKED, given=given, **place) if given else []
    nearest = sorted((json.loads(first), queue, task) for queue, task, first in firsts if first is not None)
    taken, left = nearest[:MOST_KINDS], nearest[MOST_KINDS:]
    if not taken:
        return [], False
    rows = await tx.fetch_all(ASKED, given=[(queue, task) for _, queue, task in taken], **place, most=most)
    found = sorted((key, seq, task) for task, text in rows for key, seq in json.loads(text or "[]"))
    if left:  # what is younger than the first question of a task that was left out may not come before it
        found = [each for each in found if [*each[:2]] < left[0][0]]
    return [_ask(asking[task], key, seq) for key, seq, task in found[:most]], bool(left)


def _ask(task: task_rows.Asking, key: int, seq: int) -> Found:
    def make(jobs: Mapping[int, Job]) -> Ask | None:
        if (job := jobs.get(seq)) is None:
            return None
        return Ask(
            job=job,
            title=task.question.title,
            help=task.question.help,
            output_schema=object_of(task.output_schema),
            since=instant(key + PRIORITY_MS * job.priority),
        )

    return Found(key, seq, make)


# a job has no column for when it was paused; who keeps no history is known by its start
SINCE = """CASE WHEN holdfast_job.status = 'failed' THEN coalesce(holdfast_job.finished_at, holdfast_job.created_at)
        ELSE coalesce((SELECT said.at FROM holdfast_event AS said
            WHERE said.job = holdfast_job.seq AND said.name = 'job:paused'
            ORDER BY said.seq DESC LIMIT 1), holdfast_job.created_at) END"""
BEHIND = f"""(SELECT count(*) FROM (SELECT behind.place FROM holdfast_job AS behind
            WHERE behind.lane = holdfast_job.lane AND behind.gate = 'lane' ORDER BY behind.place LIMIT {MOST_BEHIND})
            AS counted)"""
AFTER = "holdfast_job.seq > CAST(:after AS bigint)"
HALTED = stuck(f"holdfast_job.seq, holdfast_job.lane, {SINCE}, {BEHIND}", AFTER, heads=[HALTING])
PAUSED = stuck(f"holdfast_job.seq, {SINCE}", AFTER, heads=[BESIDE], statuses=["paused"])


async def _halted(tx: Tx, after: Place, most: int) -> list[Found]:
    rows = await tx.fetch_all(HALTED, after=after.seq, most=most)
    return [_halt(seq, lane, since, behind) for seq, lane, since, behind in rows]


def _halt(seq: int, lane: str, since: int, behind: int) -> Found:
    def make(jobs: Mapping[int, Job]) -> Halt | None:
        if (job := jobs.get(seq)) is None:
            return None
        return Halt(lane=lane, job=job, behind=behind, since=instant(since))

    return Found(0, seq, make)


async def _paused(tx: Tx, after: Place, most: int) -> list[Found]:
    rows = await tx.fetch_all(PAUSED, after=after.seq, most=most)
    return [_paused_job(seq, since) for seq, since in rows]


def _paused_job(seq: int, since: int) -> Found:
    def make(jobs: Mapping[int, Job]) -> PausedJob | None:
        if (job := jobs.get(seq)) is None:
            return None
        return PausedJob(job=job, since=instant(since))

    return Found(0, seq, make)


class FailedJob(NamedTuple):
    """A failed job that halts no lane; *message* is the first line of what ended it."""

    seq: int
    id: UUID
    task: str
    since: int
    error_type: str | None
    message: str


class Window(NamedTuple):
    """The newest failed jobs that halt no lane; *ends* are those of their `seq`."""

    jobs: Sequence[FailedJob]
    ends: tuple[int, int]

    @property
    def is_whole(self) -> bool:
        """Tell whether there are no others."""
        return self.ends[0] == 0


# an error begins with its type and message; of the rest, up to 10 kB of traceback, nothing is wanted
FAILED = stuck(
    """holdfast_job.seq, holdfast_job.id, holdfast_job.task,
        coalesce(holdfast_job.finished_at, holdfast_job.created_at),
        substr(holdfast_job.error, 1, 1000), substr(holdfast_job.reason, 1, 300)""",
    "holdfast_job.seq <= :last",
    heads=[BESIDE],
    statuses=["failed"],
    direction="DESC",
)


async def _window(tx: Tx, first: int, last: int) -> Window:
    # between two numbers PostgreSQL goes along the primary key
    rows = [row for row in await tx.fetch_all(FAILED, last=last, most=MOST_FAILED) if row[0] >= first]
    if not rows:
        return Window((), (first, last))
    oldest = first or (rows[-1][0] if len(rows) == MOST_FAILED else 0)
    return Window(readable(rows, _failed), (oldest, rows[0][0]))


def _failed(row: Row) -> FailedJob:
    seq, id_, task, since, error, reason = row
    with reading("holdfast_job", seq):
        type_, message = _beginning(error)
        return FailedJob(seq, UUID(id_), task, since, type_, _first_line(message or reason or ""))


# as much of a JSON text as is there, without half an escape at its end
JSON_TEXT = r'"((?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*)'
BEGINNING = re.compile(rf'\{{"type": {JSON_TEXT}", "message": {JSON_TEXT}')


def _beginning(error: str | None) -> tuple[str | None, str | None]:
    """Read the type and the message of an *error*, of which only the beginning may be there."""
    if not error:
        return None, None
    if (match := BEGINNING.match(error)) is None:  # somebody else has written it
        whole = object_of(error)
        return _text(whole.get("type")), _text(whole.get("message"))
    type_, message = (UNSTORABLE.sub("", json.loads(f'"{text}"')) for text in match.groups())  # nor half a character
    return type_, message


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _first_line(message: str) -> str:
    return message.strip().partition("\n")[0].strip()


def _failures(window: Window) -> list[Found]:
    """Group failed jobs by task, error type and the first line of the message."""
    failed = (each for each in window.jobs if each.task != DELIVER)
    groups = _grouped(failed, lambda each: (each.task, each.error_type, each.message))
    return [_failure(group, is_exact=window.is_whole) for group in groups]


def _failure(group: Sequence[FailedJob], *, is_exact: bool) -> Found:
    newest, oldest = group[0], group[-1]
    failure = Failure(
        task=newest.task,
        error_type=newest.error_type,
        message=newest.message,
        count=len(group),
        is_exact=is_exact,
        example=newest.id,
        since=instant(min(each.since for each in group)),
    )
    return Found(0, oldest.seq, lambda _: failure, needs_job=False)


def _grouped(failed: Iterable[FailedJob], key: Callable[[FailedJob], object]) -> list[list[FailedJob]]:
    groups: dict[object, list[FailedJob]] = {}
    for each in failed:
        groups.setdefault(key(each), []).append(each)
    return list(groups.values())


RECEIVERS = """SELECT job, receiver, subscription FROM holdfast_delivery WHERE job $any(jobs: bigint)"""


async def _dead_letters(tx: Tx, window: Window) -> list[Found]:
    """Group deliveries that were given up by their receiver."""
    dead = [each for each in window.jobs if each.task == DELIVER]
    rows = await tx.fetch_all(RECEIVERS, jobs=[each.seq for each in dead]) if dead else []
    receivers: dict[int, tuple[str | None, str | None]] = {job: (receiver, whose) for job, receiver, whose in rows}
    groups = _grouped(dead, lambda each: receivers.get(each.seq))
    found = [(group, *receivers.get(group[0].seq, (None, None))) for group in groups]
    return readable(found, lambda each: _dead_letter(*each, is_exact=window.is_whole))


def _dead_letter(
    group: Sequence[FailedJob], receiver: str | None, subscription: str | None, *, is_exact: bool
) -> Found:
    newest, oldest = group[0], group[-1]
    with reading("holdfast_delivery", newest.seq):
        letter = DeadLetter(
            receiver=receiver,
            subscription=None if subscription is None else UUID(subscription),
            message=newest.message,
            count=len(group),
            is_exact=is_exact,
            example=newest.id,
            since=instant(min(each.since for each in group)),
        )
    return Found(0, oldest.seq, lambda _: letter, needs_job=False)
