"""One verb for all jobs that fit a filter: how far it goes, what it passes over, and that it fails nobody (I-87)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import pytest

from holdfast import BulkInterrupted, BulkResult, FilterRequired, InvalidInput, Misuse, Unavailable
from holdfast.bulks import BulkAct
from holdfast.client import bulk
from holdfast.database.tx import Tx
from holdfast.models import DELIVER, INTERNAL_QUEUE, JobQuery
from holdfast.states import Status
from holdfast.store.jobs import bulk_pages
from holdfast.tasks.bulk_task import read_filter, stored_filter
from tests.store.engine import FAIL, admit, claim_all, facts_of, run
from tests.support.factories import (
    block,
    continue_chain,
    counted,
    events_of,
    greet,
    make_job,
    row_of,
    whole_store,
)
from tests.support.ways import Way


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of three, so that few jobs are several pages."""
    monkeypatch.setattr(bulk_pages, "PAGE", 3)


async def statuses(way: Way) -> dict[str, int]:
    """Count all jobs by their status."""
    rows = await way.rows("SELECT status, count(*) FROM holdfast_job GROUP BY status")
    return dict(rows)


# ---- what it does


@pytest.mark.parametrize(
    ("verb", "before", "options", "after"),
    [
        ("cancel", "pending", {}, "cancelled"),
        ("pause", "pending", {}, "paused"),
        ("resume", "paused", {}, "pending"),
        ("retry", "failed", {}, "pending"),
        ("reschedule", "pending", {"after": 3600}, "pending"),
        ("reschedule", "pending", {"at": datetime.now(UTC) + timedelta(hours=1)}, "pending"),
    ],
)
async def test_a_verb_acts_on_all_that_fit_page_by_page(
    way: Way, small_pages: None, verb: str, before: str, options: dict[str, Any], after: str
) -> None:
    ids = [await make_job(way, before) for _ in range(7)]
    others = [await make_job(way, before, task="add"), await make_job(way, "completed")]

    result = await way.face.bulk(verb, task="greet", status=before, by="ada", why="a bad day", **options)

    assert (result.matched, result.done, result.passed_over, result.cursor) == (7, 7, {}, None)
    assert result.examples == tuple(ids)
    assert {await row_of(way, each, "status") for each in ids} == {(after,)}
    assert [await row_of(way, each, "status") for each in others] == [(before,), ("completed",)]
    (said,) = [each for each in await facts_of(way, await _last_event(way, ids[0])) if each][:1]
    assert (said["by"], said["reason"]) == ("ada", "a bad day")
    if verb == "reschedule":
        assert all([(await way.face.get_job(each)).state == "scheduled" for each in ids])


async def test_delete_takes_whole_chains(way: Way, small_pages: None) -> None:
    chains = [await make_job(way, "completed") for _ in range(4)]
    await continue_chain(way, chains[0], "failed")
    kept = await make_job(way, "pending")

    result = await way.face.bulk("delete", status=["completed", "failed"], by="ada", why="old")

    assert (result.matched, result.done) == (4, 4)
    assert [id_ for (id_,) in await way.rows("SELECT id FROM holdfast_job")] == [str(kept)]
    assert {(each["by"], each["reason"]) for each in await facts_of(way, "job:deleted")} == {("ada", "old")}


