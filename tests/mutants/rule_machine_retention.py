"""Wrong engines of retention and of readers; those with a name only are written in `tests/mutants/races.py`."""

from __future__ import annotations

import pytest

import tests.mutants.races  # noqa: F401 - it fills RACES
from holdfast.store.log import pruning, reading
from tests.mutants import DRAWN, RACES, Mutant, change_sql, drawn

NAMES = (
    "retention ignores blockers",
    "retention ignores the lane",
    "retention ignores what is left to admission",
    "a chain that is open again stays marked",
)

DRAWN += [Mutant(each.name, each.breaks, each.apply) for each in RACES if each.name in NAMES]


@drawn("a reader is given an event again when it comes back", "I-44")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, reading, "SINCE", "seq > :after", "seq >= :after")


@drawn("a reader is not told that the log was cut", "I-44")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, pruning, "RECORD", "AS text) WHERE", "AS text) WHERE false AND")
