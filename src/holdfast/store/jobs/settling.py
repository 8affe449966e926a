"""Settling: writing down what attempts came to, in batches, each job under its token.

Everything takes lists: settling n jobs is a constant number of statements. The rows are locked first, SKIP LOCKED; a
row that somebody else has locked is handed back for the next batch, a token that no longer holds is told as lost, and
neither costs the others anything. What a finish cannot do at once, because its lane, the lane's next job or a
dependent is locked, stays on its row as an arrival for admission.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from holdfast.database.tx import Tx
from holdfast.errors import HoldfastError
from holdfast.models import DELIVER, EventName, PhaseStatus
from holdfast.outcomes import POISON, Kind, Outcome, why_it_halts
from holdfast.states import MOVES, TERMINAL, Change, Gate, Status, guard, guard_by
from holdfast.store import lanes, phase_rows
from holdfast.store.chains import blockers, chain_ends, continuations
from holdfast.store.chains.continuations import continued
from holdfast.store.jobs.claiming import FENCE, ClaimState, Token, claim_states, token_of
from holdfast.store.log import events, fan_out
from holdfast.store.rows import AGAIN_MS, LOCKED, LockedJob, instant, leave_to_admission, to_locked
from holdfast.times import instant_text

NO_CHAINS: Mapping[UUID, UUID] = MappingProxyType({})


class Settlement(NamedTuple):
    """What one attempt came to.

    *halts_lane* is its task's policy; *is_plain* says that the job is in no lane and the first of its chain,
    *has_begun* that its handler has. *queue*, *task* and *ran_ms*, how long the handler ran, are for the figures; none
    counts an attempt without the last.
    """

    token: Token
    outcome: Outcome
    halts_lane: bool = True
    is_plain: bool = False
    has_begun: bool = True
    queue: str = ""
    task: str = ""
    ran_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a batch: written, lost to somebody else, or busy and to be settled again.

    What was *refused* still runs: it cannot continue as it was to, and is to be settled as if it had raised that error.
    *as_asked* are those that somebody had asked to cancel or to pause, and what was written of them instead.
    """

    done: list[Token]
    lost: dict[Token, ClaimState]
    busy: list[Settlement]
    refused: dict[Token, HoldfastError] = field(default_factory=dict)
    as_asked: dict[Token, Kind] = field(default_factory=dict)


LOCK_RUNNING = f"""
    SELECT {LOCKED} FROM holdfast_job
    WHERE seq $any(seqs: bigint) AND coalesce(status, '') = 'running'
    ORDER BY seq $skip_locked"""


async def settle(tx: Tx, settlements: Sequence[Settlement]) -> Settled:
    """Write down *settlements*; tell those that were written from the lost and the busy ones."""
    done = await complete(tx, [each for each in settlements if is_simple(each)])
    others = [each for each in settlements if each.token.seq not in done] if done else settlements
    if not others:
        return Settled([each.token for each in settlements], {}, [])
    rows = await tx.fetch_all(LOCK_RUNNING, seqs=[each.token.seq for each in others])
    locked = {token_of(each): each for each in await lock_other_rows(tx, [to_locked(row) for row in rows])}
    decided = [(locked[each.token], decide(locked[each.token], each)) for each in others if each.token in locked]
    judged = await continuations.judge(tx, steps_of(decided))
    refused = {each.token: judged.mistakes[job.seq] for job, each in decided if job.seq in judged.mistakes}
    mine = [(job, each) for job, each in decided if each.token not in refused]
    missed = {each.token: each for each in others if each.token not in locked}
    await write_ends(tx, mine, judged.chains)
    states = await claim_states(tx, list(missed))
    busy = [
        each
        for token, each in missed.items()
        if states[token] in (ClaimState.HELD, ClaimState.CANCEL, ClaimState.PAUSE)
    ]
    lost = {token: state for token, state in states.items() if missed[token] not in busy}
    done_now = [each.token for each in settlements if each.token not in missed and each.token not in refused]
    asked = {each.token: each.outcome for each in others}
    as_asked = {each.token: each.outcome.kind for _, each in mine if each.outcome is not asked[each.token]}
    return Settled(done_now, lost, busy, refused, as_asked)


