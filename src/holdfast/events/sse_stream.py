"""The log as server-sent events: a snapshot of the jobs, then every event behind it, without a gap, in both colours.

A stream costs what its follower keeps of the log, which is bounded, and one piece of bytes; what is written of an event
is written once, for all streams. A reader that is too slow loses nothing: its follower reads by itself what it has
missed. Every stream begins with an id, so that it can be resumed also if it ends before its first event; and when the
log has moved on without an event for it, an id comes with its next `ping`, so that what it needs is not removed. Where
a stream cannot go on without a gap, because that is gone or the database is another, it says `reset`, and begins anew
with a snapshot.

What waits between two pieces, in either colour, is in `following`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic_core import to_json

from holdfast.database.tx import Runner
from holdfast.errors import CursorExpired, HoldfastError, InvalidCursor, InvalidInput
from holdfast.events.feed import Feed, Follower
from holdfast.events.follower import Notify, Stream
from holdfast.models import Event, EventFilter, Job
from holdfast.store.log.snapshot import read
from holdfast.times import instant_text
from holdfast.wire import sse_frames
from holdfast.wire.job_json import event_object, job_object

SNAPSHOT_JOBS = 200
SNAPSHOT_BYTES = 1024 * 1024
PIECE_BYTES = 64 * 1024
JOB_BYTES = 64 * 1024  # as a message has it; what is longer comes without input and output
LONGEST_PING_SECONDS = 3600.0
LEFT_OUT = ("input", "output")


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """What a stream is asked for; *ping_seconds* is how long it may be silent."""

    wanted: EventFilter
    snapshot: bool
    last_event_id: str | None
    ping_seconds: float

    def __post_init__(self) -> None:
        if not 0 < self.ping_seconds <= LONGEST_PING_SECONDS:
            raise InvalidInput("ping_seconds must be seconds above 0 and up to 3600", "ping_seconds")


class EventStream(Stream[bytes]):
    """The bytes of a stream, in pieces of whole messages: an async iterator; close it, or use `async with`.

    It ends when it or its Holdfast is closed.
    """

    def __init__(self, feed: Feed, asked: StreamRequest) -> None:
        super().__init__(feed.store, feed.runtime)
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
        self.poll_seconds = max(self._silent_seconds_left, 0.0)
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
        self._empty()  # what was taken before the gap is in the snapshot
        self._taken.append(_message("reset", {"at": self._now(), "reason": reason}))
        await self._snapshot(runner)

    async def _snapshot(self, runner: Runner) -> None:
        jobs, cursor = await runner.read(read, self._asked.wanted, SNAPSHOT_JOBS + 1)
        self._last_id = cursor.text
        await self._follow(runner, self._last_id)
        self._taken.append(sse_frames.message(_snapshot_text(jobs, self._now()), event="snapshot", id=self._last_id))

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
        while size < PIECE_BYTES and (event := await follower.take(runner)) is not None:
            self._taken.append(_written(event))
            self._last_id = event.cursor
            size += len(self._taken[-1])

    def _empty(self) -> bytes:
        taken, self._taken = self._taken, []
        return b"".join(taken)

    def _ping(self, follower: Follower) -> bytes:
        ping = _message("ping", {"at": self._now()})
        if (reached := follower.cursor) == self._last_id:
            return ping
        self._last_id = reached
        return sse_frames.resume_point(reached) + ping

    @property
    def _silent_seconds_left(self) -> float:
        return self._given_at + self._asked.ping_seconds - self.runtime.monotonic()

    def _now(self) -> str:
        now = datetime.fromtimestamp(self.runtime.wall_ms() / 1000, UTC)
        return instant_text(now) or ""


def _message(event: str, data: dict[str, Any]) -> bytes:
    return sse_frames.message(to_json(data).decode(), event=event)


def _written(event: Event) -> bytes:
    """Give the message of *event*; the first stream that needs it writes it, for all."""
    if event._written is None:
        message = event_object(event)
        if event.job is not None:
            message["omitted"] = list(LEFT_OUT) if _is_long(event.job) else []
            message["job"] |= dict.fromkeys(message["omitted"])
        wire = sse_frames.message(to_json(message).decode(), event=event.name, id=event.cursor)
        object.__setattr__(event, "_written", wire)  # it is frozen for everybody else
        return wire
    return event._written


def _is_long(job: Job) -> bool:
    return len(job.input) + len(job.output or "") > JOB_BYTES


def _snapshot_text(jobs: Sequence[Job], at: str) -> str:
    """Write the newest of *jobs*, as many as there is room for, and whether these are all."""
    written: list[bytes] = []
    omitted: list[str] = []
    room = SNAPSHOT_BYTES
    for job in jobs[:SNAPSHOT_JOBS]:
        shown = job_object(job)
        if _is_long(job):
            shown |= dict.fromkeys(LEFT_OUT)
            omitted.append(shown["id"])
        written.append(to_json(shown))
        room -= len(written[-1])
        if room < 0:
            break
    head = to_json({"at": at, "is_whole": len(written) == len(jobs), "omitted": omitted}).decode()
    return f'{head[:-1]},"jobs":[{b",".join(written).decode()}]}}'
