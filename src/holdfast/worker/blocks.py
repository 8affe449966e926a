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
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from holdfast.calls import Call
from holdfast.errors import Misuse
from holdfast.outcomes import Outcome
from holdfast.providers import Opener
from holdfast.starting import Starting
from holdfast.store.jobs import Claimed, Report, Token
from holdfast.store.tx import Blocking, First, OpenTx, Runner, Store
from holdfast.surroundings import Surroundings
from holdfast.tasks import Task
from holdfast.worker.aborts import ABORTS, AbortReason, abort_error


class BlockKind(StrEnum):
    """The kinds of blocks, as they are called on a context."""

    PREPARE = "prepare"
    COMPLETE = "complete"
    ATOMIC = "atomic"


class Stage(StrEnum):
    """How far an attempt has come with its blocks."""

    FRESH = "fresh"
    PREPARING = "preparing"
    PREPARED = "prepared"
    COMPLETING = "completing"
    COMPLETED = "completed"
    ROLLED_BACK = "rolled back"


OPENS = {
    (Stage.FRESH, BlockKind.PREPARE): Stage.PREPARING,
    (Stage.FRESH, BlockKind.COMPLETE): Stage.COMPLETING,
    (Stage.FRESH, BlockKind.ATOMIC): Stage.COMPLETING,
    (Stage.PREPARED, BlockKind.COMPLETE): Stage.COMPLETING,
}
"""Which block may be opened when; everything else is misuse."""

REFUSALS = {
    Stage.PREPARING: "prepare() is still open: leave that block first",
    Stage.PREPARED: "prepare() was used, and can be used once; what follows it is complete()",
    Stage.COMPLETING: "the block that completes the job is still open, and nothing can be opened inside it",
    Stage.COMPLETED: "the job is completed: each block can be used once, and none after that",
    Stage.ROLLED_BACK: "a block of this attempt was rolled back: let its error pass, and the next attempt begins anew",
}

FROM_LEASES = (*ABORTS.values(), AbortReason.ERROR)


class KeepsLeases(Protocol):
    """Who knows how the leases stand: in this process, or by what a child's worker has told it."""

    def may_complete(self, token: Token) -> bool:
        """Tell whether a lease is surely still ours, by our own clock."""

    def drop(self, token: Token) -> None:
        """Keep a lease no longer: a block has completed the job."""


class TakesReports(Protocol):
    """Who writes what handlers report: `Progress`, in this process or in a child's worker."""

    def unwritten(self, token: Token) -> list[Report]:
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
    starting: Starting
    leases: KeepsLeases
    progress: TakesReports
    worker: str


def make_desks(
    store: Store,
    opener: Opener,
    surroundings: Surroundings,
    starting: Starting,
    leases: KeepsLeases,
    progress: TakesReports,
    worker: str,
) -> dict[bool, Desk]:
    """Make the desks of one worker: True for handlers that are async, False for plain ones."""

    async def pause_blocking(seconds: float) -> None:
        surroundings.sleep_blocking(seconds)

    async def wait_blocking(future: Future[bool]) -> bool:
        return future.result()

    begin, begin_blocking, blocking = opener.begin, opener.begin_blocking, Blocking(store)
    return {
        True: Desk(begin, store, surroundings.sleep, asyncio.wrap_future, starting, leases, progress, worker),
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
        self._stage = Stage.FRESH
        self._is_committing = False
        self._has_ended = False
        self._deferred: AbortReason | None = None
        self.found: AbortReason | None = None
        """What a block itself has found of the claim, before anybody told the attempt."""
        self.outcome: Outcome | None = None
        """What the job was completed with, once it is."""
        self.open_tx: OpenTx | None = None
        """The transaction of the last block."""
        self.has_end = False
        """Whether a block was given the job's end: then nothing but its commit makes that come true."""

    @property
    def is_completed(self) -> bool:
        """Tell whether a block has completed the job."""
        return self._stage is Stage.COMPLETED

    @property
    def is_completing(self) -> bool:
        """Tell whether the job is in the hand of a block that completes it, or has been."""
        return self._stage in (Stage.COMPLETING, Stage.COMPLETED)

    @property
    def owes_the_end(self) -> bool:
        """Tell whether a block was to complete the job and has not: it was rolled back, or was never left."""
        return self._stage is Stage.COMPLETING or (self.has_end and not self.is_completed)

    @property
    def left_open(self) -> OpenTx | None:
        """Give the transaction of a block that has been opened and not been left."""
        return self.open_tx if self._stage in (Stage.PREPARING, Stage.COMPLETING) else None

    def open(self, kind: BlockKind) -> None:
        """Move on to a block of *kind*, or raise `Misuse` and say why not."""
        if self._has_ended:
            raise Misuse(f"{kind}() cannot be opened now: the handler has ended; let it await whatever it has begun")
        stage = OPENS.get((self._stage, kind))
        if stage is None:
            raise Misuse(f"{kind}() cannot be opened now: {REFUSALS[self._stage]}")
        if (phase := self._phase()) is not None and kind is not BlockKind.PREPARE:
            raise Misuse(f"{kind}() cannot be opened now: phase {phase!r} is under way; complete the job after it")
        self.refuse_aborted()
        self._stage = stage

    def end(self) -> None:
        """Note that the handler has ended: a task or thread that it has left behind opens nothing any more."""
        self._has_ended = True

    def begin_commit(self) -> None:
        """Note that COMMIT is sent: from now on an abort could only keep us from learning what became of it."""
        self._is_committing = True

    def end_commit(self) -> None:
        """Note that this is known, and have an abort take place that came meanwhile."""
        self._is_committing = False
        deferred, self._deferred = self._deferred, None
        if deferred is not None and not self.defers(deferred):
            self._abort(deferred)

    def defers(self, reason: AbortReason) -> bool:
        """Tell whether an abort is to wait, or comes from nothing but the end that a block has made itself."""
        if self._is_committing:
            self._deferred = self._deferred or reason
            return True
        return self.is_completed and reason in FROM_LEASES

    def completed(self, outcome: Outcome) -> None:
        """Note that the job is completed, and that nothing is to be settled or renewed any more."""
        self.outcome = outcome
        self._stage = Stage.COMPLETED
        self.desk.leases.drop(self.job.token)
        self.desk.progress.forget([self.job.token])

    def prepared(self) -> None:
        """Note that the first block is committed."""
        self._stage = Stage.PREPARED

    def rolled_back(self) -> None:
        """Note that nothing of the open block remains."""
        self._stage = Stage.ROLLED_BACK

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