# a block waits for who has its row, and the UPDATE itself does: when it has the row it looks at it again; the last one
# leaves to the others what must be followed by another statement
COMPLETE, COMPLETE_BLOCK, COMPLETE_ALONE = (
    f"""
    UPDATE holdfast_job
    SET status = 'completed', output = given.output, reason = NULL, error = NULL, wake_at = NULL, worker = NULL,
        lease_until = NULL, completed_by = worker, closed_as = 'completed', closed_at = $now, finished_at = $now,
        started_at = coalesce(started_at, $now), version = version + 1
    FROM $list(given: seq bigint, attempt bigint, nonce text, output text)
    WHERE {FENCE} AND {guard(Change.COMPLETE)}
        AND holdfast_job.lane IS NULL AND holdfast_job.chain_index = 0 AND holdfast_job.unique_key IS NULL
        AND holdfast_job.watched = 0 AND holdfast_job.seq {free}
    RETURNING holdfast_job.seq, holdfast_job.status, holdfast_job.version, holdfast_job.attempt, holdfast_job.history,
        holdfast_job.current_phase, {fan_out.MAY_WANT} AS may_want"""
    for free in (
        "$free(seqs)",
        "IS NOT NULL",
        f"IS NOT NULL AND holdfast_job.current_phase IS NULL AND NOT {fan_out.MAY_WANT}",
    )
)


def is_simple(settlement: Settlement) -> bool:
    """Tell whether `complete` may try to write it."""
    outcome = settlement.outcome
    return settlement.is_plain and outcome.kind is Kind.COMPLETE and outcome.successor is None


async def complete(tx: Tx, plain: Sequence[Settlement]) -> set[int]:
    """Complete chains of one job that concern nobody else: no lane, no key, no dependents; answer which are done.

    Most are such, and nothing follows from their end: one statement instead of three, half of the time. Whatever it
    leaves, because it is locked, lost, wanted back or watched by now, goes the long way.
    """
    if not plain:
        return set()
    return await complete_by(tx, COMPLETE, plain, seqs=[each.token.seq for each in plain])


async def complete_and_commit(tx: Tx, settlement: Settlement) -> bool:
    """Complete such a chain, if nothing else follows from that, in one round trip with COMMIT, where *tx* can do so."""
    given = [(*settlement.token, settlement.outcome.output)]
    return await events.move_and_commit(tx, COMPLETE_ALONE, {"given": given}, events.COMPLETED)


async def complete_by(tx: Tx, sql: str, plain: Sequence[Settlement], **values: object) -> set[int]:
    """Run *sql*, one of the statements above, on *plain*; answer which are done."""
    given = [(*each.token, each.outcome.output) for each in plain]
    rows = await events.move(tx, sql, {"given": given, **values}, events.COMPLETED)
    phased = [seq for seq, _, _, _, _, current_phase, _ in rows if current_phase is not None]
    await phase_rows.end(tx, [phase_rows.JobEnd(seq, PhaseStatus.COMPLETED) for seq in phased])
    return {row[0] for row in rows}


FIRSTS = """
    SELECT id FROM holdfast_job
    WHERE id $any(ids: text) ORDER BY seq $skip_locked"""


async def lock_other_rows(tx: Tx, held: Sequence[LockedJob]) -> list[LockedJob]:
    """Lock the other rows too where an end is written; leave out the jobs for which somebody has one of them locked.

    That of a continued chain is written on its first row, that of a delivery on the job that it is about.
    """
    continued = sorted({each.chain_id for each in held if each.chain_index > 0})
    firsts = {id_ for (id_,) in await tx.fetch_all(FIRSTS, ids=continued)} if continued else set()
    busy = await fan_out.lock_targets(tx, [each.seq for each in held if each.task == DELIVER])
    return [each for each in held if (each.chain_index == 0 or each.chain_id in firsts) and each.seq not in busy]


CHANGES: dict[Kind, tuple[Change, EventName]] = {
    Kind.COMPLETE: (Change.COMPLETE, "job:completed"),
    Kind.RETRY: (Change.RETRY_LATER, "job:retrying"),
    Kind.RESCHEDULE: (Change.RESCHEDULE_RUNNING, "job:rescheduled"),
    Kind.GIVE_BACK: (Change.GIVE_BACK, "job:rescheduled"),
    Kind.LOST: (Change.REAP, "job:reaped"),
    Kind.FAIL: (Change.FAIL, "job:failed"),
    Kind.PAUSE: (Change.PAUSE_RUNNING, "job:paused"),
    Kind.CANCEL: (Change.CANCEL_RUNNING, "job:cancelled"),
}
"""Which change of the law each outcome is, and the event that says so."""


def leads_to(kind: Kind) -> Status:
    """Say in which status an outcome leaves its job, by the law."""
    change, _ = CHANGES[kind]
    return MOVES[change].targets[0]


