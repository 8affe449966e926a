"""Says which jobs wait and nobody runs: their task is unknown, or no worker serves their queue; once for each kind.

It goes by what living workers say of themselves, twice soon after the start of the worker and then once a minute, and
says it about jobs that have waited for a moment: a worker that starts with others hears of them a little later.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from difflib import get_close_matches

from holdfast.database.tx import Store
from holdfast.logging import say
from holdfast.models import INTERNAL_QUEUE
from holdfast.store import polls, task_rows, workers
from holdfast.store.jobs.claiming import Want
from holdfast.tasks.registry import Tasks

WAITED_MS = 3_000

logger = logging.getLogger(__name__)


class UnservedJobs:
    """Looks, for a worker that serves *wants*, for jobs that nobody runs; *tasks* are those of the application now."""

    def __init__(self, store: Store, wants: Sequence[Want], tasks: Tasks) -> None:
        self._store = store
        self._served = {(each.queue, each.task) for each in wants}
        self._tasks = tasks
        self._at_start = _names(tasks)
        self._told: set[tuple[str, str]] = set()

    async def look(self) -> None:
        """Say what was not said before."""
        if late := sorted(_names(self._tasks) - self._at_start):
            self._at_start.update(late)
            say(logger, "tasks_registered_late", tasks=late)
        waiting = await self._store.read(polls.waiting_kinds)
        strange = [each for each in waiting if each not in self._served | self._told and each[0] != INTERNAL_QUEUE]
        if not strange:
            return
        asking = await self._store.read(task_rows.asking)  # these wait for a person
        others = await self._store.read(workers.served)
        for queue, task in strange:
            if (
                task in asking
                or others.runs(queue, task)
                or not await self._store.read(polls.is_left_waiting, queue, task, WAITED_MS)
            ):
                continue
            self._told.add((queue, task))
            say(logger, "jobs_not_served", task=task, queue=queue, advice=self._advice(queue, task))

    def _advice(self, queue: str, task: str) -> str:
        known = {name for _, name in self._served}
        if task not in known:
            return "no worker has a task of that name" + _near(task, known)
        # the queues that this worker was told to serve may be what is misspelt
        named = {"default", *(each.policy.queue for each in self._tasks)}
        near = "" if queue in named else _near(queue, named)
        return "no worker serves that queue" + (near or f"; start one that does: --queues {queue}")


def _names(tasks: Tasks) -> set[str]:
    return {each.name for each in tasks if not each.is_declared}


def _near(word: str, known: set[str]) -> str:
    near = get_close_matches(word, sorted(known), 1)
    return f"; did you mean {near[0]}?" if near else ""
