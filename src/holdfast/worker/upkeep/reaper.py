"""What every worker does beside its jobs: take over what was lost, admit for queues that nobody serves. No leader.

*Hold-off.* An outage leaves every lease expired, and whoever comes back first would take the jobs of workers that are
alive. So after our own calls have failed, and when the database's clock is not where we expect it, no lease is judged
that is longer than the time since. A connection that was replaced by another within a call is no outage.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from holdfast.database.sqlite import planner_statistics
from holdfast.database.tx import Store
from holdfast.errors import pip_install
from holdfast.logging import level_beside, reason_of, say
from holdfast.models import DELIVER, INTERNAL_QUEUE
from holdfast.runtime import Runtime
from holdfast.store import admission, outbox, polls
from holdfast.store.jobs import reaping
from holdfast.store.jobs.claiming import Token, Want
from holdfast.store.jobs.reaping import Reaped, TakenBack
from holdfast.store.workers import Machine
from holdfast.worker.attempts.failures import log_losses
from holdfast.worker.tally import Tally
from holdfast.worker.upkeep.liveness_lock import LivenessLocks
from holdfast.worker.upkeep.unserved import UnservedJobs

PERIOD_SECONDS = 4.0
MARGIN_SECONDS = 5.0
DEATH_LOOK_SECONDS = 1.0
UNDELIVERED_SECONDS = 10.0
JUMP_SECONDS = 60.0  # by which the database's clock goes wrong before it is worth a word
UNSERVED_ROUNDS = 2
NEIGHBOUR_ROUNDS, STATISTICS_ROUNDS = 8, 15
SOON_ROUND = 2  # in which it looks once more for jobs that nobody runs: who has started a worker reads its log
NO_OUTAGE = 2**53
EXTRA_ADVICE = (
    f"{pip_install('.[webhooks]')}; or, if another worker delivers them, start this one with webhooks=False "
    "(--no-webhooks)"
)

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Spared:
    """A job that was expired, and locked by somebody when it was *seen* last."""

    lease_seconds: float
    seen: float

    @property
    def until(self) -> float:
        # the lock may have gone right after we looked, and the next look comes only a round later
        return self.seen + max(self.lease_seconds, 2 * PERIOD_SECONDS)


class LostLeases:
    """Leases that *worker* has lost and lives: others took its jobs for crashed, and that is put right.

    It stood still, or could not reach the database, for longer than a lease, and its jobs were taken over. Whoever does
    that cannot know better than that the worker is dead, and counts a crash for each. The worker itself knows better.
    Touched in its loop only.
    """

    def __init__(self, store: Store, worker: str) -> None:
        self._store = store
        self._worker = worker
        self._tokens: set[Token] = set()

    def note(self, tokens: Iterable[Token]) -> None:
        self._tokens.update(tokens)

    async def absolve(self) -> None:
        """Take back the crashes that were counted for them; what somebody has locked stays as it is."""
        if not self._tokens:
            return
        tokens = sorted(self._tokens)
        absolved = await self._store.run(reaping.absolve, tokens, self._worker)
        self._tokens.difference_update(tokens)
        if absolved:
            say(logger, "leases_were_lost", jobs=absolved)


class Upkeep:
    """The reaper and its hold-off; *wake* is called when jobs were taken back, *on_clock_jump* as its name says.

    *lacks_extra*: webhooks were to be posted here as well, and cannot, because the extra is not installed.
    """

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        wants: Sequence[Want],
        liveness_locks: LivenessLocks | None = None,
        wake: Callable[[], None] = lambda: None,
        lacks_extra: bool = False,
        lost_leases: LostLeases | None = None,
        unserved: UnservedJobs | None = None,
        tally: Tally | None = None,
        on_clock_jump: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._served = {each.queue for each in wants}
        self._liveness_locks = liveness_locks
        self._wake = wake
        self._looks_for_undelivered = lacks_extra
        self._lost_leases = lost_leases
        self._unserved = unserved
        self._tally = tally
        self._on_clock_jump = on_clock_jump
        self._last_success: tuple[float, int] | None = None
        self._failing_since: float | None = None
        self._quiet_since: float | None = None
        self._machine = Machine.here()
        self._spared: dict[int, _Spared] = {}
        self._rounds = 0
        self._is_hinted = True

    def hint(self) -> None:
        """Note that something was written: there may be new neighbours."""
        self._is_hinted = True

    async def run(self) -> None:
        while True:
            began = self._runtime.monotonic()
            try:
                await self.step()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next round comes
                self._note_failure(began)
                say(logger, "upkeep_failed", level=level_beside(error), trace=error, reason=reason_of(error))
            await self._pause()

    def _note_failure(self, began: float) -> None:
        self._failing_since = began if self._failing_since is None else self._failing_since

    async def step(self) -> None:
        if self._lost_leases is not None:
            await self._lost_leases.absolve()
        await self._take_over_the_dead()
        await self._spare_the_locked()
        while (reaped := await self._reap()).more:
            pass
        if reaped.has_arrivals and self._rounds % UNSERVED_ROUNDS == 0:
            for queue in await self._store.read(admission.unserved, sorted(self._served)):
                await self._store.run(admission.admit, queue)
        if self._rounds % STATISTICS_ROUNDS == 0:
            if await self._store.read(planner_statistics.are_known):
                await self._store.run(planner_statistics.forget)
            await self._look_for_undelivered()
        if self._unserved is not None and (self._rounds == SOON_ROUND or self._rounds % STATISTICS_ROUNDS == 0):
            await self._unserved.look()
        self._store.tidy()
        self._rounds += 1

    async def _reap(self) -> Reaped:
        now = self._runtime.monotonic()
        last = self._last_success
        was_out = self._failing_since is not None and (last is None or now - last[0] > MARGIN_SECONDS)
        if was_out:
            self._quiet_since = now
        expected_ms = self._expected_ms(now)
        reaped = await self._store.read(reaping.peek, expected_ms)
        if reaped is None:
            self._spared = {seq: each for seq, each in self._spared.items() if now < each.until}
            quiet_ms, spared = self._quiet_ms(now), list(self._spared)
            reaped = await self._store.run(
                reaping.reap, quiet_ms, spared, expected_ms=expected_ms, machine=self._machine
            )
        if self._tally is not None:
            self._tally.note_clock(reaped.now_ms)
        self._log_clock_jump(now, reaped.now_ms)
        if reaped.is_late or was_out:  # the quiet begins with the first call that works, and it may have waited long
            self._quiet_since = self._runtime.monotonic()
        answered = self._runtime.monotonic()
        self._last_success, self._failing_since = (answered, reaped.now_ms), None
        self._spared |= {seq: _Spared(lease_ms / 1000, answered) for seq, lease_ms in reaped.locked.items()}
        self._note_taken_back(reaped.taken)
        return reaped

    async def _spare_the_locked(self) -> None:
        """Go on sparing what a stranger still has locked: its worker must have time to renew it once it is free."""
        now = self._runtime.monotonic()
        if self._spared:
            for seq in await self._store.run(reaping.still_locked, list(self._spared)):
                self._spared[seq].seen = now

    async def _take_over_the_dead(self) -> None:
        if self._liveness_locks is None:
            return
        if self._is_hinted or self._liveness_locks.sees_a_death() or self._rounds % NEIGHBOUR_ROUNDS == 0:
            self._is_hinted = False  # a worker that begins writes itself down, which is a hint
            self._note_taken_back(await self._liveness_locks.take_over_the_dead())

    async def _pause(self) -> None:
        """Sleep until the next round, or until a neighbour on this machine is seen to be dead."""
        until = self._runtime.monotonic() + PERIOD_SECONDS * (0.9 + 0.2 * self._runtime.chance.random())
        while (left := until - self._runtime.monotonic()) > 0:
            await self._runtime.sleep(left if self._liveness_locks is None else min(left, DEATH_LOOK_SECONDS))
            if self._liveness_locks is not None and self._liveness_locks.sees_a_death():
                return

    async def _look_for_undelivered(self) -> None:
        """Log once that webhooks have waited for a while, so that nobody else posts them."""
        if not self._looks_for_undelivered:
            return
        waited_ms = round(UNDELIVERED_SECONDS * 1000)
        are_made = not await self._store.read(outbox.is_left_waiting, waited_ms)
        if not are_made or await self._store.read(polls.is_left_waiting, INTERNAL_QUEUE, DELIVER, waited_ms):
            self._looks_for_undelivered = False
            say(logger, "webhooks_not_delivered", advice=EXTRA_ADVICE)

    def _note_taken_back(self, taken: Sequence[TakenBack]) -> None:
        if taken:
            say(logger, "jobs_taken_back", jobs=len(taken))
            log_losses(taken)
            if self._tally is not None:
                self._tally.taken_back(taken)
            self._wake()

    def _log_clock_jump(self, sent: float, database_ms: int) -> None:
        """Say that the database's clock was put forward or back, if it went on by much more or less than ours."""
        if self._last_success is None:
            return
        then, before_ms = self._last_success
        passed = (database_ms - before_ms) / 1000
        # it was read at some moment between our question and its answer, and we may have stood still for long there
        earliest, latest = sent - then, self._runtime.monotonic() - then
        jump = passed - min(max(passed, earliest), latest)
        if abs(jump) > JUMP_SECONDS:
            say(logger, "database_clock_jumped", seconds=round(jump))
            self._on_clock_jump()

    def _expected_ms(self, now: float) -> int | None:
        if self._last_success is None:
            return None
        then, database_ms = self._last_success
        # what has failed since is as good as one call that waited: a short lease has a margin shorter than ours
        sent = now if self._failing_since is None else self._failing_since
        return database_ms + round((sent - then) * 1000)

    def _quiet_ms(self, now: float) -> int:
        return NO_OUTAGE if self._quiet_since is None else round((now - self._quiet_since) * 1000)
