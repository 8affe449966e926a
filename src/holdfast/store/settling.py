"""Settling: writing down what attempts came to, in batches, each job under its token.

Everything takes lists: settling n jobs is a constant number of statements. The rows are locked first, SKIP LOCKED; a
row that somebody else has locked is handed back for the next batch, a token that no longer holds is told as lost, and
neither costs the others anything. What a finish cannot do at once, because its lane, the lane's next job or a
dependent is locked, stays on its row as an arrival for admission.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from holdfast.crashpoints import is_armed, reach
from holdfast.models import EventName
from holdfast.outcomes import POISON, Kind, Outcome
from holdfast.states import TERMINAL, Change, Gate, Status, guard
from holdfast.store import arrivals, blockers, chain_ends, events, lanes
from holdfast.store.jobs import FENCE, Hold, Token, look
from holdfast.store.tx import Row, Tx


@dataclass(frozen=True, slots=True)
class Settlement:
    """What one attempt came to; *halts_lane* is its task's policy."""

    token: Token
    outcome: Outcome
    halts_lane: bool = True


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a batch: written, lost to somebody else, or busy and to be settled again."""

    done: list[Token]
    lost: dict[Token, Hold]
    busy: list[Settlement]


class Held(NamedTuple):
    """A running row that we have locked."""

    token: Token
    id: str
    chain_id: str
    chain_index: int
    task: str
    lane: str | None
    head: int
    watched: int
    unique_key: str | None
    is_cancel_requested: bool
    is_pause_requested: bool
    crashes: int
    used: int


HELD_COLUMNS = """seq, attempt, nonce, id, chain_id, chain_index, task, lane, head, watched, unique_key,
    cancel_requested_at, pause_requested_at, crashes, used"""
HOLD = f"""
    SELECT {HELD_COLUMNS} FROM holdfast_job
    WHERE seq $any(seqs: bigint) AND coalesce(status, '') = 'running'
    ORDER BY seq $skip_locked"""


async def settle(tx: Tx, settlements: Sequence[Settlement]) -> Settled:
    """Write down *settlements*; tell those that were written from the lost and the busy ones."""
    if not settlements:
        return Settled([], {}, [])
    rows = await tx.fetch_all(HOLD, seqs=[each.token.seq for each in settlements])
    held = {each.token: each for each in await with_first_rows(tx, [held_of(row) for row in rows])}
    mine = [each for each in settlements if each.token in held]
    missed = {each.token: each for each in settlements if each.token not in held}
    pass_points([each.outcome.kind for each in mine], "after_check")
    await leave(tx, [(held[each.token], each) for each in mine])
    pass_points([each.outcome.kind for each in mine], "before_commit")
    standing = await look(tx, list(missed))
    busy = [each for token, each in missed.items() if standing[token] in (Hold.HELD, Hold.CANCEL, Hold.PAUSE)]
    lost = {token: hold for token, hold in standing.items() if missed[token] not in busy}
    return Settled([each.token for each in mine], lost, busy)


FIRSTS = """
    SELECT id FROM holdfast_job
    WHERE id $any(ids: text) ORDER BY seq $skip_locked"""


async def with_first_rows(tx: Tx, held: Sequence[Held]) -> list[Held]:
    """Lock the first rows of continued chains too, where their end is written; leave out what somebody has locked."""
    continued = sorted({each.chain_id for each in held if each.chain_index > 0})
    firsts = {id_ for (id_,) in await tx.fetch_all(FIRSTS, ids=continued)} if continued else set()
    return [each for each in held if each.chain_index == 0 or each.chain_id in firsts]


def held_of(row: Row) -> Held:
    """Read a row of HELD_COLUMNS."""
    (seq, attempt, nonce, id_, chain_id, chain_index, task, lane, head, watched, unique_key, cancel_requested_at,
     pause_requested_at, crashes, used) = row  # fmt: skip
    return Held(
        token=Token(seq, attempt, nonce),
        id=id_,
        chain_id=chain_id,
        chain_index=chain_index,
        task=task,
        lane=lane,
        head=head,
        watched=watched,
        unique_key=unique_key,
        is_cancel_requested=cancel_requested_at is not None,
        is_pause_requested=pause_requested_at is not None,
        crashes=crashes,
        used=used,
    )


LEADS_TO: dict[Kind, tuple[Status, EventName]] = {
    Kind.COMPLETE: (Status.COMPLETED, "job:completed"),
    Kind.RETRY: (Status.PENDING, "job:retrying"),
    Kind.RESCHEDULE: (Status.PENDING, "job:rescheduled"),
    Kind.GIVE_BACK: (Status.PENDING, "job:rescheduled"),
    Kind.LOST: (Status.PENDING, "job:reaped"),
    Kind.FAIL: (Status.FAILED, "job:failed"),
    Kind.PAUSE: (Status.PAUSED, "job:paused"),
    Kind.CANCEL: (Status.CANCELLED, "job:cancelled"),
}


CRASH_POINTS = {
    Kind.COMPLETE: "complete",
    Kind.RETRY: "error",
    Kind.FAIL: "error",
    Kind.RESCHEDULE: "snooze",
    Kind.GIVE_BACK: "giveback",
    Kind.PAUSE: "pause",
    Kind.CANCEL: "acknowledge",
    Kind.LOST: "reap",
}


def pass_points(kinds: Iterable[Kind], where: str) -> None:
    """Pass the crash points of what is being settled."""
    if is_armed:
        for name in sorted({CRASH_POINTS[kind] for kind in kinds}):
            reach(f"{name}.{where}")


def as_requested(job: Held, outcome: Outcome) -> Outcome:
    """Put a requested cancel, or pause, before what the attempt came to; its end by itself beats only a pause."""
    if job.is_cancel_requested:
        return replace(outcome, kind=Kind.CANCEL, output=None)
    goes_on = LEADS_TO[outcome.kind][0] is Status.PENDING or (outcome.is_crash and outcome.reason != POISON)
    return replace(outcome, kind=Kind.PAUSE) if job.is_pause_requested and goes_on else outcome


def _as_requested(job: Held, settlement: Settlement) -> Settlement:
    outcome = as_requested(job, settlement.outcome)
    return settlement if outcome is settlement.outcome else replace(settlement, outcome=outcome)


LEAVE = f"""
    UPDATE holdfast_job
    SET status = given.status, gate = given.gate, head = given.head,
        place = CASE given.head WHEN 1 THEN place END,
        output = given.output, reason = given.reason,
        error = CASE given.status WHEN 'completed' THEN NULL ELSE coalesce(given.error, holdfast_job.error) END,
        run_at = CASE given.status WHEN 'pending' THEN coalesce(given.run_at, $now + given.delay)
            ELSE holdfast_job.run_at END,
        wake_at = CASE given.gate WHEN 'arrival' THEN coalesce(given.run_at, $now + given.delay) END,
        used = used - given.given_back, interrupted = holdfast_job.interrupted + given.interrupted,
        crashes = crashes + given.crashed, worker = NULL, lease_until = NULL,
        completed_by = CASE given.status WHEN 'completed' THEN worker END,
        closed_as = CASE WHEN chain_index = 0 THEN given.closed_as END,
        closed_at = CASE WHEN chain_index = 0 AND given.closed_as IS NOT NULL THEN $now END,
        finished_at = CASE WHEN given.finished = 1 THEN $now END, version = version + 1
    FROM $list(given: seq bigint, attempt bigint, nonce text, status text, gate text, head bigint, output text,
        reason text, error text, run_at bigint, delay bigint, given_back bigint, interrupted bigint, crashed bigint,
        closed_as text, finished bigint)
    WHERE {FENCE}
        AND {guard(Change.FAIL)} AND (given.status <> 'completed' OR {guard(Change.COMPLETE)})
    RETURNING holdfast_job.seq, holdfast_job.version"""


async def leave(tx: Tx, ending: Sequence[tuple[Held, Settlement]]) -> None:
    """Move rows that we have locked out of `running`, with all that follows from it."""
    if not ending:
        return
    decided = [(job, _as_requested(job, each)) for job, each in ending]
    passing = {job.lane for job, each in decided if job.lane is not None and not _keeps_lane(job, each)}
    mine = await lanes.lock(tx, passing)
    versions: dict[int, int] = dict(await tx.fetch_all(LEAVE, given=[_values(job, each) for job, each in decided]))
    kinds = [each.outcome.kind for _, each in decided]
    pass_points(kinds, "after_update")
    closed = await chain_ends.close(tx, [_end(job, each) for job, each in decided if _closes(each)])
    stuck = await lanes.promote(tx, mine, mine) | (passing - mine.keys())
    pass_points(kinds, "after_promote")
    moved, untold = await blockers.release(tx, {each.chain_id: each.closed_as for each in closed})
    pass_points(kinds, "after_unblock")
    left = {job.token.seq for job, each in decided if job.lane in stuck and not _keeps_lane(job, each)}
    left |= {each.first for each in closed if each.chain_id in untold}
    await arrivals.leave(tx, sorted(left), arrivals.AGAIN_MS)
    await events.append(tx, [fact for job, each in decided for fact in _facts(job, each, versions[job.token.seq])])
    await blockers.move(tx, moved, announce_blocked=False)
    pass_points(kinds, "after_event")


def _keeps_lane(job: Held, settlement: Settlement) -> bool:
    return job.head == 0 or lanes.holds_its_lane(LEADS_TO[settlement.outcome.kind][0], settlement.halts_lane)


def _closes(settlement: Settlement) -> bool:
    return LEADS_TO[settlement.outcome.kind][0] in TERMINAL


def _end(job: Held, settlement: Settlement) -> chain_ends.End:
    status = LEADS_TO[settlement.outcome.kind][0]
    seq = job.token.seq
    return chain_ends.End(seq, job.chain_id, job.chain_index, job.task, job.unique_key, job.watched, status)


def _values(job: Held, settlement: Settlement) -> tuple[object, ...]:
    outcome = settlement.outcome
    status, _ = LEADS_TO[outcome.kind]
    # a pause is no attempt that failed: whoever resumes the job has the attempts that it had before
    is_given_back = outcome.kind in (Kind.GIVE_BACK, Kind.RESCHEDULE, Kind.PAUSE)
    return (
        *job.token.values(),
        status,
        Gate.ARRIVAL if status is Status.PENDING else None,
        1 if job.head and _keeps_lane(job, settlement) else 0,
        outcome.output,
        outcome.reason,
        outcome.error,
        outcome.run_at_ms,
        outcome.delay_ms,
        int(is_given_back),
        int(outcome.kind is Kind.GIVE_BACK),
        int(outcome.is_crash),
        status if status in TERMINAL else None,
        int(status in TERMINAL),
    )


def _facts(job: Held, settlement: Settlement, version: int) -> Iterator[events.Fact]:
    """Say what became of the job, and of its chain and its lane."""
    outcome = settlement.outcome
    status, name = LEADS_TO[outcome.kind]
    said = {"reason": outcome.reason, "error": json.loads(outcome.error) if outcome.error else None}
    facts = {key: value for key, value in said.items() if value is not None}
    seq, attempt = job.token.seq, job.token.attempt
    yield events.Fact(seq, name, status, version, attempt, json.dumps(facts) if facts else None)
    if status is Status.COMPLETED:
        yield events.Fact(seq, "chain:completed", status, version, attempt, f'{{"chain": "{job.chain_id}"}}')
    if job.lane is not None and job.head and status in HALTING and _keeps_lane(job, settlement):
        yield lanes.halted(job.lane, job.id, outcome.reason)


HALTING = (Status.FAILED, Status.PAUSED)
