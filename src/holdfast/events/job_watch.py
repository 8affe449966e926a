"""Watching one job: as it is, then again whenever something is told of it, until it has ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

from holdfast.database.tx import Runner
from holdfast.errors import CursorExpired, JobNotFound
from holdfast.events.feed import Feed, Follower
from holdfast.events.follower import Notify, Stream
from holdfast.models import EventFilter, Job
from holdfast.store.log import reading

POLL_SECONDS = 1.0  # for a job of a task without history, of which nothing is told


class JobWatch(Stream[Job]):
    """An async iterator of a job as it goes on, or by `blocking()` a plain one; it ends when the job has, or is gone.

    What comes is the job as it was read; changes that follow each other closely may come as one.
    """

    def __init__(self, feed: Feed, job_id: UUID, read: Callable[[Job], Job]) -> None:
        super().__init__(feed.store, feed.runtime)
        self._feed = feed
        self._job_id = job_id
        self._read = read
        self._given: Job | None = None
        self._notify: Notify | None = None
        self._is_closed = False
        self._follower = self._follow()

    @property
    def has_joined(self) -> bool:
        """Tell whether it has given the job once."""
        return self._given is not None

    @property
    def is_closed(self) -> bool:
        """Tell whether it gives no more."""
        return self._is_closed or self._follower.is_closed

    def listen(self, notify: Notify | None) -> None:
        """Call *notify*, in any thread, whenever there may be something to take."""
        self._notify = notify
        self._follower.listen(notify)

    def close(self) -> None:
        """Watch no more."""
        self._is_closed = True
        self._follower.close()

    async def join(self, runner: Runner) -> None:
        """Take its place in the log."""
        await self._follower.join(runner)

    async def take(self, runner: Runner) -> Job | None:
        """Give the job, if it is another than the last one given."""
        try:
            await self.join(runner)
            must_look = self._given is None or self.poll_seconds is not None
            job = await (self._look(runner) if must_look else self._take_event(runner))
        except CursorExpired:  # failed over, or restored: what was told is lost, what is can be read
            self._follower.close()
            self._follower, self._given = self._follow(), None
            return await self.take(runner)
        except JobNotFound:
            self.close()
            if self._given is None:
                raise
            return None
        if job is None:
            return None
        self._given = job
        if job.outcome is not None:
            self.close()
        return self._read(job)

    async def _look(self, runner: Runner) -> Job | None:
        """Read the job itself."""
        job, has_history = await runner.read(reading.job_and_history, self._job_id)
        self.poll_seconds = None if has_history else POLL_SECONDS
        return job if self._is_news(job) else None

    async def _take_event(self, runner: Runner) -> Job | None:
        """Take the next event that changes the job."""
        while (event := await self._follower.take(runner)) is not None:
            if event.job is None:
                raise JobNotFound(self._job_id)
            if self._is_news(event.job):
                return event.job
        return None

    def _is_news(self, job: Job) -> bool:
        given = self._given
        return given is None or (job.version >= given.version and replace(job, lease_until=given.lease_until) != given)

    def _follow(self) -> Follower:
        follower = self._feed.follow(wanted=EventFilter(jobs=frozenset((self._job_id,))))
        follower.listen(self._notify)
        return follower
