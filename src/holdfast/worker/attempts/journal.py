"""The journal of one attempt: who appends comes in turn, and knows the number of its entry before it is written.

The last number is read once, under a token that nobody else can write with; from then on the attempt counts by itself.
So a commit whose answer was lost is repeated with the same numbers, as often as it takes, as long as the lease is ours.
Where nobody waits for the answer any more, the last number is read anew, under the lock of the job, which whatever is
still under way has to give back first. Entries of a block commit with it. It has the turn from before it opens to its
end: on SQLite whoever had it meanwhile would wait for the block, and the block for the turn.

What can wait goes with the next commit, or is written a moment later by `LateEntries`: log lines (`keep_logs=`), and
the event of entries that came too soon after the last one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol, TypeVar

from holdfast import current_block
from holdfast.database.tx import OpenTx, Runner, drive
from holdfast.errors import Busy, Misuse, StoreError, Unavailable, UnknownOutcome
from holdfast.journals import (
    LOG,
    MOST_LOGS,
    JournalEntry,
    JournalMark,
    NewEntry,
    check_kind,
    check_wanted_kind,
    encode_body,
)
from holdfast.logging import reason_of, say
from holdfast.store import journal
from holdfast.store.jobs import journaling
from holdfast.store.jobs.claiming import Claimed, ClaimState
from holdfast.store.jobs.journaling import Told
from holdfast.texts import clean_text
from holdfast.worker.attempts.aborts import ABORTS, AbortReason, abort_error
from holdfast.worker.attempts.services import AttemptServices

R = TypeVar("R")

TROUBLE_SECONDS = 0.5
EVENT_SECONDS = 0.25
LOG_SECONDS = 2.0
PAGE = 500
MESSAGE_LENGTH = 4_000

logger = logging.getLogger(__name__)


class Turns:
    """Lets one at a time, in the order in which they came, in threads and in the loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_taken = False
        self._waiting: deque[Future[bool]] = deque()

    def take_now(self) -> bool:
        """Take the turn if it is free; tell whether it was."""
        with self._lock:
            was_free, self._is_taken = not self._is_taken, True
        return was_free

    async def take(self, wait: Callable[[Future[bool]], Awaitable[bool]]) -> None:
        """Come in turn; *wait* waits for a future in the colour of who calls."""
        with self._lock:
            if not self._is_taken:
                self._is_taken = True
                return
            turn: Future[bool] = Future()
            self._waiting.append(turn)
        try:
            await wait(turn)
        except BaseException:
            if not turn.cancel():  # it came just then
                self.give()
            raise

    def give(self) -> None:
        """Let the next one."""
        with self._lock:
            while self._waiting:
                turn = self._waiting.popleft()
                if turn.set_running_or_notify_cancel():
                    turn.set_result(True)
                    return
            self._is_taken = False


class Completes(Protocol):
    """A block, as a journal sees it."""

    @property
    def is_completed(self) -> bool: ...


class Appends(Protocol):
    """An attempt in this process, as its journal sees it."""

    job: Claimed
    services: AttemptServices
    has_ended: bool
    found: AbortReason | None

    @property
    def block(self) -> Completes | None: ...
    @property
    def has_open_block(self) -> bool: ...
    def stop_reason(self) -> AbortReason | None: ...
    def lost(self, reason: AbortReason) -> Exception: ...
    async def committing(self, writing: Coroutine[Any, Any, R], on_cancel: Callable[[], None]) -> R: ...


