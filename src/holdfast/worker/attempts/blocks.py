"""Blocks: transactions, ours or a provider's, that a handler opens around its own statements, fenced by its token.

`prepare` reads and writes before the work and commits by itself. `complete` writes the results, the output or the
successor, and the completion in one commit; `atomic` is both in one. Each is opened at most once, in this order. The
token is looked at without a lock when a block opens, and decides in the guarded UPDATE just before COMMIT, so that
while user code runs neither a renewal nor a cancel waits for the job's row.

Whatever goes wrong the block raises, and all of it rolls back: an error of the user's, a lost lease, a cancel, a
statement that failed and was swallowed. After its commit the attempt has nothing left to settle. Only the answer to
COMMIT can be lost: then the row is locked, which waits for whatever became of it, and read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from holdfast.client.completion import BlockState, Fence
from holdfast.client.providers import Opener
from holdfast.client.starter import Starter
from holdfast.database.tx import Blocking, First, OpenTx, Runner, Store
from holdfast.errors import Misuse
from holdfast.outcomes import Outcome
from holdfast.runtime import Runtime
from holdfast.store.jobs.claiming import Claimed, ProgressReport, Token
from holdfast.tasks.calls import Call
from holdfast.tasks.task import Task
from holdfast.worker.attempts.aborts import ABORTS, AbortReason, abort_error


class BlockKind(StrEnum):
    """The kinds of blocks, as they are called on a context."""

    PREPARE = "prepare"
    COMPLETE = "complete"
    ATOMIC = "atomic"


REFUSALS = {
    (True, BlockState.OPEN): "prepare() is still open: leave that block first",
    (True, BlockState.COMMITTED): "prepare() was used, and can be used once; what follows it is complete()",
    (False, BlockState.OPEN): "the block that completes the job is still open, and nothing can be opened inside it",
    (False, BlockState.COMMITTED): "the job is completed: each block can be used once, and none after that",
}
"""Why no other block can be opened behind the last one, by whether that was `prepare()` and how far it has come."""
AFTER_ROLLBACK = "a block of this attempt was rolled back: let its error pass, and the next attempt begins anew"

FROM_LEASES = (*ABORTS.values(), AbortReason.ERROR)


class KeepsLeases(Protocol):
    """Who knows how the leases stand: in this process, or by what a child's worker has told it."""

    def may_complete(self, token: Token) -> bool:
        """Tell whether a lease is surely still ours, by our own clock."""

    def drop(self, token: Token) -> None:
        """Keep a lease no longer: a block has completed the job."""


class TakesReports(Protocol):
    """Who writes what handlers report: `Progress`, in this process or in a child's worker."""

    def unwritten(self, token: Token) -> list[ProgressReport]:
        """Give what is not written yet of an attempt, for a transaction that completes its job, or rolls back."""

    def hold(self, token: Token) -> Future[bool]:
        """Write nothing more of an attempt until `release`; the future tells when no write is under way."""

    def release(self, token: Token, *, is_written: bool) -> None:
        """Go on; *is_written*: all that was said until now is written, or was overtaken."""

    def give_up(self, token: Token) -> None:
        """Have nobody wait any longer for a report of an attempt that is to stop."""

    def forget(self, tokens: Iterable[Token]) -> None:
        """Forget attempts whose end is written down, or somebody else's by now."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What blocks need of their worker, in the colour of the handler: nothing here suspends on the blocking side."""

    begin: Callable[[float, First, object], Awaitable[OpenTx]]
    """Opens a block's transaction, by the lease, what is run first, and `using=`."""
    runner: Runner
    pause: Callable[[float], Awaitable[None]]
    wait: Callable[[Future[bool]], Awaitable[bool]]
    starting: Starter
    leases: KeepsLeases
    progress: TakesReports
    worker: str


def make_desks(
    store: Store,
    opener: Opener,
    runtime: Runtime,
    starting: Starter,
    leases: KeepsLeases,
    progress: TakesReports,
    worker: str,
) -> dict[bool, Desk]:
    """Make the desks of one worker: True for handlers that are async, False for plain ones."""

    async def pause_blocking(seconds: float) -> None:
        runtime.sleep_blocking(seconds)

    async def wait_blocking(future: Future[bool]) -> bool:
        return future.result()

    begin, begin_blocking, blocking = opener.begin, opener.begin_blocking, Blocking(store)
    return {
        True: Desk(begin, store, runtime.sleep, asyncio.wrap_future, starting, leases, progress, worker),
        False: Desk(begin_blocking, blocking, pause_blocking, wait_blocking, starting, leases, progress, worker),
    }


@dataclass(frozen=True, slots=True)
class Continued:
    """What `continue_with` gives at run time: the handler returns it, and the chain goes on with its call."""

    call: Call[Any]


