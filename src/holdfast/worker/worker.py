"""The worker: claims jobs for its free slots, runs them, settles them, keeps their leases, takes over what was lost.

Two loops overlap. Each takes whatever attempts have ended, writes them down and claims for the free slots in the same
transaction, so that handlers of one batch run while the other's commit is under way. A loop with nothing to settle
sleeps until it is woken by a hint, by the next arrival that becomes due, or by the poll, the net below both.

*Suspects.* A job that was running when its process died, twice, may be what killed it. It runs alone: one waits until
nothing else runs here, and no second one is kept. Its handler begins only when that is written down, so that a job
which merely waited is not blamed for the next crash.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypedDict

from holdfast.calls import check_queue
from holdfast.crashpoints import reach
from holdfast.errors import Busy, HoldfastError, InvalidSettings, Misuse, Unavailable, UnknownOutcome
from holdfast.outcomes import MOST_CRASHES, Facts, Kind, Outcome, describe
from holdfast.store import jobs, settling
from holdfast.store.jobs import Claimed, Claims, Hold, Report, Token, Want
from holdfast.store.settling import Settled, Settlement, pass_points
from holdfast.store.tx import Store, Tx
from holdfast.store.workers import Member
from holdfast.surroundings import Surroundings
from holdfast.tasks import Tasks
from holdfast.worker.attempt import Attempt, Middleware
from holdfast.worker.context import AbortReason
from holdfast.worker.hearing import Hearing
from holdfast.worker.leases import Leases
from holdfast.worker.loop_watch import LoopWatch
from holdfast.worker.progress import Progress
from holdfast.worker.proof import Proof
from holdfast.worker.upkeep import Upkeep

LOOPS = 2
SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
DOUBT_SECONDS = 10.0
STUBBORN_SECONDS = 10.0
LAST_SECONDS = 4.0
PUT_OFF_MS = 1_000
BUSY_SECONDS = 0.025  # until a settlement is tried again whose row somebody has locked

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How a worker works; times in seconds."""

    queues: Sequence[str] | None = None
    concurrency: int = 100
    name: str | None = None
    grace: float | None = 20.0
    poll: float = 2.0
    middleware: Sequence[Middleware] = ()

    def __post_init__(self) -> None:
        if isinstance(self.queues, str):
            raise InvalidSettings(f"queues is a list of names; write queues=[{self.queues!r}]")
        for each in self.queues or ():
            check_queue(each)
        if self.concurrency < 1 or not self.poll > 0 or not (self.grace is None or self.grace >= 0):
            raise InvalidSettings(
                "a worker takes a concurrency of at least 1, poll > 0 and grace >= 0, or None to wait"
            )


class WorkerKeywords(TypedDict, total=False):
    """The keywords of `hf.worker()`: the fields of `WorkerOptions`."""

    queues: Sequence[str] | None
    concurrency: int
    name: str | None
    grace: float | None
    poll: float
    middleware: Sequence[Middleware]


async def exchange(
    tx: Tx,
    settlements: Sequence[Settlement],
    wants: Sequence[Want],
    most: int,
    worker: str,
    nonce: str,
    reports: Sequence[Report] = (),
) -> tuple[Settled, Claims]:
    """Write the last reports, settle, then claim, in one transaction."""
    await jobs.progress(tx, reports)
    settled = await settling.settle(tx, settlements)
    if most == 0:
        return settled, Claims([], more=False)
    return settled, await jobs.admit_and_claim(tx, wants, most, worker, nonce)


@dataclass(slots=True)
class Doubt:
    """A claim call whose answer was lost: when it was sent, and what of it was found and begun."""

    sent: float
    begun: set[Token] = field(default_factory=set)


