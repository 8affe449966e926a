"""Wrong engines that only PostgreSQL shows: on SQLite one transaction writes at a time, and nobody comes half-way.

Each is ours with one lock, constraint or look taken away, and names the stepped test that it turns red.
What a mutant is, `tests/mutants/__init__.py` says. One without † would show on SQLite, too, but not by chance:
to have two claims with one number, a store must have lost the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from holdfast.database.hints import Horizon
from holdfast.database.tx import Tx
from holdfast.outcomes import Outcome, lost
from holdfast.states import Change, Status, guard
from holdfast.store import admission, lanes, outbox, phases, retention, rows, task_rows, unique, webhooks
from holdfast.store.chains import blockers, chain_ends, continuations, deletes
from holdfast.store.chains.blockers import Moved
from holdfast.store.insight import tallies
from holdfast.store.jobs import block_ends, claiming, completing, reaping, settling
from holdfast.store.log import fan_out, reading
from holdfast.store.log.reading import LogRow, LogRows
from holdfast.wire.cursors import SeqCursor, behind_row, last_row
from holdfast.worker.attempts.phases import Phases
from holdfast.worker.upkeep import outbox as making
from tests.mutants import Test, change_sql, race, without_guard
from tests.mutants.simulation_chains import finish_anyway
from tests.store import (
    test_admission,
    test_borrowed,
    test_chain_races,
    test_claim,
    test_continuations,
    test_delete,
    test_interleavings_mutants,
    test_log_races,
    test_log_reading,
    test_outbox,
    test_phases,
    test_reap,
    test_renew,
    test_retention,
    test_settle,
    test_tallies,
    test_webhooks,
)

FIRST_LOST = """'{"type":"Lost","attempt":1,"worker":"worker-1"}'"""
LATE = "Timeout|deadline|lock timeout|canceling statement"
"""What a test says whose engine waited for somebody."""


@race("`unique` by select, then insert †", "I-05", test_interleavings_mutants.test_a_key_goes_once, "two chains hold")
def _(patch: pytest.MonkeyPatch) -> None:
    any_turn = """
        INSERT INTO holdfast_unique (task, key, turn, chain_id, scope)
        SELECT given.task, given.key, 1 + CAST(random() * 1000000000 AS bigint), given.chain_id, 'open'
        FROM $list(given: task text, key text, chain_id text)
        RETURNING task, key"""

    async def look_then_take(tx: Tx, wishes: Any, *args: Any, **kwargs: Any) -> Any:
        held = await unique.holders(tx, [each.key for each in wishes])
        free = [each for each in wishes if each.key not in held]
        await tx.fetch_all(unique.TAKE, given=[(*each.key, str(each.chain_id)) for each in free])
        return held | {each.key: each.chain_id for each in free}

    patch.setattr(unique, "TAKE", any_turn)
    patch.setattr(unique, "try_to_take", look_then_take)


@race(
    "claim judges the lane by its snapshot †",
    "I-26",
    test_interleavings_mutants.test_two_claimers_never_run_one_lane_twice,
    "lane a runs twice",
)
def _(patch: pytest.MonkeyPatch) -> None:
    free = """ready.gate IN ('ready', 'lane') AND NOT EXISTS (SELECT 1 FROM holdfast_job AS other
        WHERE other.lane = ready.lane AND other.status = 'running')"""
    change_sql(patch, claiming, "CLAIM", "ready.gate = 'ready'", free, "postgres")
    change_sql(patch, claiming, "CLAIM", guard(Change.CLAIM), "holdfast_job.status = 'pending'", "postgres")
    change_sql(patch, claiming, "PEEK", "gate = 'ready'", "gate IN ('ready', 'lane')", "postgres")


@race(
    "lane joined or promoted without locking its row †",
    "I-28",
    test_admission.test_who_joins_a_lane_that_is_just_going_is_not_stranded,
    LATE,
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, lanes, "LOCK", "$skip_locked", "")


@race(
    "unblock by reading the other blockers †",
    "I-38",
    test_admission.test_two_blockers_closing_in_overlapping_transactions_release_the_job_once,
    "assert 0 == 1",
)
def _(patch: pytest.MonkeyPatch) -> None:
    open_blockers = """
        SELECT told.job, (SELECT count(*) FROM holdfast_blocker AS link JOIN holdfast_job ON id = link.chain_id
            WHERE link.job = told.job AND closed_as IS NULL)
        FROM holdfast_blocker AS told WHERE told.chain_id $any(ids: text)"""

    async def read_the_others(tx: Tx, closed: Any) -> tuple[list[Moved], set[str]]:
        found = await tx.fetch_all(open_blockers, ids=sorted(closed))
        return [Moved(job, 0, Status.PENDING) for job, count in found if count == 0], set()

    patch.setattr(blockers, "release", read_the_others)


@race(
    "a start locks its blocker †",
    "I-60",
    test_borrowed.test_while_a_start_is_not_committed_every_row_can_be_locked_by_another,
    "holdfast_job",
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, blockers, "CHAINS", "$any(ids: text)", "$any(ids: text) $locked")


@race(
    "a start locks its lane †",
    "I-60",
    test_borrowed.test_while_a_start_is_not_committed_every_row_can_be_locked_by_another,
    "holdfast_lane",
)
def _(patch: pytest.MonkeyPatch) -> None:
    resolve = blockers.resolve

    async def lock_too(tx: Tx, starts: Any) -> Any:
        keys = sorted({each.lane for each in starts if each.lane is not None})
        await tx.fetch_all("SELECT key FROM holdfast_lane WHERE key $any(keys: text) $locked", keys=keys)
        return await resolve(tx, starts)

    patch.setattr(blockers, "resolve", lock_too)


@race(
    "blockers counted at start, not at admission †",
    "I-61",
    test_admission.test_a_start_that_commits_after_its_blocker_closed_is_not_stranded,
    "not enough values to unpack .expected 1, got 0",
)
def _(patch: pytest.MonkeyPatch) -> None:
    link = blockers.link
    arm = "UPDATE holdfast_blocker SET state = 'armed' WHERE job $any(seqs: bigint)"
    count = """
        UPDATE holdfast_job SET gate = NULL, open_blockers =
            (SELECT count(*) FROM holdfast_blocker AS link JOIN holdfast_job AS first ON first.id = link.chain_id
            WHERE link.job = holdfast_job.seq AND first.closed_as IS NULL)
        WHERE seq $any(seqs: bigint)"""

    async def count_now(tx: Tx, waiting: Any, found: Any) -> None:
        waiting = list(waiting)
        await link(tx, waiting, found)
        for sql in (arm, count):
            await tx.execute(sql, seqs=[seq for seq, start in waiting if start.blockers])

    patch.setattr(blockers, "link", count_now)


def waits(name: str, breaks: str, module: Any, sql: str, test: Test) -> None:
    """Let a statement wait for locked rows instead of passing over them."""

    @race(name, breaks, test, LATE)
    def _(patch: pytest.MonkeyPatch) -> None:
        for old, new in (("$skip_locked_jobs", "$locked"), ("$skip_locked", "$locked")):
            text = getattr(module, sql)
            if old in (text["postgres"] if isinstance(text, dict) else text):
                change_sql(patch, module, sql, old, new, "postgres")


waits(
    "renewal waits for locked rows †",
    "I-63",
    claiming,
    "RENEW",
    test_renew.test_one_locked_row_of_fifty_costs_the_others_nothing,
)
waits("reaper waits for locked rows †", "I-63", reaping, "EXPIRED", test_reap.test_a_locked_row_is_passed_over_and_told)
waits(
    "settling waits for locked rows †",
    "I-63",
    settling,
    "LOCK_RUNNING",
    test_settle.test_a_locked_row_is_busy_and_the_others_are_settled,
)
waits(
    "claim waits for locked rows †",
    "I-63",
    claiming,
    "CLAIM",
    test_claim.test_a_row_that_a_stranger_has_locked_is_passed_over,
)
waits(
    "admission waits for locked rows †",
    "I-63",
    admission,
    "ARRIVALS",
    test_admission.test_a_locked_arrival_is_passed_over,
)


@race(
    "reaper believes its look †",
    "I-16",
    test_reap.test_a_renewal_between_the_look_and_the_reap_saves_the_job,
    "assert 1 == 0",
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, reaping, "EXPIRED", "AND coalesce(lease_until, $now) < $now", "AND lease_until IS NOT NULL")


@race(
    "fenced by attempt without nonce",
    "I-10",
    test_settle.test_a_token_that_is_wrong_in_one_part_settles_nothing,
    "Token",
    forged="nonce",
)
def _(patch: pytest.MonkeyPatch) -> None:
    settle = settling.settle

    async def by_attempt(tx: Tx, settlements: Any) -> Any:
        sql = "SELECT seq, attempt, nonce FROM holdfast_job WHERE seq $any(seqs: bigint)"
        nonces = {row[:2]: row[2] for row in await tx.fetch_all(sql, seqs=[each.token.seq for each in settlements])}
        tokens = [each.token._replace(nonce=nonces.get(each.token[:2], each.token.nonce)) for each in settlements]
        return await settle(tx, [each._replace(token=token) for each, token in zip(settlements, tokens, strict=True)])

    patch.setattr(settling, "settle", by_attempt)


@race(
    "a dependent that somebody has locked is not told later †",
    "I-38",
    test_chain_races.test_the_last_steps_of_two_blockers_settled_at_once_release_the_continuation_once,
    "assert 0 == 1",
)
def _(patch: pytest.MonkeyPatch) -> None:
    release = blockers.release

    async def forget(tx: Tx, closed: Any) -> tuple[list[Moved], set[str]]:
        moved, _ = await release(tx, closed)
        return moved, set()

    patch.setattr(blockers, "release", forget)


@race(
    "a dependent that is left to admission is told by nobody †",
    "I-38",
    test_chain_races.test_two_blockers_completed_by_two_callers_at_once_release_the_job_once,
    "blocked",
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, completing, "COMPLETE", "lane IS NOT NULL OR watched = 1", "lane IS NOT NULL")


@race(
    "blockers counted without their locks †",
    "I-38",
    test_chain_races.test_a_continuation_that_is_counted_while_its_blocker_closes_is_not_stranded,
    "not enough values to unpack .expected 1, got 0",
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, blockers, "LOCK_CHAINS", "$skip_locked", "")
    change_sql(patch, blockers, "LOCK_CHAINS", "closed_as, watched", "closed_as, 1")


@race(
    "rings are looked for only when they are given †",
    "DF-6",
    test_chain_races.test_a_ring_closed_in_two_open_transactions_fails_when_it_is_counted,
    "blocked",
    counted="together",
)
def _(patch: pytest.MonkeyPatch) -> None:
    arm = blockers.arm

    async def arm_all(tx: Tx, waiting: Any, later_steps: Any) -> Any:
        return await arm(tx, waiting, {})

    patch.setattr(blockers, "arm", arm_all)


@race(
    "completion decided by the check at a block's entry †",
    "I-14",
    test_chain_races.test_a_cancel_that_commits_while_user_code_runs_undoes_the_block,
    "DID NOT RAISE",
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(block_ends, "finish_block", finish_anyway)
    change_sql(patch, settling, "WRITE_ENDS", guard(Change.COMPLETE), guard(Change.FAIL))


@race(
    "a plain block ignores a cancel that was requested since its entry †",
    "I-32",
    test_interleavings_mutants.test_a_plain_block_whose_job_is_to_be_cancelled_is_undone,
    "DID NOT RAISE",
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, settling, "COMPLETE_BLOCK", guard(Change.COMPLETE), guard(Change.FAIL))


@race(
    "a plain block commits without its token †",
    "I-13",
    test_interleavings_mutants.test_a_plain_block_whose_job_was_taken_meanwhile_is_undone,
    "DID NOT RAISE",
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, settling, "COMPLETE_BLOCK", claiming.FENCE, "holdfast_job.seq = given.seq")


def continue_anyway(patch: pytest.MonkeyPatch) -> None:
    """Let a block continue its job whatever has become of it, at whichever position is free."""
    patch.setattr(block_ends, "finish_block", finish_anyway)
    change_sql(patch, settling, "WRITE_ENDS", guard(Change.FAIL), "true")
    any_position = "(SELECT max(later.chain_index) FROM holdfast_job AS later WHERE later.chain_id = before.chain_id)"
    change_sql(patch, continuations, "INSERT", "before.chain_index + 1", f"{any_position} + 1")


@race(
    "a block completes what a person has completed since its entry †",
    "I-37",
    test_chain_races.test_a_block_that_comes_after_somebody_who_completed_its_job_learns_it,
    "DID NOT RAISE",
)
def _(patch: pytest.MonkeyPatch) -> None:
    continue_anyway(patch)


@race(
    "a person completes what a block has completed meanwhile †",
    "I-37",
    test_chain_races.test_a_person_who_comes_after_the_end_is_told_that_it_has_completed,
    "DID NOT RAISE",
)
def _(patch: pytest.MonkeyPatch) -> None:
    without_guard(patch, Change.COMPLETE_OUTSIDE, completing, "COMPLETE", "true")


@race(
    "two successors: neither guard nor unique position †",
    "I-36",
    test_interleavings_mutants.test_of_two_who_continue_one_job_one_does,
    "DID NOT RAISE",
)
def _(patch: pytest.MonkeyPatch) -> None:
    continue_anyway(patch)


@race(
    "a block locks the job's row at entry †",
    "I-14",
    test_chain_races.test_a_renewal_is_not_held_up_by_an_open_block,
    "locked",
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(block_ends, "CHECK", f"{block_ends.CHECK} $locked")


NEW_BY_SEQ = f"""SELECT {reading.LOG_COLUMNS} FROM holdfast_event WHERE seq > :after ORDER BY seq LIMIT :most"""
LAST_SEQ = """SELECT coalesce(max(seq), 0) FROM holdfast_event"""


@race(
    "event cursor by seq only †",
    "I-44",
    test_log_races.test_what_commits_late_with_a_low_number_is_not_missed,
    "assert .*late",
)
def _(patch: pytest.MonkeyPatch) -> None:
    async def now(tx: Tx) -> SeqCursor:
        ((seq,),) = await tx.fetch_all(LAST_SEQ)
        return SeqCursor("mutant", behind_row(seq))

    async def since(tx: Tx, cursor: SeqCursor, most: int) -> LogRows:
        rows = await tx.fetch_all(NEW_BY_SEQ, after=last_row(cursor.place), most=most + 1)
        lines = tuple(LogRow(*row) for row in rows[:most])
        end = cursor.at(lines[-1].place) if lines else cursor
        return LogRows(lines, cursor, end, is_last=len(rows) <= most, horizon=Horizon(0, 0))

    patch.setattr(reading, "now", now)
    patch.setattr(reading, "since", since)


@dataclass(frozen=True, slots=True)
class XidCursor:
    """A place by transaction and `seq`, as if transactions committed in the order of their numbers."""

    xid: int
    place: int
    text: str = ""

    def at(self, place: int) -> XidCursor:
        """Give *place* in the same transaction."""
        return XidCursor(self.xid, place)


NEW_BY_XID = f"""
    SELECT {reading.LOG_COLUMNS} FROM holdfast_event
    WHERE xid < $oldest AND (xid > :xid OR (xid = :xid AND seq > :seq))
    ORDER BY xid, seq LIMIT :most"""


def below_xmin(patch: pytest.MonkeyPatch) -> None:
    """Read what is older than every open transaction, in the order of transactions."""

    async def now(tx: Tx) -> XidCursor:
        ((newest,),) = await tx.fetch_all("SELECT $newest")
        return XidCursor(newest - 1, 2**62)

    async def since(tx: Tx, cursor: XidCursor, most: int) -> LogRows:
        rows = await tx.fetch_all(NEW_BY_XID, xid=cursor.xid, seq=last_row(cursor.place), most=most + 1)
        lines = tuple(LogRow(*row) for row in rows[:most])
        end: Any = XidCursor(*lines[-1].position) if lines else cursor
        page: Any = cursor
        return LogRows(lines, page, end, is_last=len(rows) <= most, horizon=Horizon(0, 0))

    patch.setattr(reading, "now", now)
    patch.setattr(reading, "since", since)


@race(
    "event cursor (xid, seq) below xmin †",
    "I-71",
    test_log_races.test_events_of_a_job_come_in_commit_order_against_the_order_of_xids,
    # or nothing is read at all, if somebody else's transaction is open in another database of the server
    "At index 1 diff: 'job:completed' != 'job:started'|Right contains",
    most=100,
)
def _(patch: pytest.MonkeyPatch) -> None:
    below_xmin(patch)


@race(
    "event cursor (xid, seq) below xmin, with a writer open elsewhere †",
    "I-71",
    test_log_races.test_a_writer_that_stays_open_holds_nothing_up,
    "assert .*job:enqueued",
    where="elsewhere",
)
def _(patch: pytest.MonkeyPatch) -> None:
    below_xmin(patch)


@race(
    "a reader that stops between the two events of one row misses the second",
    "I-44",
    test_log_reading.test_who_stops_between_the_two_goes_on_with_the_second,
    "Right contains one more item: 'chain:completed'",
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reading, "last_row", lambda place: place // 2)


@race(
    "a reader that stops between the two events of one row has the first again",
    "I-44",
    test_log_reading.test_who_stops_between_the_two_goes_on_with_the_second,
    "At index 0 diff: 'job:completed' != 'chain:completed'",
)
def _(patch: pytest.MonkeyPatch) -> None:
    place_of = reading._place_of
    patch.setattr(reading, "_place_of", lambda cursor: place_of(cursor) - (place_of(cursor) % 2 == 0))


def change_both(patch: pytest.MonkeyPatch, name: str, old: str, new: str) -> None:
    """Put *new* in place of *old* in the texts of both stages of retention, or in the one that it has."""
    sql = getattr(retention, name)
    texts = sql if isinstance(sql, dict) else {"": sql}
    assert all(old in text for text in texts.values()), f"retention.{name} no longer says {old!r}"
    changed = {stage: text.replace(old, new) for stage, text in texts.items()}
    patch.setattr(retention, name, changed if isinstance(sql, dict) else changed[""])


WAITED_FOR = test_retention.test_what_an_open_job_waits_for_or_may_read_is_neither_marked_nor_deleted
UNDELIVERED = test_retention.test_an_undelivered_webhook_keeps_its_job_from_being_marked_and_deleted
HALTING = test_retention.test_a_stale_job_that_came_to_halt_a_lane_is_not_deleted
LOOKS = ("FIRSTS", "LATER", "LOCK_FIRSTS", "LOCK_LATER")


RETRYABLE = test_delete.test_what_a_job_would_need_for_its_retry_is_not_deleted_alone


@race("a delete ignores what a retry would need", "I-58", RETRYABLE, "DID NOT RAISE", status="failed")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, deletes, "REFERENCES", deletes.NEEDS_BLOCKER, deletes.WAITS, "postgres")


@race("retention ignores blockers", "I-49", WAITED_FOR, "assert", status=Status.BLOCKED)
def _(patch: pytest.MonkeyPatch) -> None:
    change_both(patch, "BLOCKING", "IS NOT NULL", "IS NOT NULL AND false")


@race("retention ignores the lane", "I-49", HALTING, "assert")
def _(patch: pytest.MonkeyPatch) -> None:
    for name in LOOKS:
        change_both(patch, name, "coalesce(head, 0) = 0", "true")


@race("retention ignores undelivered webhooks", "I-49", UNDELIVERED, "assert", status=Status.PENDING)
def _(patch: pytest.MonkeyPatch) -> None:
    change_both(patch, "UNDELIVERED", "IS NOT NULL", "IS NOT NULL AND false")


@race(
    "retention ignores what is left to admission",
    "I-49",
    test_retention.test_what_has_left_something_to_admission_is_kept,
    "assert",
)
def _(patch: pytest.MonkeyPatch) -> None:
    for name in LOOKS:
        change_both(patch, name, "coalesce(gate, '') = ''", "true")


@race(
    "retention goes by the look before its lock",
    "I-49",
    test_retention.test_what_is_retried_after_the_look_is_left_alone,
    "assert|StopIteration|violates",
)
def _(patch: pytest.MonkeyPatch) -> None:
    asks = "SELECT {} FROM holdfast_job WHERE seq $any(seqs: bigint) AND :outcome <> '' AND :age >= 0"
    asks = asks.format(rows.LOCKED) + " ORDER BY seq $skip_locked"
    patch.setattr(retention, "LOCK_FIRSTS", dict.fromkeys(retention.LOCK_FIRSTS, asks))
    change_both(patch, "MARK", guard(Change.MARK_STALE), "true")


@race(
    "retention deletes before the time",
    "I-49",
    test_retention.test_a_delete_asks_for_the_whole_time_itself_whatever_was_looked_up,
    "assert",
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_both(patch, "LOCK_FIRSTS", "<= $now - :age", "<= $now + :age")


@race(
    "retention waits for who holds a row",
    "I-63",
    test_retention.test_a_chain_that_somebody_holds_is_passed_over_and_nobody_is_waited_for,
    "assert|" + LATE,
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_both(patch, "LOCK_FIRSTS", "$skip_locked", "$locked")


@race(
    "a chain that is open again stays marked",
    "I-49",
    test_retention.test_to_retry_the_last_job_of_a_stale_chain_takes_the_mark_off_all_of_it,
    "assert",
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(chain_ends, "UNMARK", chain_ends.UNMARK.replace("AND coalesce(marked.stale_at, 0) > 0", "AND false"))


@race(
    "who opens a stale chain again waits for whoever holds a job in its middle",
    "I-63",
    test_retention.test_a_stale_chain_opens_again_although_somebody_holds_a_job_in_its_middle,
    LATE,
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(chain_ends, "UNMARK", chain_ends.UNMARK.replace("$skip_locked", "$locked"))


@race(
    "keys are swept without a lock on their table",
    "I-05",
    test_retention.test_no_key_is_swept_while_somebody_is_half_way_through_a_start,
    "assert",
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(unique, "LOCK_TABLE", ())


@race(
    "outbox row in its own transaction",
    "I-47",
    test_webhooks.test_an_event_that_is_undone_makes_no_delivery,
    "assert",
)
def _(patch: pytest.MonkeyPatch) -> None:
    owed: list[Any] = []

    async def put_off(tx: Tx, facts: Any) -> None:
        owed.extend(facts)

    patch.setattr(fan_out, "want", put_off)


@race(
    "deliveries made, row not deleted in that commit",
    "I-47",
    test_outbox.test_deliveries_are_made_and_the_row_deleted_in_one_commit,
    "assert",
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, outbox, "DELETE", "WHERE", "WHERE false AND")


@race(
    "a later event of a job becomes deliveries before an earlier one †",
    "I-48",
    test_outbox.test_a_later_event_waits_for_an_earlier_one_that_another_worker_has_locked,
    "assert",
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, outbox, "EARLIER", "earlier.job = mine.job", "false")


@race(
    "the making of deliveries waits for rows that another worker has locked †",
    "I-63",
    test_outbox.test_events_that_another_worker_has_locked_are_left_to_it,
    "assert|" + LATE,
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, outbox, "LOCK", "$skip_locked", "$locked")


@race(
    "two workers make deliveries of one event †",
    "I-47",
    test_outbox.test_events_that_another_worker_has_locked_are_left_to_it,
    "assert|" + LATE,
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, outbox, "LOCK", "$skip_locked", "")


@race(
    "retention ignores the outbox",
    "I-49",
    test_outbox.test_an_event_in_the_outbox_keeps_its_job_from_being_deleted,
    "assert",
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, retention, "UNDELIVERED", "unmade.job $any(seqs: bigint)", "false")


@race(
    "a deleted job takes its events out of the outbox",
    "I-47",
    test_outbox.test_a_job_that_was_deleted_meanwhile_is_told_without_input_and_output,
    "unpack",
)
def _(patch: pytest.MonkeyPatch) -> None:
    gone = "DELETE FROM holdfast_outbox WHERE job $any(seqs: bigint)"
    patch.setattr(deletes, "FORGET", (*deletes.FORGET, gone))


@race(
    "a subscription gets what happened before it",
    "I-47",
    test_outbox.test_a_subscription_gets_nothing_that_happened_before_it,
    "assert",
)
def _(patch: pytest.MonkeyPatch) -> None:
    wants = outbox._Subscription.wants
    patch.setattr(outbox._Subscription, "wants", lambda each, row: wants(each._replace(active_since=0), row))


@race(
    "a subscription that is enabled gets what happened before",
    "I-47",
    test_outbox.test_a_subscription_that_is_enabled_gets_nothing_of_before,
    "assert",
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, webhooks, "ENABLE", "WHEN disabled_at IS NULL", "WHEN true")


@race(
    "a subscription that is changed loses what waits for it",
    "I-47",
    test_outbox.test_what_waits_goes_to_a_subscription_as_it_was_changed,
    "assert",
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, webhooks, "CHANGE", "disabled_at IS NULL OR", "")


@race(
    "the making of deliveries comes back at once to what another worker has locked †",
    "I-63",
    test_outbox.test_a_worker_that_stands_still_delays_only_the_events_that_it_has_locked,
    "assert",
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(making, "HELD_SECONDS", 0)


@race("deliveries fanned out again", "I-70", test_webhooks.test_there_is_no_delivery_of_a_delivery, "assert|unpack")
def _(patch: pytest.MonkeyPatch) -> None:
    wrong = {name: text.replace("told.queue <> 'holdfast.internal'", "true") for name, text in fan_out.WANT.items()}
    patch.setattr(fan_out, "WANT", wrong)
    patch.setattr(fan_out, "SILENT", None)


@race(
    "a job's own webhook is added to the subscriptions",
    "I-47",
    test_webhooks.test_a_webhook_of_its_own_takes_the_place_of_the_subscriptions,
    "unpack",
)
def _(patch: pytest.MonkeyPatch) -> None:
    receivers = outbox._receivers

    def both(row: Any, subscriptions: Any) -> Any:
        return [*receivers(row, subscriptions), *receivers(row._replace(webhook=None), subscriptions)]

    patch.setattr(outbox, "_receivers", both)


@race(
    "a delivery overtakes one that is locked †",
    "I-48",
    test_webhooks.test_a_delivery_does_not_overtake_one_that_somebody_has_locked,
    "assert",
)
def _(patch: pytest.MonkeyPatch) -> None:
    async def nobody(tx: Tx, joining: Any) -> set[int]:
        return set()

    patch.setattr(fan_out, "overtaking", nobody)


@race(
    "deliveries of one job without a lane",
    "I-48",
    test_webhooks.test_deliveries_of_one_job_go_out_one_after_the_other,
    "unpack",
)
def _(patch: pytest.MonkeyPatch) -> None:
    start = fan_out.DeliveryInput.start
    patch.setattr(fan_out.DeliveryInput, "start", lambda *given: start(*given)._replace(lane=None))


@race(
    "all receivers of a job's events in one lane",
    "I-48",
    test_webhooks.test_a_receiver_that_does_not_answer_holds_up_nobody_else,
    "unpack",
)
def _(patch: pytest.MonkeyPatch) -> None:
    start = fan_out.DeliveryInput.start

    def in_one_lane(parcel: Any, *given: Any) -> Any:
        return start(parcel, *given)._replace(lane=f"{fan_out.LANE}{parcel.target}")

    patch.setattr(fan_out.DeliveryInput, "start", in_one_lane)


@race(
    "the end of a delivery waits for the job that it is about †",
    "I-63",
    test_webhooks.test_a_delivery_whose_job_is_locked_is_settled_later,
    "assert|" + LATE,
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, fan_out, "LOCK_TARGETS", "$skip_locked", "$locked")


@race("a delivery marks a tombstone", "I-47", test_webhooks.test_a_deleted_job_that_held_its_lane_is_borne, "assert")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, fan_out, "MARK", "coalesce(holdfast_job.closed_as, '') <> 'deleted'", "true")
    patch.setattr(deletes, "FORGET", deletes.FORGET[:3])


@race(
    "a receiver that is gone is told on", "I-47", test_webhooks.test_a_receiver_that_is_gone_is_told_no_more, "assert"
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, fan_out, "DISABLE", "held.disabled_at IS NULL", "false")


@race(
    "a continuation takes the id of another job",
    "I-12",
    test_continuations.test_a_second_job_of_an_id_is_refused_and_its_predecessor_runs_on,
    says="UNIQUE constraint|duplicate key",
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, continuations, "TAKEN", "WHERE id $any(ids: text)", "WHERE id $any(ids: text) AND seq < 0")


@race(
    "a finished phase leaves the crash count",
    "I-24",
    test_phases.test_a_phase_completes_with_its_result_its_event_and_the_crashes_set_back,
    says="assert",
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, phases, "COMPLETE", "crashes = 0, ", "")


@race(
    "a suspect in a child is blamed for the death of its worker",
    "I-24",
    test_reap.test_a_suspect_in_a_child_of_a_dead_worker_is_taken_back,
    says="assert",
)
def _(patch: pytest.MonkeyPatch) -> None:
    def convict(*facts: Any, is_blamed: bool, **more: Any) -> Outcome:
        return lost(*facts, **more)

    patch.setattr(reaping, "lost", convict)


@race(
    "a worker that lives takes the crash of a lost job back twice",
    "I-24",
    test_reap.test_a_worker_that_lives_takes_back_the_crash_of_what_it_lost_once,
    says="assert",
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, reaping, "ABSOLVE", ", error = given.error", "")
    change_sql(patch, reaping, "ACCUSED", "crashes > 0", "crashes > -9")


@race(
    "a worker that lives takes back the crash of another",
    "I-24",
    test_reap.test_a_crash_that_was_counted_for_a_later_attempt_stays,
    says="assert",
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, reaping, "ACCUSED", "SELECT seq, error", f"SELECT seq, {FIRST_LOST}")


@race(
    "what may not run again is given back because it could not be written",
    "I-25",
    test_reap.test_what_could_not_be_written_and_may_not_run_again_is_left_to_be_lost,
    says="assert",
    policy='{"on_lost":"fail"}',
)
def _(patch: pytest.MonkeyPatch) -> None:
    async def no_policy(_: Tx, names: Any) -> dict[str, Any]:
        return {name: {} for name in names}

    patch.setattr(task_rows, "policies_of", no_policy)


@race("finished phase run again on retry", "I-40", test_phases.test_a_retry_runs_only_what_is_unfinished, says="assert")
def _(patch: pytest.MonkeyPatch) -> None:
    async def forget(phases: Phases) -> None:
        """Read nothing."""

    patch.setattr(Phases, "load", forget)


@race(
    "two fold figures at once †",
    "exact figures",
    test_tallies.test_who_folds_beside_another_waits_for_nobody_and_doubles_nothing,
    LATE,
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, tallies, "LOCK", "$skip_locked", "")
