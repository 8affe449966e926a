"""What was claimed, on its way to its handler: who may begin, beside whom, and who is given back.

*Suspects.* A job that was running when its process died, twice, may be what killed it. If the worker can, it runs it in
a child process of its own, beside all others, some at once, and those that are too many come again in a moment. Else it
runs alone here: one waits until nothing else runs, and no second one is kept. Its handler begins only when that is
written down, so that a job which merely waited is not blamed for the next crash.

*Patience.* While a suspect waits to be alone nothing is claimed, so it may not wait for ever beside a long handler:
after some seconds it is given back, for another worker or for later, and for twice as long no suspect is kept. Each
time in vain the patience doubles, until a suspect was alone: so it comes to its turn beside handlers of any length, and
at most a third of the time goes by in waiting. Another worker may have room long before this one: so however long the
patience, nobody keeps a suspect from the others for more than a few seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from holdfast.store.jobs import claiming
from holdfast.store.jobs.claiming import Claimed, Token
from holdfast.worker.attempts.aborts import AbortReason
from holdfast.worker.attempts.active import Slot
from holdfast.worker.children.suspects import MOST_HELD
from holdfast.worker.claiming.core import WorkerCore
from holdfast.worker.claiming.executor import Executor

ALONE_SECONDS = 5.0
LONGEST_SECONDS = 3_600.0
OTHERS_WAIT_SECONDS = 15.0
SUSPECT_WAITS = "other jobs run here; it is to run alone"
CHILDREN_TAKEN, CHILD_SECONDS = "other suspects wait for a child process here", 2.0


class Dispatcher:
    """Hands what was claimed to the *executor*, or gives it back."""

    def __init__(self, core: WorkerCore, executor: Executor, group: asyncio.TaskGroup) -> None:
        self._core = core
        self._executor = executor
        self._group = group
        self._monotonic = core.runtime.monotonic
        self._suspect: Claimed | None = None
        self._alone: Token | None = None
        """The suspect that was started last."""
        self._timer: asyncio.TimerHandle | None = None
        self._patience = ALONE_SECONDS
        self._suspects_from = self._monotonic()
        self._is_trying = False
        self._is_careful = False
        executor.on_end = self._start_suspect

    def room(self, free: int) -> int:
        """Say how many of *free* slots may be claimed for, as far as suspects are concerned."""
        if self._suspect is not None or self._runs_suspect:
            return 0
        return min(free, 1) if self._is_careful else free

    @property
    def is_empty(self) -> bool:
        return self._suspect is None

    def begin(self, claimed: Sequence[Claimed]) -> None:
        """Start attempts; of suspects one waits until it is alone, and the others are given back for who has room."""
        suspects = [each for each in claimed if self._must_be_alone(each)]
        self._is_careful = bool(suspects) or (self._is_careful and not claimed)
        running = self._core.active.by_seq() if claimed else {}
        runs_suspect = self._runs_suspect
        self._executor.forget_earlier(claimed)
        for each in claimed:
            if (earlier := running.get(each.token.seq)) is not None:
                earlier.abort(AbortReason.TAKEN)
                self._core.unsettled.put_off(each, "an earlier attempt still runs")
            elif self._core.shutdown.is_draining or runs_suspect or (each in suspects and self._suspect is not None):
                self._give_back(each)
            elif each in suspects:
                self._keep(each)
            elif each.is_suspect and self._core.active.taken(Slot.SUSPECT) >= MOST_HELD:
                self._core.unsettled.give_back(each, CHILDREN_TAKEN, CHILD_SECONDS)
            else:
                self._executor.begin(each)
        self._start_suspect()

    def _must_be_alone(self, job: Claimed) -> bool:
        """Tell whether *job* may take this process down; one in a child process takes down only that."""
        return job.is_suspect and self._executor.children_for(job, self._core.tasks.get(job.task)) is None

    def drain(self) -> None:
        if self._suspect is not None:
            self._give_back(self._suspect)
            self._drop()
        self._executor.drain()

    @property
    def _runs_suspect(self) -> bool:
        """Tell whether a suspect runs, or is about to: what the other loop has claimed meanwhile must not join it."""
        return self._is_trying or (self._alone is not None and self._alone in self._core.active)

    def _keep(self, job: Claimed) -> None:
        """Have a suspect wait until it is alone, if it is time for one; give it back when the patience is over."""
        seconds = self._suspects_from - self._monotonic()
        if not self._executor.is_idle and seconds > 0:
            self._give_back_later(job, seconds)
            return
        self._suspect = job
        self._timer = asyncio.get_running_loop().call_later(self._patience, self._lose_patience, job)

    def _lose_patience(self, job: Claimed) -> None:
        if self._suspect is not job or self._is_trying:
            return
        seconds = 2 * self._patience
        self._suspects_from = self._monotonic() + seconds
        self._patience = min(seconds, LONGEST_SECONDS)
        self._drop()
        self._give_back_later(job, seconds)
        self._core.woken.set()

    def _drop(self) -> None:
        self._suspect = None
        if self._timer is not None:
            self._timer.cancel()

    def _start_suspect(self) -> None:
        """Start the suspect if it is alone: what takes its process down shall take no other job with it."""
        job = self._suspect
        if job is None or not self._executor.is_idle or self._is_trying:
            return
        self._is_trying, trying = True, self._try_suspect(job)
        try:
            self._group.create_task(trying)
        except Exception:  # noqa: BLE001 - such as of a task factory of the program's
            trying.close()
            self._is_trying = False
            self._drop()
            self._core.unsettled.put_off(job, "it could not be begun")

    async def _try_suspect(self, job: Claimed) -> None:
        try:
            is_ours = await self._core.store.run(claiming.begin, job.token)
        except Exception:  # noqa: BLE001 - whatever it is, it is given back, and the worker lives on
            is_ours = False
        self._is_trying = False
        if self._suspect is not job:  # we drain, and it was given back
            return
        self._drop()
        if is_ours:
            self._patience = ALONE_SECONDS
            self._alone = job.token
            self._executor.run_alone(job)
        else:
            self._give_back(job)
        self._core.woken.set()

    def _give_back_later(self, job: Claimed, seconds: float) -> None:
        self._core.unsettled.give_back(job, SUSPECT_WAITS, min(seconds, OTHERS_WAIT_SECONDS))

    def _give_back(self, job: Claimed) -> None:
        reason = AbortReason.SHUTDOWN if self._core.shutdown.is_draining else "another suspect runs"
        self._core.unsettled.give_back(job, reason)
