"""The log as server-sent events: a snapshot of the jobs, then every event behind it, without a gap, in both colours.

A stream costs what its follower keeps of the log, which is bounded, and one piece of bytes; what is written of an event
is written once, for all streams that show the same of it. A reader that is too slow loses nothing: its follower reads
by itself what it has missed. Every stream begins with an id, so that it can be resumed also if it ends before its first
event; and when the log has moved on without an event for it, an id comes with its next `ping`, so that what it needs is
not removed. Where a stream cannot go on without a gap, because that is gone or the database is another, it says
`reset`, and begins anew with a snapshot.

With *merge_ms* events are held back that long, and of one job only the newest is sent. All that is held is let go at
once, in the order of the log, and no id is sent meanwhile: so behind every id that was sent comes all that was not.

What waits between two pieces, in either colour, is in `follower`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from holdfast.database.tx import Runner
from holdfast.errors import CursorExpired, HoldfastError, InvalidCursor, InvalidInput, got
from holdfast.events.feed import Feed, Follower
from holdfast.events.follower import Notify, Stream
from holdfast.models import Event, EventFilter, Job
from holdfast.outcomes import is_number
from holdfast.store.log.snapshot import read
from holdfast.tasks.redactions import TaskRedactions
from holdfast.times import instant_text
from holdfast.wire import sse_frames
from holdfast.wire.job_json import PAYLOADS, event_object, job_object
from holdfast.wire.json_text import json_bytes
from holdfast.wire.redaction import Redaction

SNAPSHOT_JOBS = 200
SNAPSHOT_BYTES = 1024 * 1024
PIECE_BYTES = 64 * 1024
JOB_BYTES = 64 * 1024  # as a message has it; what is longer comes without input and output
LONGEST_PING_SECONDS = 3600.0
LEAST_MERGE_MS, MOST_MERGE_MS = 50, 60_000
MOST_HELD = 1_000  # events that are held back; one more lets all go
MOST_VARIANTS = 8  # ways of showing an event that are kept with it


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """What a stream is asked for; *ping_seconds* is how long it may be silent.

    With a *redaction* the stream shows what that lets its reader see, less what the tasks hide; without one, all.
    """

    wanted: EventFilter
    snapshot: bool
    last_event_id: str | None
    ping_seconds: float
    brief: bool = False
    merge_ms: int = 0
    redaction: Redaction | None = None

    def __post_init__(self) -> None:
        if not 0 < self.ping_seconds <= LONGEST_PING_SECONDS:
            raise InvalidInput("ping_seconds must be seconds above 0 and up to 3600", "ping_seconds")
        if not is_number(self.merge_ms, int) or not (
            self.merge_ms == 0 or LEAST_MERGE_MS <= self.merge_ms <= MOST_MERGE_MS
        ):
            raise InvalidInput(
                f"merge_ms must be 0, or {LEAST_MERGE_MS} to {MOST_MERGE_MS} milliseconds, {got(self.merge_ms)}; write "
                "merge_ms=250, or leave it out to get every event",
                "merge_ms",
            )


class Held:
    """Events that are held back for some *seconds*: of one job only the newest, in the order of the log."""

    def __init__(self, seconds: float, monotonic: Callable[[], float]) -> None:
        self._seconds = seconds
        self._monotonic = monotonic
        self._events: dict[Hashable, tuple[Event, int]] = {}
        self._since = 0.0

    def __len__(self) -> int:
        return len(self._events)

    @property
    def seconds_left(self) -> float:
        """In how many seconds all are to be let go."""
        return self._since + self._seconds - self._monotonic()

    @property
    def is_due(self) -> bool:
        """Tell whether all are to be let go."""
        return bool(self._events) and (len(self._events) >= MOST_HELD or self.seconds_left <= 0)

    def add(self, event: Event) -> None:
        """Hold *event*, in the place of an earlier one of the same job."""
        if not self._events:
            self._since = self._monotonic()
        about = event.job.id if event.job is not None else event.deleted_job_id
        key = about or event.cursor
        _, merged = self._events.pop(key, (None, -1))
        self._events[key] = event, merged + 1

    def let_go(self) -> Iterable[tuple[Event, int]]:
        """Give all, each with how many earlier ones it stands for, and hold none."""
        events, self._events = self._events, {}
        return events.values()


class EventStream(Stream[bytes]):
    """The bytes of a stream, in pieces of whole messages: an async iterator; close it, or use `async with`.

    It ends when it or its Holdfast is closed.
    """

    def __init__(self, feed: Feed, asked: StreamRequest, redactions: TaskRedactions) -> None:
        super().__init__(feed.store, feed.runtime)
        self._redactions = redactions
        self._held = Held(asked.merge_ms / 1000, feed.runtime.monotonic) if asked.merge_ms else None
        self._due: deque[tuple[Event, int]] = deque()
        self._feed = feed
        self._asked = asked
        self._follower: Follower | None = None
        self._taken: list[bytes] = []
        self._last_id = ""
        self._notify: Notify | None = None
        self._is_closed = False
        self._given_at = feed.runtime.monotonic()

    @property
    def has_joined(self) -> bool:
        """Tell whether it has its place in the log."""
        return self._follower is not None and self._follower.has_joined

    @property
    def is_closed(self) -> bool:
        """Tell whether it gives no more."""
        return self._is_closed or (self._follower is not None and self._follower.is_closed)

    def listen(self, notify: Notify | None) -> None:
        """Call *notify*, in any thread, whenever there may be something to give."""
        self._notify = notify
        self.poll_seconds = self._seconds_left
        if self._follower is not None:
            self._follower.listen(notify)

    def close(self) -> None:
        """End it, and leave nothing behind."""
        self._is_closed = True
        if self._follower is not None:
            self._follower.close()

    async def join(self, runner: Runner) -> None:
        """Take its place in the log, behind the snapshot or the id that it begins with."""
        if self.has_joined or self.is_closed:
            return
        try:
            await self._begin(runner)
        except (CursorExpired, InvalidCursor) as error:
            await self._begin_anew(runner, str(error))

    async def take(self, runner: Runner) -> bytes | None:
        """Give the next piece; a `ping`, if it has been silent for long; or None."""
        await self.join(runner)
        if self._follower is None or self.is_closed:
            return None
        try:
            await self._take_events(runner, self._follower)
        except CursorExpired as error:
            await self._begin_anew(runner, str(error))
        except HoldfastError:
            if not self._taken:  # else it comes again, behind what was taken
                self.error = self._follower.error
                raise
        if not self._taken and self._silent_seconds_left <= 0:
            self._taken.append(self._ping(self._follower))
        if not self._taken:
            self.poll_seconds = self._seconds_left
            return None
        self._given_at = self.runtime.monotonic()
        return self._empty()

    async def _begin(self, runner: Runner) -> None:
        if self._asked.last_event_id is None and self._asked.snapshot:
            await self._snapshot(runner)
            return
        follower = await self._follow(runner, self._asked.last_event_id)
        self._last_id = self._asked.last_event_id or follower.cursor
        self._taken.append(sse_frames.resume_point(self._last_id))

    async def _begin_anew(self, runner: Runner, reason: str) -> None:
        """Say that there is a gap, and how everything stands behind it."""
        self._empty()  # what was taken before the gap is in the snapshot, and so is what was held
        self._due.clear()
        if self._held is not None:
            self._held.let_go()
        self._taken.append(_message("reset", {"at": self._now(), "reason": reason}))
        await self._snapshot(runner)

    async def _snapshot(self, runner: Runner) -> None:
        jobs, cursor = await runner.read(read, self._asked.wanted, SNAPSHOT_JOBS + 1)
        await self._know(runner, {job.task for job in jobs})
        self._last_id = cursor.text
        await self._follow(runner, self._last_id)
        text = _snapshot_text(jobs, self._now(), self._redaction_of, brief=self._asked.brief)
        self._taken.append(sse_frames.message(text, event="snapshot", id=self._last_id))

    async def _follow(self, runner: Runner, after: str | None) -> Follower:
        follower = self._feed.follow(after, self._asked.wanted, is_awaited=True)
        follower.listen(self._notify)
        await follower.join(runner)
        self._follower = follower
        if self._is_closed:  # meanwhile
            follower.close()
        return follower

    async def _take_events(self, runner: Runner, follower: Follower) -> None:
        """Take what is there, up to a piece."""
        size = 0
        while size < PIECE_BYTES and (found := await self._next(runner, follower)) is not None:
            event, merged = found
            # what is of no job may still tell of one's error, such as why a lane is halted
            redaction = self._redaction_of("" if event.job is None else event.job.task)
            self._taken.append(_written(event, redaction, brief=self._asked.brief, merged=merged))
            self._last_id = event.cursor
            size += len(self._taken[-1])

    async def _next(self, runner: Runner, follower: Follower) -> tuple[Event, int] | None:
        """Give the next event that is to be sent, and how many earlier ones it stands for."""
        if not self._due:
            if self._held is None and self._asked.redaction is None:  # as most streams are
                event = await follower.take(runner)
                return None if event is None else (event, 0)
            await self._take_due(runner, follower)
        if not self._due:
            return None
        if (job := self._due[0][0].job) is not None:
            await self._know(runner, (job.task,))  # may raise, and then the event must come again
        return self._due.popleft()

    async def _take_due(self, runner: Runner, follower: Follower) -> None:
        if (held := self._held) is None:
            if (event := await follower.take(runner)) is not None:
                self._due.append((event, 0))
            return
        has_ended = False
        try:
            while not held.is_due and (event := await follower.take(runner)) is not None:
                held.add(event)
        except HoldfastError:  # it comes again, behind what is held
            if not held:
                raise
            has_ended = True
        if has_ended or held.is_due:
            self._due.extend(held.let_go())

    async def _know(self, runner: Runner, tasks: Iterable[str]) -> None:
        if self._asked.redaction is not None:
            await self._redactions.refresh(runner, tasks)

    def _redaction_of(self, task: str) -> Redaction | None:
        asked = self._asked.redaction
        return None if asked is None else self._redactions.of(task, asked)

    def _empty(self) -> bytes:
        taken, self._taken = self._taken, []
        return b"".join(taken)

    def _ping(self, follower: Follower) -> bytes:
        ping = _message("ping", {"at": self._now()})
        if self._held or (reached := follower.cursor) == self._last_id:  # behind its cursor is not what is held
            return ping
        self._last_id = reached
        return sse_frames.resume_point(reached) + ping

    @property
    def _seconds_left(self) -> float:
        """In how many seconds it has something to say, if nothing is told."""
        silent = self._silent_seconds_left
        return max(min(silent, self._held.seconds_left) if self._held else silent, 0.0)

    @property
    def _silent_seconds_left(self) -> float:
        return self._given_at + self._asked.ping_seconds - self.runtime.monotonic()

    def _now(self) -> str:
        now = datetime.fromtimestamp(self.runtime.wall_ms() / 1000, UTC)
        return instant_text(now) or ""


def _message(event: str, data: dict[str, Any]) -> bytes:
    return sse_frames.message(json_bytes(data).decode(), event=event)


def _written(event: Event, redaction: Redaction | None = None, *, brief: bool = False, merged: int = 0) -> bytes:
    """Give the message of *event*; the first stream that needs it writes it, for all that show the same of it."""
    key = redaction, brief
    if (variants := event._written) is None:
        variants = {}
        object.__setattr__(event, "_written", variants)  # it is frozen for everybody else
    if (wire := variants.get(key)) is None:
        wire = _write(event, redaction, brief=brief)
        if len(variants) < MOST_VARIANTS:
            variants[key] = wire
    return wire if not merged else wire.removesuffix(MESSAGE_END) + f',"merged":{merged}'.encode() + MESSAGE_END


MESSAGE_END = b"}\n\n"


def _write(event: Event, redaction: Redaction | None, *, brief: bool) -> bytes:
    message = message_object(event, redaction, brief=brief)
    return sse_frames.message(json_bytes(message).decode(), event=event.name, id=event.cursor)


def message_object(event: Event, redaction: Redaction | None, *, brief: bool) -> dict[str, Any]:
    """Write what a message says of *event*; `omitted` names what is left out of its job."""
    message = event_object(event, redaction, brief=brief)
    if event.job is not None:
        message["omitted"] = _omitted(event.job, redaction, brief=brief)
        message["job"] |= dict.fromkeys(message["omitted"])
    return message


def _omitted(job: Job, redaction: Redaction | None, *, brief: bool) -> list[str]:
    is_hidden = brief or (redaction is not None and not redaction.payloads)
    return list(PAYLOADS) if is_hidden or _is_long(job) else []


def _is_long(job: Job) -> bool:
    return len(job.input) + len(job.output or "") > JOB_BYTES


def _snapshot_text(
    jobs: Sequence[Job], at: str, redaction_of: Callable[[str], Redaction | None], *, brief: bool
) -> str:
    """Write the newest of *jobs*, as many as there is room for, and whether these are all."""
    written: list[bytes] = []
    omitted: list[str] = []
    room = SNAPSHOT_BYTES
    for job in jobs[:SNAPSHOT_JOBS]:
        redaction = redaction_of(job.task)
        shown = job_object(job, redaction, brief=brief)
        if left_out := _omitted(job, redaction, brief=brief):
            shown |= dict.fromkeys(left_out)
            omitted.append(shown["id"])
        written.append(json_bytes(shown))
        room -= len(written[-1])
        if room < 0:
            break
    head = json_bytes({"at": at, "is_whole": len(written) == len(jobs), "omitted": omitted}).decode()
    return f'{head[:-1]},"jobs":[{b",".join(written).decode()}]}}'
