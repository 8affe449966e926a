"""Child processes for suspects: a job that may take its process down runs there, alone, and the others go on beside it.

They are started when a suspect comes, and end when none has come for a while. Where they are of no use, since the
application cannot be imported there, or lacks the task, suspects run alone in the worker's own process instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from holdfast.store.jobs.claiming import Claimed
from holdfast.tasks.task import Task
from holdfast.worker.children.pool import Children
from holdfast.worker.children.remote_attempt import RemoteAttempt

MOST_CHILDREN = 4
"""How many suspects run at once."""
MOST_HELD = 32
"""How many a worker keeps, with those that wait for a child; others may have room for the rest."""
IDLE_SECONDS = 20.0
"""After which the children end that have nothing to do."""


class SuspectChildren:
    """Runs suspects in children that *make_children* makes; *takes_all*: also of tasks that usually run elsewhere."""

    def __init__(self, make_children: Callable[[], Children], group: asyncio.TaskGroup, *, takes_all: bool) -> None:
        self._make_children = make_children
        self._group = group
        self._takes_all = takes_all
        self._children: Children | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_usable = True
        self._lacking: set[str] = set()

    def takes(self, job: Claimed, task: Task[..., Any]) -> bool:
        """Tell whether *job* is a suspect that can run in a child."""
        if not job.is_suspect or not (self._takes_all or task.policy.is_in_child):
            return False
        self._look()
        return self._is_usable and task.name not in self._lacking

    def attempt(self, job: Claimed, task: Task[..., Any]) -> RemoteAttempt:
        """Make an attempt of *job*, which has a child to itself, or waits for one."""
        self._children = self._children or self._make_children()
        self._end_later()
        return self._children.attempt(job, task)

    def send_leases(self) -> None:
        if (children := self._children) is not None:
            children.send_leases()

    def drain(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._children is not None:
            self._children.drain()

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        children, self._children = self._children, None
        if children is not None:
            await children.close()

    def _look(self) -> None:
        """Learn whether the children are of use: what has failed once is not tried again by this worker."""
        if self._children is not None:
            self._is_usable = self._is_usable and self._children.health().failing_since is None
            self._lacking |= self._children.unknown

    def _end_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._end_if_idle)

    def _end_if_idle(self) -> None:
        self._look()
        if self._children is None:
            return
        health = self._children.health()
        if health.busy or (health.starting and self._is_usable):
            self._end_later()
        else:
            self._group.create_task(self.close())
