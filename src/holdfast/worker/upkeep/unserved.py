"""Says which jobs wait and nobody runs: their task is unknown, or no worker serves their queue; once for each kind.

It goes by what living workers say of themselves, twice soon after the start of the worker and then once a minute, and
says it about jobs that have waited for a moment: a worker that starts with others hears of them a little later. The
reason, and what to do, is what `hf.explain` says of such a job.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from holdfast.database.tx import Store
from holdfast.logging import say
from holdfast.store.insight import explain
from holdfast.store.jobs.claiming import Want
from holdfast.store.workers import LivingWorker
from holdfast.tasks.registry import Tasks

WAITED_MS = 3_000

logger = logging.getLogger(__name__)


class UnservedJobs:
    """Looks, for the worker *worker_id*, which serves *wants*, for jobs that nobody runs.

    *tasks* are those of the application now.
    """

    def __init__(self, store: Store, worker_id: str, wants: Sequence[Want], tasks: Tasks) -> None:
        self._store = store
        queues, names = frozenset(each.queue for each in wants), frozenset(each.task for each in wants)
        self._own = LivingWorker(worker_id, None, queues, names)  # its row may not be there yet
        self._tasks = tasks
        self._at_start = _names(tasks)
        self._told: set[tuple[str, str]] = set()

    async def look(self) -> None:
        """Say what was not said before."""
        if late := sorted(_names(self._tasks) - self._at_start):
            self._at_start.update(late)
            say(logger, "tasks_registered_late", tasks=late)
        for queue, task, reason in await self._store.read(explain.unserved, self._own, self._told, WAITED_MS):
            self._told.add((queue, task))
            say(logger, "jobs_not_served", task=task, queue=queue, advice=reason.text)


def _names(tasks: Tasks) -> set[str]:
    return {each.name for each in tasks if not each.is_declared}
