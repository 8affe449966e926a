"""Blockers: counted after the commit, released once, failed and put back by policy (I-38, I-39, DF-2, reading (i))."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest

from holdfast import Chain, Holdfast
from holdfast.database.tx import Tx
from holdfast.models import Asked
from holdfast.outcomes import Outcome
from holdfast.store import unique
from holdfast.store.chains import blockers, dependents
from holdfast.store.jobs import steering
from tests.store.engine import CANCEL, DONE, FAIL, RETRY, admit, claim, claim_all, claim_one, come_due, run, settle
from tests.support.factories import TASKS, change_job, continue_chain, events_of, greet, row_of
from tests.support.ways import Way


async def fetch(way: Way, count: int = 1) -> list[Chain[str]]:
    """Start chains that others wait for."""
    chains: list[Chain[str]] = await way.face.start_many([greet(name=str(n)) for n in range(count)])
    return chains


async def merge(way: Way, *waited_for: Any, **options: Any) -> Chain[str]:
    """Start a chain that waits."""
    chain: Chain[str] = await way.face.start(greet(name="merge"), blockers=list(waited_for), **options)
    return chain


async def end(way: Way, chain: Chain[str], outcome: Outcome) -> None:
    """Run the chain's job to this end; it is being run, or may be."""
    ran = {UUID(job.id): job.token for job in await claim_all(way)}
    await settle(way, (ran[chain.id], outcome))


async def status_of(way: Way, chain: Chain[str]) -> str:
    return str((await way.face.get_job(chain.id)).status)


@pytest.mark.source("JC-10")
async def test_a_job_waits_for_all_its_blockers_and_then_runs_once(way: Way) -> None:
    a, b = await fetch(way, 2)
    report = await merge(way, a, b)
    await admit(way)
    counted = await row_of(way, report.id, "status", "gate", "open_blockers")

    first, second = await claim(way)
    await settle(way, (first.token, DONE))
    between = await row_of(way, report.id, "status", "open_blockers")
    await settle(way, (second.token, DONE))

    assert counted == ("blocked", None, 2)
    assert between == ("blocked", 1)
    assert await run(way) == report.id
    assert await events_of(way, report.id) == [
        "job:enqueued", "job:blocked", "job:unblocked", "job:started", "job:completed", "chain:completed",
    ]  # fmt: skip


async def test_both_blockers_in_one_batch_release_the_job_once(way: Way) -> None:
    a, b = await fetch(way, 2)
    report = await merge(way, a, b)
    await admit(way)

    await settle(way, *[(job.token, DONE) for job in await claim(way)])

    assert (await events_of(way, report.id)).count("job:unblocked") == 1
    assert await run(way) == report.id


@pytest.mark.source("JC-50")
async def test_a_blocker_that_had_closed_before_holds_nobody_up(way: Way) -> None:
    (a,) = await fetch(way)
    await run(way)

    report = await merge(way, a)

    assert await run(way) == report.id


async def test_one_chain_twice_among_the_blockers_counts_twice_and_is_released_twice(way: Way) -> None:
    (a,) = await fetch(way)
    report = await merge(way, a, a)
    await admit(way)

    assert await run(way) == a.id
    assert await run(way) == report.id


async def test_a_retry_of_the_blocker_releases_nobody(way: Way) -> None:
    (a,) = await fetch(way)
    report = await merge(way, a)
    await admit(way)

    await run(way, RETRY)

    assert await status_of(way, report) == "blocked"


async def test_a_continued_chain_releases_when_its_last_job_completes(way: Way) -> None:
    (a,) = await fetch(way)
    await merge(way, a)
    await admit(way)
    await continue_chain(way, a.id)

    step = await run(way)

    assert step != a.id
    assert (await claim_one(way)).chain_index == 0


@pytest.mark.source("JC-51")
async def test_a_job_released_by_its_blocker_still_waits_for_its_time(way: Way) -> None:
    (a,) = await fetch(way)
    report = await merge(way, a, delay=60)
    await admit(way)
    await run(way)

    early = await claim_all(way)
    await come_due(way)

    assert (early, await run(way)) == ([], report.id)


# ---- policies