class AttemptJournal:
    """The journal as one attempt writes it; made when somebody asks for it."""

    def __init__(self, attempt: Appends) -> None:
        self._attempt = attempt
        self._services = attempt.services
        self._token = attempt.job.token
        self._turns = Turns()
        self._turns_in_block = Turns()
        self._mark: JournalMark | None = None
        """Where the journal stands with all that has a number; None if that has to be read."""
        self._unwritten: list[NewEntry] = []
        """What has a number, and may be written or not."""
        self._logs: deque[str] = deque(maxlen=MOST_LOGS)
        """Log lines that have no number yet."""
        self._told_at = float("-inf")
        self._untold: Told | None = None
        """The last entry of which no event says anything yet."""
        self.told_in_block: Told | None = None
        """The last entry of the block that is open."""
        self._has_block = attempt.has_open_block and self._turns.take_now()
        """Whether a block is open, and has the turn; one may be already when the journal is first asked for."""
        self._is_cancelled = False
        """The handler was cancelled while a commit was under way, and has not been told yet."""
        self._late: Future[bool] | None = None
        """Is done once `write_late` has left what it writes."""

    async def append(self, kind: object, body: object) -> None:
        """Append an entry, which is durable when this returns."""
        word, text = check_kind(kind), encode_body(body)
        self._refuse()
        await self._turns.take(self._services.wait)
        try:
            self._refuse()  # the handler may have been told to stop while others had their turn
            await self._append(word, text)
        finally:
            self._turns.give()
            self._come_back(LOG_SECONDS)

    async def _append(self, kind: str, text: str) -> None:
        if self._mark is None:
            self._mark = await self._steadily(lambda: self._services.runner.run(journaling.find_mark, self._token))
        self._mark.after_entry(text)  # raises if it is full, before log lines have numbers
        untold, mark = self._untold, self._add_logs(self._mark).after_entry(text)
        self._unwritten = [*self._unwritten, NewEntry(mark, kind, text)]
        told = self._told_now(Told(kind, mark.number))
        try:
            state = await self._steadily(lambda: self._commit(told))
            if state is not ClaimState.HELD:
                raise self._attempt.lost(ABORTS[state])
        except BaseException:  # also of a cancel: whoever comes next reads what has become of it
            self._mark, self._unwritten, self._untold, self._is_cancelled = None, [], untold, False
            raise
        self._mark, self._unwritten = mark, []
        self._give_way()

    def _add_logs(self, mark: JournalMark) -> JournalMark:
        """Give numbers behind *mark* to the log lines that wait; give the mark behind them.

        A number cannot be left out: while the database is away no more of them are given, and newer lines wait.
        """
        lines: list[NewEntry] = []
        while self._logs and len(self._unwritten) + len(lines) < MOST_LOGS:
            mark = mark.after_log()
            lines.append(NewEntry(mark, LOG, self._logs.popleft()))
        self._unwritten = [*self._unwritten, *lines]
        return mark

    def _told_now(self, told: Told) -> Told | None:
        """Say whether an event is due with this entry, or is to come later, of it or a later one."""
        now = self._services.late.monotonic()
        if now - self._told_at < EVENT_SECONDS:
            self._untold = told
            self._come_back(self._told_at + EVENT_SECONDS - now)
            return None
        self._told_at, self._untold = now, None
        return told

    async def _commit(self, told: Told | None) -> ClaimState:
        writing = self._services.runner.run(journaling.append, self._token, self._unwritten, told)
        try:
            return await self._attempt.committing(writing, self._note_cancel)
        except BaseException:
            self._give_way()
            raise

    def _note_cancel(self) -> None:
        self._is_cancelled = True

    def _give_way(self) -> None:
        """Have a cancel take place that came while an answer was under way."""
        if self._is_cancelled:
            self._is_cancelled = False
            raise asyncio.CancelledError

    async def _steadily(self, ask: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Ask the database again and again while it is away, the lease is ours and nobody has the handler stop."""
        while True:
            try:
                return await ask()
            except (Unavailable, Busy, UnknownOutcome) as error:
                if not self._services.leases.may_complete(self._token):
                    raise self._attempt.lost(AbortReason.ERROR) from error
            self._refuse_stopped()
            await self._services.pause(TROUBLE_SECONDS)

    def _refuse(self) -> None:
        """Raise if nothing may be appended now: the handler is to stop, has ended, or has completed its job."""
        attempt = self._attempt
        if attempt.has_ended:
            raise Misuse("ctx.journal cannot be written now: the handler has ended; let it await what it has begun")
        current_block.refuse_journal()
        if attempt.block is not None and attempt.block.is_completed:
            raise Misuse("ctx.journal cannot be written now: a block has completed the job; append before, or in it")
        self._refuse_stopped()

    def _refuse_stopped(self) -> None:
        """Raise if the handler is to stop; one that is to be paused may write down how far it is."""
        reason = self._attempt.stop_reason()
        if reason is not None and reason is not AbortReason.PAUSED:
            raise abort_error(reason, self._attempt.job.id)

    async def read(self, kind: str | None) -> list[JournalEntry]:
        """Read all entries, or those of one *kind*, also of earlier attempts, in order."""
        wanted, found = check_wanted_kind(kind), list[JournalEntry]()
        while True:
            after = found[-1].number if found else 0
            read = partial(self._services.runner.read, journal.read, self._token.seq, wanted, after, PAGE)
            page = await self._steadily(read)
            found += page
            if len(page) < PAGE:
                return found

    # in a block

    async def begin_block(self) -> None:
        """Let nobody else append until the block ends that is about to open."""
        await self._turns.take(self._services.wait)
        self._has_block = True

    async def append_in_block(self, open_tx: OpenTx, kind: object, body: object) -> None:
        """Append an entry that commits with the block."""
        word, text = check_kind(kind), encode_body(body)
        await self._turns_in_block.take(self._services.wait)
        try:
            told = await open_tx.run(journaling.append_in_block, self._token, word, text)
        finally:
            self._turns_in_block.give()
        if told is None:
            raise self._attempt.lost(AbortReason.TAKEN)
        self.told_in_block = told

    def end_block(self, *, is_committed: bool) -> None:
        """Let others append again, once the block is committed or rolled back."""
        if not self._has_block:
            return
        if self.told_in_block is not None:
            self._mark, self._unwritten = None, []
            self._untold = None if is_committed else self._untold
        self.told_in_block, self._has_block = None, False
        self._turns.give()

    # what is written later

    def keep(self, record: logging.LogRecord) -> None:
        """Keep a log line: its message, level, logger and time; in any thread, at once, and never raising."""
        with suppress(Exception):  # `__str__` of what is logged may be a user's
            said = {
                "level": clean_text(str(record.levelname), MESSAGE_LENGTH),
                "logger": clean_text(record.name, MESSAGE_LENGTH),
                "message": clean_text(record.getMessage(), MESSAGE_LENGTH),
                "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            }
            self._logs.append(json.dumps(said, ensure_ascii=False))
            self._services.late.add(self, LOG_SECONDS)

    @property
    def owes(self) -> bool:
        """Tell whether something is still to be written."""
        return bool(self._logs or self._unwritten or self._untold)

    def _come_back(self, seconds: float) -> None:
        if self.owes:
            self._services.late.add(self, seconds)

    async def write_late(self, runner: Runner) -> None:
        """Write what waits, unless somebody just writes, who takes it along; raise if that fails this time."""
        self._late = late = Future[bool]()
        late.set_running_or_notify_cancel()  # who waits for it may be cancelled, but not this
        try:
            if self._turns.take_now():
                await self._write_late_in_turn(runner)
            else:
                self._come_back(EVENT_SECONDS)
        finally:
            late.set_result(True)

    async def _write_late_in_turn(self, runner: Runner) -> None:
        try:
            if not self._attempt.has_ended:
                await self._write_rest(runner)
                self._come_back(LOG_SECONDS)
        finally:
            self._turns.give()

    async def end(self) -> None:
        """Write what waits as the handler has ended; no job fails by that, and none waits for whoever still appends."""
        if self._late is not None:
            await self._services.wait(self._late)
        if self._turns.take_now():
            try:
                await self._write_rest(self._services.runner)
                if self._logs:  # more than one write takes, because the database was away
                    await self._write_rest(self._services.runner)
            except StoreError as error:
                say(logger, "journal_not_written", trace=error, reason=reason_of(error))
            finally:
                self._turns.give()

    async def _write_rest(self, runner: Runner) -> None:
        if not self.owes or self._attempt.found is not None:
            return
        if self._mark is None:
            self._mark = await runner.run(journaling.find_mark, self._token)
        self._mark = self._add_logs(self._mark)
        block, untold = self._attempt.block, self._untold
        if block is None or not block.is_completed:
            await runner.run(journaling.append, self._token, self._unwritten, untold)
            self._told_at = self._services.late.monotonic() if untold else self._told_at
        elif self._unwritten:
            await runner.run(journaling.append_after_end, self._token, self._unwritten)
        self._unwritten, self._untold = [], None


class Journal:
    """`ctx.journal` of an async handler: entries that it appends, which outlive attempts and resumes of its job."""

    def __init__(self, attempt_journal: AttemptJournal) -> None:
        self._journal = attempt_journal

    async def append(self, kind: str, body: Any) -> None:
        """Append an entry, which is durable when this returns: `await ctx.journal.append("message", {"role": "user"})`.

        Call it as often as you like; entries keep the order of the calls. *kind* is a word of your own, *body* what
        JSON can hold. Raises `InvalidInput`, `JournalFull`, and `LeaseLost` if the job is no longer this attempt's:
        then nothing is written.
        """
        await self._journal.append(kind, body)

    async def read(self, *, kind: str | None = None) -> list[JournalEntry]:
        """Read all entries of the job in order, also those of earlier attempts; or only those of one *kind*."""
        return await self._journal.read(kind)


class BlockingJournal:
    """`ctx.journal` of a plain handler: entries that it appends, which outlive attempts and resumes of its job."""

    def __init__(self, attempt_journal: AttemptJournal) -> None:
        self._journal = attempt_journal

    def append(self, kind: str, body: Any) -> None:
        """Append an entry, which is durable when this returns: `ctx.journal.append("message", {"role": "user"})`.

        Call it as often as you like; entries keep the order of the calls. *kind* is a word of your own, *body* what
        JSON can hold. Raises `InvalidInput`, `JournalFull`, and `LeaseLost` if the job is no longer this attempt's:
        then nothing is written.
        """
        drive(self._journal.append(kind, body))

    def read(self, *, kind: str | None = None) -> list[JournalEntry]:
        """Read all entries of the job in order, also those of earlier attempts; or only those of one *kind*."""
        return drive(self._journal.read(kind))
