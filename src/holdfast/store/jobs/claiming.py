"""Running jobs: claiming them, holding their leases, learning that they are wanted back.

A claim sets attempt, token and lease in one statement. The token is (seq, attempt, nonce), one nonce for each claim
call; everything a worker writes later carries it in its WHERE. It stays on the row when the job is settled, so that a
lost answer to COMMIT can be looked up.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias
from uuid import UUID

from holdfast.database.tx import Row, Tx, one_write, repeatable
from holdfast.models import RUN_PHASE, BlockerEnd, EventName
from holdfast.outcomes import MOST_CRASHES
from holdfast.states import Change, Status, guard
from holdfast.store import admission, delivery_backlog, phase_rows, reads
from holdfast.store.chains import blockers
from holdfast.store.chains.deletes import TOMBSTONE
from holdfast.store.log import events
from holdfast.store.rows import PRIORITY_MS, LockedJob
from holdfast.unreadable import readable
from holdfast.webhooks.receivers import ReceiverTrouble

Place: TypeAlias = tuple[int, int]
"""A place in the order in which ready jobs are claimed: (sort_key, seq)."""

LOWEST: Place = (-(2**62), 0)


class Token(NamedTuple):
    """The right to run a job: proof of one claim of it."""

    seq: int
    attempt: int
    nonce: str

    def values(self) -> tuple[int, int, str]:
        """Give it as a row of a list parameter."""
        return self


def token_of(job: LockedJob) -> Token:
    """Give the token of the claim that *job*, which runs, was last given out by."""
    return Token(job.seq, job.attempt, job.nonce or "")


@dataclass(frozen=True, slots=True)
class Want:
    """Jobs of *task* in *queue* that a worker could run, and the lease they would get.

    Those that have used fewer attempts than *ahead_below* may be claimed ahead, before there is a slot for them.
    """

    queue: str
    task: str
    lease_ms: int
    ahead_below: int = 0


class Claimed(NamedTuple):
    """A job that this worker may run now."""

    token: Token
    id: str
    chain_id: str
    chain_index: int
    task: str
    queue: str
    lane: str | None
    input: str
    used: int
    crashes: int
    sort_key: int
    current_phase: str | None = None
    attempts: int | None = None
    """Its own budget of attempts; None leaves it to its task."""
    error: str | None = None
    """The last error of an earlier attempt, a JSON text."""
    last_attempt_at: int | None = None
    """When the attempt before this one began."""
    scheduled_at: int | None = None
    """The time of the schedule that started it."""
    waited_ms: int = 0
    """How long it had been ready when it was claimed, in a lane since it joined that."""
    is_begun: bool = True
    """Whether its row says that its handler has begun; else a worker that dies has not died of it."""
    blockers: tuple[BlockerEnd, ...] = ()
    """How the chains stand that it waited for, in the order in which they were given."""

    @property
    def is_suspect(self) -> bool:
        """Tell whether one crash more would convict it."""
        return self.crashes >= MOST_CRASHES - 1


PAUSED = """(SELECT 1 FROM holdfast_queue AS held
            WHERE held.name = {queue} AND held.paused_at IS NOT NULL AND (held.until IS NULL OR held.until > $now))"""
GIVEN_IS_PAUSED, IS_PAUSED = PAUSED.format(queue="given.queue"), PAUSED.format(queue=":queue")
# how many of each are next: a merge over the worker's tasks, without a lock
PEEK = {
    "postgres": f"""
    SELECT given.queue, given.task, next.sort_key, next.seq
    FROM $list(given: queue text, task text), LATERAL (
        SELECT holdfast_job.sort_key, holdfast_job.seq FROM holdfast_job
        WHERE holdfast_job.queue = given.queue AND holdfast_job.task = given.task AND holdfast_job.gate = 'ready'
            AND (holdfast_job.sort_key, holdfast_job.seq) >= (:floor_key, :floor_seq)
        ORDER BY holdfast_job.sort_key, holdfast_job.seq LIMIT :most) AS next
    WHERE {GIVEN_IS_PAUSED} IS NULL
    ORDER BY next.sort_key, next.seq LIMIT :most""",
    "sqlite": f"""
    SELECT queue, task, sort_key, seq FROM holdfast_job
    WHERE queue = :queue AND task = :task AND gate = 'ready' AND (sort_key, seq) >= (:floor_key, :floor_seq)
        AND {IS_PAUSED} IS NULL
    ORDER BY sort_key, seq LIMIT :most""",
}
# the LATERAL form takes what is behind a locked row; `task = ANY(…)` as a filter took 28 ms at 100k unknown jobs
TAKEN = {
    "postgres": f"""(SELECT next.seq FROM $list(given: queue text, task text, most bigint), LATERAL (
            SELECT ready.seq FROM holdfast_job AS ready
            WHERE ready.queue = given.queue AND ready.task = given.task AND ready.gate = 'ready'
                AND (ready.sort_key, ready.seq) >= (:floor_key, :floor_seq)
            ORDER BY ready.sort_key, ready.seq LIMIT given.most $skip_locked) AS next
            WHERE {GIVEN_IS_PAUSED} IS NULL)""",
    "sqlite": f"""(SELECT ready.seq FROM holdfast_job AS ready
            WHERE ready.queue = :queue AND ready.task = :task AND ready.gate = 'ready'
                AND (ready.sort_key, ready.seq) >= (:floor_key, :floor_seq) AND {IS_PAUSED} IS NULL
            ORDER BY ready.sort_key, ready.seq LIMIT :most)""",
}
# the lease has begun with the claim: what is read back later, when it was not renewed yet, tells the same
CLAIMED_COLUMNS = f"""holdfast_job.seq, holdfast_job.status, holdfast_job.version, holdfast_job.attempt,
        holdfast_job.history, holdfast_job.id, holdfast_job.chain_id, holdfast_job.chain_index, holdfast_job.task,
        holdfast_job.queue, holdfast_job.lane, holdfast_job.input, holdfast_job.used, holdfast_job.crashes,
        holdfast_job.sort_key, holdfast_job.current_phase, holdfast_job.attempts, holdfast_job.error,
        holdfast_job.last_attempt_at, holdfast_job.scheduled_at,
        holdfast_job.lease_until - holdfast_job.lease_ms - holdfast_job.sort_key
            - {PRIORITY_MS} * holdfast_job.priority AS waited_ms,
        holdfast_job.started_at IS NOT NULL AS is_begun"""
CLAIM = {
    database: f"""
    UPDATE holdfast_job
    SET status = 'running', gate = NULL, attempt = attempt + 1, used = used + 1, nonce = :nonce, worker = :worker,
        reason = NULL,
        started_at = CASE WHEN crashes < {MOST_CRASHES - 1} THEN $now END,  -- a suspect's begins later
        last_attempt_at = coalesce(started_at, last_attempt_at),
        lease_ms = lease.ms, lease_until = $now + lease.ms, version = version + 1
    FROM $list(lease: task text, ms bigint)
    WHERE holdfast_job.seq $in{taken}
        AND lease.task = holdfast_job.task AND {guard(Change.CLAIM)}
    RETURNING {CLAIMED_COLUMNS}"""
    for database, taken in TAKEN.items()
}
# of the next ones the first :free begin; the others wait, if they may: who is passed over here is next in any case
MAY_WAIT = """ready.used < {below} AND ready.used < coalesce(ready.attempts - 1, {below})
                AND ready.interrupted = 0 AND ready.crashes = 0"""
NUMBERED = {
    "postgres": f"""
        SELECT next.seq, next.may_wait, row_number() OVER (ORDER BY next.sort_key, next.seq) AS number
        FROM $list(given: queue text, task text, most bigint, below bigint), LATERAL (
            SELECT ready.seq, ready.sort_key, {MAY_WAIT.format(below="given.below")} AS may_wait
            FROM holdfast_job AS ready
            WHERE ready.queue = given.queue AND ready.task = given.task AND ready.gate = 'ready'
                AND (ready.sort_key, ready.seq) >= (:floor_key, :floor_seq)
            ORDER BY ready.sort_key, ready.seq LIMIT given.most $skip_locked) AS next
        WHERE {GIVEN_IS_PAUSED} IS NULL""",
    "sqlite": f"""
        SELECT next.seq, next.may_wait, row_number() OVER (ORDER BY next.sort_key, next.seq) AS number
        FROM (SELECT ready.seq, ready.sort_key, {MAY_WAIT.format(below=":below")} AS may_wait
            FROM holdfast_job AS ready
            WHERE ready.queue = :queue AND ready.task = :task AND ready.gate = 'ready'
                AND (ready.sort_key, ready.seq) >= (:floor_key, :floor_seq) AND {IS_PAUSED} IS NULL
            ORDER BY ready.sort_key, ready.seq LIMIT :most) AS next""",
}
CLAIM_AHEAD = {
    database: f"""
    WITH numbered AS MATERIALIZED ({numbered})
    UPDATE holdfast_job
    SET status = 'running', gate = NULL, attempt = attempt + 1, used = used + 1, nonce = :nonce, worker = :worker,
        reason = NULL,
        started_at = CASE WHEN crashes < {MOST_CRASHES - 1}
            AND holdfast_job.seq $in(SELECT seq FROM numbered WHERE number <= :free) THEN $now END,
        last_attempt_at = coalesce(started_at, last_attempt_at),
        lease_ms = lease.ms, lease_until = $now + lease.ms, version = version + 1
    FROM $list(lease: task text, ms bigint)
    WHERE holdfast_job.seq $in(SELECT seq FROM numbered WHERE number <= :free OR may_wait)
        AND lease.task = holdfast_job.task AND {guard(Change.CLAIM)}
    RETURNING {CLAIMED_COLUMNS}"""
    for database, numbered in NUMBERED.items()
}


@one_write
async def claim(
    tx: Tx, wants: Sequence[Want], most: int, worker: str, nonce: str, floor: Place = LOWEST, ahead: int = 0
) -> list[Claimed]:
    """Claim up to *most* jobs, in the order of their keys, of what *wants* names in queues that are not paused.

    Up to *ahead* further ones are claimed for later: of tasks that allow it (`Want.ahead_below`), and none that was
    ever given back or has crashed. Their rows do not say that they have begun, so that nobody is blamed for the death
    of a worker that had them only waiting.
    """
    shares = await _shares(tx, wants, most + ahead, floor)
    leases = list({each.task: each.lease_ms for each in wants}.items())
    given = {"worker": worker, "nonce": nonce, "lease": leases, **_bounds(floor)}
    facts = json.dumps({"worker": worker})
    below = {(each.queue, each.task): each.ahead_below for each in wants} if ahead else None
    rows: list[Row] = []
    if tx.database == "postgres" and shares:
        if below is None:
            given |= {"given": [(*key, count) for key, count in shares.items()]}
        else:
            given |= {"given": [(*key, count, below[key]) for key, count in shares.items()], "free": most}
        rows = await events.move(tx, (CLAIM if below is None else CLAIM_AHEAD)["postgres"], given, STARTED, facts)
    elif shares:
        for (queue, task), count in shares.items():
            each: dict[str, object] = {"queue": queue, "task": task, "most": count}
            if below is not None:
                each |= {"below": below[queue, task], "free": most - sum(row[-1] for row in rows)}
            rows += await events.move(
                tx, (CLAIM if below is None else CLAIM_AHEAD)["sqlite"], {**each, **given}, STARTED, facts
            )
    claimed = await _with_blockers(tx, rows, nonce)
    return sorted(claimed, key=place_of)


def place_of(job: Claimed) -> Place:
    """Say where *job* stood in the order of claims."""
    return job.sort_key, job.token.seq


STARTED: Sequence[EventName] = ("job:started",)


def _bounds(floor: Place) -> dict[str, object]:
    return {"floor_key": floor[0], "floor_seq": floor[1]}


async def _shares(tx: Tx, wants: Sequence[Want], most: int, floor: Place) -> dict[tuple[str, str], int]:
    """Say how many of each (queue, task) are among the next *most* that are ready."""
    if len(wants) == 1:
        return {(wants[0].queue, wants[0].task): most}
    if tx.database == "postgres":
        pairs = [(each.queue, each.task) for each in wants]
        rows = await tx.fetch_all(PEEK["postgres"], given=pairs, most=most, **_bounds(floor))
    else:
        rows = []
        for each in wants:
            rows += await tx.fetch_all(PEEK["sqlite"], queue=each.queue, task=each.task, most=most, **_bounds(floor))
        rows.sort(key=lambda row: row[2:])
    return Counter((queue, task) for queue, task, *_ in rows[:most])


UNTOUCHED = 2
"""The version of a job to which nothing had happened before its claim; one that waited for others has been moved."""


async def _with_blockers(tx: Tx, rows: Sequence[Row], nonce: str) -> list[Claimed]:
    """Read what was claimed; for those that may have waited for others, how these ended, by two statements."""
    claimed = [
        Claimed._make((Token(seq, attempt, nonce), *rest, bool(is_begun), ()))
        for seq, _, _, attempt, _, *rest, is_begun in rows
    ]
    if not (moved := [seq for seq, _, version, *_ in rows if version > UNTOUCHED]):
        return claimed
    links = sorted(await tx.fetch_all(blockers.LINKS, jobs=moved))
    if not links:
        return claimed
    rows = await tx.fetch_all(reads.CHAINS_BY_ID, ids=list({chain_id for _, _, chain_id in links}))
    ends = {
        str(each.id): BlockerEnd(each.id, each.last_task, None if each.is_open else each.status, each.output)
        for each in readable(rows, reads.to_chain)  # one that cannot be read counts as one that is gone
    }
    waited_for: dict[int, list[BlockerEnd]] = defaultdict(list)
    for seq, _, chain_id in links:
        waited_for[seq].append(ends.get(chain_id) or BlockerEnd(UUID(chain_id), "", Status.CANCELLED, None))
    return [each._replace(blockers=tuple(waited_for[each.token.seq])) for each in claimed]


@dataclass(frozen=True, slots=True)
class Claims:
    """What a claim gave, whether more may be had at once, and in how many milliseconds the next arrival is due."""

    jobs: list[Claimed]
    more: bool
    next_ms: int | None = None
    is_crowded: bool = False
    """Whether more may have arrived than was admitted."""
    admitted: int = 0
    """How many arrivals were taken up, also of tasks that were not asked for: admission goes by queue."""
    put_off: Sequence[tuple[int, str]] = ()
    """The deliveries that were put off, and their receivers."""


NEXT_ARRIVAL = """
    SELECT (SELECT holdfast_job.wake_at FROM holdfast_job
        WHERE holdfast_job.queue = given.queue AND holdfast_job.gate = 'arrival'
        ORDER BY holdfast_job.wake_at LIMIT 1) - $now
    FROM $list(given: queue text)"""


async def admit_and_claim(
    tx: Tx,
    wants: Sequence[Want],
    most: int,
    worker: str,
    nonce: str,
    floor: Place = LOWEST,
    ahead: int = 0,
    *,
    is_crowded: bool = False,
    troubles: Sequence[ReceiverTrouble] = (),
) -> Claims:
    """Admit what has arrived in the queues of *wants*, then claim from those that are not paused.

    If enough is ready behind the *floor*, it is claimed and nothing admitted: who arrives comes behind that, save what
    is urgent, which is found when a claim begins without a floor, as whatever else sorts below it. But where the last
    admission has left some (*is_crowded*), the next ones go on with it. Where receivers of webhooks are in trouble,
    deliveries that are for them are put off before anything is claimed.
    """
    claimed: list[Claimed] = []
    if floor != LOWEST and not is_crowded and not troubles:
        claimed = await claim(tx, wants, most, worker, nonce, floor, ahead)
        if len(claimed) == most + ahead:
            return Claims(claimed, more=True)
        most, ahead = _left(claimed, most, ahead)
        floor = LOWEST
    queues = sorted({each.queue for each in wants})
    admitted = [await admission.admit(tx, queue) for queue in queues]
    count, is_crowded = sum(admitted), max(admitted, default=0) == admission.MOST_ARRIVALS
    put_off = await delivery_backlog.put_off(tx, troubles) if troubles else ()
    if wants and most + ahead > 0:
        found = await claim(tx, wants, most, worker, nonce, floor, ahead)
        claimed += found
        most, ahead = _left(found, most, ahead)
    if most + ahead == 0 or is_crowded or floor != LOWEST:  # below the floor there may be some
        return Claims(claimed, more=True, is_crowded=is_crowded, admitted=count, put_off=put_off)
    rows = await tx.fetch_all(NEXT_ARRIVAL, given=[(queue,) for queue in queues])
    waits = [wait for (wait,) in rows if wait is not None]
    next_ms = max(min(waits), 0) if waits else None
    return Claims(claimed, more=False, next_ms=next_ms, admitted=count, put_off=put_off)


def _left(claimed: Sequence[Claimed], most: int, ahead: int) -> tuple[int, int]:
    """Say how many may still be claimed, to begin and to wait, after these."""
    begun = sum(each.is_begun or each.is_suspect for each in claimed)
    return most - begun, ahead - (len(claimed) - begun)


MINE = f"""
    SELECT {CLAIMED_COLUMNS}
    FROM holdfast_job WHERE lease_until IS NOT NULL AND worker = :worker AND nonce = :nonce"""


async def claimed_by(tx: Tx, worker: str, nonce: str) -> list[Claimed]:
    """Read back what a claim call took whose answer was lost; its nonce is on the rows."""
    return await _with_blockers(tx, await tx.fetch_all(MINE, worker=worker, nonce=nonce), nonce)


BEGIN = """
    UPDATE holdfast_job SET started_at = $now, worker = coalesce(CAST(:worker AS text), worker)
    WHERE seq = :seq AND attempt = :attempt AND nonce = :nonce AND coalesce(status, '') = 'running'
    RETURNING seq"""


@repeatable
async def begin(tx: Tx, token: Token, worker: str | None = None) -> bool:
    """Write down that the handler of a suspect begins, for which the claim waited; tell whether it is still ours.

    If it begins in a child process, *worker* is the name of its worker and `IN_CHILD`.
    """
    return bool(await tx.fetch_all(BEGIN, seq=token.seq, attempt=token.attempt, nonce=token.nonce, worker=worker))


MARK_BEGUN = """
    UPDATE holdfast_job SET started_at = $now
    FROM $list(given: seq bigint, attempt bigint, nonce text)
    WHERE holdfast_job.seq = given.seq AND holdfast_job.attempt = given.attempt AND holdfast_job.nonce = given.nonce
        AND coalesce(holdfast_job.status, '') = 'running' AND holdfast_job.started_at IS NULL
        AND holdfast_job.seq $free(seqs)
    RETURNING holdfast_job.seq"""


async def mark_begun(tx: Tx, tokens: Sequence[Token]) -> set[Token]:
    """Write down that handlers have begun of what was claimed ahead; give those of which that is written.

    What is lost, or locked by somebody, is passed over.
    """
    if not tokens:
        return set()
    rows = await tx.fetch_all(MARK_BEGUN, given=[each.values() for each in tokens], seqs=[each.seq for each in tokens])
    marked = {seq for (seq,) in rows}
    return {each for each in tokens if each.seq in marked}


FENCE = """holdfast_job.seq = given.seq AND holdfast_job.attempt = given.attempt AND holdfast_job.nonce = given.nonce"""


class ClaimState(StrEnum):
    """How a worker's claim of a job stands."""

    HELD = "held"
    LOCKED = "locked"
    """Held, but somebody had locked the row: its lease was not prolonged this time."""
    CANCEL = "cancel"
    PAUSE = "pause"
    TAKEN = "taken"
    COMPLETED = "completed"
    GONE = "gone"