def decide(job: LockedJob, settlement: Settlement) -> Settlement:
    """Say what becomes of a job by what the attempt came to, and by what was asked for meanwhile."""
    outcome = as_requested(job, settlement.outcome)
    return settlement if outcome is settlement.outcome else settlement._replace(outcome=outcome)


def as_requested(job: LockedJob, outcome: Outcome) -> Outcome:
    """Put a requested cancel, or pause, before what the attempt came to; its end by itself beats only a pause."""
    if job.cancel_requested_at is not None:  # however the handler then ended, it was cancelled for what was said
        return replace(outcome, kind=Kind.CANCEL, output=None, reason=job.reason, successor=None)
    if job.pause_requested_at is None:
        return outcome
    is_crash = outcome.is_crash and outcome.reason != POISON
    pauses = outcome.kind is Kind.PAUSE or leads_to(outcome.kind) is Status.PENDING or is_crash
    return replace(outcome, kind=Kind.PAUSE, reason=job.reason or outcome.reason) if pauses else outcome


DUE = "coalesce(CASE WHEN given.run_at > $now THEN given.run_at END, $now + given.delay)"
"""When a job runs again: at its time, if that is not past, else after its delay, which is 0 if it has a time."""
WRITE_ENDS = f"""
    UPDATE holdfast_job
    SET status = given.status, gate = given.gate, head = given.head,
        place = CASE given.head WHEN 1 THEN place END,
        output = given.output, reason = given.reason,
        error = CASE given.status WHEN 'completed' THEN NULL ELSE coalesce(given.error, holdfast_job.error) END,
        run_at = CASE given.status WHEN 'pending' THEN {DUE} ELSE holdfast_job.run_at END,
        wake_at = CASE given.gate WHEN 'arrival' THEN {DUE} END,
        used = used - given.given_back, interrupted = holdfast_job.interrupted + given.interrupted,
        crashes = crashes + given.crashed, worker = NULL, lease_until = NULL,
        started_at = CASE given.begun WHEN 1 THEN coalesce(started_at, $now) ELSE started_at END,
        completed_by = CASE given.status WHEN 'completed' THEN worker END,
        closed_as = CASE WHEN chain_index = 0 THEN given.closed_as END,
        closed_at = CASE WHEN chain_index = 0 AND given.closed_as IS NOT NULL THEN $now END,
        finished_at = CASE WHEN given.finished = 1 THEN $now END, version = version + 1
    FROM $list(given: seq bigint, attempt bigint, nonce text, change text, status text, gate text, head bigint,
        output text, reason text, error text, run_at bigint, delay bigint, given_back bigint, interrupted bigint,
        crashed bigint, closed_as text, finished bigint, begun bigint)
    WHERE {FENCE}
        AND {guard_by("given.change", {change: change for change, _ in CHANGES.values()})}
    RETURNING holdfast_job.seq, holdfast_job.version, holdfast_job.run_at"""


async def write_ends(
    tx: Tx, decided: Sequence[tuple[LockedJob, Settlement]], chains: Mapping[UUID, UUID] = NO_CHAINS
) -> None:
    """Move rows that we have locked out of `running`, as was decided, with all that follows from it.

    *chains* are those of the blockers that continuations name.
    """
    if not decided:
        return
    steps = steps_of(decided)
    handing_on = {each.lane for each in steps if each.hands_on_its_place and each.lane is not None}
    passing = {job.lane for job, each in decided if job.lane is not None and not _keeps_lane(job, each)}
    mine = await lanes.lock(tx, passing)
    rows = await tx.fetch_all(WRITE_ENDS, given=[_values(job, each) for job, each in decided])
    written = {seq: (version, run_at) for seq, version, run_at in rows}
    await phase_rows.end(tx, [end for job, each in decided if (end := _end_of_phases(job, each)) is not None])
    ends = [chain_ends.end_of(job, leads_to(each.outcome.kind)) for job, each in decided if _closes(each)]
    closed = await chain_ends.close(tx, ends)
    enqueued = await continuations.insert(tx, steps, chains, {key: not lane.is_paused for key, lane in mine.items()})
    stuck = await lanes.promote(tx, mine.keys() - handing_on, mine) | (passing - mine.keys() - handing_on)
    moved, unfinished = await blockers.release(tx, {each.chain_id: each.closed_as for each in closed})
    left = {job.seq for job, each in decided if job.lane in stuck and not _keeps_lane(job, each)}
    left |= {each.first for each in closed if each.chain_id in unfinished}
    await leave_to_admission(tx, sorted(left), AGAIN_MS)
    ended = [event for job, each in decided for event in _events(job, each, *written[job.seq])]
    delivered = await fan_out.mark_targets(tx, _delivery_ends(decided))
    await events.append(tx, ended + enqueued + delivered)
    await blockers.move(tx, moved, announce_blocked=False)


