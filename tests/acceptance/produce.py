"""Jobs with fixed ids, so that they can be started again after a crash, and end in every way there is."""

from __future__ import annotations

from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

from holdfast import Call
from tests.acceptance.jobs_of_tests import goes_on, in_blocks, lane_step, moody, quick


def job_id(name: str) -> UUID:
    """The id of the job that goes by *name*."""
    return uuid5(NAMESPACE_OID, name)


def early() -> list[Call[Any]]:
    """Jobs that the first worker claims, and dies."""
    jobs = {
        "e1": quick(n=1),
        "e2": quick(n=2),
        "e3": lane_step().options(lane="a"),
        "e4": lane_step().options(lane="a"),
    }
    return [call.options(id=job_id(name)) for name, call in jobs.items()]


def late() -> list[Call[Any]]:
    """Jobs that end in every way there is."""
    moods = {mood: moody(mood=mood) for mood in ("error", "snooze", "pause", "cancel", "wait")}
    jobs: dict[str, Call[Any]] = {
        **moods,
        "l1": lane_step().options(lane="b", blockers=[job_id("e1"), job_id("e2")]),
        "l2": lane_step().options(lane="b"),
        "l3": quick(n=3).options(delay=0.2),
        "l4": in_blocks(),
        "l5": goes_on(),
    }
    return [call.options(id=job_id(name)) for name, call in jobs.items()]
