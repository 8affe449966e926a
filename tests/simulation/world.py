"""One run from a seed: processes, people, faults; first safety, then liveness."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest

from holdfast import Call
from holdfast.errors import HoldfastError, JobNotFound, LeaseLost, TransactionTimeout, UnknownOutcome
from holdfast.ids import IdMaker
from holdfast.models import DELIVER, Asked, RunningJob
from holdfast.store import lanes, schedules
from holdfast.store.jobs import exchanging, reaping, settling, steering
from holdfast.worker.attempts.aborts import AbortReason
from holdfast.worker.attempts.context import Context
from holdfast.worker.builtin import webhook
from holdfast.worker.upkeep import reaper, retention
from tests.law import ticks
from tests.law.changes import BY_HAND, Change
from tests.simulation import post
from tests.simulation.checker import AUDIT, Checker
from tests.simulation.disk import Disk
from tests.simulation.handlers import ALL, ENDS, LONGEST_CHAIN, LONGEST_LEASE, MISHAPS, TASKS, WORLD, Fate, Run
from tests.simulation.kept import DELETE_SECONDS, STALE_SECONDS, SUBSCRIBED, SUBSCRIBED_URL, SUBSCRIPTION
from tests.simulation.post import OWN, PostOffice
from tests.simulation.process import Process
from tests.simulation.reasons import Reasons
from tests.simulation.tailer import Tailer
from tests.simulation.violations import Violation
from tests.simulation.virtual import Machine

SAFETY_SECONDS = 240.0
LIVENESS_SECONDS = 3 * max(LONGEST_LEASE, webhook.LEASE_SECONDS) + 10
READING_SECONDS = 20.0
EPOCH_MS = 1_700_000_000_000
POLL_SECONDS = 4.0
MOST_MISSED = 40
PERIOD_SECONDS = 1.1 * reaper.PERIOD_SECONDS
IS_OPEN = "status NOT IN ('completed', 'failed', 'cancelled')"
LANES = ("a", "b", "c")
KEYS = ("k", "l")
FAULTS = (
    "kill_one", "freeze_one", "outage", "outage_of_one", "errors", "lost_answers", "slowness", "deafness", "stranger",
    "remove_life_lock",
)  # fmt: skip
RETENTION: dict[str, Any] = {"stale_after_seconds": STALE_SECONDS, "delete_after_seconds": DELETE_SECONDS}
WEBHOOKS: dict[str, Any] = {"webhook_attempts": post.ATTEMPTS, "webhook_retry_seconds": post.RETRY_SECONDS}
OPERATOR = Asked("operator", "to see what happens")


class World:
    """A simulated machine with its processes, its people and its bad luck."""

    def __init__(self, seed: int, folder: Path, template: Path) -> None:
        self.seed = seed
        self.machine = Machine(Random(seed))
        self.chance = self.machine.chance
        path = folder / f"{seed}.db"
        path.write_bytes(template.read_bytes())
        self.path = path
        self._strangers: list[sqlite3.Connection] = []
        self.clock_step_ms = 0
        self.disk = Disk(str(path), self.machine, self.store_ms, self._committed)
        self.checker = Checker(self, str(path))
        self._reasons = Reasons(self)
        self.disk.reached = self._reach
        self.disk.after_hold = self._has_held
        self.is_calm = False
        self.is_staged = False
        """Whether everything that happens is told to: a scene, not a run of chance."""
        self.hints = True
        self.workers: dict[str, Process] = {}
        self.processes: list[Process] = []
        self.runs: list[Run] = []
        self.begun: set[tuple[str, int]] = set()
        self.fates: dict[UUID, list[Fate]] = {}
        self.acknowledged: set[UUID] = set()
        self.jobs: list[UUID] = []
        self.outages: list[tuple[float, float, Process | None]] = []
        self.lockouts: list[tuple[float, float, Process | None]] = []
        """When somebody else had the write lock."""
        self.trouble_at = float("-inf")
        """Until when all had trouble to write: an outage, a stranger's lock, a step of the clock."""
        self.slow_at = self.stepped_at = self.locked_at = float("-inf")
        """Until when the clock of the store was not where it had been, or somebody had the write lock for long."""
        self.history: list[str] = []
        self.office = PostOffice(self)
        self.tailers: list[Process] = []
        self.tailer: Tailer | None = None
        self.people = Process("people", self.machine, self.disk, TASKS, **RETENTION)
        self.fate_loop = Process("fate", self.machine, self.disk, TASKS)
        self.new_id = IdMaker(self.store_ms, self.chance)

    @property
    def reached(self) -> Counter[str]:
        """Count what the run came across."""
        return self.checker.reached

    def _reach(self, what: str) -> None:
        self.checker.reached[what] += 1

    def store_ms(self) -> int:
        """Read the database's clock."""
        return EPOCH_MS + self.clock_step_ms + round(self.machine.now * 1000)

    def note(self, line: str) -> None:
        """Write the history down."""
        self.history.append(f"{self.machine.now:8.3f} {line}")

    def _committed(self, process: Any) -> None:
        try:
            self.checker.look(process)
            self._reasons.look()
        except Violation as violation:
            self.machine.errors.append(str(violation))
            return
        if self.hints and not self.is_hinting:
            self.is_hinting = True
            self.fate_loop.loop.call_later(0.02 + self.chance.random() * 0.3, self._hint)

    is_hinting = False

    def _hint(self) -> None:
        self.is_hinting = False
        for each in [*self.processes, *self.tailers[-1:]]:
            if self.chance.random() < 0.7:
                each.hint()

    # what the checker asks

    def owner(self, worker: str | None) -> Process | None:
        """Give the process of a worker."""
        return self.workers.get(worker or "")

    def has_begun(self, job: str, attempt: int) -> bool:
        """Tell whether a handler has seen this attempt."""
        return (job, attempt) in self.begun

    def claimed(self, change: Change) -> None:
        """I-20: while a job is claimed anew, nobody who could know better still runs it."""
        for run in self.runs:
            if str(run.context.job.id) == change.id and not run.context.aborted.is_set():
                # a lease that could not be renewed because nobody could write is no loss, and no reason to stop
                stalled = max(run.process.loop.frozen_until + 4, self.stepped_at + 4, self.locked_at + 2)
                if run.process.is_alive and self.machine.now > stalled:
                    raise Violation(
                        f"I-20: job {change.seq} was claimed while {run.process.name} runs it and is not told"
                    )

    def ended(self, change: Change) -> None:
        """Count how an attempt ended."""
        if change.status == "pending" and change.reason == "shutdown":
            self._reach("given back")

    def reaped(self, change: Change, committer: Process, owner: Process | None) -> None:
        """I-21, I-22: nobody is robbed who could have renewed, and nobody robs right after an outage."""
        lease = (change.lease_ms or 0) / 1000
        now = self.machine.now
        if owner is not None and owner.could_act(now - lease - 2) and self.trouble_at < now - lease - 2:
            raise Violation(f"I-21: job {change.seq} was reaped from {owner.name}, which could have kept it")
        if owner is not None and not owner.is_alive:
            return
        for start, end, whose in (*self.outages, *self.lockouts):
            lived = whose in (None, committer) and committer.born_at < start and committer.loop.frozen_until < start
            if lived and end - start > 11 and end <= now < end + lease - 0.5:
                raise Violation(f"I-22: {committer.name} reaped job {change.seq} {now - end:.1f} s after an outage")

    def heard(self, operation: Any, args: Any, value: Any) -> None:
        """See that what a worker was answered is so."""
        if operation is reaping.reap and self.checker.spares(quiet_ms=args[0]):
            self._reach("hold-off used")
        settled = value.settled if operation is exchanging.exchange else value if operation is settling.settle else None
        try:
            for token in settled.done if settled is not None else ():
                self.checker.look_at_answer(token, is_done=True)
            for token in settled.lost if settled is not None else ():
                self._reach("zombie refused")
                self.checker.look_at_answer(token, is_done=False)
        except Violation as violation:
            self.machine.errors.append(str(violation))

    # what handlers ask

    def fate(self, job: RunningJob) -> Fate | None:
        """Say what a job that was born unlucky does next, or one that continues it."""
        left = self.fates.get(job.id) or self.fates.get(job.chain_id)
        return left.pop(0) if left else None

    def fate_by_chance(self, ctx: Context) -> Fate:
        """Draw what an attempt comes to."""
        goes_on = ctx.job.chain_index < LONGEST_CHAIN and self.chance.random() < 0.35
        then = (lambda ctx: self.next_call(ctx.job.chain_index, ctx.job.attempt)) if goes_on else None
        return Fate(self.chance.choice(ENDS), then=then, mishap=self.chance.choice(MISHAPS))

    def next_call(self, index: int, attempt: int) -> Call[int]:
        """Draw what continues the job at *index*, of which this is the number of an *attempt*."""
        chance = self.chance
        options = self._waiting_options()
        if chance.random() < 0.3:
            options["lane"] = chance.choice(LANES)
        call: Call[int] = chance.choice(ALL)(n=index + 1, after=attempt)
        return call.options(**options)

    def phase_begins(self, ctx: Context, name: str) -> None:
        """See that a phase may run."""
        self._judge(lambda: self.checker.kept.begins(self._seq(ctx), name))

    def phase_gives(self, ctx: Context, name: str, result: str) -> None:
        """See that a phase gives what it gave before."""
        if result != f"{name} {ctx.job.attempt}":
            self._reach("phase not run again")
        self._judge(lambda: self.checker.kept.gives(self._seq(ctx), name, result))

    def _seq(self, ctx: Context) -> int:
        ((seq,),) = self.checker.ask("SELECT seq FROM holdfast_job WHERE id = ?", str(ctx.job.id))
        return int(seq)

    def _judge(self, look: Callable[[], None]) -> None:
        try:
            look()
        except Violation as violation:
            self.machine.errors.append(str(violation))

    def _has_held(self, seconds: float) -> None:
        """Take note of the time in which a block, or a slow disk, has kept everybody else from writing."""
        if seconds > 0.5:
            self.trouble_at = max(self.trouble_at, self.machine.now)
        if seconds > 1:
            self.locked_at = max(self.locked_at, self.machine.now)

    def left_block(self, ctx: Context, error: Exception | None) -> None:
        """See that what a handler hears of its block is so; a COMMIT in doubt may have come to either."""
        if isinstance(error, UnknownOutcome):
            return
        self._reach("block committed" if error is None else "block rolled back")
        if isinstance(error, LeaseLost):
            self._reach(f"block refused: {error.reason}")
        if isinstance(error, TransactionTimeout):
            self._reach("block too long")
        process: Process = asyncio.get_running_loop().process  # type: ignore[attr-defined]
        assert process.worker is not None
        job, attempt = str(ctx.job.id), ctx.job.attempt
        try:
            self.checker.look_at_block(job, attempt, process.worker.id, is_committed=error is None)
        except Violation as violation:
            self.machine.errors.append(str(violation))

    @contextmanager
    def running(self, ctx: Context, *, is_deaf: bool) -> Iterator[None]:
        """Keep book of a handler under way."""
        process: Process = asyncio.get_running_loop().process  # type: ignore[attr-defined]
        run = Run(process, ctx, is_suspect=ctx.job.crashes >= 2, is_deaf=is_deaf)
        self.note(
            f"{process.name} runs {ctx.job.id} attempt {ctx.job.attempt} crashes {ctx.job.crashes} {ctx.job.task}"
        )
        self._look_at_start(run)
        self.begun.add((str(ctx.job.id), ctx.job.attempt))
        self.runs.append(run)
        try:
            yield
        finally:
            if run in self.runs:
                self.note(f"{process.name} is done with {ctx.job.id} {ctx.abort_reason}")
                self.runs.remove(run)
                self._look_at_stop(run)

    def _look_at_start(self, run: Run) -> None:
        beside = [each for each in self.runs if each.process is run.process]
        job = run.context.job
        if any(each.context.job.id == job.id for each in beside):
            self.machine.errors.append(f"I-23: {run.process.name} runs job {job.id} twice")
        if self.has_begun(str(job.id), job.attempt):
            self.machine.errors.append(
                f"I-23: attempt {job.attempt} of job {job.id} is run twice, by {run.process.name}"
            )
        if beside and (run.is_suspect or any(each.is_suspect for each in beside)):
            self.machine.errors.append(f"I-24: {run.process.name} runs a suspect beside others")
        if run.is_suspect:
            self._reach("suspect alone")

    def _look_at_stop(self, run: Run) -> None:
        """I-20: that nobody can write is no reason to stop a handler."""
        if run.context.abort_reason is AbortReason.ERROR:
            self._reach("fenced")
            since = self.machine.now - LONGEST_LEASE - 20
            is_fast = self.slow_at < since and self.disk.weather.slow < 0.1
            if is_fast and run.process.could_act(since) and all(end < since for _, end, _ in self.outages):
                self.machine.errors.append(f"I-20: {run.process.name} stopped job {run.context.job.id} without need")

    def crash(self, ctx: Context) -> None:
        """Take the process of this handler down."""
        process: Process = asyncio.get_running_loop().process  # type: ignore[attr-defined]
        self.note(f"{process.name} dies of job {ctx.job.id}")
        self.kill(process)

    def hang(self, ctx: Context) -> None:
        """Stop the process of this handler for longer than its lease."""
        process: Process = asyncio.get_running_loop().process  # type: ignore[attr-defined]
        self._freeze(process, 3 + self.chance.random() * 20)

    # faults

    def kill(self, process: Process) -> None:
        """Kill a process; in a run of chance another is born some time later."""
        if process.is_alive:
            self.runs = [run for run in self.runs if run.process is not process]
            self.processes.remove(process)
            process.kill()
            if not self.is_staged:
                apart = contextvars.Context()  # a handler may be what dies, in a block that nobody leaves any more
                self.fate_loop.loop.call_later(0.2 + self.chance.random() * 8, self.give_birth, context=apart)

    def _freeze(self, process: Process, seconds: float) -> None:
        self.note(f"{process.name} stands still for {seconds:.1f} s")
        process.freeze(seconds)
        if self.disk.holder is process.loop or any(fibre.loop is process.loop for fibre in self.disk.queue):
            self._reach("stopped with the right to write")
            self.trouble_at = max(self.trouble_at, process.loop.frozen_until)
            self.locked_at = max(self.locked_at, process.loop.frozen_until)

    def give_birth(self, concurrency: int | None = None) -> None:
        """Start a worker process, unless there are enough; chance decides how many jobs it runs at once."""
        if len(self.processes) >= self.most:
            return
        offset = self.chance.choice((0, 0, 86_400_000, -86_400_000))
        kept = {"retention": False} if self.is_staged else RETENTION
        process = Process(
            f"p{len(self.workers)}", self.machine, self.disk, TASKS, offset, self.office, **kept, **WEBHOOKS
        )
        self.processes.append(process)
        process.hear = self.heard
        slots = concurrency or self.chance.choice((1, 2, 3))
        process.worker = process.hf.worker(concurrency=slots, grace=2.0, poll=POLL_SECONDS)
        self.workers[process.worker.id] = process
        process.spawn(self._live(process))

    async def _live(self, process: Process) -> None:
        assert process.worker is not None
        while True:
            try:
                await process.hf.open()
                break
            except HoldfastError:
                await asyncio.sleep(1)
        async with process.worker:
            await asyncio.sleep(10_000 if self.is_calm or self.is_staged else 20 + self.chance.random() * 120)
            self.note(f"{process.name} is told to stop")
        self.note(f"{process.name} has stopped")
        self.kill(process)

    async def _bad_luck(self) -> None:
        while not self.is_calm:
            await asyncio.sleep(0.5 + self.chance.random() * 7)
            if not self.is_calm:
                await self.chance.choice(self.faults)()

    async def _kill_one(self) -> None:
        if self.processes:
            process = self.chance.choice(self.processes)
            self.note(f"{process.name} is killed")
            self.kill(process)

    async def _freeze_one(self) -> None:
        if self.processes:
            self._freeze(
                self.chance.choice(self.processes), self.chance.choice((1, 3, 8, 15)) * (0.5 + self.chance.random())
            )

    async def _outage(self) -> None:
        await self.have_outage(self.chance.choice((1, 4, 10, 20, 25)))

    async def have_outage(self, seconds: float) -> None:
        """Let no call of anybody's succeed for *seconds*."""
        self.note(f"outage of {seconds} s")
        start = self.machine.now
        self.disk.weather.outage_until = max(self.disk.weather.outage_until, start + seconds)
        self.trouble_at = max(self.trouble_at, start + seconds)
        self.outages.append((start, start + seconds, None))

    async def _outage_of_one(self) -> None:
        if self.processes:
            process = self.chance.choice(self.processes)
            seconds = self.chance.choice((3, 10, 20))
            self.note(f"outage of {seconds} s for {process.name}")
            process.outage_until = max(process.outage_until, self.machine.now + seconds)
            self.outages.append((self.machine.now, self.machine.now + seconds, process))

    async def _errors(self) -> None:
        self.disk.weather.fails = 0.15
        await asyncio.sleep(3 + self.chance.random() * 10)
        self.disk.weather.fails = 0.0

    async def _lost_answers(self) -> None:
        self.disk.weather.lost_answers = 0.3
        await asyncio.sleep(3 + self.chance.random() * 10)
        self.disk.weather.lost_answers = 0.0

    async def _slowness(self) -> None:
        self.disk.weather.slow = 0.5
        await asyncio.sleep(3 + self.chance.random() * 6)
        self.disk.weather.slow = 0.05
        self.slow_at = self.machine.now

    async def _deafness(self) -> None:
        self.hints = False
        await asyncio.sleep(5 + self.chance.random() * 20)
        self.hints = True

    async def _stranger(self) -> None:
        await self.hold_write_lock(self.chance.choice((0.5, 3, 6, 11.5, 13, 20)))

    async def hold_write_lock(self, seconds: float) -> None:
        """Let a program that does not know our lock have SQLite's, for *seconds*."""
        with suppress(sqlite3.OperationalError):
            connection = self.connect()
            connection.execute("BEGIN IMMEDIATE")
            self.note(f"a stranger has the write lock for {seconds} s")
            await self._hold_up_all(seconds)
            connection.close()

    async def _hold_up_all(self, seconds: float) -> None:
        self.trouble_at = max(self.trouble_at, self.machine.now + seconds)
        if seconds > 1:
            self.locked_at = max(self.locked_at, self.machine.now + seconds)
        self.lockouts.append((self.machine.now, self.machine.now + seconds, None))
        self.disk.strangers += 1
        await asyncio.sleep(seconds)
        self.disk.strangers -= 1
        self.trouble_at = max(self.trouble_at, self.machine.now)

    async def _remove_life_lock(self) -> None:
        """Remove the file by whose lock a worker is known to live: that proves nothing."""
        if self.processes:
            process = self.chance.choice(self.processes)
            locks = process.worker._liveness_locks if process.worker is not None else None
            if locks is not None and locks._own is not None:
                self.note(f"the life lock of {process.name} is removed")
                Path(locks._own.path).unlink(missing_ok=True)

    async def _clock_step(self) -> None:
        self.step_clock(self.chance.choice((-30_000, -3_000, 2_000, 15_000, 60_000)))

    def step_clock(self, step: int) -> None:
        """Put the store's clock forward, or back, by *step* milliseconds."""
        self.note(f"the store's clock steps by {step} ms")
        self.clock_step_ms += step
        self.stepped_at = self.trouble_at = max(self.trouble_at, self.machine.now + abs(step) / 1000)

    # people

    async def _produce(self) -> None:
        while not self.is_calm:
            await asyncio.sleep(self.chance.random() * 3.0)
            with suppress(HoldfastError):
                if self.chance.random() < 0.2:
                    await self._start_in_own_transaction()
                else:
                    await self._start()

    def _call(self, job_id: UUID) -> Any:
        chance = self.chance
        options: dict[str, Any] = {"id": job_id, "priority": chance.choice((0, 0, 0, 5, -5))}
        if chance.random() < 0.6:
            options["lane"] = chance.choice(LANES)
        options |= self._waiting_options()
        if chance.random() < 0.15:
            options["unique"] = chance.choice(KEYS)
        if chance.random() < 0.1:
            options["webhook"] = chance.choice((OWN, OWN, None))
        if chance.random() < 0.08:
            ends = chance.choice((["crash"] * 3, ["crash", "crash", "well"], ["crash", "hang", "crash"]))
            self.fates[job_id] = [Fate(end) for end in ends]
        return chance.choice(ALL)(n=len(self.jobs)).options(**options)

    def _waiting_options(self) -> dict[str, Any]:
        """Draw what keeps a job waiting, if anything does."""
        chance = self.chance
        options: dict[str, Any] = {}
        if chance.random() < 0.25:
            options["delay"] = chance.random() * 15
        if chance.random() < 0.25 and self.jobs:
            options["blockers"] = [chance.choice(self.jobs[-8:]) for _ in range(chance.choice((1, 2)))]
            options["on_blocker_failure"] = chance.choice(("fail", "fail", "ignore", "wait"))
        if chance.random() < 0.03:
            options["paused"] = True
        return options

    async def _start(self) -> None:
        job_id = self.new_id()
        call = self._call(job_id)
        for _ in range(20):
            try:
                chain = await self.people.hf.start(call)
            except UnknownOutcome:
                continue  # again, with the same id
            if chain.id != job_id:
                self._reach("key conflict")
            self.acknowledged.add(chain.id)
            self.jobs.append(chain.id)
            return

    async def _start_in_own_transaction(self) -> None:
        job_ids = [self.new_id() for _ in range(self.chance.choice((1, 1, 3)))]
        calls = [self._call(job_id) for job_id in job_ids]
        seconds = self.chance.choice((0, 0.2, 1, 4))
        commits = self.chance.random() < 0.7
        connection = self.connect()
        try:
            while True:
                try:
                    connection.execute("BEGIN IMMEDIATE")
                    break
                except sqlite3.OperationalError:
                    await asyncio.sleep(0.1 + self.chance.random())
            self.disk.strangers += 1
            try:
                chains = await self.people.runtime.threads.call(
                    lambda: self.people.hf.sync.start_many(calls, connection=connection)
                )
            finally:
                self.disk.strangers -= 1
            await self._hold_up_all(seconds)
            connection.execute("COMMIT" if commits else "ROLLBACK")
        finally:
            connection.close()
        self.disk.committed(self.people)
        if commits:
            self._reach("admitted late")
            self.acknowledged |= {chain.id for chain in chains}
            self.jobs += [chain.id for chain in chains]

    def connect(self) -> sqlite3.Connection:
        """Open a connection of somebody else's, which knows our clock."""
        connection = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        self._strangers.append(connection)
        connection.create_function("holdfast_now", 0, self.store_ms)
        return connection

    async def _operate(self) -> None:
        while not self.is_calm:
            await asyncio.sleep(0.2 + self.chance.random() * 2.5)
            if self.jobs:
                with suppress(HoldfastError):
                    await self.chance.choice(self.verbs)()

    def _some(self) -> list[UUID]:
        return [self.chance.choice(self.jobs[-25:]) for _ in range(self.chance.choice((1, 1, 2)))]

    def _statuses(self, *statuses: str) -> list[UUID]:
        rows = self.checker.ask(
            f"SELECT id FROM holdfast_job WHERE status IN ({', '.join('?' * len(statuses))}) AND task <> '{DELIVER}'",
            *statuses,
        )
        return [UUID(id_) for (id_,) in rows]

    async def _steer(self, verb: Any, ids: list[UUID], *args: Any) -> Any:
        return await self.people.store.run(steering.at_once, verb, ids, *args, OPERATOR)

    async def _cancel(self) -> None:
        for answer in await self._steer(steering.cancel, self._some()):
            self._reach(f"cancel answered {answer}")

    async def _cancel_running(self) -> None:
        """Cancel somebody who runs, rather one that will not hear of it."""
        if self.runs:
            run = self.chance.choice([each for each in self.runs if each.is_deaf] or self.runs)
            await self._steer(steering.cancel, [run.context.job.id])

    async def _give_up(self) -> None:
        await self._steer(steering.cancel, self._one_of("failed"))

    async def _pause(self) -> None:
        await self._steer(steering.pause, self._some())

    async def _resume(self) -> None:
        await self._steer(steering.resume, self._one_of("paused"))

    async def _retry(self) -> None:
        await self._steer(steering.retry, self._one_of("failed", "cancelled"))

    async def _retry_blocker(self) -> None:
        """Retry a job by which others have failed."""
        blocking = self.checker.ask("SELECT chain_id FROM holdfast_blocker WHERE state = 'failed'")
        if blocking:
            await self._steer(steering.retry, [UUID(self.chance.choice(blocking)[0])])

    async def _trigger(self) -> None:
        await self._steer(steering.reschedule, self._one_of("pending"), 0, self.chance.choice((0, 5_000)))

    async def _complete(self) -> None:
        """Complete somebody's job without a worker."""
        job, task = self._to_complete()
        await self.people.hf.complete(task, job, BY_HAND, by="operator")

    async def _complete_in_steps(self) -> None:
        """Take a job in the hand; look at it, or complete it, and some that continue it."""
        job, task = self._to_complete()
        async with self.people.hf.completing(task, job, by="operator") as first:
            step = first
            for _ in range(self.chance.choice((0, 1, 1, 2))):
                await self._write_by_hand(step)
                step = await step.continue_with(self.next_call(step.job.chain_index, BY_HAND))
            await asyncio.sleep(self.chance.choice((0, 0, 0.3, 1.5)))
            if self.chance.random() < 0.6:
                await self._write_by_hand(step)
                await step.finish(BY_HAND)

    async def _write_by_hand(self, step: Any) -> None:
        sql = "INSERT INTO sim_ledger (job, attempt, what) VALUES (:job, :attempt, 'outside')"
        await step.tx.execute(sql, job=str(step.id), attempt=step.attempt)

    def _to_complete(self) -> tuple[UUID, Any]:
        """Name a job, rather one that is open, and its task."""
        (job, *_) = self._one_of("running", "running", "blocked", "pending", "paused", "failed")
        found = self.checker.ask("SELECT task FROM holdfast_job WHERE id = ?", str(job))
        if not found:
            raise JobNotFound(job)
        return job, TASKS.get(found[0][0])

    def _one_of(self, *statuses: str) -> list[UUID]:
        """Name a job in one of these statuses, or now and then just any job."""
        found = self._statuses(*statuses)
        return [self.chance.choice(found)] if found and self.chance.random() < 0.8 else self._some()

    async def _skip(self) -> None:
        sql = "SELECT lane FROM holdfast_job WHERE head = 1 AND status IN ('failed', 'paused') ORDER BY lane"
        halted = [lane for (lane,) in self.checker.ask(sql)]
        lane = self.chance.choice(halted if halted and self.chance.random() < 0.8 else LANES)
        if await self.people.store.run(lanes.skip, lane, OPERATOR) is not None:
            self._reach("skipped")

    async def _pause_lane(self) -> None:
        await self.people.store.run(lanes.pause_lane, self.chance.choice(LANES), OPERATOR)

    async def _resume_lane(self) -> None:
        await self.people.store.run(lanes.resume_lane, self.chance.choice(LANES), OPERATOR)

    async def _pause_queue(self) -> None:
        await self.people.store.run(lanes.pause_queue, "other", None, OPERATOR)

    async def _resume_queue(self) -> None:
        await self.people.store.run(lanes.resume_queue, "other", OPERATOR)

    async def _retain(self) -> None:
        """Have somebody who is no worker make a pass of retention."""
        await self.people.hf.retain()

    async def _enable(self) -> None:
        """Tell a subscriber again whose receiver said that it is gone."""
        await self.people.hf.webhooks.enable(SUBSCRIPTION)

    # the run

    def play(self, safety_seconds: float = SAFETY_SECONDS, faults: Sequence[str] = FAULTS) -> str | None:
        """Play the whole run; say what went wrong, or None."""
        WORLD[:] = [self]
        chance = self.chance
        self.most = chance.choice((2, 3, 4))
        self.faults: list[Callable[[], Any]] = [getattr(self, f"_{name}") for name in faults]
        if chance.random() < 0.2 and faults is FAULTS:
            self.faults.append(self._clock_step)
        self.verbs: list[Callable[[], Any]] = [
            self._cancel, self._cancel_running, self._cancel_running, self._give_up, self._pause, self._resume,
            self._resume, self._retry, self._retry_blocker, self._trigger, self._skip, self._pause_lane,
            self._resume_lane, self._resume_lane, self._pause_queue, self._resume_queue, self._complete,
            self._complete_in_steps, self._retain, self._retain, self._enable,
        ]  # fmt: skip
        for _ in range(self.most):
            self.give_birth()
        self.fate_loop.spawn(self._bad_luck())
        self.people.spawn(self._produce())
        self.people.spawn(self._produce())
        self.people.spawn(self._operate())
        self.tailer = Tailer(self)
        self.tailer.begin()
        self.machine.run(safety_seconds)
        if self.machine.errors:
            return self.machine.errors[0]
        return self._live_on(safety_seconds)

    def _live_on(self, since: float) -> str | None:
        """Stop the faults, resume what halts, and see that everything ends."""
        self.is_calm = True
        self.disk.weather.fails = self.disk.weather.lost_answers = 0.0
        self.disk.weather.slow = 0.05
        self.disk.weather.outage_until = 0.0
        self.outages = [(start, min(end, since), whose) for start, end, whose in self.outages]
        self.lockouts = [(start, min(end, since), whose) for start, end, whose in self.lockouts]
        self.hints = False  # the poll alone must do
        for process in self.processes:
            process.outage_until = 0.0
            process.loop.frozen_until = min(process.loop.frozen_until, since)
        for _ in range(self.most):
            self.give_birth()
        self.people.spawn(self._relieve())
        while self._unfinished() and self.machine.now < since + LIVENESS_SECONDS and not self.machine.errors:
            self.machine.run(self.machine.now + 2)
        if self.machine.errors:
            return self.machine.errors[0]
        if stuck := self._unfinished():
            return f"liveness: {len(stuck)} rows are left {LIVENESS_SECONDS:g} s after the last fault, first {stuck[0]}"
        there = {UUID(id_) for (id_,) in self.checker.ask("SELECT id FROM holdfast_job")}
        if lost := self.acknowledged - there - {UUID(id_) for id_ in self.checker.kept.gone.values()}:
            return f"I-01: acknowledged starts are lost: {lost}"
        kept = self.checker.kept.look_at_the_end(self.office.answers, post.ATTEMPTS)
        return self.checker.look_at_the_end() or kept or self._read_on(self.machine.now + READING_SECONDS)

    def _read_on(self, until: float) -> str | None:
        """Let the reader come to the end of the log; say what it was not given."""
        assert self.tailer is not None
        while (missed := self.tailer.missed()) and self.machine.now < until and not self.machine.errors:
            self.machine.run(self.machine.now + 2)
        return self.machine.errors[0] if self.machine.errors else missed

    def _unfinished(self) -> list[tuple[Any, ...]]:
        """Give the open jobs; or, if there are none, the events that still have to become deliveries."""
        columns = "seq, task, status, gate, lane, head, place, open_blockers, attempt, worker"
        times = "run_at - ?1, wake_at - ?1, lease_until - ?1"
        jobs = self.checker.ask(f"SELECT {columns}, {times} FROM holdfast_job WHERE {IS_OPEN}", self.store_ms())
        return jobs or self.checker.ask("SELECT seq, job, event, at FROM holdfast_outbox")

    async def _relieve(self) -> None:
        """Do what a person would do to get everything going again."""
        store = self.people.store
        while True:
            with suppress(HoldfastError):
                for lane in LANES:
                    await store.run(lanes.resume_lane, lane, OPERATOR)
                    with suppress(HoldfastError):
                        await store.run(lanes.skip, lane, OPERATOR)
                await store.run(lanes.resume_queue, "other", OPERATOR)
                for job in self._statuses("paused"):
                    with suppress(HoldfastError):
                        await self._steer(steering.resume, [job])
                for job in self._hopeless():
                    await self._steer(steering.cancel, [job])
            await asyncio.sleep(1)

    def _hopeless(self) -> list[UUID]:
        """Name the jobs that wait for a blocker that has failed for good."""
        rows = self.checker.ask(
            """SELECT id FROM holdfast_job WHERE status = 'blocked' AND on_blocker_failure = 'wait'
                AND EXISTS (SELECT 1
                    FROM holdfast_blocker LEFT JOIN holdfast_job AS other ON other.id = holdfast_blocker.chain_id
                    WHERE holdfast_blocker.job = holdfast_job.seq
                        AND (other.id IS NULL OR other.closed_as IN ('failed', 'cancelled')))"""
        )
        return [UUID(id_) for (id_,) in rows]

    def close(self) -> None:
        """Drop everything; what the dead processes would still like to do is not listened to."""
        for process in [*self.workers.values(), *self.tailers, self.people, self.fate_loop]:
            process.loop.is_dead = True
            process.store.file.cut()
            for fibre in list(process.loop.waiting):
                fibre.doom()
            process.loop.bury()
        for connection in self._strangers:
            connection.close()
        self.checker.close()
        self.machine.close()
        WORLD.clear()
        for path in self.path.parent.glob(f"{self.path.name}*"):
            path.unlink()


