"""Wrong figures: each is ours with one rule of writing or folding taken away.

What a mutant is, `tests/mutants/__init__.py` says; `tests/worker/test_core_mutants.py` runs the test that each names.
"""

from __future__ import annotations

import pytest

from holdfast.store.insight import tallies
from tests.mutants import change_sql, wrong_worker
from tests.store import test_tallies


@wrong_worker(
    "figures written as increments",
    "exact figures",
    test_tallies.test_what_is_written_again_counts_once,
    "assert",
)
def _(patch: pytest.MonkeyPatch) -> None:
    more = "completed = holdfast_tally.completed + excluded.completed"
    change_sql(patch, tallies, "WRITE", "completed = excluded.completed", more)


@wrong_worker(
    "figures folded and left",
    "exact figures",
    test_tallies.test_workers_are_folded_into_one_and_added_to_minute_hour_and_all_time,
    "assert",
)
def _(patch: pytest.MonkeyPatch) -> None:
    columns = f"at, queue, task, {tallies.NUMBERS}, wait, run"
    patch.setattr(tallies, "TAKE", f"SELECT {columns} FROM holdfast_tally WHERE width = -10 AND {tallies.UP_TO}")


@wrong_worker(
    "figures written after they were folded",
    "exact figures",
    test_tallies.test_an_interval_is_written_until_it_is_40_seconds_old,
    "assert",
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, tallies, "WRITE", "given.at > $now - 40000", "true")


@wrong_worker(
    "figures folded while they are written",
    "exact figures",
    test_tallies.test_folding_leaves_what_a_worker_may_still_write,
    "assert",
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(tallies.KEPT_MS, tallies.OPEN, 0)