CLAIM_STATE = "seq, attempt, nonce, status, cancel_requested_at, pause_requested_at"
EXISTS = f"coalesce(closed_as, '') <> '{TOMBSTONE}'"
CLAIM_STATES = f"SELECT {CLAIM_STATE} FROM holdfast_job WHERE seq $any(seqs: bigint) AND {EXISTS}"


async def claim_states(tx: Tx, tokens: Sequence[Token]) -> dict[Token, ClaimState]:
    """Tell how each claim stands, without a lock."""
    if not tokens:
        return {}
    rows = {row[0]: row for row in await tx.fetch_all(CLAIM_STATES, seqs=[each.seq for each in tokens])}
    return {each: claim_state_of(each, rows.get(each.seq)) for each in tokens}


def claim_state_of(token: Token, row: Row | None) -> ClaimState:
    """Tell by its row, read as STANDING, how a claim stands."""
    if row is None:
        return ClaimState.GONE
    _, attempt, nonce, status, cancel_requested_at, pause_requested_at = row
    if (attempt, nonce) != (token.attempt, token.nonce) or status != Status.RUNNING:
        return ClaimState.COMPLETED if status == Status.COMPLETED else ClaimState.TAKEN
    if cancel_requested_at is not None:
        return ClaimState.CANCEL
    return ClaimState.HELD if pause_requested_at is None else ClaimState.PAUSE


