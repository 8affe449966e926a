"""Claims jobs for the free slots of a worker, and writes down what has ended, in one transaction.

Two loops overlap. Each takes whatever attempts have ended, writes them down and claims for the free slots in the same
transaction, so that handlers of one batch run while the other's commit is under way. A loop with nothing to settle
sleeps until it is woken by a hint, by the next arrival that becomes due, or by the poll, the net below both.

Handlers that end their jobs by blocks leave nothing to settle, and end one by one: to claim for each would be a
transaction for each. So while most slots are at work, the next claim waits as long as the last one took: meanwhile more
slots come free, and at most half of the time goes by in claims.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any

from holdfast.database.tx import Store, Tx
from holdfast.errors import Busy, HoldfastError, Unavailable, UnknownOutcome
from holdfast.fault_points import reach
from holdfast.outcomes import Kind
from holdfast.runtime import Runtime
from holdfast.store import polls
from holdfast.store.jobs import claiming, settling
from holdfast.store.jobs.claiming import LOWEST, Claimed, Claims, Place, ProgressReport, Want
from holdfast.store.jobs.settling import Settled, Settlement
from holdfast.tasks.registry import Tasks
from holdfast.worker.attempts.active import Running, Slot
from holdfast.worker.attempts.progress import Progress
from holdfast.worker.claiming.dispatcher import Intake
from holdfast.worker.claiming.scan_position import Floor
from holdfast.worker.claiming.slot_group import Beside
from holdfast.worker.claiming.unknown_claims import Doubts
from holdfast.worker.claiming.unsettled import Ended, Settler
from holdfast.worker.claiming.wakeups import Hearing
from holdfast.worker.leases import LeaseKeeper
from holdfast.worker.options import WorkerOptions
from holdfast.worker.shutdown import Shutdown

LOOPS = 2
SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
BUSY_SECONDS = 0.025  # until a settlement is tried again whose row somebody has locked
MOST_AT_WORK = 0.75  # of the slots; if fewer are, nothing is waited for
LONGEST_REST = 0.01
AGAIN_SECONDS = 1.0  # until a claim in doubt is looked for again, and whether the last moment is over

logger = logging.getLogger(__name__)


async def exchange(
    tx: Tx,
    settlements: Sequence[Settlement],
    wants: Sequence[Want],
    most: int,
    worker: str,
    nonce: str,
    floor: Place = LOWEST,
    reports: Sequence[ProgressReport] = (),
    *,
    is_crowded: bool = False,
) -> tuple[Settled, Claims]:
    """Write the last reports, settle, then claim, in one transaction."""
    passed_over = await claiming.report(tx, reports)
    settled = await settling.settle(tx, [each for each in settlements if each.token not in passed_over])
    settled.busy.extend(each for each in settlements if each.token in passed_over)  # or the report would be lost
    claims = Claims([], more=False)
    if most:
        claims = await claiming.admit_and_claim(tx, wants, most, worker, nonce, floor, is_crowded=is_crowded)
    return settled, claims


class Claimer:
    """The loops of the worker *worker*, by its id, which serves *wants*."""

    def __init__(
        self,
        store: Store,
        tasks: Tasks,
        runtime: Runtime,
        options: WorkerOptions,
        worker: str,
        wants: Sequence[Want],
        *,
        intake: Intake,
        running: Running,
        ended: Ended,
        ending: Shutdown,
        leases: LeaseKeeper,
        progress: Progress,
        hearing: Hearing,
        beside: Sequence[Beside],
        woken: asyncio.Event,
    ) -> None:
        self._store = store
        self._tasks = tasks
        self._runtime = runtime
        self._options = options
        self._worker = worker
        self._wants = wants
        self._intake = intake
        self._running = running
        self._ended = ended
        self._ending = ending
        self._leases = leases
        self._progress = progress
        self._hearing = hearing
        self._beside = beside
        self._woken = woken
        self._settler = Settler(store, ended, leases, progress, worker)
        self._doubts = Doubts(store, worker, runtime.monotonic)
        self._floor = Floor(runtime.monotonic)
        self._reserved = 0
        self._listening = 0
        self._is_hungry = True
        self._is_crowded = False
        self._rests_until = 0.0
        self.trouble_since: float | None = None
        self.trouble: str | None = None
        self._answered_at = 0.0
        self.claimed: float | None = None

    @property
    def is_quiet(self) -> bool:
        """Tell whether no claim is under way and none is wanted before a hint, or the next look."""
        return not (self._is_hungry or self._reserved or self._is_claiming_beside)

    @property
    def _is_claiming_beside(self) -> bool:
        return any(each.reserved for each in self._beside)

    def note_hint(self) -> bool:
        """Take note of a hint, in any thread; tell whether a loop waits for it, and is to be woken.

        Without a free slot, and before a claim that comes anyway, nobody does.
        """
        self._hearing.note_hint()
        return self._listening > 0

    def wake(self) -> None:
        """Look for work soon; a hint, which may be lost, doubled or wrong."""
        self._is_hungry = True
        self._woken.set()

    def drain(self) -> None:
        """Give back what has not begun, and end when all is written down."""
        self._intake.drain()
        self._woken.set()
        reach("shutdown.after_stop_claim")

    async def run(self) -> None:
        """Go round, as one of the loops, until the worker has drained."""
        failures = 0
        while not self._is_done():
            began = self._runtime.monotonic()
            try:
                await self._doubts.resolve(self._begin)  # first: what is taken below must not be lost if this fails
                for each in self._beside:
                    await self._claim_beside(each)
                batch = self._ended.take(self._leases)
                most = self._free_slots()
                if batch or (most and self._is_hungry and self._resting_seconds(most) <= 0):
                    await self._exchange(batch, most)
                elif most and (self.is_quiet or self._hearing.is_disturbed) and self._hearing.is_due:
                    await self._claim_for_hint(most)
                    await self._look()
                    self.claimed = self._runtime.monotonic()
                else:
                    if not any(self._free_beside(each) for each in self._beside if each.shares_queues):
                        await self._sleep(most)  # else something came while we looked
                    continue
                failures = 0
                self._after_success()
            except Exception as error:  # noqa: BLE001 - whatever it is, the worker lives on
                failures += 1
                await self._after_trouble(error, failures, began)
        self._woken.set()

    def _is_done(self) -> bool:
        if not self._ending.is_draining or self._running or not self._intake.is_empty:
            return False
        if self._reserved or self._is_claiming_beside:
            return False
        return not (self._ended or self._doubts) or self._ending.is_over

    def _free_slots(self) -> int:
        if self._ending.is_draining:
            return 0
        at_work = self._running.taken(Slot.HANDLER)
        return self._intake.room(max(0, self._options.concurrency - at_work - self._reserved))

    def _resting_seconds(self, most: int) -> float:
        """Say how long to wait until more slots than *most* are free to be claimed for."""
        if most > self._options.concurrency * (1 - MOST_AT_WORK):
            return 0.0
        return self._rests_until - self._runtime.monotonic()

    async def _exchange(self, batch: list[Settlement], most: int) -> None:
        """Settle *batch* and claim up to *most*; whatever happens, nothing that ended is forgotten."""
        nonce, sent = self._nonce(), self._runtime.monotonic()
        self._reserved += most
        if most:
            self._is_hungry = False
        floor = self._floor.place()
        try:
            settled, claims = await asyncio.shield(self._ask(batch, most, nonce, floor))
        except UnknownOutcome:
            self._ended.add(*batch)  # what was written down already comes back as lost, which is harmless
            self._doubts.add(nonce, sent)
            raise
        except (Unavailable, Busy):
            self._ended.add(*batch)
            raise
        except Exception:
            await self._settler.settle_alone(batch)
            raise
        except BaseException:
            self._ended.add(*batch)
            raise
        finally:
            self._reserved -= most
        self.claimed = self._runtime.monotonic()
        for each in self._beside:
            each.has_settled()
        self._settler.note(batch, settled)
        if most:
            self._floor.note(floor, sent, claims.jobs, most)
            self._is_hungry |= claims.more
            self._is_crowded = claims.is_crowded
            self._rests_until = self.claimed + min(LONGEST_REST, self.claimed - sent)
            self._hearing.plan(self._sooner(claims.next_ms))
        else:
            self._is_hungry = True  # nobody has looked for what these ends let run
        self._begin(claims.jobs, sent)
        if self._ending.is_draining and any(each.outcome.kind is Kind.GIVE_BACK for each in batch):
            reach("shutdown.after_giveback")
        if settled.busy and not settled.done and not claims.jobs:
            await self._runtime.sleep(BUSY_SECONDS)

    def _ask(
        self, batch: list[Settlement], most: int, nonce: str, floor: Place
    ) -> Coroutine[Any, Any, tuple[Settled, Claims]]:
        if not batch and floor != LOWEST and not self._is_crowded:
            return self._claim_alone(most, nonce, floor)
        reports = self._progress.rest(each.token for each in batch)
        about = self._wants, most, self._worker, nonce, floor
        return self._store.run(exchange, batch, *about, reports, is_crowded=self._is_crowded)

    async def _claim_alone(self, most: int, nonce: str, floor: Place) -> tuple[Settled, Claims]:
        """Claim, with nothing to write down and nobody to admit: on PostgreSQL one round trip instead of four."""
        claimed = await self._store.run(claiming.claim, self._wants, most, self._worker, nonce, floor)
        return Settled([], {}, []), Claims(claimed, more=True)

    async def _claim_for_hint(self, most: int) -> None:
        """Claim what is ready, by one statement, if a hint has come; the look that follows tells what else there is.

        Where statements are round trips, a look before it would be one more. On SQLite it costs less than the right to
        write, which a hint for somebody else is not worth.
        """
        if not self._hearing.take_hint() or self._store.database == "sqlite":
            return
        nonce, sent = self._nonce(), self._runtime.monotonic()
        self._reserved += most
        try:
            claimed = await asyncio.shield(self._store.run(claiming.claim, self._wants, most, self._worker, nonce))
        except UnknownOutcome:
            self._doubts.add(nonce, sent)
            raise
        finally:
            self._reserved -= most
        self._begin(claimed, sent)

    async def _claim_beside(self, slots: Beside) -> None:
        """Claim for *slots*, if it is time to look for something and some are free."""
        if not (most := self._free_beside(slots)):
            return
        wants, is_wanted = slots.wants, slots.is_wanted
        nonce, sent = self._nonce(), self._runtime.monotonic()
        slots.begin(most)
        try:
            if not is_wanted and not (found := await self._store.read(polls.waiting_work, wants)).is_there:
                slots.note_look(found)
                self._plan_beside(slots)
                return
            claims = await asyncio.shield(self._store.run(claiming.admit_and_claim, wants, most, self._worker, nonce))
        except UnknownOutcome:
            self._doubts.add(nonce, sent)
            raise
        finally:
            slots.end(most)
        slots.note(claims)
        self._plan_beside(slots)
        self._is_hungry |= slots.shares_queues and claims.admitted > len(claims.jobs)
        self._begin(claims.jobs, sent)

    def _free_beside(self, slots: Beside) -> int:
        if self._ending.is_draining or not self._intake.room(1):
            return 0
        running = self._running.taken(slots.slot)
        if not (self.is_quiet and self._free_slots()):
            return slots.room(running)
        return slots.free(running) if slots.is_wanted or slots.is_unseen else 0  # who is idle, and listens, looks first

    def _plan_beside(self, slots: Beside) -> None:
        """Look again when the next of *slots* is due; of a queue that nobody else serves the next claim tells."""
        if slots.shares_queues:
            self._hearing.plan_sooner(self._sooner(None))

    def _sooner(self, next_ms: int | None) -> int | None:
        """Give what comes first: *next_ms*, in which something else is due, or what is due beside it."""
        for each in self._beside:
            next_ms = each.sooner(next_ms)
        return next_ms

    async def _look(self) -> None:
        """Read whether there is something to do for the slots that are free, of whatever kind."""
        free = [each for each in self._beside if each.free(self._running.taken(each.slot))]
        for each in self._beside:
            if each not in free:
                each.leave_out()
        if await self._hearing.look([*self._wants, *(want for each in free for want in each.wants)]):
            self._is_hungry = True
            for each in free:
                each.look_soon()

    def _nonce(self) -> str:
        return f"{self._runtime.chance.getrandbits(64):016x}"

    def _begin(self, claimed: Sequence[Claimed], sent: float) -> None:
        """Keep the leases of what a call has claimed that was sent at *sent*, and begin it."""
        seconds = {each.token: self._tasks.get(each.task).policy.lease for each in claimed}
        self._leases.add(seconds, sent)
        self._intake.begin(claimed)

    async def _sleep(self, most: int) -> None:
        """Wait until an attempt has ended, a hint has come, or it is time to look; without a free slot it never is."""
        is_listening = bool(most) and self.is_quiet  # else the other loop claims, and looks when it has
        seconds = self._options.poll
        if is_listening:
            seconds = self._hearing.seconds()
        elif most and self._is_hungry:
            seconds = self._resting_seconds(most)
        if self._doubts or self._ending.is_draining:
            seconds = min(seconds, self._options.poll, AGAIN_SECONDS)
        self._woken.clear()
        self._listening += is_listening
        try:
            if is_listening and self._hearing.is_due:  # by a hint that came just before we listened
                return
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            self._is_hungry |= bool(self._doubts)
        finally:
            self._listening -= is_listening

    def _after_success(self) -> None:
        if self.trouble_since is not None:
            seconds = self._runtime.monotonic() - self.trouble_since
            logger.warning("worker_store_answers", extra={"seconds": round(seconds, 1)})
            self.trouble_since, self.trouble = None, None
            self._answered_at = self._runtime.monotonic()

    async def _after_trouble(self, error: Exception, failures: int, began: float) -> None:
        self._is_hungry = True
        # the other loop may have had its answer while this call, which is as old as that trouble, still waited
        if self.trouble_since is None and began >= self._answered_at:
            self.trouble_since = self._runtime.monotonic()
            unexpected = None if isinstance(error, HoldfastError) else error
            logger.warning("worker_store_trouble", extra={"reason": str(error)}, exc_info=unexpected)
        if self.trouble_since is not None:
            self.trouble = str(error)
        if self._ending.is_draining and self._options.grace is None and self._ending.last_moment is None:
            self._ending.begin_last_moment()
        longest = min(LONGEST_PAUSE, SHORTEST_PAUSE * 2 ** min(failures, 10))
        await self._runtime.sleep(longest * (0.5 + self._runtime.chance.random() / 2))
