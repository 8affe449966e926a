"""What child processes of a tenant's worker import."""

from __future__ import annotations

import os

from holdfast import Context, Holdfast, Tasks
from holdfast.sync import Context as BlockingContext

tasks = Tasks()


@tasks.task(name="whose", run_in="process")
def whose(ctx: BlockingContext) -> tuple[str | None, int]:
    """Tell whose job this is, and in which process it runs."""
    return ctx.tenant, os.getpid()


@tasks.task(name="whose_async", run_in="process")
async def whose_async(ctx: Context) -> tuple[str | None, int]:
    """Do the same in async code, and have it seen in the journal."""
    await ctx.journal.append("note", {"tenant": ctx.tenant})
    return ctx.tenant, os.getpid()


if "HOLDFAST_DATABASE" in os.environ:
    hf = Holdfast(tasks=[tasks], tenants=True)
