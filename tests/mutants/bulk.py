"""Wrong engines that act on many jobs: each is ours with one rule of `bulk_pages`, or of its task, taken away."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.bulks import BulkAct, BulkResult
from holdfast.database.tx import Store
from holdfast.runtime import Runtime
from holdfast.store.jobs import bulk_pages, steering
from holdfast.tasks.bulk_task import OPTIONS, read_filter
from holdfast.tasks.signatures import read_signature
from holdfast.tasks.task import Policy, Task
from holdfast.worker import worker
from holdfast.worker.attempts.context import Context
from holdfast.worker.builtin import bulk
from tests.mutants import race, wrong_worker
from tests.store import test_bulk, test_if_state
from tests.worker import test_bulk_jobs


@wrong_worker(
    "filter walked without `upto`", "I-87", test_bulk.test_what_came_after_the_dry_run_is_not_touched, "assert"
)
def _(patch: pytest.MonkeyPatch) -> None:
    find = bulk_pages.find
    patch.setattr(bulk_pages, "find", lambda tx, wanted, _, *rest: find(tx, wanted, 2**62, *rest))


@wrong_worker(
    "page acted on and cursor in another commit",
    "I-87",
    test_bulk_jobs.test_a_step_that_fails_has_acted_on_nothing,
    "status_conflict",
)
def _(patch: pytest.MonkeyPatch) -> None:
    def make_bulk(store: Store, runtime: Runtime) -> Task[..., BulkResult]:
        async def act_first(ctx: Context, act: BulkAct, so_far: BulkResult) -> BulkResult:
            wanted = read_filter(act.filter)
            page = await store.read(bulk_pages.find, wanted, so_far.upto, so_far.cursor, act.verb)
            acted = await store.run(bulk_pages.act, act, wanted, page.ids)
            async with ctx.complete() as tx:
                return tx.finish(so_far.after(page.ids, acted.done, acted.passed_over, page.cursor))

        signature, policy = read_signature(act_first, locals()), Policy(retry=bulk.RETRY)
        return Task("holdfast.bulk", signature, policy=policy, chosen=OPTIONS, place="", function=act_first)

    patch.setattr(worker, "make_bulk", make_bulk)


@wrong_worker(
    "filter not looked at again under the lock",
    "I-87",
    test_bulk.test_a_job_that_no_longer_fits_when_it_is_locked_is_passed_over,
    "assert",
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(bulk_pages, "_keep_fitting", _nothing)


@wrong_worker(
    "jobs that have continued acted on",
    "I-87",
    test_bulk.test_a_job_that_has_continued_is_history_and_not_touched,
    "assert",
)
def _(patch: pytest.MonkeyPatch) -> None:
    async def find(tx: Any, wanted: Any, upto: int, cursor: str | None, verb: str) -> bulk_pages.BulkPage:
        page = await bulk_pages.lists.list_jobs(tx, wanted, bulk_pages.Paging(500, "oldest", cursor, upto))
        return bulk_pages.BulkPage(tuple(job.id for job in page), page.next_cursor)

    patch.setattr(bulk_pages, "find", find)


@wrong_worker(
    "keys not looked at before they are taken, and the page given up",
    "I-87",
    test_bulk.test_whose_key_another_chain_holds_is_passed_over,
    "unique_conflict|assert",
)
def _(patch: pytest.MonkeyPatch) -> None:
    async def drop_all(tx: Any, page: Any, locked: Any) -> None:
        page.drop("unique_conflict", page.left)

    patch.setattr(bulk_pages, "_drop_taken_keys", drop_all)


@wrong_worker(
    "state not compared",
    "I-05",
    test_if_state.test_the_id_of_a_job_that_has_continued_requires_the_state_of_the_current_one,
    "DID NOT RAISE",
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(steering, "require_state", _nothing)


@race(
    "locked jobs waited for †",
    "I-87",
    test_bulk.test_a_locked_job_is_passed_over_and_fails_nobody,
    "could not go on|answer was lost",
    verb="cancel",
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(steering, "LOCK_FREE", steering.LOCK)


@race(
    "state compared without the lock †",
    "I-05",
    test_if_state.test_the_row_stays_locked_from_the_comparison_to_the_end,
    "assert not True",
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(steering, "LOCK", steering._LOCK)


async def _nothing(*_: Any) -> None:
    """Do nothing."""
