"""An application whose handlers run in child processes: `holdfast worker tests.acceptance.jobs_in_children:hf`."""

from __future__ import annotations

import os

from holdfast import Holdfast, Tasks
from holdfast.outcomes import Retry
from holdfast.worker.attempts.context import BlockingContext
from tests.acceptance.jobs_of_tests import LEASE, noted

TASKS = Tasks()


@TASKS.task(name="in_child", run_in="process", lease=LEASE, retry=Retry(first=0.05, maximum=0.05, jitter=0))
def in_child(ctx: BlockingContext, n: int) -> int:
    """Do nothing, in a process of its own."""
    with noted(ctx):
        return n


hf = Holdfast(os.environ.get("HOLDFAST_DATABASE", "jobs.db"), tasks=[TASKS])
