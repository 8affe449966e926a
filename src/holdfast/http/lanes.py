"""`/api/lanes`, `/api/lane`: how lanes stand, and to pause, resume and skip in them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from holdfast.http.endpoint import Inquiry, NoBody, PageQuery, Taken
from holdfast.http.jobs import WhyBody, listed, page_object
from holdfast.inventory import LaneState
from holdfast.wire.inventory_json import LaneObject, lane_object
from holdfast.wire.job_json import JobObject


class LanesQuery(PageQuery):
    """Which lanes: in which *state*, and what their keys begin with."""

    state: LaneState | None = None
    prefix: str = ""


class LaneQuery(Taken):
    """Which lane."""

    key: str


class LaneJobsQuery(PageQuery):
    """Which lane, and which page of its jobs."""

    key: str


class LaneBody(WhyBody):
    """A verb for a lane; *if_head* is the job that must still halt it, as you have seen it."""

    if_head: str | None = None


class LanePage(BaseModel):
    """A page of lanes."""

    items: list[LaneObject]
    next_cursor: str | None


class LaneJobsPage(BaseModel):
    """A page of the jobs that stand in a lane."""

    items: list[JobObject]
    next_cursor: str | None


class LaneResumed(BaseModel):
    """Whether the lane was paused."""

    was_paused: bool


class LaneSkipped(BaseModel):
    """The job that was set aside; null if none halted the lane."""

    skipped: str | None


async def list_all(ask: Inquiry[LanesQuery, NoBody]) -> dict[str, Any]:
    """List lanes: halted ones first, then paused ones, then the rest by key."""
    page = await ask.hf.list_lanes(state=ask.query.state, prefix=ask.query.prefix, **ask.query.page)
    return {"items": [lane_object(each, ask.shown.reader) for each in page], "next_cursor": page.next_cursor}


async def read(ask: Inquiry[LaneQuery, NoBody]) -> dict[str, Any]:
    """Read a lane: its depth, its head, and who halts or has paused it, since when and why."""
    return lane_object(await ask.hf.lane(ask.query.key).info(), ask.shown.reader)


async def list_jobs(ask: Inquiry[LaneJobsQuery, NoBody]) -> dict[str, Any]:
    """List the jobs that stand in a lane, in the order of their turns."""
    page = await ask.hf.lane(ask.query.key).jobs(**ask.query.page)
    return page_object(page, lambda job: listed(ask, job, "brief"))


async def pause(ask: Inquiry[LaneQuery, LaneBody]) -> None:
    """Pause a lane: none of its jobs is claimed; a running one is left to finish."""
    await ask.hf.lane(ask.query.key).pause(if_head=ask.body.if_head)


async def resume(ask: Inquiry[LaneQuery, LaneBody]) -> dict[str, Any]:
    """Resume a paused lane; say whether it was paused."""
    return {"was_paused": await ask.hf.lane(ask.query.key).resume(if_head=ask.body.if_head)}


async def skip(ask: Inquiry[LaneQuery, LaneBody]) -> dict[str, Any]:
    """Set aside the failed or paused job that halts a lane, as it is."""
    skipped = await ask.hf.lane(ask.query.key).skip(if_head=ask.body.if_head)
    return {"skipped": None if skipped is None else str(skipped)}
