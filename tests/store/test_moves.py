"""All pairs of a status and a change: the guard lets through just the moves of DESIGN §3, on both databases.

The law is that of `tests/law/moves.py`, written by hand and from the design, and not read from `states.MOVES`: a
source that is added there or left out makes a pair fail here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from holdfast import Status, StatusConflict
from holdfast.database.tx import Tx
from holdfast.models import Asked
from holdfast.outcomes import Kind, Outcome
from holdfast.states import MOVES, Change, guard
from holdfast.store.chains import blockers
from holdfast.store.jobs import claiming, reaping, settling, steering
from holdfast.store.jobs.claiming import Token, Want
from tests.law.moves import LAW, PAIRS, STATUSES
from tests.store import by_hand
from tests.support.factories import events_of, make_job, now_ms, row_of, seq_of, whole_store
from tests.support.ways import Way


@pytest.mark.source("JC-4")
def test_the_law_by_hand_knows_every_change_and_every_status() -> None:
    assert set(LAW) == set(Change)
    assert set(STATUSES) == set(Status)


@pytest.mark.source("JC-107")
@pytest.mark.parametrize("change", LAW)
def test_a_change_leads_where_the_design_says(change: str) -> None:
    assert set(MOVES[Change(change)].targets) == LAW[change].targets


async def move(tx: Tx, job_id: UUID, change: Change) -> int:
    """Do to a job what every change does, under the guard of *change*; count the rows that were changed."""
    sql = f"UPDATE holdfast_job SET version = version + 1 WHERE id = :id AND {guard(change)} RETURNING seq"
    return len(await tx.fetch_all(sql, id=str(job_id)))


on_both_stores = pytest.mark.parametrize("way", ["sqlite-blocking", "postgres-async"], indirect=True)
on_one_store = pytest.mark.parametrize("way", ["sqlite-blocking"], indirect=True)


@on_both_stores
@pytest.mark.parametrize("change", LAW)
async def test_a_change_happens_to_the_statuses_of_the_law_and_to_no_other(way: Way, change: str) -> None:
    """I-08, I-11."""
    jobs = {status: await make_job(way, status) for status in STATUSES}

    changed = {status: await way.call(move, jobs[status], Change(change)) for status in STATUSES}

    assert changed == {status: int(PAIRS[change, status]) for status in STATUSES}


@on_both_stores
@pytest.mark.parametrize("change", LAW)
async def test_an_unlawful_change_leaves_row_and_log_as_they_were(way: Way, change: str) -> None:
    """I-08."""
    unlawful = [await make_job(way, status) for status in STATUSES if not PAIRS[change, status]]
    before = await whole_store(way)

    for job_id in unlawful:
        await way.call(move, job_id, Change(change))

    assert await whole_store(way) == before


# ---- the same law, by the operations that make the moves


async def settle(tx: Tx, seq: int, outcome: Outcome) -> None:
    """Settle with the token that is on the row, whatever its status."""
    await settling.settle(tx, [settling.Settlement(Token(seq, 1, "nonce-1"), outcome)])


async def reap(tx: Tx, seq: int) -> None:
    """Let the lease of a running job be over, and reap."""
    await tx.execute(
        "UPDATE holdfast_job SET lease_until = 1, lease_ms = 1 WHERE seq = :seq AND lease_until IS NOT NULL", seq=seq
    )
    await reaping.reap(tx, 2**53)


async def claim(tx: Tx, seq: int) -> None:
    """Claim whatever may be claimed."""
    await claiming.admit_and_claim(tx, [Want("default", "greet", 1000)], 10, "worker-1", "nonce-2")


async def id_of(tx: Tx, seq: int) -> UUID:
    """Name a job as people do."""
    ((id_,),) = await tx.fetch_all("SELECT id FROM holdfast_job WHERE seq = :seq", seq=seq)
    return UUID(id_)


def steered(verb: Callable[..., Any], *args: Any) -> Callable[[Tx, int], Any]:
    """Do what people do."""

    async def act(tx: Tx, seq: int) -> None:
        await verb(tx, [await id_of(tx, seq)], *args)

    return act


async def complete_outside(tx: Tx, seq: int) -> None:
    """Complete without a worker."""
    await by_hand.complete(tx, await id_of(tx, seq))


def moved(status: Status) -> Callable[[Tx, int], Any]:
    """Do what counting the blockers does."""

    async def act(tx: Tx, seq: int) -> None:
        await blockers.move(tx, [blockers.Moved(seq, 0, status)], announce_blocked=False)

    return act


OPERATIONS: dict[str, Callable[[Tx, int], Any]] = {
    "claim": claim,
    "complete": partial(settle, outcome=Outcome(Kind.COMPLETE, output="null")),
    "retry later": partial(settle, outcome=Outcome(Kind.RETRY)),
    "reschedule running": partial(settle, outcome=Outcome(Kind.RESCHEDULE)),
    "give back": partial(settle, outcome=Outcome(Kind.GIVE_BACK)),
    "reap": reap,
    "fail": partial(settle, outcome=Outcome(Kind.FAIL)),
    "pause running": partial(settle, outcome=Outcome(Kind.PAUSE)),
    "cancel running": partial(settle, outcome=Outcome(Kind.CANCEL)),
    "unblock": moved(Status.PENDING),
    "fail blocked": moved(Status.FAILED),
    "block again": lambda tx, seq: blockers.block_failed(tx, [seq]),
    "pause": steered(steering.pause, Asked()),
    "cancel": steered(steering.cancel, Asked()),
    "resume": steered(steering.resume, Asked()),
    "retry": steered(steering.retry, Asked()),
    "reschedule": steered(steering.reschedule, 0, 0, Asked()),
    "complete outside": complete_outside,
}
STILL_TO_COME = {"mark stale"}
ELSEWHERE = {"request", "delete"}  # test_steering.py, test_delete.py
A_REQUEST = {("pause", "running"), ("cancel", "running")}  # of a running job they only ask


def test_every_change_has_its_operation() -> None:
    assert OPERATIONS.keys() | STILL_TO_COME | ELSEWHERE == set(Change)


@pytest.mark.source("PQ-58")
@on_both_stores
@pytest.mark.parametrize(
    ("change", "status"), [pair for pair in PAIRS if pair[0] in OPERATIONS and pair not in A_REQUEST]
)
async def test_an_operation_moves_what_the_law_allows_and_leaves_the_rest_as_it_was(
    way: Way, change: str, status: str
) -> None:
    """I-08, I-11."""
    job_id = await make_job(way, status)
    seq = await seq_of(way, job_id)
    before = await whole_store(way)

    with suppress(StatusConflict):
        await way.call(OPERATIONS[change], seq)

    if PAIRS[change, status]:
        assert (await row_of(way, job_id, "status"))[0] in LAW[change].targets
        assert (await row_of(way, job_id, "version")) == (2,)
        assert await events_of(way, job_id) != []
    else:
        assert await whole_store(way) == before


ALSO: list[tuple[str, str, dict[str, Any]]] = [
    ("claim", "pending", {"gate": "arrival", "wake_at": 1}),
    ("claim", "pending", {"gate": "lane", "lane": "vm-7", "place": 2}),
    ("claim", "pending", {"gate": None}),
    ("complete", "running", {"cancel_requested_at": now_ms()}),
    ("mark stale", "completed", {"stale_at": now_ms()}),
]


@on_both_stores
@pytest.mark.parametrize(("change", "status", "columns"), ALSO)
async def test_a_lawful_status_is_not_enough_where_the_law_asks_for_more(
    way: Way, change: str, status: str, columns: dict[str, Any]
) -> None:
    job_id = await make_job(way, status, **columns)

    assert await way.call(move, job_id, Change(change)) == 0
    assert await row_of(way, job_id, "status", "version") == (status, 1)


@on_both_stores
@pytest.mark.parametrize("change", ["retry later", "fail", "cancel running", "reap"])
async def test_a_requested_cancel_stops_only_a_completion(way: Way, change: str) -> None:
    job_id = await make_job(way, "running", cancel_requested_at=now_ms())

    assert await way.call(move, job_id, Change(change)) == 1


# ---- mutants: what the tests above would see


@on_one_store
@pytest.mark.parametrize(("change", "status"), [pair for pair, lawful in PAIRS.items() if lawful])
async def test_without_one_source_its_lawful_move_no_longer_happens(
    way: Way, change: str, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await make_job(way, status)
    law = MOVES[Change(change)]
    others = tuple(source for source in law.sources if source != status)

    monkeypatch.setitem(MOVES, Change(change), law._replace(sources=others))

    assert await way.call(move, job_id, Change(change)) == 0


@on_one_store
@pytest.mark.parametrize(("change", "status", "columns"), ALSO)
async def test_without_its_further_condition_an_unlawful_move_happens(
    way: Way, change: str, status: str, columns: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await make_job(way, status, **columns)

    monkeypatch.setitem(MOVES, Change(change), MOVES[Change(change)]._replace(also=()))

    assert await way.call(move, job_id, Change(change)) == 1
