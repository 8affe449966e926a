"""What a change of a job is, as its row tells: a claim, an end, and of what kind."""

from __future__ import annotations

import json

from tests.simulation.checker import Change

LOST = ("lost", "lost before it began")
"""Why a job is given back whose worker is gone, if it is not blamed for it."""


def is_claim(each: Change) -> bool:
    """Tell whether an attempt begins with it."""
    return each.status == "running" and each.old_status != "running"


def is_end(each: Change) -> bool:
    """Tell whether an attempt ends with it."""
    return each.old_status == "running" and each.status != "running"


def is_reap(each: Change) -> bool:
    """Tell whether a job was taken from a worker that was thought to be gone."""
    return (each.crashes > each.old_crashes and not is_death_of_child(each)) or each.reason in LOST


def is_death_of_child(each: Change) -> bool:
    """Tell whether a worker says that the job took down the child process that it ran in."""
    return each.error is not None and bool(json.loads(each.error)["type"] == "ChildDied")


def is_left_behind(each: Change) -> bool:
    """Tell whether a job was given back whose handler could not be stopped, by a process about to end."""
    return each.status == "pending" and each.reason == "shutdown"
