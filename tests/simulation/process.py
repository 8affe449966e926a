"""A simulated process: the real Holdfast, mostly with the real Worker, on a loop and a disk that can be taken away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any, cast

from holdfast import Holdfast
from holdfast.database.dialect import SqliteDialect
from holdfast.database.sqlite.store import SqliteStore
from holdfast.database.sqlite.writer import Writer
from holdfast.database.tx import ListOperation, Operation, P, R, T
from holdfast.errors import Busy, HoldfastError, NotFound, StoreError, Unavailable, UnknownOutcome
from holdfast.runtime import Runtime, Stepper
from holdfast.settings import Settings
from holdfast.store import lanes, schedules
from holdfast.store.chains import creation
from holdfast.store.jobs import completing, steering
from holdfast.tasks.registry import Tasks
from holdfast.threads import Threads
from holdfast.worker.worker import Worker
from tests.simulation.disk import Disk, VirtualFile, VirtualFileLock
from tests.simulation.post import PostOffice, VirtualPoster
from tests.simulation.virtual import Machine, VirtualEvent, VirtualLoop, VirtualShell, VirtualThreads

LONGEST_TURN = 0.5
ASKED = (
    steering.at_once, lanes.skip, creation.start, completing.complete_at_once,
    schedules.pause, schedules.resume, schedules.run, schedules.delete,
)  # fmt: skip
"""What people ask for, which may be refused."""
DIALECT = SqliteDialect(now="holdfast_now()")
"""Shared, for it remembers what it has translated."""


class VirtualStore(SqliteStore):
    """The real store; only its file, its lock between processes and some of its answers are not."""

    def __init__(self, disk: Disk, process: Process, runtime: Runtime) -> None:
        self._disk = disk
        self._process = process
        super().__init__(disk.path, settings=Settings(deadline_seconds=5), runtime=runtime, clock=disk.clock)
        self.dialect = DIALECT
        self.file = VirtualFile(disk, process)
        self._file = self.file
        self._state = self._make_state()

    def _make_state(self) -> Any:
        here = super()._make_state()
        lock = cast("Any", VirtualFileLock(self._disk, self._process.loop))
        here.lock, here.writer = lock, Writer(here.connection, lock, self._runtime, self._seconds)
        self._count_groups(here.connection)
        return here

    def _count_groups(self, connection: Any) -> None:
        write_group, write_alone = connection.write_group, connection.write_alone
        groups: list[object] = []

        def group(*args: Any) -> None:
            groups.append(args)
            try:
                write_group(*args)
            finally:
                groups.clear()

        def alone(*args: Any) -> Any:
            if groups:
                self._disk.reached("batch redone alone")
            return write_alone(*args)

        connection.write_group, connection.write_alone = group, alone

    async def run(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation* in a write transaction; now and then nobody learns what became of it."""
        return await self._answered(lambda: SqliteStore.run(self, operation, *args, **kwargs), operation, args)

    async def gather(self, operation: ListOperation[T, R], items: Sequence[T]) -> Sequence[R]:
        """Run a list operation as one with those of others; now and then nobody learns what became of it."""
        return await self._answered(lambda: SqliteStore.gather(self, operation, items), operation, (items,))

    async def _answered(self, run: Callable[[], Coroutine[Any, Any, R]], operation: Any, args: Any) -> R:
        self._refuse_denied(operation)
        is_lost = self._disk.loses_answer()
        if not is_lost or self._disk.machine.chance.random() < 0.7:
            value = await self._judged(run(), operation)
            self._process.hear(operation, args, value)
            if not is_lost:
                return value
        self._disk.reached("unknown commit")
        raise UnknownOutcome("the answer to COMMIT was lost")

    async def _judged(self, running: Coroutine[Any, Any, R], operation: Any) -> R:
        """I-64: nobody hears of another's error."""
        try:
            return await running
        except StoreError:
            raise
        except Exception as error:
            if operation not in ASKED or not isinstance(error, HoldfastError):
                self._disk.machine.errors.append(f"I-64: {operation.__name__} raised {error!r}")
            elif operation is creation.start and not isinstance(error, NotFound):
                self._disk.machine.errors.append(f"I-64: a start raised {error!r}")
            raise

    def run_sync(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation* in a write transaction, blocking; now and then nobody learns what became of it."""
        try:
            self._refuse_denied(operation)
            value = super().run_sync(operation, *args, **kwargs)
        except Exception as error:
            if not isinstance(error, Busy):  # a wait for the right to write is no reason to give a job up
                self._process.trouble_at = self._disk.machine.now
            raise
        if self._disk.loses_answer():
            self._process.trouble_at = self._disk.machine.now
            raise UnknownOutcome("the answer to COMMIT was lost")
        return value

    async def read(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation*, which only reads."""
        self._refuse_in_outage()
        self._refuse_denied(operation)
        return await super().read(operation, *args, **kwargs)

    def read_sync(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation*, which only reads, blocking."""
        self._refuse_in_outage()
        self._refuse_denied(operation)
        return super().read_sync(operation, *args, **kwargs)

    def close_sync(self) -> None:
        """Do nothing: a process that is gone has nothing left to close."""

    def _refuse_in_outage(self) -> None:
        if self._disk.is_out(self._process):
            raise Unavailable("the disk cannot be read")

    def _refuse_denied(self, operation: Any) -> None:
        if operation in self._process.denied:
            raise Unavailable(f"{operation.__name__} is denied")


class Process:
    """One process; it is born, and may be frozen, killed or told to stop."""

    def __init__(
        self,
        name: str,
        machine: Machine,
        disk: Disk,
        tasks: Tasks,
        wall_offset_ms: int = 0,
        office: PostOffice | None = None,
        **settings: Any,
    ) -> None:
        self.name = name
        self.machine = machine
        self.disk = disk
        self.loop = VirtualLoop(machine)
        self.loop.process = self  # type: ignore[attr-defined]
        self.born_at = machine.now
        self.outage_until = 0.0
        self.trouble_at = float("-inf")
        """When a renewal failed last, or its answer was lost."""
        self.denied: set[Any] = set()
        """The operations that fail just now, in this process only."""
        self.hear: Callable[[Any, Any, Any], None] = lambda operation, args, value: None
        """Is told what each write was asked, and what it answered."""
        self.worker: Worker | None = None
        self._look: Callable[[], float | None] | None = None
        self.runtime = Runtime(
            has_file_alarms=False,
            wall_ms=lambda: disk.clock() + wall_offset_ms,
            monotonic=self.loop.time,
            chance=Random(machine.chance.getrandbits(64)),
            sleep=asyncio.sleep,
            sleep_blocking=disk.pause,
            stepper=self._shell,
            file_mark=lambda path: disk.commits,
            signal=lambda: VirtualEvent(machine),
            threads=cast("Threads", VirtualThreads(self.loop, disk.latency, never_waits=lambda: True)),
        )
        self.store = VirtualStore(disk, self, self.runtime)
        self.hf = Holdfast(
            settings=Settings(database=disk.path, **settings),
            tasks=[tasks],
            store=self.store,
            runtime=self.runtime,
            poster=None if office is None else VirtualPoster(office, self),
        )
        self.hf._starter._recorded |= {task.name for task in tasks}  # they stand in the template

    @property
    def is_alive(self) -> bool:
        """Tell whether it was not killed."""
        return not self.loop.is_dead

    def could_act(self, since: float) -> bool:
        """Tell whether it lived, was not frozen and could renew its leases, all the time since the instant *since*."""
        return self.is_alive and max(self.loop.frozen_until, self.trouble_at, self.outage_until) < since

    def spawn(self, coroutine: Any) -> asyncio.Task[Any]:
        """Run a coroutine in the process."""
        return self.loop.create_task(coroutine)

    def kill(self) -> None:
        """Kill it: no cleanup runs, the kernel takes back its locks, SQLite forgets what it had not committed."""
        if self.is_alive:
            self.loop.is_dead = True
            self.store.file.cut()
            self._free_life_lock()
            self.loop.kill()
            VirtualFileLock(self.disk, self.loop).release()

    def _free_life_lock(self) -> None:
        locks = self.worker._liveness_locks if self.worker is not None else None
        if locks is not None:
            for lock in (locks._own, *locks._dead.values()):
                if lock is not None:
                    lock.close()

    def freeze(self, seconds: float) -> None:
        """Stop it for a while, wherever it is."""
        self.loop.freeze(seconds)

    def hint(self) -> None:
        """Let it see that the log file has grown."""
        if self._look is not None:
            self.loop.call_soon(self._look)
            self.loop.call_later(0.02, self._look)

    def _shell(self, step: Callable[[], float | None], name: str) -> Stepper:
        if name == "holdfast-hints":  # looks every 20 ms, nearly always in vain; here it looks when it is told to
            self._look = step
            return NoShell()
        if name == "holdfast-writer":
            return VirtualShell(self.loop, self._thread_latency, step, self.disk.is_free)
        if name == "holdfast-fence":
            return VirtualShell(self.loop, self._thread_latency, step, lambda: True)
        return VirtualShell(self.loop, self._thread_latency, step, self._is_idle)

    def _thread_latency(self) -> float:
        """Draw how long a thread takes to begin: it waits for its turn, and not for the disk.

        That is so for the writer, too: it has the right to write before it touches the disk, so while a slow disk keeps
        it, nobody else can take its jobs.
        """
        return min(self.disk.latency(), LONGEST_TURN)

    def _is_idle(self) -> bool:
        writer = self.store._state.writer
        return not writer._queue and not writer._thread_lock.locked() and self.disk.is_free()


class NoShell:
    """The shell of a step that the simulation calls itself."""

    def wake(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""
