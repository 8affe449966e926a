"""All pairs of a status and a change: the guard lets through just the moves of DESIGN §3, on both databases.

The law is written out here by hand, a second time and from the design, not read from `states.MOVES`: a source that is
added there or left out makes a pair fail here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from holdfast import Status
from holdfast.states import MOVES, Change, guard
from holdfast.store.tx import Tx
from tests.factories import make_job, now_ms, row_of, whole_store
from tests.ways import Way

LAW = {
    # change                blocked  pending  running  paused  completed  failed  cancelled
    "claim":               "   .        x        .        .        .         .        .   ",
    "complete":            "   .        .        x        .        .         .        .   ",
    "retry later":         "   .        .        x        .        .         .        .   ",
    "reschedule running":  "   .        .        x        .        .         .        .   ",
    "give back":           "   .        .        x        .        .         .        .   ",
    "reap":                "   .        .        x        .        .         .        .   ",
    "fail":                "   .        .        x        .        .         .        .   ",
    "pause running":       "   .        .        x        .        .         .        .   ",
    "cancel running":      "   .        .        x        .        .         .        .   ",
    "request":             "   .        .        x        .        .         .        .   ",
    "unblock":             "   x        .        .        .        .         .        .   ",
    "fail blocked":        "   x        .        .        .        .         .        .   ",
    "block again":         "   .        .        .        .        .         x        .   ",
    "pause":               "   x        x        .        .        .         .        .   ",
    "cancel":              "   x        x        .        x        .         x        .   ",
    "resume":              "   .        .        .        x        .         .        .   ",
    "retry":               "   .        .        .        .        .         x        x   ",
    "reschedule":          "   .        x        .        .        .         .        .   ",
    "complete outside":    "   x        x        x        x        .         x        .   ",
    "mark stale":          "   .        .        .        .        x         x        x   ",
    "delete":              "   x        x        x        x        x         x        x   ",
}  # fmt: skip
STATUSES = ("blocked", "pending", "running", "paused", "completed", "failed", "cancelled")
PAIRS = {
    (change, status): mark == "x"
    for change, marks in LAW.items()
    for status, mark in zip(STATUSES, marks.split(), strict=True)
}
TARGETS = {
    "claim": {"running"},
    "complete": {"completed"},
    "retry later": {"pending"},
    "reschedule running": {"pending"},
    "give back": {"pending", "paused"},
    "reap": {"pending", "failed", "paused", "cancelled"},
    "fail": {"failed"},
    "pause running": {"paused"},
    "cancel running": {"cancelled"},
    "request": {"running"},
    "unblock": {"pending"},
    "fail blocked": {"failed"},
    "block again": {"blocked"},
    "pause": {"paused"},
    "cancel": {"cancelled"},
    "resume": {"pending", "blocked"},
    "retry": {"pending", "blocked"},
    "reschedule": {"pending"},
    "complete outside": {"completed"},
    "mark stale": {"completed", "failed", "cancelled"},
    "delete": set(),
}


def test_the_law_by_hand_knows_every_change_and_every_status() -> None:
    assert set(LAW) == set(TARGETS) == set(Change)
    assert set(STATUSES) == set(Status)


@pytest.mark.parametrize("change", LAW)
def test_a_change_leads_where_the_design_says(change: str) -> None:
    assert set(MOVES[Change(change)].targets) == TARGETS[change]


async def move(tx: Tx, job_id: UUID, change: Change) -> int:
    """Do to a job what every change does, under the guard of *change*; count the rows that were changed."""
    sql = f"UPDATE holdfast_job SET version = version + 1 WHERE id = :id AND {guard(change)} RETURNING seq"
    return len(await tx.fetch_all(sql, id=str(job_id)))


on_both_stores = pytest.mark.parametrize("way", ["sqlite-blocking", "postgres-async"], indirect=True)
on_one_store = pytest.mark.parametrize("way", ["sqlite-blocking"], indirect=True)


@on_both_stores
@pytest.mark.parametrize("change", LAW)
async def test_a_change_happens_to_the_statuses_of_the_law_and_to_no_other(way: Way, change: str) -> None:
    jobs = {status: await make_job(way, status) for status in STATUSES}

    changed = {status: await way.call(move, jobs[status], Change(change)) for status in STATUSES}

    assert changed == {status: int(PAIRS[change, status]) for status in STATUSES}


@on_both_stores
@pytest.mark.parametrize("change", LAW)
async def test_an_unlawful_change_leaves_row_and_log_as_they_were(way: Way, change: str) -> None:
    unlawful = [await make_job(way, status) for status in STATUSES if not PAIRS[change, status]]
    before = await whole_store(way)

    for job_id in unlawful:
        await way.call(move, job_id, Change(change))

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

    monkeypatch.setitem(MOVES, Change(change), replace(law, sources=others))

    assert await way.call(move, job_id, Change(change)) == 0


@on_one_store
@pytest.mark.parametrize(("change", "status", "columns"), ALSO)
async def test_without_its_further_condition_an_unlawful_move_happens(
    way: Way, change: str, status: str, columns: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await make_job(way, status, **columns)

    monkeypatch.setitem(MOVES, Change(change), replace(MOVES[Change(change)], also=()))

    assert await way.call(move, job_id, Change(change)) == 1
