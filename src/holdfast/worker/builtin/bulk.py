"""The built-in task that acts on many jobs: each step acts on one page, and the chain goes on behind it.

A page, its count and the step that follows are one commit, the one that completes the step. So wherever a worker dies,
no page is lost and none is done twice, and whoever cancels or pauses the chain stops it between two pages. Between them
it rests as long as the page took: the next step is due only then.
"""

from __future__ import annotations

from holdfast.bulks import BulkAct, BulkResult
from holdfast.database.tx import Runner, Store
from holdfast.fault_points import reach
from holdfast.models import BULK, JobQuery
from holdfast.outcomes import Retry
from holdfast.runtime import Runtime
from holdfast.store.jobs import bulk_pages
from holdfast.store.jobs.bulk_pages import Acted, BulkPage
from holdfast.store.reads import read_cursor
from holdfast.tasks.bulk_task import OPTIONS, read_filter
from holdfast.tasks.task import Policy, Task
from holdfast.worker.attempts.context import Context
from holdfast.worker.builtin.builtin_task import make_builtin

LEASE_SECONDS, LONGEST_REST = 30.0, 60.0
RETRY = Retry(attempts=20, first=1.0, factor=2.0, maximum=60.0)


def make_bulk(store: Store, runtime: Runtime) -> Task[..., BulkResult]:
    """Make the task as a worker on *store* runs it."""

    async def bulk(ctx: Context, act: BulkAct, so_far: BulkResult) -> BulkResult:
        began = runtime.monotonic()
        wanted = read_filter(act.filter)
        page = await store.read(bulk_pages.find, wanted, so_far.upto, so_far.cursor, act.verb)
        ctx.progress(_percent(so_far), f"{so_far.matched:,} jobs so far")
        reach("bulk.after_find")
        async with ctx.complete() as tx:
            acted = Acted()
            if page.ids and not so_far.is_dry:
                acted = await _act(tx.runner(is_async=True), act, wanted, page, ctx)
            result = so_far.after(page.ids, acted.done, acted.passed_over, page.cursor)
            if result.cursor is None:
                return tx.finish(result)
            rest = min(LONGEST_REST, runtime.monotonic() - began)
            return tx.continue_with(task(act=act, so_far=result).options(delay=rest))

    task: Task[..., BulkResult] = make_builtin(BULK, bulk, Policy(lease=LEASE_SECONDS, retry=RETRY), OPTIONS)
    return task


async def _act(runner: Runner, act: BulkAct, wanted: JobQuery, page: BulkPage, ctx: Context) -> Acted:
    """Act on a page; if the audit is to know of it, under the id of the step, which commits once."""
    if not act.audited:
        return await runner.run(bulk_pages.act, act, wanted, page.ids)
    return await runner.run(bulk_pages.act_and_tell, act, wanted, page.ids, str(ctx.job.id))


def _percent(so_far: BulkResult) -> int:
    """Say how far it is, by the numbers of jobs: they begin near 1, and old ones may be gone."""
    behind = 0 if so_far.cursor is None else read_cursor(so_far.cursor, "oldest")
    return 100 * behind // max(so_far.upto, 1)
