"""`hf.schedules`: schedules as rows, which people put, pause, resume, run and delete; of both colours."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, Unpack

from holdfast import current_block
from holdfast.client.chain_handle import BlockingChain, Chain, H, Handles
from holdfast.client.handles import write_alone
from holdfast.client.list_options import PageOptions, page_of
from holdfast.client.starter import Starter
from holdfast.client.verbs import asked_by
from holdfast.database.tx import Runner, drive
from holdfast.errors import InvalidInput, got
from holdfast.models import Page
from holdfast.schedules import ScheduleInfo, ScheduleOptions, Tick
from holdfast.store import schedules
from holdfast.tasks.calls import Call, is_name
from holdfast.tasks.scheduled_calls import make_schedule
from holdfast.times import milliseconds_of

Listed = Page[ScheduleInfo]
Ticks = Page[Tick]


class SchedulesHandle:
    """The schedules of this database: calls that workers start at the times of a rule."""

    def __init__(self, runner: Runner, starter: Starter, handles: Handles[Chain[Any]]) -> None:
        self._verbs = ScheduleVerbs(runner, starter, handles)
        self._tenant = starter.tenant

    async def put(
        self, name: str, call: Call[Any], *, by: str | None = None, **options: Unpack[ScheduleOptions]
    ) -> ScheduleInfo:
        """Have workers start *call* at the times of a rule; a schedule of this *name* is changed.

        The rule is `cron=`, five fields in a `timezone=` such as "Europe/Rome" (UTC unless given), or `every=`, whole
        seconds or a timedelta, counted from 1970. `jitter=` delays each job by its own share of so many seconds.
        `missed=` says what becomes of ticks that are found more than a minute late: "one" starts the last of them,
        "skip" none, and "all" each, at most the last 1,000.

        *call* is checked now. Its `unique=` or `lane=` says what happens if the job before still runs; its `delay=` is
        counted from the tick. With the same rule the next time stays as it is, and so does a pause. Raises
        `InvalidRule`, `UnknownTask` and `InvalidInput`.
        """
        return await self._verbs.put(name, call, by, options)

    async def pause(
        self, name: str, *, until: datetime | None = None, by: str | None = None, why: str | None = None
    ) -> ScheduleInfo:
        """Start nothing until it is resumed, or until then; ticks that would have come meanwhile are left out."""
        return await self._verbs.pause(name, until, by, why)

    async def resume(self, name: str, *, by: str | None = None, why: str | None = None) -> bool:
        """Go on with the next time to come; tell whether it was paused."""
        return await self._verbs.resume(name, by, why)

    async def run(self, name: str, *, by: str | None = None, why: str | None = None) -> Chain[Any]:
        """Start its call once now, also while it is paused; return the chain, or the one that has its unique key.

        This is no tick of the rule: the next one comes as it would have, and the job has no `scheduled_at`.
        """
        await self._tenant.admit()
        return await self._verbs.run(name, by, why)

    async def delete(self, name: str) -> None:
        """Forget a schedule; jobs that it started stay. One that code declares comes back when that is next used."""
        await self._verbs.delete(name)

    async def get(self, name: str) -> ScheduleInfo:
        """Read a schedule, with its rule in words and the next five times; or raise `ScheduleNotFound`."""
        return await self._verbs.get(name)

    async def list(self, **page: Unpack[PageOptions]) -> Listed:
        """List the schedules a page at a time, by their names."""
        return await self._verbs.list_all(page)

    async def ticks(self, name: str, **page: Unpack[PageOptions]) -> Ticks:
        """List the times of a schedule that have had their job, newest first; or raise `ScheduleNotFound`.

        They are kept for seven days, and the last 100 of each schedule for longer.
        """
        return await self._verbs.ticks(name, page)


class BlockingSchedulesHandle:
    """The schedules of this database: calls that workers start at the times of a rule."""

    def __init__(self, runner: Runner, starter: Starter, handles: Handles[BlockingChain[Any]]) -> None:
        self._verbs = ScheduleVerbs(runner, starter, handles)
        self._tenant = starter.tenant

    def put(
        self, name: str, call: Call[Any], *, by: str | None = None, **options: Unpack[ScheduleOptions]
    ) -> ScheduleInfo:
        """Have workers start *call* at the times of a rule; a schedule of this *name* is changed.

        The rule is `cron=`, five fields in a `timezone=` such as "Europe/Rome" (UTC unless given), or `every=`, whole
        seconds or a timedelta, counted from 1970. `jitter=` delays each job by its own share of so many seconds.
        `missed=` says what becomes of ticks that are found more than a minute late: "one" starts the last of them,
        "skip" none, and "all" each, at most the last 1,000.

        *call* is checked now. Its `unique=` or `lane=` says what happens if the job before still runs; its `delay=` is
        counted from the tick. With the same rule the next time stays as it is, and so does a pause. Raises
        `InvalidRule`, `UnknownTask` and `InvalidInput`.
        """
        return drive(self._verbs.put(name, call, by, options))

    def pause(
        self, name: str, *, until: datetime | None = None, by: str | None = None, why: str | None = None
    ) -> ScheduleInfo:
        """Start nothing until it is resumed, or until then; ticks that would have come meanwhile are left out."""
        return drive(self._verbs.pause(name, until, by, why))

    def resume(self, name: str, *, by: str | None = None, why: str | None = None) -> bool:
        """Go on with the next time to come; tell whether it was paused."""
        return drive(self._verbs.resume(name, by, why))

    def run(self, name: str, *, by: str | None = None, why: str | None = None) -> BlockingChain[Any]:
        """Start its call once now, also while it is paused; return the chain, or the one that has its unique key.

        This is no tick of the rule: the next one comes as it would have, and the job has no `scheduled_at`.
        """
        self._tenant.admit_sync()
        return drive(self._verbs.run(name, by, why))

    def delete(self, name: str) -> None:
        """Forget a schedule; jobs that it started stay. One that code declares comes back when that is next used."""
        drive(self._verbs.delete(name))

    def get(self, name: str) -> ScheduleInfo:
        """Read a schedule, with its rule in words and the next five times; or raise `ScheduleNotFound`."""
        return drive(self._verbs.get(name))

    def list(self, **page: Unpack[PageOptions]) -> Listed:
        """List the schedules a page at a time, by their names."""
        return drive(self._verbs.list_all(page))

    def ticks(self, name: str, **page: Unpack[PageOptions]) -> Ticks:
        """List the times of a schedule that have had their job, newest first; or raise `ScheduleNotFound`.

        They are kept for seven days, and the last 100 of each schedule for longer.
        """
        return drive(self._verbs.ticks(name, page))


class ScheduleVerbs(Generic[H]):
    """What both handles do, written once: over a blocking runner nothing suspends."""

    def __init__(self, runner: Runner, starter: Starter, handles: Handles[H]) -> None:
        self._runner = runner
        self._starter = starter
        self._handles = handles

    async def put(self, name: str, call: Call[Any], by: str | None, options: ScheduleOptions) -> ScheduleInfo:
        """Check what is given, and make a schedule, or change that of its name."""
        tasks, task = self._starter.tasks, getattr(call, "task", "")
        known = tasks.get(task) if task in tasks else None
        wanted = make_schedule(name, call, known, "hf.schedules.put()", options)
        asked = asked_by(by, None)
        current_block.refuse_alone("hf.schedules.put")
        await self._starter.record(self._runner)
        await self._starter.check_stored(self._runner, wanted.call)
        await self._runner.run(schedules.put, [wanted], asked.by)
        return await self._runner.read(schedules.get, name)

    async def pause(self, name: str, until: datetime | None, by: str | None, why: str | None) -> ScheduleInfo:
        """Start nothing for a while."""
        until_ms = None if until is None else milliseconds_of(until, "until")
        asked = asked_by(by, why)
        return await write_alone(self._runner, "hf.schedules.pause", schedules.pause, _name(name), until_ms, asked)

    async def resume(self, name: str, by: str | None, why: str | None) -> bool:
        """Go on."""
        asked = asked_by(by, why)
        return await write_alone(self._runner, "hf.schedules.resume", schedules.resume, _name(name), asked)

    async def run(self, name: str, by: str | None, why: str | None) -> H:
        """Start the call once now."""
        asked = asked_by(by, why)
        chain = await write_alone(self._runner, "hf.schedules.run", schedules.run, _name(name), self._starter, asked)
        return self._handles(self._starter.decoder.chain(chain))

    async def delete(self, name: str) -> None:
        """Forget one."""
        await write_alone(self._runner, "hf.schedules.delete", schedules.delete, _name(name))

    async def get(self, name: str) -> ScheduleInfo:
        """Read one."""
        return await self._runner.read(schedules.get, _name(name))

    async def list_all(self, page: PageOptions) -> Page[ScheduleInfo]:
        """List them."""
        return await self._runner.read(schedules.list_all, page_of(page, "list()"))

    async def ticks(self, name: str, page: PageOptions) -> Page[Tick]:
        """List ticks."""
        return await self._runner.read(schedules.list_ticks, _name(name), page_of(page, "ticks()"))


def _name(name: object) -> str:
    if not is_name(name):
        raise InvalidInput(f"pass the name of a schedule, a text of printable characters, {got(name)}", "name")
    return name
