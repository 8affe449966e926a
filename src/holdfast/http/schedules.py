"""`/api/schedules`, `/api/schedule`: what is started when, and what became of it; to put, pause, run and delete."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

from pydantic import AwareDatetime, BaseModel

from holdfast.access import Role
from holdfast.http.endpoint import Inquiry, NoBody, PageQuery, Reply, Taken
from holdfast.http.jobs import WhyBody
from holdfast.http.starts import CallBody, call_of
from holdfast.schedule_rules import make_rule, next_times
from holdfast.schedules import ScheduleInfo, ScheduleOptions
from holdfast.times import EPOCH
from holdfast.wire.schedule_json import ScheduleObject, TickObject, preview_object, schedule_object, tick_object


class ScheduleQuery(Taken):
    """Which schedule."""

    name: str


class DeleteScheduleQuery(ScheduleQuery):
    """Which schedule is deleted, and why."""

    why: str | None = None


class TicksQuery(PageQuery):
    """Which schedule, and which page of its ticks."""

    name: str


class PreviewQuery(Taken):
    """A rule: *cron* in a *timezone*, or *every* so many seconds."""

    rule: str | None = None
    every: int | None = None
    timezone: str | None = None


class RuleBody(Taken):
    """When a schedule starts its call: *cron* in a *timezone* (UTC unless given), or *every* so many seconds."""

    cron: str | None = None
    timezone: str | None = None
    every: int | None = None


class PutScheduleBody(CallBody, WhyBody):
    """A schedule as it shall be: a call, and when it is started."""

    rule: RuleBody
    missed: Literal["one", "skip", "all"] = "one"
    jitter: float = 0


class PauseScheduleBody(WhyBody):
    """Why a schedule is paused; with *until* it goes on by itself then."""

    until: AwareDatetime | None = None


class SchedulePage(BaseModel):
    """A page of schedules, by name."""

    items: list[ScheduleObject]
    next_cursor: str | None


class TickPage(BaseModel):
    """A page of ticks, newest first."""

    items: list[TickObject]
    next_cursor: str | None


class ScheduleResumed(BaseModel):
    """Whether the schedule was paused."""

    was_paused: bool


class ScheduleRun(BaseModel):
    """The chain that was started, or the one that holds the unique key of the call."""

    chain: str
    deduplicated: bool


async def list_all(ask: Inquiry[PageQuery, NoBody]) -> dict[str, Any]:
    """List the schedules by name."""
    page = await ask.hf.schedules.list(**ask.query.page)
    return {"items": [_schedule(ask, each) for each in page], "next_cursor": page.next_cursor}


async def read(ask: Inquiry[ScheduleQuery, NoBody]) -> dict[str, Any]:
    """Read a schedule, with its rule in words and the next five times."""
    return _schedule(ask, await ask.hf.schedules.get(ask.query.name))


async def list_ticks(ask: Inquiry[TicksQuery, NoBody]) -> dict[str, Any]:
    """List the times of a schedule that have had their job, newest first."""
    page = await ask.hf.schedules.ticks(ask.query.name, **ask.query.page)
    return {"items": [tick_object(each) for each in page], "next_cursor": page.next_cursor}


async def preview(ask: Inquiry[PreviewQuery, NoBody]) -> dict[str, Any]:
    """Say a rule in words, with its next five times."""
    rule = make_rule(ask.query.rule, ask.query.every, ask.query.timezone)
    now_ms = ask.hf._runtime.wall_ms()
    return preview_object(rule, (EPOCH + timedelta(milliseconds=at) for at in next_times(rule, now_ms)))


async def put(ask: Inquiry[ScheduleQuery, PutScheduleBody]) -> dict[str, Any]:
    """Put a schedule: have workers start a call at the times of a rule."""
    wanted = ask.body
    options: ScheduleOptions = {**wanted.rule.model_dump(), "missed": wanted.missed, "jitter": wanted.jitter}  # type: ignore[typeddict-item]
    return _schedule(ask, await ask.hf.schedules.put(ask.query.name, call_of(ask, wanted), **options))


async def delete(ask: Inquiry[DeleteScheduleQuery, NoBody]) -> None:
    """Delete a schedule; the jobs that it started stay."""
    await ask.hf.schedules.delete(ask.query.name)


async def pause(ask: Inquiry[ScheduleQuery, PauseScheduleBody]) -> dict[str, Any]:
    """Pause a schedule; ticks that would have come meanwhile are left out."""
    return _schedule(ask, await ask.hf.schedules.pause(ask.query.name, until=ask.body.until))


async def resume(ask: Inquiry[ScheduleQuery, WhyBody]) -> dict[str, Any]:
    """Resume a schedule: it goes on with its next time."""
    return {"was_paused": await ask.hf.schedules.resume(ask.query.name)}


async def run(ask: Inquiry[ScheduleQuery, WhyBody]) -> Reply:
    """Start the call of a schedule once, now."""
    chain = await ask.hf.schedules.run(ask.query.name)
    told = {"chain": str(chain.id), "deduplicated": chain.deduplicated}
    return Reply(told, 200 if chain.deduplicated else 201)


def _schedule(ask: Inquiry[Any, Any], schedule: ScheduleInfo) -> dict[str, Any]:
    return schedule_object(schedule, ask.shown.of(schedule.task), masked=not ask.who.role.allows(Role.ADMIN))
