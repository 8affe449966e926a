"""Which test walks which crash point, and in which ways; each run fails by itself if its point is never reached."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TypeAlias

import pytest

from holdfast.crashpoints import POINTS
from tests.acceptance.steer import VERBS

Case: TypeAlias = tuple[str, str, str]
"""Database, point, mode."""

WAYS = (
    ("sqlite", "kill"),
    ("postgres", "kill"),
    ("postgres", "cut"),  # SQLite has no connection that could be
    ("sqlite", "raise"),
    ("postgres", "raise"),
    ("sqlite", "stop"),
    ("postgres", "stop"),
)
ONLY_ON = {"reap.after_proof": "sqlite"}
"""What only one database has: a lock that proves a death."""

STEERED = [point for point in POINTS if point.partition(".")[0] in VERBS]
"""What a program passes that steers jobs; all others a worker, or whoever starts jobs or migrates."""
PROVIDED = [point for point in POINTS if point.startswith("provided.")]
"""What a block over somebody else's transaction passes: `test_completion_by_orm`."""
TOLD = ["complete.after_delivery", "deliver.after_post"]
"""What a worker passes whose jobs somebody is to be told of: `test_webhooks`."""
PHASED = [point for point in POINTS if point.partition(".")[0] in ("begin_phase", "phase")]
"""What the beginning and the end of a phase pass: `test_media_pipeline`."""
IN_CHILDREN = [point for point in POINTS if point.startswith("child.")]
"""What a child process passes that runs handlers."""
ELSEWHERE = {*STEERED, *PROVIDED, *TOLD, *PHASED, *IN_CHILDREN}
# a pause comes from a handler, too
PLAYED = [point for point in POINTS if point not in ELSEWHERE or point.startswith("pause.")]
"""What is passed in the `play`."""


def cases(points: Iterable[str]) -> list[Case]:
    """Name every way in which *points* are walked."""
    named = [(database, point, mode) for point in points for database, mode in WAYS]
    return [case for case in named if ONLY_ON.get(case[1], case[0]) == case[0]]


def places(named: Sequence[tuple[object, ...]], always: Collection[tuple[object, ...]]) -> list[object]:
    """Make parameters of what is *named*; what does not take part *always* is left to the long run."""
    missing = set(always) - set(named)
    assert not missing, f"{missing} are no cases"
    return [pytest.param(*case, marks=[] if case in always else pytest.mark.long) for case in named]
