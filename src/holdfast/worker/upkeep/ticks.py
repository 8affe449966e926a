"""Starts the jobs of schedules that are due. Every worker does, without a leader, and not as a part of its claims.

It costs nothing until the next time has come: the looks that a worker takes anyway tell when that is
(`polls.WAITING_WORK`), and where there are no schedules nothing else is asked. When the time has come, the database is
asked which schedules are due by its own clock. About every minute, and when that clock was seen to jump, the next times
of all schedules are compared with their rules, and pauses that are over end. A worker that is busy, and takes no looks,
learns then of schedules that are new.

*One that cannot start delays no other.* A call that cannot become a start is known before any SQL, and its schedule
goes on with its next time. If the database itself refuses a batch, each schedule of it has a transaction of its own:
what fails there for good is given up, and what may succeed later, such as a key that somebody is just taking, is left
out for a while, which grows. So is one that cannot even be given up. Nobody waits long for a key: the others of the
batch would wait, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from holdfast.database.tx import Store
from holdfast.errors import Busy, Unavailable, UnknownOutcome
from holdfast.logging import level_beside, reason_of, say
from holdfast.runtime import Runtime
from holdfast.store import schedules
from holdfast.store.schedules import Calls, ScheduleStanding, Ticked, TickTrouble

COMPARE_SECONDS = 50.0
"""How often next times are compared with their rules: also with its share of chance within the minute in which a tick
counts as on time, for the first one after a pause is found by this."""
AGAIN_SECONDS, SUSPENDED_SECONDS = 0.25, 5.0
"""When to look again at schedules that are due, and that somebody else has locked, or that may start nothing."""
HELD_SECONDS, LONGEST_HELD_SECONDS = 5.0, 20.0
"""How long a schedule is left out whose start somebody holds up: twice as long with each failure in a row.