RENEW = """
    UPDATE holdfast_job SET lease_until = $now + lease_ms
    WHERE seq $in(SELECT holdfast_job.seq FROM $list(given: seq bigint, attempt bigint, nonce text)
        JOIN holdfast_job ON holdfast_job.seq = given.seq AND holdfast_job.attempt = given.attempt
            AND holdfast_job.nonce = given.nonce
        WHERE coalesce(holdfast_job.status, '') = 'running'
        ORDER BY holdfast_job.seq $skip_locked_jobs)
    RETURNING seq"""


async def renew(tx: Tx, tokens: Sequence[Token]) -> dict[Token, ClaimState]:
    """Prolong every lease that still holds, each by its own length, in one statement; tell how each claim stands.

    A row that somebody has locked is passed over and told as `LOCKED`: it is held, and to be asked for again soon.
    """
    if not tokens:
        return {}
    renewed = {seq for (seq,) in await tx.fetch_all(RENEW, given=[each.values() for each in tokens])}
    states = await claim_states(tx, tokens)
    return {
        each: ClaimState.LOCKED if state is ClaimState.HELD and each.seq not in renewed else state
        for each, state in states.items()
    }


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """How far a handler says it is: percent of the whole job, a message or None, and the phase that it is in.

    *position* is that of the phase in its job, which is at *phase_percent*; *phase* is None between phases.
    """

    token: Token
    percent: int
    message: str | None
    phase: str | None = RUN_PHASE
    position: int = 0
    phase_percent: int | None = None

    def said(self) -> phase_rows.PhaseReport | None:
        """Give what it says of its phase."""
        if self.phase is None:
            return None
        percent = self.percent if self.phase_percent is None else self.phase_percent
        return phase_rows.PhaseReport(self.token.seq, self.position, self.phase, percent, self.message)


