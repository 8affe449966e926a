"""Wrong engines of retention and of readers; those with a name only are written in `tests/store/race_mutants.py`."""

from __future__ import annotations

import pytest

from holdfast.store import log, trimming
from tests.mutants import Mutant, change_sql
from tests.store.race_mutants import RACES
from tests.store.rules.mutants import MUTANTS, mutant

NAMES = (
    "retention ignores blockers",
    "retention ignores the lane",
    "retention ignores what is left to admission",
    "a chain that is open again stays marked",
)

MUTANTS += [Mutant(each.name, each.breaks, each.apply) for each in RACES if each.name in NAMES]


@mutant("a reader is given an event again when it comes back", "I-44")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, log, "SINCE", "seq > :after", "seq >= :after")


@mutant("a reader is not told that the log was cut", "I-44")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, trimming, "RECORD", "AS text) WHERE", "AS text) WHERE false AND")