def steps_of(decided: Sequence[tuple[LockedJob, Settlement]]) -> list[continuations.ChainStep]:
    """Name the jobs that complete and are continued."""
    continued = [(job, each.outcome.successor) for job, each in decided]
    return [continuations.step_of(job, successor) for job, successor in continued if successor is not None]


def _keeps_lane(job: LockedJob, settlement: Settlement) -> bool:
    return job.head == 0 or lanes.keeps_its_lane(leads_to(settlement.outcome.kind), settlement.halts_lane)


ENDS_PHASES = {
    Kind.COMPLETE: PhaseStatus.COMPLETED,
    Kind.RETRY: PhaseStatus.FAILED,
    Kind.FAIL: PhaseStatus.FAILED,
    Kind.CANCEL: PhaseStatus.CANCELLED,
}
"""What becomes of the phases of a run; by all other ends they stay as they are, and the next run goes on from there."""


def _end_of_phases(job: LockedJob, settlement: Settlement) -> phase_rows.JobEnd | None:
    how = ENDS_PHASES.get(settlement.outcome.kind)
    if job.current_phase is None or how is None:
        return None
    return phase_rows.JobEnd(job.seq, how, settlement.outcome.error)


def _closes(settlement: Settlement) -> bool:
    return leads_to(settlement.outcome.kind) in TERMINAL and settlement.outcome.successor is None


def _delivery_ends(decided: Sequence[tuple[LockedJob, Settlement]]) -> list[fan_out.DeliveryEnd]:
    outcomes = [(job, each.outcome, leads_to(each.outcome.kind)) for job, each in decided if job.task == DELIVER]
    return [
        fan_out.DeliveryEnd(job.seq, job.id, job.lane, status, outcome.reason)
        for job, outcome, status in outcomes
        if status in TERMINAL
    ]


def _values(job: LockedJob, settlement: Settlement) -> tuple[object, ...]:
    outcome = settlement.outcome
    change, _ = CHANGES[outcome.kind]
    status = leads_to(outcome.kind)
    # a pause is no attempt that failed: whoever resumes the job has the attempts that it had before; but a crash is one
    is_given_back = outcome.kind in (Kind.GIVE_BACK, Kind.RESCHEDULE, Kind.PAUSE) and not outcome.is_crash
    return (
        job.seq,
        job.attempt,
        job.nonce,
        change,
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
        status if _closes(settlement) else None,
        int(status in TERMINAL),
        int(settlement.has_begun and outcome.kind is not Kind.GIVE_BACK),
    )


def _events(job: LockedJob, settlement: Settlement, version: int, run_at: int) -> Iterator[events.NewEvent]:
    """Say what became of the job, and of its chain and its lane."""
    outcome = settlement.outcome
    _, name = CHANGES[outcome.kind]
    status = leads_to(outcome.kind)
    error = json.loads(outcome.error) if outcome.error else None
    said = {"reason": outcome.reason, "error": error}
    if outcome.kind in (Kind.RETRY, Kind.RESCHEDULE):
        said["run_at"] = instant_text(instant(run_at))
    if outcome.kind is Kind.LOST and error is not None:
        said["worker"] = error.get("worker")
    facts = {key: value for key, value in said.items() if value is not None} | continued(outcome.successor)
    seq, attempt = job.seq, job.attempt
    yield events.NewEvent(seq, name, status, version, attempt, json.dumps(facts) if facts else None)
    if status is Status.COMPLETED and outcome.successor is None:
        yield events.NewEvent(seq, "chain:completed", status, version, attempt)
    if job.lane is not None and job.head and status in HALTING and _keeps_lane(job, settlement):
        yield lanes.halted(job.lane, job.id, why_it_halts(outcome.reason, error))


HALTING = (Status.FAILED, Status.PAUSED)


OF_ATTEMPT = """
    SELECT status, version FROM holdfast_job
    WHERE seq = :seq AND attempt = :attempt AND coalesce(nonce, '') = :nonce"""


async def append_warning(tx: Tx, token: Token, error: str) -> None:
    """Append *error*, a JSON text, of a handler whose attempt has completed its job; it undoes nothing."""
    for status, version in await tx.fetch_all(OF_ATTEMPT, seq=token.seq, attempt=token.attempt, nonce=token.nonce):
        facts = json.dumps({"error": json.loads(error)})
        await events.append(
            tx, [events.NewEvent(token.seq, "job:warning", Status(status), version, token.attempt, facts)]
        )