PROGRESS = f"""
    UPDATE holdfast_job
    SET progress = given.percent, message = given.message, current_phase = coalesce(given.phase, current_phase),
        version = version + 1
    FROM $list(given: seq bigint, attempt bigint, nonce text, percent bigint, message text, phase text)
    WHERE {FENCE} AND coalesce(holdfast_job.status, '') = 'running'
        AND holdfast_job.seq $free(seqs)
    RETURNING holdfast_job.seq, holdfast_job.version"""


async def progress(tx: Tx, reports: Sequence[ProgressReport]) -> set[Token]:
    """Write down how far jobs and their phases are, each under its token, and give the tokens of those that were.

    Those whose token is lost, or whose row somebody has locked, are passed over.
    """
    if not reports:
        return set()
    given = [(*each.token.values(), each.percent, each.message, each.phase) for each in reports]
    rows = await tx.fetch_all(PROGRESS, given=given, seqs=[each.token.seq for each in reports])
    versions: dict[int, int] = dict(rows)
    written = [each for each in reports if each.token.seq in versions]
    await phase_rows.write_progress(tx, [said for each in written if (said := each.said()) is not None])
    await events.append(tx, [_progressed(each, versions[each.token.seq]) for each in written])
    return {each.token for each in written}


async def report(tx: Tx, reports: Sequence[ProgressReport]) -> set[Token]:
    """Write down how far jobs are; give the tokens that hold although somebody has their row locked."""
    written = await progress(tx, reports)
    missed = [each.token for each in reports if each.token not in written]
    held = (ClaimState.HELD, ClaimState.CANCEL, ClaimState.PAUSE)
    return {token for token, state in (await claim_states(tx, missed)).items() if state in held}


def _progressed(report: ProgressReport, version: int) -> events.NewEvent:
    facts: dict[str, object] = {"progress": report.percent, "message": report.message}
    if report.phase_percent is not None:
        facts |= {"phase": report.phase, "phase_progress": report.phase_percent}
    token = report.token
    return events.NewEvent(token.seq, "job:progress", Status.RUNNING, version, token.attempt, json.dumps(facts))
