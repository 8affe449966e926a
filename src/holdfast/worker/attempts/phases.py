"""The phases of one attempt: each runs between two commits, and one that has finished answers what it gave before.

A phase begins by a commit that makes it the current one, and ends by one that stores its result, sets the job's crashes
back and says so in the log; both carry the token. What was stored by earlier attempts is read before the handler
begins, under a token that nobody else can write with, so that nothing is asked of the database twice. A result is
given to the handler as it is read back, the first time too: so every run sees the same.

The end of a phase may be worth hours. It is written again and again while the lease is ours and nobody has told the
handler to stop, and whoever has it stop while a commit is under way, the worker or a time-out of the handler's own,
waits for its answer: else the handler could run a phase once more that is completed.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

from holdfast import current_block
from holdfast.codec import Codec
from holdfast.database.tx import Tx, drive
from holdfast.errors import Busy, Misuse, Unavailable, UnknownOutcome, near_and_all, shown
from holdfast.models import PhaseStatus
from holdfast.store import phase_rows, phases
from holdfast.store.jobs.claiming import ClaimState, ProgressReport, Token
from holdfast.store.phase_rows import PhaseRow
from holdfast.store.phases import Beginning, Completion
from holdfast.tasks.phases import half_up, overall, result_codec
from holdfast.worker.attempts.aborts import ABORTS, AbortReason, abort_error
from holdfast.worker.attempts.blocks import LocalRun

Item = TypeVar("Item", Beginning, Completion)
Write: TypeAlias = Callable[
    [Tx, Sequence[Item], Sequence[ProgressReport]], Coroutine[Any, Any, dict[Token, ClaimState]]
]
"""`phases.begin` or `phases.complete`."""

BUSY_SECONDS = 0.025  # until a row is tried again that somebody has locked
TROUBLE_SECONDS = 0.5


class Phases:
    """The phases of one attempt."""

    def __init__(self, attempt: LocalRun) -> None:
        self._attempt = attempt
        self._services = attempt.services
        self._token = attempt.job.token
        self._names = tuple(attempt.task.policy.phases)
        self._rows: Sequence[PhaseRow] = ()
        self._is_laid = False
        self._results: dict[str, str] = {}
        self._codecs: dict[str, Codec[Any]] = {}
        self._is_cancelled = False
        """The handler was cancelled while a commit was under way, and has not been told yet."""
        self._is_in_doubt = False
        """Nobody knows whether the last commit took place."""

    async def load(self) -> None:
        """Read what earlier attempts have stored; a store that is away costs no attempt as long as the job is ours."""
        while True:
            try:
                self._rows = await self._services.runner.read(phase_rows.read, self._token.seq)
                break
            except (Unavailable, Busy) as error:
                if not self._services.leases.may_complete(self._token):
                    raise self._attempt.lost(AbortReason.ERROR) from error
            self._refuse_stopped()
            await self._services.pause(TROUBLE_SECONDS)
        finished = [row for row in self._rows if row.status is PhaseStatus.COMPLETED]
        self._results = {row.name: row.result for row in finished if row.result is not None}

    async def run(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run *function* as the phase *name* of an async handler, or give what it gave before."""
        if not await self._begin(name, function):
            return self._read(name)
        is_cancelled = False
        try:
            if inspect.iscoroutinefunction(function):
                value = await function(*args, **kwargs)
            else:
                value, is_cancelled = await self._services.call_in_thread(partial(function, *args, **kwargs))
                value = await value if inspect.isawaitable(value) else value
            result = await self._complete(name, value)
        finally:
            self._attempt.active_phase = None
        if is_cancelled:
            raise asyncio.CancelledError
        return result

    def run_blocking(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run *function* as the phase *name* of a plain handler, or give what it gave before."""
        if inspect.iscoroutinefunction(function):
            raise Misuse(f"phase {name!r} has an async function in a plain handler; make both async, or both plain")
        if not drive(self._begin(name, function)):
            return self._read(name)
        try:
            return drive(self._complete(name, function(*args, **kwargs)))
        finally:
            self._attempt.active_phase = None

    def result(self, name: str) -> Any:
        """Read what a phase that has finished gave."""
        self._position(name)
        if name not in self._results:
            raise Misuse(f"phase {name!r} has not finished and has no result yet; call ctx.phase({name!r}, …) first")
        return self._read(name)

    def results(self) -> dict[str, Any]:
        """Read what the phases that have finished gave, in their order."""
        return {name: self._read(name) for name in self._names if name in self._results}

    def report(self, percent: float, message: str | None) -> ProgressReport:
        """Say how far the job is whose phase is at *percent*; between phases *percent* is of the whole job."""
        name = self._attempt.active_phase
        if name is None:
            return ProgressReport(self._token, half_up(percent), message, phase=None)
        position = self._names.index(name)
        whole = overall(position, len(self._names), percent)
        return ProgressReport(self._token, whole, message, name, position, half_up(percent))

    def _position(self, name: str) -> int:
        if name in self._names:
            return self._names.index(name)
        task = self._attempt.task.name
        if not self._names:
            raise Misuse(f"task {task!r} declares no phases; write @hf.task(phases=({shown(name)},))")
        near = near_and_all(str(name), self._names[:10], "its phases are")
        raise Misuse(f"task {task!r} has no phase {shown(name)}{near}; add it to phases=(…), or correct the name")

    def _read(self, name: str) -> Any:
        codec, text = self._codecs.get(name), self._results[name]
        return json.loads(text) if codec is None else codec.decode(text)

    async def _begin(self, name: str, function: Callable[..., Any]) -> bool:
        """Begin a phase; tell whether it is to run, or has finished before."""
        attempt, position = self._attempt, self._position(name)
        self._refuse_now()
        if self._is_in_doubt:
            await self.load()
            self._is_in_doubt = False
        if attempt.active_phase is not None:
            raise Misuse(
                f"phase {name!r} cannot begin while phase {attempt.active_phase!r} is under way: phases run one after "
                "the other, each called by the handler itself; within one, use ctx.phase_result()"
            )
        self._codecs[name] = result_codec(function, name, attempt.task.name)
        if name in self._results:
            return False
        missing = next((each for each in self._names[:position] if each not in self._results), None)
        if missing is not None:
            raise Misuse(
                f"phase {name!r} comes after phase {missing!r}, which has not finished; run them in the order of "
                "phases="
            )
        attempt.active_phase = name
        try:
            percent = overall(position, len(self._names), 0)
            await self._write(phases.begin, Beginning(self._token, name, percent, *self._layout(name, position)))
        except BaseException:
            attempt.active_phase = None
            raise
        self._is_laid = True
        return True

    def _refuse_now(self) -> None:
        """Raise if no phase may begin now: the handler is to stop, has ended, or has completed its job."""
        attempt = self._attempt
        if attempt.has_ended:
            raise Misuse("ctx.phase() cannot begin now: the handler has ended; let it await whatever it has begun")
        current_block.refuse_alone("ctx.phase")
        if attempt.block is not None and attempt.block.is_completing:
            raise Misuse("ctx.phase() cannot begin now: the job is completed by a block; phases come before it")
        self._refuse_stopped()

    def _layout(self, name: str, position: int) -> tuple[tuple[PhaseRow, ...], int | None]:
        """Say which rows are to be written for a phase to begin: all that are not as they should be, the first time."""
        active = PhaseRow(position, name, PhaseStatus.RUNNING, 0)
        if self._is_laid:
            return (active,), None
        finished = {row.name: row for row in self._rows if row.name in self._results}
        wanted = [
            finished[each]._replace(position=place) if each in finished else PhaseRow(place, each)
            for place, each in enumerate(self._names)
        ]
        wanted[position] = active
        # what the code has no phase for any more is kept behind the others: an older release may still run the job
        further = [row for row in finished.values() if row.name not in self._names]
        wanted += [row._replace(position=place) for place, row in enumerate(further, start=len(wanted))]
        stored = set(self._rows)
        changed = tuple(row for row in wanted if row not in stored)
        return changed, len(wanted) if len(self._rows) > len(wanted) else None

    async def _complete(self, name: str, value: object) -> Any:
        """Store what a phase has given, and give it as it will be read."""
        position, codec = self._names.index(name), self._codecs[name]
        text = codec.encode(codec.check(value))
        percent = overall(position, len(self._names), 100)
        await self._write(phases.complete, Completion(self._token, name, position, percent, text))
        self._results[name] = text
        self._give_way()
        return codec.decode(text)

    async def _write(self, operation: Write[Item], item: Item) -> None:
        """Write a step down, and with it what was said before; raise if the job is not ours any more."""
        progress, token = self._services.progress, self._token
        hold: ClaimState | None = None
        try:
            await self._services.wait(progress.hold(token))
            hold = await self._until_written(operation, item, progress.unwritten(token))
        finally:
            progress.release(token, is_written=hold is ClaimState.HELD)
        if hold is not ClaimState.HELD:
            raise self._attempt.lost(ABORTS[hold])

    async def _until_written(self, operation: Write[Item], item: Item, reports: Sequence[ProgressReport]) -> ClaimState:
        while True:
            try:
                hold = await self._commit(operation, item, reports)
            except (Unavailable, Busy, UnknownOutcome) as error:
                self._is_in_doubt |= isinstance(error, UnknownOutcome)
                if not self._services.leases.may_complete(self._token):
                    raise self._attempt.lost(AbortReason.ERROR) from error
                hold, seconds = ClaimState.LOCKED, TROUBLE_SECONDS
            else:
                seconds = BUSY_SECONDS
            if hold is not ClaimState.LOCKED:
                self._is_in_doubt = False
                return hold
            self._give_way()
            self._refuse_stopped()
            await self._services.pause(seconds)

    def _refuse_stopped(self) -> None:
        if (reason := self._attempt.stop_reason()) is not None:
            raise abort_error(reason, self._attempt.job.id)

    async def _commit(self, operation: Write[Item], item: Item, reports: Sequence[ProgressReport]) -> ClaimState:
        """Write once; an async handler is not cancelled while the answer to an end is under way: it would be lost."""
        writing = self._services.runner.run(operation, [item], reports)
        is_end = isinstance(item, Completion)
        return (await (self._attempt.committing(writing, self._note_cancel) if is_end else writing))[self._token]

    def _note_cancel(self) -> None:
        self._is_cancelled = True

    def _give_way(self) -> None:
        """Have a cancel take place that came while an answer was under way."""
        if self._is_cancelled:
            self._is_cancelled = False
            raise asyncio.CancelledError