async def test_a_job_that_has_continued_is_history_and_not_touched(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    next_id = await continue_chain(way, chain.id, "pending", task="add")

    result = await way.face.bulk("cancel", task="greet")

    assert result.matched == 0
    assert await row_of(way, next_id, "status") == ("pending",)


async def test_halted_lanes_go_on(way: Way) -> None:
    await way.face.start(greet(name="Ada").options(lane="a"))
    await way.face.start(greet(name="Bob").options(lane="a"))
    await admit(way)
    failed = await run(way, FAIL)
    assert not await claim_all(way)

    result = await way.face.bulk("retry", status="failed")

    assert result.done == 1
    assert (await way.hf.lane("a").info()).is_moving
    assert [UUID(job.id) for job in await claim_all(way)] == [failed]


async def test_without_a_filter_nothing_happens(way: Way) -> None:
    await make_job(way, "pending")

    for options in ({}, {"internal": True}):
        with pytest.raises(FilterRequired, match="everything=True"):
            await way.face.bulk("cancel", **options)
    assert await statuses(way) == {"pending": 1}

    assert (await way.face.bulk("cancel", everything=True)).done == 1


@pytest.mark.parametrize("options", [{"id": []}, {"tag": ()}, {"input": {}}, {"chain": [], "everything": True}])
async def test_a_filter_that_is_empty_does_not_widen_what_is_acted_on(way: Way, options: dict[str, Any]) -> None:
    await make_job(way, "failed")

    with pytest.raises(InvalidInput, match="is empty, which fits no job"):
        await way.face.bulk("delete", status="failed", **options)
    assert await statuses(way) == {"failed": 1}


@pytest.mark.parametrize("name", ["task", "queue", "lane", "tag", "worker", "error", "chain_task"])
async def test_an_iterator_that_gives_nothing_does_not_widen_what_is_acted_on(way: Way, name: str) -> None:
    await make_job(way, "failed")

    with pytest.raises(InvalidInput, match=f"{name} is empty, which fits no job"):
        await way.face.bulk("delete", status="failed", **{name: (word for word in ())})
    assert await statuses(way) == {"failed": 1}


async def test_internal_jobs_are_touched_only_if_asked_for(way: Way) -> None:
    delivery = await make_job(way, "pending", task=DELIVER, queue=INTERNAL_QUEUE)

    assert (await way.face.bulk("pause", everything=True)).matched == 0
    assert (await way.face.bulk("pause", everything=True, internal=True)).done == 1
    assert await row_of(way, delivery, "status") == ("paused",)


# ---- how far it goes


async def test_a_dry_run_changes_nothing_and_counts_what_the_run_matches(way: Way, small_pages: None) -> None:
    ids = [await make_job(way, "failed") for _ in range(7)]
    before = await whole_store(way)

    plan = await way.face.bulk("retry", status="failed", dry_run=True)

    assert await whole_store(way) == before
    assert (plan.matched, plan.done, plan.is_dry, plan.cursor) == (7, 0, True, None)
    assert plan.examples == tuple(ids)
    result = await way.face.bulk("retry", status="failed", upto=plan.upto)
    assert (result.matched, result.upto, result.is_dry) == (7, plan.upto, False)


async def test_what_came_after_the_dry_run_is_not_touched(way: Way) -> None:
    await make_job(way, "pending")
    plan = await way.face.bulk("cancel", task="greet", dry_run=True)
    newer = await make_job(way, "pending")

    result = await way.face.bulk("cancel", task="greet", upto=plan.upto)

    assert (result.matched, result.upto) == (1, plan.upto)
    assert await row_of(way, newer, "status") == ("pending",)


async def test_what_comes_while_it_walks_is_not_touched(
    way: Way, small_pages: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(7):
        await make_job(way, "pending")
    newer: list[UUID] = []
    act = bulk_pages.act

    async def act_while_others_come(tx: Tx, *args: Any) -> Any:
        newer.append(await _insert(tx))
        return await act(tx, *args)

    monkeypatch.setattr(bulk_pages, "act", act_while_others_come)
    result = await way.face.bulk("cancel", task="greet")

    assert (result.matched, result.done, len(newer)) == (7, 7, 3)
    assert await statuses(way) == {"cancelled": 7, "pending": 3}


async def test_a_far_upto_means_the_newest_job(way: Way) -> None:
    newest = await make_job(way, "pending")

    result = await way.face.bulk("cancel", task="greet", upto=10**15)

    assert (result.upto,) == await row_of(way, newest, "seq")


async def test_it_goes_on_behind_the_cursor_where_it_was_interrupted(
    way: Way, small_pages: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(8):
        await make_job(way, "pending")
    act, pages = bulk_pages.act, []

    async def act_until_the_database_is_away(tx: Tx, *args: Any) -> Any:
        pages.append(args)
        if len(pages) == 3:
            raise Unavailable("the database is away")
        return await act(tx, *args)

    monkeypatch.setattr(bulk_pages, "act", act_until_the_database_is_away)
    with pytest.raises(BulkInterrupted, match=r"after 6 jobs .*is away.* cursor=") as interrupted:
        await way.face.bulk("cancel", task="greet")

    so_far: BulkResult = interrupted.value.result
    assert (so_far.matched, so_far.done) == (6, 6)
    rest = await way.face.bulk("cancel", task="greet", upto=so_far.upto, cursor=so_far.cursor)
    assert (rest.matched, rest.done, rest.cursor) == (2, 2, None)
    assert await statuses(way) == {"cancelled": 8}


async def test_it_rests_between_pages_as_long_as_each_took(
    way: Way, small_pages: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(7):
        await make_job(way, "pending")
    rests: list[float] = []
    clock = iter(range(100))

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    monkeypatch.setattr(bulk.Clock, "of", lambda *_, **__: bulk.Clock(lambda: next(clock), rest))
    await way.face.bulk("cancel", task="greet")

    assert rests == [1, 1]


@pytest.mark.parametrize("rounds", [6, pytest.param(20, marks=pytest.mark.long)])
async def test_it_touches_what_fits_and_nothing_newer(
    way: Way, seed: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-87: whatever the jobs, the filter, the verb and the size of pages; a dry run counts what the run matches."""
    chance = Random(seed)
    monkeypatch.setattr(bulk_pages, "PAGE", chance.randint(1, 7))
    for _ in range(rounds):
        await _make_some(way, chance, 8)
        verb = chance.choice(list(VERBS))
        wanted = {
            name: chance.sample(words, chance.randint(1, len(words)))
            for name, words in {"task": ["greet", "add"], "status": list(map(str, Status)), "queue": ["a", "b"]}.items()
            if chance.random() < 0.6
        }
        options = {"everything": True, **wanted, **({"after": 60} if verb == "reschedule" else {})}

        plan = await way.face.bulk(verb, **options, dry_run=True)
        await _make_some(way, chance, 3)
        before = await _versions(way)
        result = await way.face.bulk(verb, **options, upto=plan.upto)
        after = await _versions(way)

        touched = {seq for seq in before if before[seq][0] != after.get(seq, (None,))[0]}
        fitting = {seq for seq, (_, *facts) in before.items() if seq <= plan.upto and _fits(facts, wanted)}
        assert len(fitting) == plan.matched == result.matched
        assert touched <= fitting
        assert len(touched) == result.done == result.matched - sum(result.passed_over.values())


VERBS = ("cancel", "pause", "resume", "retry", "reschedule", "delete")


async def _make_some(way: Way, chance: Random, count: int) -> None:
    for _ in range(count):
        task, queue = chance.choice(["greet", "add"]), chance.choice(["a", "b"])
        await make_job(way, chance.choice(list(Status)), task=task, queue=queue)


async def _versions(way: Way) -> dict[int, tuple[Any, ...]]:
    return {row[0]: row[1:] for row in await way.rows("SELECT seq, version, task, status, queue FROM holdfast_job")}


def _fits(facts: Sequence[str], wanted: Mapping[str, Sequence[str]]) -> bool:
    return all(
        value in wanted.get(name, [value]) for name, value in zip(("task", "status", "queue"), facts, strict=True)
    )


# ---- what is passed over


async def test_a_job_whose_status_does_not_allow_the_verb_is_passed_over(way: Way) -> None:
    for status in ("pending", "failed", "completed", "paused", "running"):
        await make_job(way, status)

    result = await way.face.bulk("resume", task="greet")

    assert (result.matched, result.done, result.passed_over) == (5, 1, {"status_conflict": 4})


async def test_what_was_asked_of_a_running_job_before_is_not_asked_again(way: Way) -> None:
    job_id = await make_job(way, "running")

    first, second = [await way.face.bulk("cancel", task="greet") for _ in range(2)]

    assert (first.done, second.done, second.passed_over) == (1, 0, {"status_conflict": 1})
    assert (await events_of(way, job_id)).count("job:cancelling") == 1


async def test_a_job_that_no_longer_fits_when_it_is_locked_is_passed_over(way: Way) -> None:
    """It was pending when it was found, and runs by now: a filter for pending jobs does not mean it."""
    started, waiting, gone, continued = [await make_job(way, "pending") for _ in range(4)]
    wanted = JobQuery(states=read_filter({"states": ["pending"]}).states)
    page = await way.read(bulk_pages.find, wanted, 10**9, None, "cancel")
    await way.face.delete(gone)
    await continue_chain(way, continued)
    await way.call(_run, started)

    acted = await way.call(bulk_pages.act, BulkAct(verb="cancel"), wanted, page.ids)

    assert acted[:2] == (1, {"job_not_found": 1, "state_conflict": 2})
    assert [await row_of(way, each, "status", "cancel_requested_at") for each in (waiting, started)] == [
        ("cancelled", None),
        ("running", None),
    ]


@pytest.mark.parametrize("verb", ["cancel", "delete"])
async def test_a_locked_job_is_passed_over_and_fails_nobody(way_pg: Way, verb: str) -> None:
    ids = [await make_job(way_pg, "failed") for _ in range(5)]
    chain = await make_job(way_pg, "completed")
    later = await continue_chain(way_pg, chain, "failed")

    async with locked(way_pg, ids[1], chain):  # the first row of the last one's chain
        result = await way_pg.face.bulk(verb, status="failed")

    assert (result.matched, result.done, result.passed_over) == (6, 4, {"busy": 2})
    assert await row_of(way_pg, later, "status") == ("failed",)
    assert (await way_pg.face.bulk(verb, status="failed")).done == 2


async def test_whose_key_another_chain_holds_is_passed_over(way: Way) -> None:
    """Of two that had one key the older gets it; whose key somebody has taken since stays as it is."""
    first = await way.face.start(greet(name="Ada").options(unique="a"))
    await way.face.cancel(first)
    second = await way.face.start(greet(name="Bob").options(unique="a"))
    await way.face.cancel(second)
    taken = await way.face.start(greet(name="Cid").options(unique="c"))
    await way.face.cancel(taken)
    await way.face.start(greet(name="Dan").options(unique="c"))
    free = await make_job(way, "cancelled")

    result = await way.face.bulk("retry", status="cancelled")

    assert (result.matched, result.done, result.passed_over) == (4, 2, {"unique_conflict": 2})
    rows = [await row_of(way, each, "status") for each in (first.id, second.id, taken.id, free)]
    assert rows == [("pending",), ("cancelled",), ("cancelled",), ("pending",)]


async def test_a_key_that_is_taken_in_the_last_moment_fails_nobody(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    late = await way.face.start(greet(name="Ada").options(unique="a"))
    await way.face.cancel(late)
    await way.face.start(greet(name="Bob").options(unique="a"))
    free = await make_job(way, "cancelled")

    async def see_nothing(*_: Any) -> None:
        """Look before somebody takes it."""

    monkeypatch.setattr(bulk_pages, "_drop_taken_keys", see_nothing)
    result = await way.face.bulk("retry", status="cancelled")

    assert (result.done, result.passed_over) == (1, {"unique_conflict": 1})
    assert await row_of(way, free, "status") == ("pending",)


@pytest.mark.parametrize("cascade", [False, True])
async def test_a_chain_that_others_wait_for_is_not_deleted(way: Way, cascade: bool) -> None:
    """B waits for A, C for B. Of A and B neither can go alone; with *cascade*, C takes both with it."""
    a, b, c = [await make_job(way, status) for status in ("completed", "failed", "pending")]
    await block(way, b, a)
    await block(way, c, b)
    alone = await make_job(way, "completed")

    result = await way.face.bulk("delete", status=["completed", "failed"], cascade=cascade)

    assert (result.done, result.passed_over) == (1, {"still_referenced": 2})
    left = {id_ for (id_,) in await way.rows("SELECT id FROM holdfast_job")}
    assert left == {str(a), str(b), str(c)}
    assert str(alone) not in left
    assert (await way.face.bulk("delete", status="pending", cascade=cascade)).done == 1
    assert await statuses(way) == ({} if cascade else {"completed": 1, "failed": 1})


# ---- what it costs


@pytest.mark.parametrize("verb", ["cancel", "retry", "delete"])
async def test_a_page_takes_the_same_statements_for_1_10_and_100(way: Way, verb: Any) -> None:
    counts = {}
    for count in (1, 10, 100):
        ids = [await make_job(way, "failed") for _ in range(count)]
        wanted = JobQuery(ids=tuple(ids))
        counts[count] = len(await way.call(counted, bulk_pages.act, BulkAct(verb=verb), wanted, ids))

    assert len(set(counts.values())) == 1, counts


@pytest.mark.long
async def test_2500_jobs_are_five_pages(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    await way.face.start_many([greet(name="Ada") for _ in range(2_500)])
    pages: list[int] = []
    act = bulk_pages.act

    async def counting(tx: Tx, what: BulkAct, wanted: JobQuery, ids: Any) -> Any:
        pages.append(len(ids))
        return await act(tx, what, wanted, ids)

    monkeypatch.setattr(bulk_pages, "act", counting)
    result = await way.face.bulk("cancel", task="greet", why="too many")

    assert (result.matched, result.done, pages) == (2_500, 2_500, [500] * 5)
    assert await statuses(way) == {"cancelled": 2_500}


# ---- what is refused


@pytest.mark.parametrize(
    ("verb", "options", "message"),
    [
        ("cancle", {}, "did you mean cancel"),
        ("cancel", {"cascade": True}, "cascade is for 'delete' only"),
        ("cancel", {"after": 5}, "at and after are for 'reschedule' only"),
        ("reschedule", {}, "give at= or after="),
        ("cancel", {"upto": "7"}, "upto must be"),
        ("cancel", {"upto": -1}, "upto must be"),
        ("cancel", {"why": "x" * 501}, "at most 500"),
        ("cancel", {"by": "x" * 201}, "at most 200"),
        ("cancel", {"status": "faled"}, "did you mean failed"),
    ],
)
async def test_what_makes_no_sense_is_refused(way: Way, verb: str, options: dict[str, Any], message: str) -> None:
    await make_job(way, "pending")
    for name in ("bulk", "start_bulk"):
        with pytest.raises(InvalidInput, match=message):
            await getattr(way.face, name)(verb, **{"task": "greet", **options})
    assert await statuses(way) == {"pending": 1}


@pytest.mark.parametrize("name", ["limit", "order", "connection", "tsk"])
async def test_a_keyword_that_it_does_not_have_is_refused(way: Way, name: str) -> None:
    for verb in ("bulk", "start_bulk"):
        with pytest.raises(Misuse, match=f"has no option '{name}'"):
            await getattr(way.face, verb)("cancel", **{"task": "greet", name: 5})


async def test_it_is_no_part_of_a_block(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))

    async with way.hf.completing(greet, chain.id) as job:
        for verb in (way.face.bulk, way.face.start_bulk):
            with pytest.raises(Misuse, match="cannot be part of"):
                await verb("cancel", task="greet")
        await job.finish("Hello")


def test_every_filter_can_be_stored() -> None:
    wanted = JobQuery(
        tasks=("a",),
        created_from=datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC),
        parent=UUID(int=7),
        internal=True,
        ids=(UUID(int=1), UUID(int=2)),
        inputs=((("a", "b"), 1), (("c",), 1.5), (("d",), "1"), (("e",), True), (("f",), None)),
    )
    assert {type(value) for _, value in read_filter(stored_filter(wanted)).inputs} == {
        int, float, str, bool, type(None)
    }  # fmt: skip
    assert read_filter(stored_filter(wanted)) == wanted
    assert stored_filter(JobQuery()) == {}


async def _last_event(way: Way, job_id: UUID) -> str:
    return (await events_of(way, job_id))[-1]


async def _insert(tx: Tx) -> UUID:
    from holdfast.states import Status
    from tests.support.factories import _insert as insert

    return await insert(tx, Status.PENDING, {})


async def _run(tx: Tx, job_id: UUID) -> None:
    await tx.execute(
        """UPDATE holdfast_job SET status = 'running', gate = NULL, sort_key = NULL, attempt = 1, nonce = 'n',
            worker = 'w', lease_until = $now + 30000, lease_ms = 30000 WHERE id = :id""",
        id=str(job_id),
    )


@asynccontextmanager
async def locked(way: Way, *ids: UUID) -> AsyncIterator[None]:
    """Have somebody else hold the rows of *ids*."""
    held, release = asyncio.Event(), asyncio.Event()

    async def hold(tx: Tx) -> None:
        await tx.fetch_all("SELECT seq FROM holdfast_job WHERE id $any(ids: text) FOR UPDATE", ids=list(map(str, ids)))
        held.set()
        await release.wait()

    holding = asyncio.create_task(way.hf.store.run(hold))
    await asyncio.wait_for(held.wait(), 10)
    yield
    release.set()
    await holding