@pytest.mark.source("JC-53")
@pytest.mark.parametrize(("outcome", "word"), [(FAIL, "failed"), (CANCEL, "cancelled")])
async def test_by_default_a_job_fails_with_its_blocker_and_says_so(way: Way, outcome: Outcome, word: str) -> None:
    (a,) = await fetch(way)
    report = await merge(way, a, unique="report")
    await admit(way)

    await run(way, outcome)

    job = await way.face.get_job(report.id)
    assert (job.status, job.reason) == ("failed", f"blocker {word}")
    assert await row_of(way, report.id, "closed_as") == ("failed",)
    assert await way.rows("SELECT key FROM holdfast_unique") == []


async def test_a_job_fails_with_a_blocker_that_had_failed_before(way: Way) -> None:
    (a,) = await fetch(way)
    await run(way, FAIL)

    report = await merge(way, a)
    await admit(way)

    assert await status_of(way, report) == "failed"


async def test_failing_goes_on_along_a_line_of_blockers(way: Way) -> None:
    (a,) = await fetch(way)
    b = await merge(way, a)
    c = await merge(way, b)
    await admit(way)

    await run(way, FAIL)
    await admit(way)

    assert (await status_of(way, b), await status_of(way, c)) == ("failed", "failed")


@pytest.mark.source("JC-53")
async def test_ignore_runs_the_job_however_its_blocker_ends(way: Way) -> None:
    (a,) = await fetch(way)
    report = await merge(way, a, on_blocker_failure="ignore")
    await admit(way)

    await run(way, FAIL)

    assert await run(way) == report.id


@pytest.mark.parametrize("is_armed_first", [True, False])
async def test_wait_waits_until_the_blocker_is_tried_again_and_completes(way: Way, is_armed_first: bool) -> None:
    (a,) = await fetch(way)
    if is_armed_first:
        report = await merge(way, a, on_blocker_failure="wait")
        await admit(way)
        await run(way, FAIL)
    else:
        await run(way, FAIL)
        report = await merge(way, a, on_blocker_failure="wait")
    await admit(way)
    waits = await status_of(way, report)

    await way.face.retry(a)

    assert waits == "blocked"
    assert [await run(way) for _ in range(2)] == [a.id, report.id]


async def test_a_blocker_that_was_deleted_before_it_was_counted_is_as_one_that_was_cancelled(way: Way) -> None:
    (a,) = await fetch(way)
    report = await merge(way, a)
    await way.face.cancel(report)
    await change_job(way, report.id, stale_at=1)  # until then nobody may delete what it would need
    await way.face.delete(a)
    await way.face.retry(report)

    await admit(way)

    job = await way.face.get_job(report.id)
    assert (job.status, job.reason) == ("failed", "blocker cancelled")


async def test_cancelling_the_blocker_tells_its_dependents_in_that_commit(way: Way) -> None:
    (a,) = await fetch(way)
    report = await merge(way, a)
    await admit(way)

    await way.face.cancel(a)

    assert await status_of(way, report) == "failed"


async def test_cancelling_the_last_job_of_a_continued_blocker_tells_its_dependents(way: Way) -> None:
    (a,) = await fetch(way)
    report = await merge(way, a)
    await admit(way)
    await continue_chain(way, a.id)

    await way.face.cancel(a)

    assert await status_of(way, report) == "failed"


# ---- a blocker that is tried again


@pytest.mark.source("JC-53")
async def test_retrying_a_blocker_puts_what_failed_by_it_back_to_blocked(way: Way) -> None:
    (a,) = await fetch(way)
    report = await merge(way, a, unique="report")
    await admit(way)
    await run(way, FAIL)

    await way.face.retry(a)
    await admit(way)

    job = await way.face.get_job(report.id)
    assert (job.status, job.reason, job.finished_at, job.open_blockers) == ("blocked", None, None, 1)
    assert (await way.face.get_chain(report.id)).is_open
    assert [await run(way) for _ in range(2)] == [a.id, report.id]
    assert await way.rows("SELECT key FROM holdfast_unique") == []


