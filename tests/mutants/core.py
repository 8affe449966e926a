"""Wrong workers: each is ours with one rule of claiming, running or writing down taken away.

What a mutant is, `tests/mutants/__init__.py` says; `tests/worker/test_core_mutants.py` runs the test that each names.
"""

from __future__ import annotations

import types

import pytest

from holdfast.store.jobs import claiming
from holdfast.worker import options
from holdfast.worker.claiming import executor
from holdfast.worker.claiming.batch_size import BatchSize
from holdfast.worker.claiming.executor import Executor
from tests.mutants import change_sql, wrong_worker
from tests.unit import test_batch_size
from tests.worker import test_claim_ahead, test_first_steps


@wrong_worker("queue not given back at drain", "I-42", test_claim_ahead.test_a_drain_gives_it_back_at_no_cost, "assert")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Executor, "drain", lambda _: None)


@wrong_worker("abort that misses the queue", "I-33", test_claim_ahead.test_a_cancel_reaches_what_waits, "no longer")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Executor, "abort", lambda self, reasons: self._core.active.abort(reasons))


@wrong_worker(
    'queued under `on_lost="fail"`',
    "I-24",
    test_claim_ahead.test_what_must_not_begin_twice_is_never_claimed_ahead,
    "0 wait behind the first",
    options={"on_lost": "fail"},
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(options, "ahead_below", lambda _: options.MANY)


@wrong_worker(
    "queued again after it was given back",
    "I-24",
    test_claim_ahead.test_what_was_given_back_is_not_claimed_ahead_again,
    "assert 4 == 0",
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, claiming, "CLAIM_AHEAD", "ready.interrupted = 0", "1 = 1")


@wrong_worker(
    "batch that never shrinks", "I-64", test_batch_size.test_after_each_miss_it_is_half_as_large_down_to_one, "assert"
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BatchSize, "note_missed", lambda *_: None)


@wrong_worker(
    "kept task reused",
    "I-64",
    test_first_steps.test_a_task_that_somebody_has_kept_is_used_for_no_other_handler,
    "assert",
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(executor, "sys", types.SimpleNamespace(getrefcount=lambda _: 0))


@wrong_worker(
    "queue that is kept for ever",
    "I-42",
    test_claim_ahead.test_what_waits_for_long_is_given_back_for_another_worker,
    "what waits is given back",
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Executor, "waiting_since", None)


@wrong_worker(
    "abort that misses what is about to begin",
    "I-15",
    test_claim_ahead.test_a_job_whose_turn_comes_after_its_lease_was_given_up_does_not_begin,
    "assert",
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Executor, "_unbegun", lambda self: [job for _, job in self.queue])


@wrong_worker(
    "context variables compared by value",
    "I-64",
    test_first_steps.test_context_variables_are_told_apart_by_identity,
    "assert",
    make=dict,
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(executor, "_are_same", lambda one, other: one == other)


@wrong_worker(
    "task with a mark reused",
    "I-64",
    test_first_steps.test_what_a_handler_leaves_on_its_task_reaches_no_other,
    "assert|failed",
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(executor, "_marks_of", lambda _: ())
