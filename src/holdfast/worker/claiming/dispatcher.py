"""What was claimed, on its way to its handler: who may begin, beside whom, and who is given back.

*Suspects.* A job that was running when its process died, twice, may be what killed it. It runs alone: one waits until
nothing else runs here, and no second one is kept. Its handler begins only when that is written down, so that a job
which merely waited is not blamed for the next crash.

*Patience.* While a suspect waits nothing is claimed here, so it may not wait for ever beside a long handler: after some
seconds it is given back, for another worker or for later, and for twice as long no suspect is kept. Each time in vain
the patience doubles, until a suspect was alone: so it comes to its turn beside handlers of any length, and at most a
third of the time goes by in waiting. Another worker may have room long before this one: so however long the patience,
nobody keeps a suspect from the others for more than a few seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from holdfast.database.tx import Store
from holdfast.outcomes import Kind, Outcome
from holdfast.store.jobs import claiming
from holdfast.store.jobs.claiming import Claimed, Token
from holdfast.store.jobs.settling import Settlement
from holdfast.worker.attempts.aborts import AbortReason
from holdfast.worker.attempts.active import Running
from holdfast.worker.claiming.executor import Handlers
from holdfast.worker.claiming.unsettled import Ended
from holdfast.worker.shutdown import Shutdown

PUT_OFF_MS = 1_000
ALONE_SECONDS = 5.0
LONGEST_SECONDS = 3_600.0
OTHERS_WAIT_SECONDS = 15.0
SUSPECT_WAITS = "other jobs run here; it is to run alone"

logger = logging.getLogger(__name__)


class Intake:
    """Begins what was claimed, as tasks of *group*; *wake* is called when there may be something to write or claim."""

    def __init__(
        self,
        store: Store,
        handlers: Handlers,
        group: asyncio.TaskGroup,
        wake: Callable[[], None],
        monotonic: Callable[[], float],
        *,
        running: Running,
        ended: Ended,
        ending: Shutdown,
    ) -> None:
        self._store = store
        self._handlers = handlers
        self._group = group
        self._wake = wake
        self._monotonic = monotonic
        self._running = running
        self._ended = ended
        self._ending = ending
        self._suspect: Claimed | None = None
        self._alone: Token | None = None
        """The suspect that was started last."""
        self._timer: asyncio.TimerHandle | None = None
        self._patience = ALONE_SECONDS
        self._suspects_from = monotonic()
        self._is_trying = False
        self._is_careful = False

    def room(self, free: int) -> int:
        """Say how many of *free* slots may be claimed for, as far as suspects are concerned."""
        if self._suspect is not None or self._runs_suspect:
            return 0
        return min(free, 1) if self._is_careful else free

    @property
    def is_empty(self) -> bool:
        """Tell whether nothing waits here for its beginning."""
        return self._suspect is None

    def begin(self, claimed: Sequence[Claimed]) -> None:
        """Start attempts; of suspects one waits until it is alone, and the others are given back for who has room."""
        suspects = [each for each in claimed if self._must_be_alone(each)]
        self._is_careful = bool(suspects) or (self._is_careful and not claimed)
        running = self._running.by_seq() if claimed else {}
        runs_suspect = self._runs_suspect
        for each in claimed:
            if (earlier := running.get(each.token.seq)) is not None:
                earlier.abort(AbortReason.TAKEN)
                self._put_off(each, "an earlier attempt still runs")
            elif self._ending.is_draining or runs_suspect or (each in suspects and self._suspect is not None):
                self._give_back(each)
            elif each in suspects:
                self._keep(each)
            else:
                self._start(each)
        self._start_suspect()

    def _must_be_alone(self, job: Claimed) -> bool:
        """Tell whether *job* may take this process down; one in a child process takes down only that."""
        return job.is_suspect and not self._handlers.runs_in_child(job)

    def drain(self) -> None:
        """Give back what has not begun."""
        if self._suspect is not None:
            self._give_back(self._drop(self._suspect))

    @property
    def _runs_suspect(self) -> bool:
        """Tell whether a suspect runs, or is about to: what the other loop has claimed meanwhile must not join it."""
        return self._is_trying or (self._alone is not None and self._alone in self._running)

    def _start(self, job: Claimed) -> None:
        """Begin an attempt; a job with which that cannot be done is for others, and keeps none claimed with it."""
        try:
            self._handlers.start(job, self._group, self._after_attempt)
        except Exception:
            logger.exception("job_not_begun", extra={"job": job.id, "task": job.task})
            self._put_off(job, "it could not be begun")

    def _after_attempt(self) -> None:
        self._start_suspect()
        self._wake()

    def _keep(self, job: Claimed) -> None:
        """Have a suspect wait until it is alone, if it is time for one; give it back when the patience is over."""
        seconds = self._suspects_from - self._monotonic()
        if self._running and seconds > 0:
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
        self._give_back_later(self._drop(job), seconds)
        self._wake()

    def _drop(self, job: Claimed) -> Claimed:
        """Keep the suspect no longer, whatever becomes of it."""
        self._suspect = None
        if self._timer is not None:
            self._timer.cancel()
        return job

    def _start_suspect(self) -> None:
        """Start the suspect if it is alone: what takes its process down shall take no other job with it."""
        if self._suspect is not None and not self._running and not self._is_trying:
            self._is_trying = True
            self._group.create_task(self._try_suspect(self._suspect))

    async def _try_suspect(self, job: Claimed) -> None:
        try:
            is_ours = await self._store.run(claiming.begin, job.token)
        except Exception:  # noqa: BLE001 - whatever it is, it is given back, and the worker lives on
            is_ours = False
        self._is_trying = False
        if self._suspect is not job:  # we drain, and it was given back
            return
        self._drop(job)
        if is_ours:
            self._patience = ALONE_SECONDS
            self._alone = job.token
            self._start(job)
        else:
            self._give_back(job)
        self._wake()

    def _put_off(self, job: Claimed, reason: str) -> None:
        """Give a job back for a moment."""
        self._ended.add(Settlement(job.token, Outcome(Kind.GIVE_BACK, reason=reason, delay_ms=PUT_OFF_MS)))

    def _give_back_later(self, job: Claimed, seconds: float) -> None:
        delay_ms = round(min(seconds, OTHERS_WAIT_SECONDS) * 1000)
        outcome = Outcome(Kind.GIVE_BACK, reason=SUSPECT_WAITS, delay_ms=delay_ms)
        self._ended.add(Settlement(job.token, outcome))

    def _give_back(self, job: Claimed) -> None:
        reason = AbortReason.SHUTDOWN if self._ending.is_draining else "another suspect runs"
        self._ended.add(Settlement(job.token, Outcome(Kind.GIVE_BACK, reason=reason)))
