"""Wrong workers: each is ours with one rule of claiming, running or writing down taken away.

What a mutant is, `tests/mutants/__init__.py` says; `tests/worker/test_core_mutants.py` runs the test that each names.
"""

from __future__ import annotations

import types
from typing import Any

import pytest

from holdfast.store import delivery_backlog, journal, webhooks
from holdfast.store.insight import explain
from holdfast.store.jobs import claiming, journaling, steering
from holdfast.store.jobs.claiming import ClaimState
from holdfast.webhooks import receivers
from holdfast.worker import options
from holdfast.worker.claiming import executor
from holdfast.worker.claiming.batch_size import BatchSize
from holdfast.worker.claiming.executor import Executor
from tests.mutants import change_sql, wrong_worker
from tests.store import test_delivery_backlog, test_edits, test_explain, test_journal, test_subscriptions
from tests.unit import test_batch_size
from tests.webhooks import test_receivers
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
    "queued with its own last attempt",
    "I-24",
    test_claim_ahead.test_a_job_with_one_attempt_of_its_own_is_never_claimed_ahead,
    "0 wait behind the first",
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, claiming, "CLAIM_AHEAD", "ready.attempts - 1", "ready.attempts + 1")


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


@wrong_worker(
    "receivers without turns",
    "I-48",
    test_receivers.test_a_receiver_and_a_host_have_so_many_turns_and_no_more,
    "DID NOT RAISE",
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(receivers._Line, "turns", lambda self, _: self.most)


@wrong_worker(
    "silent receiver that keeps its turns",
    "I-48",
    test_receivers.test_a_silent_receiver_gets_one_post_at_a_time_until_it_answers,
    "DID NOT RAISE",
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(receivers._Line, "turns", lambda self, _: self.most - self.under_way)


@wrong_worker(
    "newcomers without a quota",
    "I-48",
    test_receivers.test_newcomers_share_their_turns_and_who_has_answered_needs_none,
    "DID NOT RAISE",
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(receivers.Receivers, "_with_shared", lambda _, lines: lines)


@wrong_worker(
    "silent receivers without a quota",
    "I-48",
    test_receivers.test_all_silent_receivers_share_the_turns_for_probes,
    "DID NOT RAISE",
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(receivers.Receivers, "_with_shared", lambda _, lines: lines)


@wrong_worker(
    "receivers that begin with all their turns",
    "I-48",
    test_receivers.test_before_its_first_answer_a_receiver_gets_one_post_at_a_time_and_a_host_two,
    "DID NOT RAISE",
)
def _(patch: pytest.MonkeyPatch) -> None:
    most = receivers._most
    patch.setattr(receivers, "_most", lambda key, **_: most(key, has_answered=True))


@wrong_worker(
    "host silenced by one of its paths",
    "I-48",
    test_receivers.test_one_silent_path_does_not_silence_its_host,
    "assert|NoTurn",
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(receivers._Line, "is_first_of_host", lambda *_: False)


@wrong_worker(
    "deliveries for receivers in trouble not put off",
    "I-48",
    test_delivery_backlog.test_deliveries_to_a_silent_receiver_give_way_to_those_behind_them,
    "assert",
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, delivery_backlog, "PUT_OFF", "= 'ready'", "= 'nowhere'")


@wrong_worker(
    "subscription inserted whose name is there",
    "I-48",
    test_subscriptions.test_subscribing_again_under_a_name_changes_that_subscription,
    "UNIQUE|unique",
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, webhooks, "SUBSCRIBE", "ON CONFLICT DO", "ON CONFLICT (id) DO")


@wrong_worker(
    "subscription that is disabled at its new address, too",
    "I-48",
    test_subscriptions.test_a_disabled_subscription_stays_so_until_its_address_changes,
    "assert",
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, webhooks, "CHANGE", "given.url THEN disabled_at", "given.url OR true THEN disabled_at")


@wrong_worker(
    "explain stops at the first reason",
    "I-86",
    test_explain.test_all_reasons_that_hold_are_given_in_their_order,
    "Right contains 5 more items",
)
def _(patch: pytest.MonkeyPatch) -> None:
    waiting = explain._waiting

    async def first_only(*args: object) -> list[object]:
        return (await waiting(*args))[:1]  # type: ignore[arg-type]

    patch.setattr(explain, "_waiting", first_only)


@wrong_worker(
    "explain goes by the job that was named, not by the chain's current one",
    "I-86",
    test_explain.test_a_job_that_has_continued_stands_for_the_current_one,
    "assert",
    named="chain",
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, explain, "CURRENT", "later.chain_index > 0", "later.chain_index > 0 AND 1 = 0")


@wrong_worker(
    "workers_busy counts slots of child processes with the others",
    "I-86",
    test_explain.test_a_slot_in_a_child_process_is_no_slot_for_other_tasks,
    "workers_busy",
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(explain, "_share_slots", lambda *_: True)


@wrong_worker(
    "an entry of the journal is appended without the token",
    "I-13",
    test_journal.test_a_reaped_attempt_appends_nothing,
    "assert <ClaimState.HELD",
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(journaling, "claim_state_of", lambda *_: ClaimState.HELD)


@wrong_worker(
    "the database numbers the entries of a journal",
    "I-13",
    test_journal.test_a_repeated_append_writes_nothing_twice_and_tells_nothing_twice,
    "4 more items",
)
def _(patch: pytest.MonkeyPatch) -> None:
    number = "(SELECT coalesce(max(number), 0) FROM holdfast_journal WHERE job = :job) + given.nr + 1"
    change_sql(patch, journal, "WRITE", "given.number, :attempt", f"{number}, :attempt")
    patch.setattr(journaling, "_follows", _always)


@wrong_worker(
    "a gap in a journal is no reason to stop",
    "I-13",
    test_journal.test_a_gap_and_a_stranger_mean_that_the_job_is_lost,
    "assert <ClaimState.HELD",
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(journaling, "_follows", _always)


async def _always(*_: object) -> bool:
    return True


@wrong_worker(
    "a journal ages while its chain is open",
    "I-11",
    test_journal.test_journals_have_an_age_of_their_own_once_their_chain_has_ended,
    "assert 2 == 1",
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, journal, "ENDED", "AND first.closed_at IS NOT NULL", "")
    change_sql(patch, journal, "LOCK_ENDED", "AND coalesce(closed_at, 0) > 0", "")


@wrong_worker(
    "an edit does not look whether the input is still what it was",
    "I-12",
    test_edits.test_two_edits_at_once_both_count,
    "assert",
)
def _(patch: pytest.MonkeyPatch) -> None:
    former_input = steering._former_input

    async def believe(tx: Any, jobs: Any, edit: Any, asked: Any) -> Any:
        ((_, stored, _),) = await tx.fetch_all(steering.INPUT, seq=jobs[0].seq)
        return await former_input(tx, jobs, edit._replace(before=stored), asked)

    patch.setattr(steering, "_former_input", believe)
