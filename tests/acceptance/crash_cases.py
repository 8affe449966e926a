"""In which ways crash points are walked; each run fails by itself if its point is never reached."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TypeAlias

import pytest

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

TOLD = ["deliver.after_post"]
"""What a worker passes that posts a webhook: `test_webhooks` has a receiver."""
PHASED = [f"phases.{verb}.{where}" for verb in ("begin", "complete") for where in ("before_commit", "after_commit")]
"""What the beginning and the end of a phase pass: `test_media_pipeline` counts what is done twice."""
IN_CHILDREN = ["child.after_outcome"]
"""What a child process passes that runs handlers."""


def cases(points: Iterable[str]) -> list[Case]:
    """Name every way in which *points* are walked."""
    named = [(database, point, mode) for point in points for database, mode in WAYS]
    return [case for case in named if ONLY_ON.get(case[1], case[0]) == case[0]]


def places(named: Sequence[tuple[object, ...]], always: Collection[tuple[object, ...]]) -> list[object]:
    """Make parameters of what is *named*; what does not take part *always* is left to the long run."""
    missing = set(always) - set(named)
    assert not missing, f"{missing} are no cases"
    return [pytest.param(*case, marks=[] if case in always else pytest.mark.long) for case in named]