At most well below the minute after which its tick would count as missed, and perhaps never have its job."""
TROUBLE_SECONDS = 2.0

logger = logging.getLogger(__name__)


class Hold(NamedTuple):
    """For how long a schedule is left out, and until when."""

    seconds: float
    until: float

    @property
    def forgotten_at(self) -> float:
        """When nobody remembers it: another worker may have taken up the schedule meanwhile, or it was deleted."""
        return self.until + LONGEST_HELD_SECONDS


class Ticker:
    """Takes up schedules when they are due; *on_started* is called after jobs were started."""

    def __init__(self, store: Store, runtime: Runtime, calls: Calls, on_started: Callable[[], None]) -> None:
        self._store = store
        self._runtime = runtime
        self._calls = calls
        self._on_started = on_started
        self._woken = asyncio.Event()
        self._looked_at = self._compare_at = runtime.monotonic()
        """When next times are compared: at first now, for the clock may have jumped while nobody was here."""
        self._due_at: float | None = None
        """When the next schedule is due; None if none is known."""
        self._again_seconds = AGAIN_SECONDS
        self._has_schedules = True
        """Whether there were some when that was last asked; if nobody knows, there may be."""
        self._holds: dict[str, Hold] = {}
        """Schedules whose start somebody holds up."""

    def note_look(self, next_ms: int | None) -> None:
        """Take note that the next schedule is due in *next_ms*; None says that there are no schedules."""
        self._has_schedules = next_ms is not None
        before = self._due_at
        self._note(next_ms)
        if self._due_at is not None and (before is None or self._due_at < before):
            self._woken.set()

    def note_clock_jump(self) -> None:
        """Compare next times soon: the database's clock was put forward or back."""
        self._compare_at = self._runtime.monotonic()
        self._woken.set()

    async def run(self) -> None:
        """Take up schedules until cancelled."""
        while True:
            self._woken.clear()
            try:
                await self.step()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next round comes
                say(logger, "ticks_failed", level=level_beside(error), trace=error, reason=reason_of(error))
                await self._runtime.sleep(TROUBLE_SECONDS * (0.5 + self._runtime.chance.random()))
                continue
            await self._rest()

    async def step(self) -> None:
        """Do what is due now: compare, take up, or nothing."""
        if self._compare_in() <= 0:
            await self._compare()
        if self._due_at is not None and self._runtime.monotonic() >= self._due_at:
            await self._take_up()

    async def _rest(self) -> None:
        """Wait until something is due, or a look finds something that is due sooner."""
        now, seconds = self._runtime.monotonic(), self._compare_in()
        if self._due_at is not None:
            seconds = min(seconds, self._due_at - now)
        try:
            async with asyncio.timeout(max(0, seconds)):
                await self._woken.wait()
        except TimeoutError:
            pass

    def _compare_in(self) -> float:
        """Say after how many seconds next times are compared; while looks find no schedules, they are not."""
        silent = self._looked_at + COMPARE_SECONDS
        return (self._compare_at if self._has_schedules else max(self._compare_at, silent)) - self._runtime.monotonic()

    def _note(self, next_ms: int | None) -> None:
        self._looked_at = self._runtime.monotonic()
        self._due_at = None if next_ms is None else self._looked_at + next_ms / 1000

    async def _compare(self) -> None:
        """Put right what stands wrong: after the clock was put back, or at the end of a pause."""
        seconds = COMPARE_SECONDS * (0.9 + 0.2 * self._runtime.chance.random())
        page = await self._store.read(schedules.standing)
        self._has_schedules = bool(page)
        while page:
            wrong = await self._runtime.threads.call(partial(_those_wrong, page))
            if wrong:
                repaired = await self._store.run(schedules.repair, wrong)
                if repaired.many:
                    say(logger, "schedules_repaired", schedules=repaired.many)
                if repaired.has_locked:  # by who repairs it just now, and may be dead before it has done so
                    seconds = min(seconds, HELD_SECONDS)
            ends = [each.until - each.now for each in page if each.until is not None and each.until > each.now]
            seconds = min([seconds, *(each / 1000 for each in ends)])
            is_last = len(page) < schedules.MOST_COMPARED
            page = [] if is_last else await self._store.read(schedules.standing, page[-1].name)
        self._note((await self._store.read(schedules.earliest)).next_ms)
        self._compare_at = self._runtime.monotonic() + seconds

    async def _take_up(self) -> None:
        """Start the jobs of all schedules that are due; then say when the next one is."""
        now = self._runtime.monotonic()
        self._holds = {name: hold for name, hold in self._holds.items() if hold.forgotten_at > now}
        found = await self._store.read(schedules.earliest)
        while found.is_due and await self._take_up_some():
            found = await self._store.read(schedules.earliest)
        again_ms = round(self._again_seconds * 1000)  # what is still due, somebody else has
        self._note(max(found.next_ms, again_ms) if found.is_due and found.next_ms is not None else found.next_ms)

    async def _take_up_some(self) -> bool:
        """Take up the next schedules that are due; tell whether there were any that nobody else has."""
        try:
            ticked = await self._store.run(schedules.tick, self._calls, self._held())
        except (Unavailable, UnknownOutcome):
            raise
        except Exception as error:  # noqa: BLE001 - one of them may be at fault, and the others are not
            say(logger, "ticks_failed", level=logging.DEBUG, trace=error, reason=reason_of(error))
            return await self._take_up_each()
        self._again_seconds = SUSPENDED_SECONDS if ticked.is_suspended else AGAIN_SECONDS
        self._tell(ticked)
        return bool(ticked.names)

    async def _take_up_each(self) -> bool:
        """Take up those that are due one by one, so that none is held up by another."""
        names = await self._store.read(schedules.due_names, self._held())
        for name in names:
            try:
                self._tell(await self._store.run(schedules.tick_one, name, self._calls))
            except (Unavailable, UnknownOutcome):
                raise
            except Busy:
                self._hold(name)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is of this one
                await self._give_up(name, reason_of(error))
        return bool(names)

    async def _give_up(self, name: str, reason: str) -> None:
        """Have a schedule go on with its next time; if even that fails, leave it out for a moment."""
        try:
            trouble = await self._store.run(schedules.give_up, name, reason)
        except (Unavailable, UnknownOutcome):
            raise
        except Exception as error:  # noqa: BLE001 - the others are to go on
            self._hold(name)
            say(logger, "ticks_failed", trace=error, reason=f"schedule {name}: {reason_of(error)}")
            return
        self._tell_of([trouble] if trouble is not None else [])

    def _held(self) -> list[str]:
        """Name the schedules that are left out now."""
        now = self._runtime.monotonic()
        return [name for name, hold in self._holds.items() if hold.until > now]

    def _hold(self, name: str) -> None:
        """Leave out a schedule: for longer, if it failed before."""
        before = self._holds.get(name)
        seconds = HELD_SECONDS if before is None else min(2 * before.seconds, LONGEST_HELD_SECONDS)
        self._holds[name] = Hold(seconds, self._runtime.monotonic() + seconds)

    def _tell(self, ticked: Ticked) -> None:
        for name in ticked.names:
            self._holds.pop(name, None)
        self._tell_of(ticked.troubles)
        for each in ticked.left_out:
            say(logger, "ticks_left_out", schedule=each.schedule, ticks=each.ticks)
        if ticked.started:
            self._on_started()

    def _tell_of(self, troubles: Sequence[TickTrouble]) -> None:
        for each in troubles:
            say(logger, "schedule_in_trouble", schedule=each.schedule, task=each.task, reason=each.reason)


def _those_wrong(page: Sequence[ScheduleStanding]) -> list[str]:
    return [each.name for each in page if each.is_wrong]