def cut_the_log_early(patch: pytest.MonkeyPatch) -> None:
    """Let the log be cut as soon as retention's times are over: a run does not last an hour."""
    patch.setattr(retention, "LOG_SECONDS", 0.0)


def make_up_for_few(patch: pytest.MonkeyPatch) -> None:
    """Let a schedule start fewer of the times that it has missed: a visit to another year misses millions."""
    patch.setitem(schedules.MOST_MISSED, "all", MOST_MISSED)
    patch.setattr(ticks, "MOST_MISSED", MOST_MISSED)


def make_template(folder: Path) -> Path:
    """Make the file that every run begins with: the migrated schema, and the triggers that keep the history."""
    from holdfast import Holdfast

    path = folder / "template.db"
    hf = Holdfast(str(path), tasks=[TASKS])
    with hf.sync:
        hf.sync.webhooks.subscribe(SUBSCRIBED_URL, events=SUBSCRIBED)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(AUDIT)
    connection.execute("UPDATE holdfast_subscription SET id = ?", (SUBSCRIPTION,))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return path


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run."""

    seed: int
    violation: str | None
    reached: Counter[str]
    commits: int
    turns: int
    seconds: float
    history: list[str]


def play(
    seed: int, folder: Path, template: Path, safety_seconds: float = SAFETY_SECONDS, faults: Sequence[str] = FAULTS
) -> Outcome:
    """Play one run in *folder*, on a copy of *template*."""
    world = World(seed, folder, template)
    gc.disable()  # nothing is collected in the middle of a turn
    try:
        violation = world.play(safety_seconds, faults)
        machine, checker = world.machine, world.checker
        return Outcome(seed, violation, checker.reached, checker.commits, machine.turns, machine.now, world.history)
    finally:
        world.close()
        gc.enable()