async def test_a_whole_line_goes_back_to_blocked(way: Way) -> None:
    (a,) = await fetch(way)
    b = await merge(way, a, unique="b")
    c = await merge(way, b, unique="c")
    await admit(way)
    await run(way, FAIL)
    await admit(way)

    await way.face.retry(a)
    await admit(way)

    assert (await status_of(way, b), await status_of(way, c)) == ("blocked", "blocked")
    assert [await run(way) for _ in range(3)] == [a.id, b.id, c.id]


async def test_retrying_the_last_job_of_a_continued_blocker_puts_its_dependents_back(way: Way) -> None:
    (a,) = await fetch(way)
    report = await merge(way, a)
    await admit(way)
    await continue_chain(way, a.id)
    await run(way, FAIL)
    failed = await status_of(way, report)

    await way.face.retry(a)
    await admit(way)

    assert (failed, await status_of(way, report)) == ("failed", "blocked")
    await run(way)
    assert await run(way) == report.id


async def test_a_dependent_whose_key_was_taken_stays_failed_and_says_why(way: Way) -> None:
    (a,) = await fetch(way)
    report = await merge(way, a, unique="report")
    await admit(way)
    await run(way, FAIL)
    twin = await way.face.start(greet(name="twin"), unique="report", paused=True)

    await way.face.retry(a)
    await admit(way)

    job = await way.face.get_job(report.id)
    assert (job.status, str(twin.id) in (job.reason or "")) == ("failed", True)
    assert [await run(way)] == [a.id]


async def test_what_was_cancelled_meanwhile_is_left_alone(way: Way) -> None:
    (a,) = await fetch(way)
    report = await merge(way, a, unique="report")
    await admit(way)
    await run(way, FAIL)
    await way.face.cancel(report)

    await way.face.retry(a)
    await admit(way)

    assert await status_of(way, report) == "cancelled"


async def is_free(way: Way, key: str) -> bool:
    """Tell whether a start under *key* makes a new chain."""
    return not (await way.face.start(greet(name="Ada"), unique=key)).deduplicated


async def retry_before_admission(way: Way, *chains: Chain[str]) -> None:
    """Retry chains as on a caller's connection: admission comes later."""
    await way.call(steering.retry, [each.id for each in chains], Asked())


async def test_retry_takes_no_key_for_a_dependent_that_was_cancelled_meanwhile(way: Way) -> None:
    (a,) = await fetch(way)
    report = await merge(way, a, unique="report")
    await admit(way)
    await way.face.cancel(a)
    await way.face.cancel(report)

    await retry_before_admission(way, a)

    assert await is_free(way, "report")