class Worker:
    """Runs the jobs of the tasks it knows, in one process; made by `hf.worker()`."""

    def __init__(
        self,
        store: Store,
        lease_store: Store,
        tasks: Tasks,
        surroundings: Surroundings,
        options: WorkerOptions,
        make_proof: Callable[[str], Proof | None] = lambda _: None,
    ) -> None:
        self._store = store
        self._lease_store = lease_store
        self._tasks = tasks
        self._surroundings = surroundings
        self._options = options
        self.id = _worker_id(options.name, surroundings)
        self._wants = _wants(tasks, options.queues)
        self._attempts: dict[Token, Attempt] = {}
        self._ended: list[Settlement] = []
        self._reserved = 0
        self._is_hungry = True
        self._is_draining = False
        self._woken = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        self._main: asyncio.Task[None] | None = None
        self._suspect: Claimed | None = None
        self._is_trying = False
        self._is_careful = False
        self._doubts: dict[str, Doubt] = {}
        self._trouble_since: float | None = None
        self._last_moment: float | None = None
        self._all_written = asyncio.Event()
        self._proof = make_proof(self.id)

    async def run(self) -> None:
        """Work until `stop` is called, or this is cancelled; give back what is not done in the grace time."""
        async with self:
            await asyncio.shield(self.ended)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop_watch = LoopWatch(self._surroundings)
        self._progress = Progress(self._store, self._surroundings)
        self._leases = Leases(self._lease_store, self._surroundings, self)
        self._hearing = Hearing(
            self._store, self._surroundings, self._member(), self._wants, self._options.poll, self._hear
        )
        self._threads = ThreadPoolExecutor(self._options.concurrency, thread_name_prefix="holdfast-handler")
        try:
            await self._begin_proof()
            upkeep = Upkeep(self._store, self._surroundings, self._wants, self._proof, self.wake)
            async with asyncio.TaskGroup() as group:
                self._group = group
                beside = [group.create_task(each) for each in (upkeep.run(), self._progress.run(), self._hearing.run())]
                loops = [group.create_task(self._cycle()) for _ in range(LOOPS)]
                await asyncio.wait(loops)
                if self._ended:  # their leases will end
                    logger.error("jobs_not_settled", extra={"jobs": len(self._ended)})
                self._all_written.set()
                for each in beside:
                    each.cancel()
        finally:
            await self._end()

    async def _begin_proof(self) -> None:
        if self._proof is None:
            return
        try:
            await self._proof.begin()
        except (HoldfastError, OSError) as error:  # without it the leases decide, as on PostgreSQL
            logger.warning("no_proof_of_life", extra={"reason": str(error)})
            self._proof.drop()
            self._proof = None

    def _member(self) -> Member:
        served = sorted({each.queue for each in self._wants})
        return Member.here(self.id, self._options.name, queues=served, concurrency=self._options.concurrency)

    async def _end(self) -> None:
        await self._hearing.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._surroundings.threads.call(self._leases.stop)
        if self._lease_store is not self._store:
            await self._surroundings.threads.call(self._lease_store.close_sync)
        await self._end_proof()

    async def _end_proof(self) -> None:
        if self._proof is None or self._attempts:  # a handler that still runs is alive, and so are we
            return
        try:
            await self._proof.end()
        except HoldfastError:
            self._proof.drop()

    def wake(self) -> None:
        """Look for work soon; a hint, which may be lost, doubled or wrong."""
        self._is_hungry = True
        self._woken.set()

    def _hear(self) -> None:
        """Take a hint; called in any thread."""
        self._leases.hint()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._note_hint)

    def _note_hint(self) -> None:
        self._hearing.note_hint()
        self._woken.set()

    async def stop(self) -> None:
        """Claim nothing more, give handlers the grace time, then interrupt them; return when all is written down."""
        self.drain()
        if self._main is None:
            return
        if not await self.has_ended(self._options.grace):
            self.interrupt()
        await self._main

    def drain(self) -> None:
        """Claim nothing more and give back what has not begun; what runs goes on."""
        if self._is_draining:
            return
        self._is_draining = True
        if self._suspect is not None:
            suspect, self._suspect = self._suspect, None
            self._give_back(suspect)
        reach("shutdown.after_stop_claim")
        self._woken.set()

    def interrupt(self) -> None:
        """Tell every handler to stop; what they come to is written down, unless the store cannot for some seconds."""
        self._last_moment = self._surroundings.monotonic() + LAST_SECONDS
        for attempt in list(self._attempts.values()):
            attempt.abort(AbortReason.SHUTDOWN)
        self._woken.set()

    async def has_ended(self, seconds: float | None) -> bool:
        """Wait for its end, *seconds* at most; tell whether it came."""
        assert self._main is not None  # noqa: S101 - a worker that was not started is not waited for
        done, _ = await asyncio.wait([self._main], timeout=seconds)
        return bool(done)

    async def abandon(self, seconds: float) -> bool:
        """Give back also what cannot be stopped, for the process is about to end; tell whether all was written."""
        for token, attempt in list(self._attempts.items()):
            outcome = attempt.aborted(attempt.context.abort_reason or AbortReason.SHUTDOWN)
            logger.warning("handler_left_behind", extra={"job": attempt.job.id, "task": attempt.job.task})
            self._ended_with(attempt, outcome)
            del self._attempts[token]
        self._woken.set()
        try:
            async with asyncio.timeout(seconds):
                await self._all_written.wait()
        except TimeoutError:
            return False
        await self._end_proof()
        return not self._ended

    @property
    def ended(self) -> asyncio.Future[None]:
        """Its whole work as a future; what broke it, if anything, is its exception."""
        assert self._main is not None  # noqa: S101 - a worker that was not started has no end
        return self._main

    @property
    def has_unwritten(self) -> bool:
        """Tell whether something ended here that could not be written down."""
        return bool(self._ended)

    @property
    def stubborn(self) -> list[str]:
        """The jobs whose handlers were told to stop long ago and have not."""
        return [each.job.id for each in self._attempts.values() if each.is_stubborn]

    def holds(self, holds: dict[Token, Hold]) -> None:
        """Take in how the claims stand; called in the leases' thread."""
        urgent = {token: ABORTS[hold] for token, hold in holds.items() if hold in ABORTS}
        if urgent:
            self._loop.call_soon_threadsafe(self._abort_all, urgent)
        if self._ended:
            self._loop.call_soon_threadsafe(self._woken.set)

    def fenced(self, tokens: list[Token]) -> None:
        """Stop handlers whose leases may be over soon; called in the leases' thread."""
        self._loop.call_soon_threadsafe(self._abort_all, dict.fromkeys(tokens, AbortReason.ERROR))

    def looked(self) -> None:
        """See whether the event loop answers; called in the leases' thread."""
        self._loop_watch.look()

    def _abort_all(self, reasons: dict[Token, AbortReason]) -> None:
        for token, reason in reasons.items():
            if (attempt := self._attempts.get(token)) is not None and attempt.context.abort_reason is None:
                attempt.abort(reason)
                self._loop.call_later(STUBBORN_SECONDS, self._tell_stubborn, token)

    def _tell_stubborn(self, token: Token) -> None:
        if (attempt := self._attempts.get(token)) is not None:
            attempt.is_stubborn = True
            facts = {"job": attempt.job.id, "task": attempt.job.task, "reason": attempt.context.abort_reason}
            logger.warning("handler_does_not_stop", extra=facts)

    async def _cycle(self) -> None:
        failures = 0
        while not self._is_done():
            try:
                await self._resolve_doubts()  # first: whatever is taken below must not be forgotten if this fails
                batch = self._take_ended()
                most = self._free_slots()
                if batch or (most and self._is_hungry):
                    await self._exchange(batch, most)
                elif most and self._hearing.is_due:
                    self._is_hungry |= await self._hearing.look()
                else:
                    await self._sleep(most)
                    continue
                failures = 0
                self._after_success()
            except Exception as error:  # noqa: BLE001 - whatever it is, the worker lives on
                failures += 1
                await self._after_trouble(error, failures)
        self._woken.set()

    def _is_done(self) -> bool:
        if not self._is_draining or self._attempts or self._reserved or self._suspect is not None:
            return False
        is_last_moment = self._last_moment is not None and self._surroundings.monotonic() > self._last_moment
        return not self._ended or is_last_moment

    def _take_ended(self) -> list[Settlement]:
        """Take what may be written now; a completion whose lease may be over waits for a renewal that succeeds."""
        ended, self._ended = self._ended, []
        batch: list[Settlement] = []
        for each in ended:  # asked once: the leases' thread may change the answer at any moment
            (batch if self._may_settle(each) else self._ended).append(each)
        return batch

    def _may_settle(self, settlement: Settlement) -> bool:
        return settlement.outcome.kind is not Kind.COMPLETE or self._leases.may_complete(settlement.token)

    def _free_slots(self) -> int:
        if self._is_draining or self._suspect is not None or self._runs_suspect:
            return 0
        free = max(0, self._options.concurrency - len(self._attempts) - self._reserved)
        return min(free, 1) if self._is_careful else free

    async def _exchange(self, batch: list[Settlement], most: int) -> None:
        """Settle *batch* and claim up to *most*; whatever happens, nothing that ended is forgotten."""
        nonce = f"{self._surroundings.chance.getrandbits(64):016x}"
        sent = self._surroundings.monotonic()
        self._reserved += most
        if most:
            self._is_hungry = False
        reports = self._progress.rest(each.token for each in batch)
        try:
            settled, claims = await asyncio.shield(
                self._store.run(exchange, batch, self._wants, most, self.id, nonce, reports)
            )
        except UnknownOutcome:
            self._ended += batch  # what was written down already comes back as lost, which is harmless
            self._doubts[nonce] = Doubt(sent)
            raise
        except (Unavailable, Busy):
            self._ended += batch
            raise
        except Exception:
            await self._settle_alone(batch)
            raise
        except BaseException:
            self._ended += batch
            raise
        finally:
            self._reserved -= most
        self._after_commit(batch, claims)
        self._written(settled)
        if most:
            self._is_hungry |= claims.more
            self._hearing.plan(claims.next_ms)
        else:
            self._is_hungry = True  # nobody has looked for what these ends let run
        self._begin(claims.jobs, sent)
        if settled.busy and not settled.done and not claims.jobs:
            await self._surroundings.sleep(BUSY_SECONDS)

    def _written(self, settled: Settled) -> None:
        for token in (*settled.done, *settled.lost):
            self._leases.drop(token)
        self._ended += settled.busy

    async def _settle_alone(self, batch: Sequence[Settlement]) -> None:
        """Settle each of a batch that cannot be written by itself, so that only the guilty one fails."""
        for each in batch:
            try:
                self._written(await self._store.run(settling.settle, [each]))
            except (Unavailable, Busy, UnknownOutcome):
                self._ended.append(each)
            except Exception as error:
                logger.exception("outcome_cannot_be_written")
                if each.outcome.reason == UNWRITABLE:
                    self._leases.drop(each.token)  # its lease will end
                    continue
                facts = Facts(each.token.attempt, 0, self.id)
                failed = Outcome(Kind.FAIL, error=describe(error, facts), reason=UNWRITABLE)
                self._ended.append(Settlement(each.token, failed, each.halts_lane))

    async def _resolve_doubts(self) -> None:
        """Begin what was claimed by calls whose answers were lost; such a COMMIT may still be under way for a while."""
        for nonce, doubt in list(self._doubts.items()):
            found = await self._store.read(jobs.claimed_by, self.id, nonce)
            new = [each for each in found if each.token not in doubt.begun]
            doubt.begun |= {each.token for each in new}  # a read may be older than what became of the attempt since
            self._begin(new, doubt.sent)
            if self._surroundings.monotonic() - doubt.sent > DOUBT_SECONDS:
                self._doubts.pop(nonce, None)

    def _after_commit(self, batch: Sequence[Settlement], claims: Claims) -> None:
        pass_points([each.outcome.kind for each in batch], "after_commit")
        if claims.jobs:
            reach("claim.after_commit")
        if self._is_draining and any(each.outcome.kind is Kind.GIVE_BACK for each in batch):
            reach("shutdown.after_giveback")

    def _begin(self, claimed: Sequence[Claimed], sent: float) -> None:
        """Start attempts; of suspects one waits until it is alone, and the others are given back for who has room."""
        seconds = {each.token: self._tasks.get(each.task).policy.lease for each in claimed}
        self._leases.add(seconds, sent)
        suspects = [each for each in claimed if is_suspect(each)]
        self._is_careful = bool(suspects) or (self._is_careful and not claimed)
        running = {each.job.token.seq: each for each in self._attempts.values()}
        runs_suspect = self._runs_suspect
        for each in claimed:
            if (earlier := running.get(each.token.seq)) is not None:
                earlier.abort(AbortReason.TAKEN)
                self._put_off(each)
            elif self._is_draining or runs_suspect or (is_suspect(each) and self._suspect is not None):
                self._give_back(each)
            elif is_suspect(each):
                self._suspect = each
            else:
                self._start(each)
        self._start_suspect()

    @property
    def _runs_suspect(self) -> bool:
        """Tell whether a suspect runs, or is about to: what the other loop has claimed meanwhile must not join it."""
        return self._is_trying or any(is_suspect(each.job) for each in self._attempts.values())

    def _start_suspect(self) -> None:
        """Start the suspect if it is alone: what takes its process down shall take no other job with it."""
        if self._suspect is not None and not self._attempts and not self._is_trying:
            assert self._group is not None  # noqa: S101 - run() has made it
            self._is_trying = True
            self._group.create_task(self._try_suspect(self._suspect))

    async def _try_suspect(self, job: Claimed) -> None:
        try:
            is_ours = await self._store.run(jobs.begin, job.token)
        except Exception:  # noqa: BLE001 - whatever it is, it is given back, and the worker lives on
            is_ours = False
        self._is_trying = False
        if self._suspect is not job:  # we drain, and it was given back
            return
        self._suspect = None
        if is_ours:
            self._start(job)
        else:
            self._give_back(job)
        self._woken.set()

    def _put_off(self, job: Claimed) -> None:
        """Give back a job of which an earlier attempt, which has lost its lease, still runs here."""
        outcome = Outcome(Kind.GIVE_BACK, reason="an earlier attempt still runs", delay_ms=PUT_OFF_MS)
        self._ended.append(Settlement(job.token, outcome))

    def _give_back(self, job: Claimed) -> None:
        reason = AbortReason.SHUTDOWN if self._is_draining else "another suspect runs"
        self._ended.append(Settlement(job.token, Outcome(Kind.GIVE_BACK, reason=reason)))

    def _start(self, job: Claimed) -> None:
        task = self._tasks.get(job.task)
        tell = self._progress.teller(job.token)
        attempt = Attempt(job, task, self.id, self._options.middleware, self._threads, self._surroundings.chance, tell)
        self._attempts[job.token] = attempt
        assert self._group is not None  # noqa: S101 - run() has made it
        self._group.create_task(self._attempt(attempt))

    async def _attempt(self, attempt: Attempt) -> None:
        outcome = await attempt.run()
        if self._attempts.pop(attempt.job.token, None) is None:  # it was abandoned
            return
        self._ended_with(attempt, outcome)
        self._start_suspect()
        self._woken.set()

    def _ended_with(self, attempt: Attempt, outcome: Outcome | None) -> None:
        token = attempt.job.token
        if outcome is None:
            self._leases.drop(token)
            self._progress.rest([token])
        else:
            self._ended.append(Settlement(token, outcome, attempt.task.policy.halts_lane))

    async def _sleep(self, most: int) -> None:
        """Wait until an attempt has ended, a hint has come, or it is time to look; without a free slot it never is."""
        seconds = self._hearing.seconds() if most else self._options.poll
        self._woken.clear()
        try:
            async with asyncio.timeout(min(seconds, self._options.poll) if self._doubts else seconds):
                await self._woken.wait()
        except TimeoutError:
            self._is_hungry |= bool(self._doubts)

    def _after_success(self) -> None:
        if self._trouble_since is not None:
            seconds = self._surroundings.monotonic() - self._trouble_since
            logger.warning("worker_store_answers", extra={"seconds": round(seconds, 1)})
            self._trouble_since = None

    async def _after_trouble(self, error: Exception, failures: int) -> None:
        self._is_hungry = True
        now = self._surroundings.monotonic()
        if self._trouble_since is None:
            self._trouble_since = now
            unexpected = None if isinstance(error, HoldfastError) else error
            logger.warning("worker_store_trouble", extra={"reason": str(error)}, exc_info=unexpected)
        if self._is_draining and self._options.grace is None and self._last_moment is None:
            self._last_moment = now + LAST_SECONDS
        longest = min(LONGEST_PAUSE, SHORTEST_PAUSE * 2 ** min(failures, 10))
        await self._surroundings.sleep(longest * (0.5 + self._surroundings.chance.random() / 2))

    async def __aenter__(self) -> Self:
        if self._main is not None:
            raise Misuse("this worker has been started already; make another with hf.worker()")
        self._main = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


ABORTS = {
    Hold.CANCEL: AbortReason.CANCELLED,
    Hold.PAUSE: AbortReason.PAUSED,
    Hold.TAKEN: AbortReason.TAKEN,
    Hold.COMPLETED: AbortReason.COMPLETED,
    Hold.GONE: AbortReason.NOT_FOUND,
}


UNWRITABLE = "its outcome could not be written"


def is_suspect(job: Claimed) -> bool:
    """Tell whether one crash more would convict *job*."""
    return job.crashes >= MOST_CRASHES - 1


def _worker_id(name: str | None, surroundings: Surroundings) -> str:
    # random per start, never host name or pid: a restarted process is another worker
    return f"{name or 'worker'}-{surroundings.chance.getrandbits(48):012x}"


def _wants(tasks: Tasks, queues: Sequence[str] | None) -> list[Want]:
    """Name every (queue, task) that the worker serves: its own queues, or `default` and those that its tasks name."""
    own = [task for task in tasks if not task.is_declared]
    served = queues if queues is not None else sorted({"default", *(task.policy.queue for task in own)})
    return [
        Want(queue, name, round(task.policy.lease * 1000)) for queue in served for task in own for name in task.names
    ]
