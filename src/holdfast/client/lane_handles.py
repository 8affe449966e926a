"""Lanes and queues as people hold them: `hf.lane(key)`, `hf.queue(name)`; one line a method, in both colours.

What is done to a whole lane or queue is done in a short transaction of our own, never in a caller's: the engine needs
these rows for everybody's jobs.
"""

from __future__ import annotations

from datetime import datetime
from typing import ParamSpec, TypeVar
from uuid import UUID

from holdfast import current_block
from holdfast.client.verbs import asked_by
from holdfast.database.tx import Operation, Runner, drive
from holdfast.models import LaneInfo
from holdfast.store import lanes
from holdfast.tasks.calls import milliseconds_of

P = ParamSpec("P")
R = TypeVar("R")


async def run(at: Runner, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run *operation* in a transaction of our own, and pass the crash point behind its commit."""
    verb, _, kind = operation.__name__.partition("_")
    current_block.refuse_alone(f"hf.{kind or 'lane'}(…).{verb}")
    return await at.run(operation, *args, **kwargs)


class LaneHandle:
    """A lane, by its key; made by `hf.lane(key)`, which reads and changes nothing."""

    def __init__(self, key: str, at: Runner) -> None:
        self.key = key
        self._at = at

    async def pause(self, *, by: str | None = None, why: str | None = None) -> None:
        """Claim none of its jobs until it is resumed; a running one is left to finish."""
        await run(self._at, lanes.pause_lane, self.key, asked_by(by, why))

    async def resume(self, *, by: str | None = None, why: str | None = None) -> bool:
        """Claim its jobs again; tell whether it was paused. A job that halts it still does."""
        return await run(self._at, lanes.resume_lane, self.key, asked_by(by, why))

    async def skip(self, *, by: str | None = None, why: str | None = None) -> UUID | None:
        """Set aside the failed or paused job that halts it, as it is; return its id, or None if none does.

        Raises `LaneNotFound` if there is no such lane.
        """
        return await run(self._at, lanes.skip, self.key, asked_by(by, why))

    async def info(self) -> LaneInfo:
        """Tell how many jobs stand in it, who halts it and why, and whether it is paused."""
        return await self._at.read(lanes.lane_info, self.key)


class BlockingLaneHandle:
    """A lane, by its key; made by `hf.sync.lane(key)`, which reads and changes nothing."""

    def __init__(self, key: str, at: Runner) -> None:
        self.key = key
        self._at = at

    def pause(self, *, by: str | None = None, why: str | None = None) -> None:
        """Claim none of its jobs until it is resumed; a running one is left to finish."""
        drive(run(self._at, lanes.pause_lane, self.key, asked_by(by, why)))

    def resume(self, *, by: str | None = None, why: str | None = None) -> bool:
        """Claim its jobs again; tell whether it was paused. A job that halts it still does."""
        return drive(run(self._at, lanes.resume_lane, self.key, asked_by(by, why)))

    def skip(self, *, by: str | None = None, why: str | None = None) -> UUID | None:
        """Set aside the failed or paused job that halts it, as it is; return its id, or None if none does.

        Raises `LaneNotFound` if there is no such lane.
        """
        return drive(run(self._at, lanes.skip, self.key, asked_by(by, why)))

    def info(self) -> LaneInfo:
        """Tell how many jobs stand in it, who halts it and why, and whether it is paused."""
        return drive(self._at.read(lanes.lane_info, self.key))


class QueueHandle:
    """A queue, by its name; made by `hf.queue(name)`, which reads and changes nothing."""

    def __init__(self, name: str, at: Runner) -> None:
        self.name = name
        self._at = at

    async def pause(self, *, until: datetime | None = None, by: str | None = None, why: str | None = None) -> None:
        """Claim none of its jobs until it is resumed, or until then; what runs is left to finish."""
        await run(self._at, lanes.pause_queue, self.name, milliseconds_of(until, "until"), asked_by(by, why))

    async def resume(self, *, by: str | None = None, why: str | None = None) -> bool:
        """Claim its jobs again; tell whether it was paused."""
        return await run(self._at, lanes.resume_queue, self.name, asked_by(by, why))


class BlockingQueueHandle:
    """A queue, by its name; made by `hf.sync.queue(name)`, which reads and changes nothing."""

    def __init__(self, name: str, at: Runner) -> None:
        self.name = name
        self._at = at

    def pause(self, *, until: datetime | None = None, by: str | None = None, why: str | None = None) -> None:
        """Claim none of its jobs until it is resumed, or until then; what runs is left to finish."""
        drive(run(self._at, lanes.pause_queue, self.name, milliseconds_of(until, "until"), asked_by(by, why)))

    def resume(self, *, by: str | None = None, why: str | None = None) -> bool:
        """Claim its jobs again; tell whether it was paused."""
        return drive(run(self._at, lanes.resume_queue, self.name, asked_by(by, why)))