@pytest.fixture
def a_look_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let who looks for those that failed see them as they were before they were cancelled or retried."""
    status = "AND coalesce(waiting.status, '') = 'failed'"
    assert status in dependents.FAILED_BY
    monkeypatch.setattr(dependents, "FAILED_BY", dependents.FAILED_BY.replace(status, ""))


@pytest.mark.usefixtures("a_look_too_early")
async def test_a_key_that_was_taken_for_a_dependent_just_as_that_was_cancelled_is_let_go(way: Way) -> None:
    (a,) = await fetch(way)
    report = await merge(way, a, unique="report")
    await admit(way)
    await merge(way, report, unique="behind")
    await admit(way)
    await way.face.cancel(a)
    await admit(way)
    await way.face.cancel(report)
    await admit(way)

    await way.face.retry(a)

    assert [await is_free(way, "report"), await is_free(way, "behind")] == [True, True]


@pytest.mark.usefixtures("a_look_too_early")
async def test_a_dependent_that_was_retried_just_as_its_blocker_closed_again_keeps_its_key(way: Way) -> None:
    (a,) = await fetch(way)
    report = await merge(way, a, unique="report")
    await admit(way)
    await way.face.cancel(a)
    await retry_before_admission(way, a, report)

    await way.face.cancel(a)

    assert not await is_free(way, "report")


async def test_a_twin_that_is_faster_than_a_retry_leaves_no_key_of_who_failed_by_the_dependent_taken(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    (a,) = await fetch(way)
    report = await merge(way, a, unique="report")
    await admit(way)
    await merge(way, report, unique="behind")
    await admit(way)
    await way.face.cancel(a)
    await admit(way)
    await way.face.start(greet(name="twin"), unique="report")
    holders = unique.holders

    async def look_before_the_twin(tx: Tx, keys: Any) -> Any:
        monkeypatch.setattr(unique, "holders", holders)
        return {}

    monkeypatch.setattr(unique, "holders", look_before_the_twin)

    await retry_before_admission(way, a)

    assert await is_free(way, "behind")


async def test_retry_takes_no_key_for_who_failed_by_a_dependent_that_stays_failed(way: Way) -> None:
    (a,) = await fetch(way)
    report = await merge(way, a, unique="report")
    await admit(way)
    await merge(way, report, unique="behind")
    await admit(way)
    await way.face.cancel(a)
    await admit(way)
    await way.face.start(greet(name="twin"), unique="report")

    await way.face.retry(a)

    await admit(way)
    assert await is_free(way, "behind")


async def test_of_two_dependents_with_one_key_the_first_is_put_back_and_the_other_stays_failed(way: Way) -> None:
    (a,) = await fetch(way)
    first = await merge(way, a, unique="report")
    await admit(way)
    await way.face.cancel(a)
    second = await merge(way, a, unique="report")
    await admit(way)
    behind = await merge(way, second, unique="behind")
    await admit(way)

    await way.face.retry(a)

    await admit(way)
    assert [await status_of(way, each) for each in (first, second, behind)] == ["blocked", "failed", "failed"]
    assert await is_free(way, "behind")


@pytest.mark.parametrize("has_key", [True, False])
async def test_a_retry_that_is_taken_back_before_it_was_admitted_leaves_no_key_taken(way: Way, has_key: bool) -> None:
    (a,) = await fetch(way)
    report = await merge(way, a, unique="report" if has_key else None)
    await admit(way)
    await merge(way, report, unique="behind")
    await admit(way)
    await way.face.cancel(a)
    await admit(way)
    await retry_before_admission(way, a)

    await way.face.cancel(a)

    await admit(way)
    assert [await is_free(way, "report"), await is_free(way, "behind")] == [True, True]


async def test_a_blocker_that_is_deleted_before_its_retry_was_admitted_leaves_no_key_taken(way: Way) -> None:
    (a,) = await fetch(way)
    report = await merge(way, a, unique="report")
    await admit(way)
    await way.face.cancel(a)
    await change_job(way, report.id, stale_at=1)  # until then nobody may delete what it would need
    await retry_before_admission(way, a)

    await way.face.delete(a)

    assert await is_free(way, "report")


async def test_one_retry_is_taken_back_and_the_other_still_puts_its_dependent_and_who_failed_by_that_back(
    way: Way,
) -> None:
    a, b = await fetch(way, 2)
    report = await merge(way, a, b, unique="report")
    await admit(way)
    behind = await merge(way, report, unique="behind")
    await admit(way)
    await settle(way, *[(job.token, FAIL) for job in await claim(way)])
    await admit(way)
    await retry_before_admission(way, a, b)

    await way.face.cancel(a)
    resumed = [(await events_of(way, each.id)).count("job:resumed") for each in (report, behind)]
    await admit(way)

    assert resumed == [0, 0]
    assert [(await events_of(way, each.id)).count("job:resumed") for each in (report, behind)] == [1, 1]


@pytest.mark.parametrize(("verb", "options"), [("pause", {}), ("reschedule", {"after": 60})])
async def test_a_blocker_that_is_held_before_its_retry_was_admitted_puts_back_who_failed_by_it(
    way: Way, verb: str, options: dict[str, int]
) -> None:
    (a,) = await fetch(way)
    report = await merge(way, a, unique="report")
    await admit(way)
    await way.face.cancel(a)
    await retry_before_admission(way, a)

    await getattr(way.face, verb)(a, **options)

    await admit(way)
    assert await status_of(way, report) == "blocked"
    assert await claim(way) == []


async def test_two_blockers_failed_and_one_is_tried_again_the_other_fails_it_again(way: Way) -> None:
    a, b = await fetch(way, 2)
    report = await merge(way, a, b)
    await admit(way)
    await settle(way, *[(job.token, FAIL) for job in await claim(way)])

    await way.face.retry(a)
    await admit(way)
    once = await status_of(way, report)
    await way.face.retry(b)
    await admit(way)

    assert (once, await status_of(way, report)) == ("failed", "blocked")


async def test_more_dependents_than_one_step_tells_are_all_told(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockers, "MOST_DEPENDENTS", 3)
    (a,) = await fetch(way)
    many = [await merge(way, a, on_blocker_failure="fail") for _ in range(10)]
    await admit(way)

    await run(way, FAIL)
    await settle_down(way)
    failed = {await status_of(way, each) for each in many}
    await way.face.retry(a)
    await settle_down(way)
    blocked = {await status_of(way, each) for each in many}
    await run(way)
    await settle_down(way)

    assert (failed, blocked) == ({"failed"}, {"blocked"})
    assert {UUID(job.id) for job in await claim(way, 100)} == {each.id for each in many}


async def test_all_keys_of_more_dependents_than_one_step_tells_are_taken_anew(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blockers, "MOST_DEPENDENTS", 3)
    (a,) = await fetch(way)
    many = [await merge(way, a, unique=f"key-{number}") for number in range(10)]
    await admit(way)
    await run(way, FAIL)
    await settle_down(way)

    await way.face.retry(a)
    await settle_down(way)

    assert {await status_of(way, each) for each in many} == {"blocked"}
    assert len(await way.rows("SELECT key FROM holdfast_unique")) == 10


async def test_a_blocker_that_is_tried_again_goes_on_while_a_caller_has_what_failed_by_it_locked(
    new_holdfast: Callable[..., Holdfast],
) -> None:
    way = Way(new_holdfast("postgres", tasks=[TASKS]), is_async=True)
    (a,) = await fetch(way)
    report = await merge(way, a, unique="report")
    await admit(way)
    await run(way, FAIL)

    async with await psycopg.AsyncConnection.connect(way.hf.settings.database) as caller:
        await caller.execute("SELECT 1 FROM contract.holdfast_job WHERE id = %s FOR UPDATE", [str(report.id)])
        await way.face.retry(a)
        ran = await run(way)
        left = await status_of(way, report)
        await caller.rollback()
    await settle_down(way)

    assert (ran, left) == (a.id, "failed")
    assert await run(way) == report.id


async def test_a_job_that_was_locked_and_failed_by_a_blocker_that_fails_again_stays_failed(
    new_holdfast: Callable[..., Holdfast],
) -> None:
    way = Way(new_holdfast("postgres", tasks=[TASKS]), is_async=True)
    (a,) = await fetch(way)
    report = await merge(way, a, unique="report")
    await admit(way)
    await run(way, FAIL)

    async with await psycopg.AsyncConnection.connect(way.hf.settings.database) as caller:
        await caller.execute("SELECT 1 FROM contract.holdfast_job WHERE id = %s FOR UPDATE", [str(report.id)])
        await way.face.retry(a)
        await run(way, FAIL)
        await caller.rollback()
    await settle_down(way)

    assert await status_of(way, report) == "failed"
    assert await is_free(way, "report")


async def settle_down(way: Way) -> None:
    """Admit until nothing is left to be looked at again."""
    while await way.rows("SELECT 1 FROM holdfast_job WHERE gate = 'arrival' LIMIT 1"):
        await admit(way)


# ---- pausing and resuming what is blocked


async def test_a_blocked_job_that_was_paused_counts_anew_when_it_is_resumed(way: Way) -> None:
    a, b = await fetch(way, 2)
    report = await merge(way, a, b)
    await admit(way)
    await way.face.pause(report)
    await settle(way, ((await claim(way, 1))[0].token, DONE))
    paused = await status_of(way, report)

    await way.face.resume(report)

    assert paused == "paused"
    assert await row_of(way, report.id, "status", "open_blockers") == ("blocked", 1)
    assert [await run(way) for _ in range(2)] == [b.id, report.id]


async def test_a_job_started_paused_with_blockers_is_counted_when_it_is_resumed(way: Way) -> None:
    (a,) = await fetch(way)
    report = await merge(way, a, paused=True)
    await run(way)

    await way.face.resume(report)

    assert await run(way) == report.id