class Blocks:
    """The blocks of one attempt, in order; *reason* tells why it is to stop, if it is, and *abort* has it stop.

    *phase* names the phase that is under way.
    """

    def __init__(
        self,
        job: Claimed,
        task: Task[..., Any],
        desk: Desk,
        reason: Callable[[], AbortReason | None],
        abort: Callable[[AbortReason], None],
        phase: Callable[[], str | None],
    ) -> None:
        self.job = job
        self.task = task
        self.desk = desk
        self._reason = reason
        self._abort = abort
        self._phase = phase
        self._kind: BlockKind | None = None
        self._last: Fence | None = None
        """The block that was opened last, and of which kind it is."""
        self._has_ended = False
        self._deferred: AbortReason | None = None
        self.found: AbortReason | None = None
        """What a block itself has found of the claim, before anybody told the attempt."""
        self.outcome: Outcome | None = None
        """What the job was completed with, once it is."""
        self.has_end = False
        """Whether a block was given the job's end: then nothing but its commit makes that come true."""

    @property
    def is_completed(self) -> bool:
        """Tell whether a block has completed the job."""
        return self.is_completing and self._state is BlockState.COMMITTED

    @property
    def is_completing(self) -> bool:
        """Tell whether the job is in the hand of a block that completes it, or has been."""
        return self._kind not in (None, BlockKind.PREPARE) and self._state is not BlockState.ROLLED_BACK

    @property
    def owes_the_end(self) -> bool:
        """Tell whether a block was to complete the job and has not: it was rolled back, or was never left."""
        return (self.is_completing or self.has_end) and not self.is_completed

    @property
    def _state(self) -> BlockState | None:
        return None if self._last is None else self._last.state

    def open(self, kind: BlockKind, fence: Fence) -> None:
        """Move on to the block of *kind* that *fence* keeps the job for, or raise `Misuse` and say why not."""
        if self._has_ended:
            raise Misuse(f"{kind}() cannot be opened now: the handler has ended; let it await whatever it has begun")
        if (refusal := self._refusal(kind)) is not None:
            raise Misuse(f"{kind}() cannot be opened now: {refusal}")
        if (phase := self._phase()) is not None and kind is not BlockKind.PREPARE:
            raise Misuse(f"{kind}() cannot be opened now: phase {phase!r} is under way; complete the job after it")
        self.refuse_aborted()
        self._kind, self._last = kind, fence

    def _refusal(self, kind: BlockKind) -> str | None:
        """Say why a block of *kind* cannot follow the last one, if it cannot."""
        is_prepare, is_committed = self._kind is BlockKind.PREPARE, self._state is BlockState.COMMITTED
        if self._last is None or (is_prepare and is_committed and kind is BlockKind.COMPLETE):
            return None
        if self._state is BlockState.ROLLED_BACK:
            return AFTER_ROLLBACK
        return REFUSALS[is_prepare, BlockState.COMMITTED if is_committed else BlockState.OPEN]

    def end(self) -> None:
        """Note that the handler has ended: a task or thread that it has left behind opens nothing any more."""
        self._has_ended = True

    def let_go(self) -> Coroutine[Any, Any, None] | None:
        """Give what rolls back the block that has been opened and never left, if there is one."""
        last = self._last
        if last is None or last.open_tx is None or last.state in (BlockState.COMMITTED, BlockState.ROLLED_BACK):
            return None
        return last.roll_back(last.open_tx)

    def defers(self, reason: AbortReason) -> bool:
        """Tell whether an abort is to wait, or comes from nothing but the end that a block has made itself.

        Once COMMIT is sent, an abort could only keep us from learning what became of it.
        """
        if self._state is BlockState.COMMITTING:
            self._deferred = self._deferred or reason
            return True
        return self.is_completed and reason in FROM_LEASES

    def end_commit(self) -> None:
        """Have an abort take place that came while COMMIT was under way."""
        deferred, self._deferred = self._deferred, None
        if deferred is not None and not self.defers(deferred):
            self._abort(deferred)

    def completed(self, outcome: Outcome) -> None:
        """Note that the job is completed, and that nothing is to be settled or renewed any more."""
        self.outcome = outcome
        self.desk.leases.drop(self.job.token)
        self.desk.progress.forget([self.job.token])

    def refuse_aborted(self) -> None:
        """Raise if the handler is to stop; a pause lets it come to its end, if it does."""
        reason = self._reason() or self.found
        if reason is not None and reason is not AbortReason.PAUSED:
            raise abort_error(reason, self.job.id)

    def refuse_fenced(self) -> None:
        """Raise if our lease may be over, by our own clock: nothing may be completed then."""
        if not self.desk.leases.may_complete(self.job.token):
            raise self.lost(AbortReason.ERROR)

    def lost(self, reason: AbortReason) -> Exception:
        """Remember why the attempt is over, and make the error that says so."""
        self.found = self.found or reason
        return abort_error(reason, self.job.id)
