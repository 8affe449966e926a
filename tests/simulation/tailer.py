"""Who follows the log: it takes events, stops, is killed, and comes back behind the last one that it took.

What it must be given is known: the checker has read every event in the commit that wrote it. I-44: of each job it is
given every event, once, in order; of one that was deleted meanwhile perhaps not the last ones. I-43: and the job that
comes with an event is never older.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from holdfast.errors import CursorExpired, HoldfastError
from holdfast.models import INTERNAL_QUEUE, Event, JobEvent
from holdfast.store.log.events import NO_JOB
from holdfast.wire.cursors import SeqCursor, behind_row, read_cursor
from tests.simulation.handlers import TASKS
from tests.simulation.process import Process
from tests.simulation.violations import Violation

if TYPE_CHECKING:
    from tests.simulation.world import World

STOPS = 0.03
"""How often it stops after an event."""
AWAY_SECONDS = (0.0, 0.1, 1.0, 1.0, 6.0, 40.0)


class Tailer:
    """One reader, in a process of its own."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._cursor: str | None = None
        self._taken: dict[int, int] = {}
        """How many events of each job it has taken, or were there before it came."""
        self._since = 0
        self._lives = 0
        self.process = self._give_birth()

    def _give_birth(self) -> Process:
        world = self._world
        self._lives += 1
        self.process = Process(f"tailer{self._lives}", world.machine, world.disk, TASKS)
        world.tailers.append(self.process)
        return self.process

    def begin(self) -> None:
        """Follow from now on."""
        self.process.spawn(self._live())

    async def _live(self) -> None:
        world, hf = self._world, self.process.hf
        while True:
            try:
                await self._follow(hf.events(self._cursor))
            except CursorExpired:
                self._begin_anew()
            except HoldfastError:
                world.reached["reader refused"] += 1
            except Violation as violation:
                world.machine.errors.append(str(violation))
                return
            await self._stay_away()

    async def _follow(self, follower: Any) -> None:
        async with follower:
            if self._cursor is None:
                self._cursor = follower.cursor
                self._since = place_of(self._cursor)
                self._taken.clear()
            async for event in follower:
                self._take(event)
                self._cursor = event.cursor
                if not self._world.is_calm and self._world.chance.random() < STOPS:
                    break
            if self._world.chance.random() < 0.5:
                self._cursor = follower.cursor

    async def _stay_away(self) -> None:
        world = self._world
        if not world.is_calm and world.chance.random() < 0.2:
            world.note(f"{self.process.name} is killed")
            killed = self.process
            self._give_birth().spawn(self._live())
            killed.kill()
            await asyncio.get_running_loop().create_future()
        until = world.machine.now + (1.0 if world.is_calm else world.chance.choice(AWAY_SECONDS))
        world.reached["reader came back"] += 1
        while world.machine.now < until:
            await asyncio.sleep(min(2.0, until - world.machine.now))
            if world.is_calm:
                return

    def _take(self, event: Event) -> None:
        job = event.job if isinstance(event, JobEvent) else None
        if job is not None and job.queue == INTERNAL_QUEUE:
            raise Violation(f"I-70: a reader was told of {event.name} of a delivery")
        if isinstance(event, JobEvent) and event.version is not None and event.job.version < event.version:
            raise Violation(f"I-43: {event.name} tells of version {event.version}, its job is at {event.job.version}")
        seq = NO_JOB if job is None else job.seq
        place = self._next(seq)
        there = self._world.checker.log.get(seq, [])
        said = event.name, event.version if isinstance(event, JobEvent) else None
        if place >= len(there) or there[place][1:] != said:
            wanted = there[place] if place < len(there) else "nothing"
            raise Violation(f"I-44: a reader was given {said} of job {seq}, and {wanted} comes next")
        self._taken[seq] = place + 1
        self._world.reached["event read"] += 1

    def _next(self, seq: int) -> int:
        """Say which event of a job comes next."""
        if seq not in self._taken:
            numbers = [number for number, *_ in self._world.checker.log.get(seq, [])]
            self._taken[seq] = bisect_right(numbers, self._since)
        return self._taken[seq]

    def missed(self, up_to: int | None = None) -> str | None:
        """Say what it was not given, of all that there is or of what is not behind the place *up_to*."""
        checker = self._world.checker
        for seq, there in checker.log.items():
            place = self._next(seq)
            if place < len(there) and seq not in checker.kept.gone and (up_to is None or there[place][0] <= up_to):
                return f"I-44: a reader was not given {there[place]} of job {seq}"
        return None

    def _begin_anew(self) -> None:
        """See that the log was really cut behind its place, and that nothing was missed before."""
        assert self._cursor is not None
        self._world.reached["reader was reset"] += 1
        place = place_of(self._cursor)
        rows = self._world.checker.ask("SELECT value FROM holdfast_meta WHERE key = 'log_trimmed'")
        if not rows or behind_row(int(rows[0][0])) <= place:
            raise Violation(f"I-44: a cursor at {place} expired, and the log was cut at {rows}")
        if missed := self.missed(up_to=place):
            raise Violation(missed)
        self._cursor = None


def place_of(cursor: str) -> int:
    """Read the number of the place where a cursor stands."""
    found = read_cursor(cursor)
    assert isinstance(found, SeqCursor)
    return found.place
