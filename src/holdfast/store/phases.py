"""Phases of running jobs: beginning and completing them, each in one commit and under the job's token.

A phase that has completed is never begun again: whoever runs the job reads its result. So `begin` is told what the rows
are to be, by who has read them under the same token; nobody else writes them while it holds. A row of a job that
somebody has locked is passed over and told as `LOCKED`: it is to be asked for again soon.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.database.tx import Tx, repeatable
from holdfast.states import Status
from holdfast.store import phase_rows
from holdfast.store.jobs import claiming
from holdfast.store.jobs.claiming import FENCE, ClaimState, ProgressReport, Token
from holdfast.store.log import events
from holdfast.store.phase_rows import PhaseRow


@dataclass(frozen=True, slots=True)
class Beginning:
    """A phase that begins; *percent* is how far its job is by that."""

    token: Token
    name: str
    percent: int
    rows: tuple[PhaseRow, ...]
    """The phases as they are to be stored, as far as they are not: at least this one, which is running."""
    total: int | None = None
    """From which place on nothing is to be left, if there may be something."""


BEGIN = f"""
    UPDATE holdfast_job
    SET current_phase = given.name, progress = given.percent, message = NULL, version = version + 1
    FROM $list(given: seq bigint, attempt bigint, nonce text, name text, percent bigint)
    WHERE {FENCE} AND coalesce(holdfast_job.status, '') = 'running'
        AND cancel_requested_at IS NULL AND pause_requested_at IS NULL AND holdfast_job.seq $free(seqs)
    RETURNING holdfast_job.seq, holdfast_job.version"""


@repeatable
async def begin(
    tx: Tx, beginnings: Sequence[Beginning], reports: Sequence[ProgressReport] = ()
) -> dict[Token, ClaimState]:
    """Begin phases; tell for each whether that is done (`HELD`), or how the claim of its job stands.

    What is to be cancelled or paused begins no phase. *reports* are what was said before.
    """
    passed_over = await claiming.report(tx, reports)
    free = [each for each in beginnings if each.token not in passed_over]
    given = [(*each.token.values(), each.name, each.percent) for each in free]
    rows = await tx.fetch_all(BEGIN, given=given, seqs=[each.token.seq for each in free]) if free else []
    versions: dict[int, int] = dict(rows)
    begun = [each for each in free if each.token.seq in versions]
    await phase_rows.write(tx, [(each.token.seq, row) for each in begun for row in each.rows])
    await phase_rows.delete_from(tx, [(each.token.seq, each.total) for each in begun if each.total is not None])
    await events.append(tx, [_begun(each, versions[each.token.seq]) for each in begun])
    return await _states(tx, [each.token for each in beginnings], {each.token for each in begun})


@dataclass(frozen=True, slots=True)
class Completion:
    """A phase that has ended with *result*, a JSON text; *percent* is how far its job is by that."""

    token: Token
    name: str
    position: int
    percent: int
    result: str


# a job that has come so far is not what brings its worker down: it is a suspect no longer
COMPLETE = f"""
    UPDATE holdfast_job SET progress = given.percent, crashes = 0, version = version + 1
    FROM $list(given: seq bigint, attempt bigint, nonce text, percent bigint)
    WHERE {FENCE} AND coalesce(holdfast_job.status, '') = 'running' AND holdfast_job.seq $free(seqs)
    RETURNING holdfast_job.seq, holdfast_job.version"""


@repeatable
async def complete(
    tx: Tx, completions: Sequence[Completion], reports: Sequence[ProgressReport] = ()
) -> dict[Token, ClaimState]:
    """Complete phases; tell for each whether that is done (`HELD`), or how the claim of its job stands.

    A job that is to be cancelled or paused keeps what it has: a later run goes on from there. *reports* are the last
    ones of these phases. One that is completed already, because the answer was lost, is left as it is.
    """
    passed_over = await claiming.report(tx, reports)
    free = [each for each in completions if each.token not in passed_over]
    given = [(*each.token.values(), each.percent) for each in free]
    rows = await tx.fetch_all(COMPLETE, given=given, seqs=[each.token.seq for each in free]) if free else []
    versions: dict[int, int] = dict(rows)
    held = [each for each in free if each.token.seq in versions]
    done = await phase_rows.complete(tx, [(each.token.seq, each.position, each.result) for each in held])
    await events.append(tx, [_completed(each, versions[each.token.seq]) for each in held if each.token.seq in done])
    return await _states(tx, [each.token for each in completions], {each.token for each in held})


async def _states(tx: Tx, tokens: Sequence[Token], done: set[Token]) -> dict[Token, ClaimState]:
    states = await claiming.claim_states(tx, [each for each in tokens if each not in done])
    missed = {token: ClaimState.LOCKED if state is ClaimState.HELD else state for token, state in states.items()}
    return dict.fromkeys(done, ClaimState.HELD) | missed


def _begun(beginning: Beginning, version: int) -> events.NewEvent:
    said = {"progress": beginning.percent, "message": None, "phase": beginning.name, "phase_progress": 0}
    token = beginning.token
    return events.NewEvent(token.seq, "job:progress", Status.RUNNING, version, token.attempt, json.dumps(said))


def _completed(completion: Completion, version: int) -> events.NewEvent:
    said = json.dumps({"phase": completion.name, "progress": completion.percent})
    token = completion.token
    return events.NewEvent(token.seq, "job:phase:completed", Status.RUNNING, version, token.attempt, said)
