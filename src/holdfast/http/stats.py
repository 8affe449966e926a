"""`/api/overview`, `/api/stats`: how everything stands, and what happened over time."""

from __future__ import annotations

from typing import Any

from pydantic import AwareDatetime, Field

from holdfast.http.endpoint import Inquiry, NoBody, NoQuery, Taken
from holdfast.wire.figures_json import overview_object, series_object


class StatsQuery(Taken):
    """Which figures: of a queue or a task, in which time, by intervals of so many seconds."""

    queue: str | None = None
    task: str | None = None
    since: AwareDatetime | None = Field(None, alias="from")
    until: AwareDatetime | None = Field(None, alias="to")
    width: int | None = None


async def overview(ask: Inquiry[NoQuery, NoBody]) -> dict[str, Any]:
    """Say how everything stands now: what waits, runs and is stuck, by queue and in all."""
    return overview_object(await ask.hf.overview())


async def read(ask: Inquiry[StatsQuery, NoBody]) -> dict[str, Any]:
    """Count the attempts of workers over time, and say how long jobs waited and attempts ran."""
    wanted = ask.query
    series = await ask.hf.stats(
        queue=wanted.queue, task=wanted.task, since=wanted.since, until=wanted.until, width=wanted.width
    )
    return series_object(series)
