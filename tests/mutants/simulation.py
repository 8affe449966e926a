"""Wrong engines that the simulation catches; chains have theirs in `tests/mutants/simulation_chains.py`.

What a mutant is, `tests/mutants/__init__.py` says.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from holdfast.database.sqlite.connection import WriteConnection
from holdfast.database.sqlite.file_locks import HeldLock
from holdfast.database.tx import Row, Tx
from holdfast.errors import UnknownOutcome
from holdfast.outcomes import Kind, Outcome
from holdfast.states import Change, guard
from holdfast.store import admission
from holdfast.store.chains import blockers
from holdfast.store.insight import explain
from holdfast.store.jobs import claiming, exchanging, reaping, settling, steering
from holdfast.store.jobs.claiming import ClaimState, token_of
from holdfast.store.jobs.settling import Settled, Settlement
from holdfast.store.rows import LockedJob, to_locked
from holdfast.worker import leases
from holdfast.worker.attempts import active
from holdfast.worker.claiming import claimer, dispatcher, unknown_claims, wakeups
from holdfast.worker.upkeep import liveness_lock, reaper
from tests.mutants import change_sql, mutant, without_guard
from tests.simulation import scenes
from tests.simulation.handlers import WORLD


def here() -> Any:
    """Give the simulated process that is running, as its memory is that of a mutant."""
    machine = WORLD[0].machine
    assert machine.running is not None
    return machine.running.process


def worker_here() -> str:
    """Name the worker of the simulated process that is running."""
    return str(here().worker.id) if here().worker is not None else ""


@mutant("lease set after the claim, not in it", "I-09")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, claiming, "CLAIM", "lease_until = $now + lease.ms", "lease_until = $now")


@mutant("attempt number goes back on resume", "I-10", scene=scenes.a_job_that_failed_by_its_blocker_is_given_up)
def _(patch: pytest.MonkeyPatch) -> None:
    for name in ("RESUME", "RETRY"):
        change_sql(patch, steering, name, "cancel_requested_at = NULL,", "cancel_requested_at = NULL, attempt = 0,")


@mutant("nonce is not new with each claim", "I-10")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, claiming, "CLAIM", "nonce = :nonce", "nonce = coalesce(nonce, :nonce)")


@mutant("lane promoted in a second transaction", "I-12")
def _(patch: pytest.MonkeyPatch) -> None:
    promote, take = settling.lanes.promote, claiming.admit_and_claim
    owed: dict[Any, set[str]] = {}

    async def put_off(tx: Tx, keys: Any, mine: Any) -> set[str]:
        owed.setdefault(here(), set()).update(keys)
        return set()

    async def pay(tx: Tx, *args: Any, **how: Any) -> Any:
        mine = await settling.lanes.lock(tx, owed.pop(here(), set()))
        await promote(tx, mine, mine)
        return await take(tx, *args, **how)

    async def write_ends(tx: Tx, *args: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(settling.lanes, "promote", put_off)
            return await original(tx, *args)

    original = settling.write_ends
    patch.setattr(settling, "write_ends", write_ends)
    patch.setattr(claiming, "admit_and_claim", pay)


@mutant("event in its own transaction", "I-12")
def _(patch: pytest.MonkeyPatch) -> None:
    append, settle = settling.events.append, settling.settle
    owed: dict[Any, list[Any]] = {}

    async def put_off(tx: Tx, facts: Any) -> None:
        owed.setdefault(here(), []).extend(facts)

    async def settle_later(tx: Tx, settlements: Any) -> Any:
        await append(tx, owed.pop(here(), []))
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(settling.events, "append", put_off)
            return await settle(tx, settlements)

    patch.setattr(settling, "settle", settle_later)


def settle_by(is_mine: Callable[[Row], bool]) -> Callable[[Tx, Sequence[Settlement]], Any]:
    """Make a settle that takes a running row for ours if *is_mine* says so of (seq, worker)."""

    async def settle(tx: Tx, settlements: Sequence[Settlement]) -> Settled:
        seqs = [each.token.seq for each in settlements]
        sql = "SELECT seq, worker FROM holdfast_job WHERE seq $any(seqs: bigint) AND status = 'running'"
        mine = {row[0] for row in await tx.fetch_all(sql, seqs=seqs) if is_mine(row)}
        held = {each.seq: each for each in map(to_locked, await tx.fetch_all(settling.LOCK_RUNNING, seqs=seqs))}
        ours = {each.token.seq: each for each in settlements if each.token.seq in mine}
        await settling.write_ends(
            tx, [(held[seq], each._replace(token=token_of(held[seq]))) for seq, each in ours.items()]
        )
        lost = {each.token: ClaimState.TAKEN for each in settlements if each.token.seq not in mine}
        return Settled([each.token for each in ours.values()], lost, [])

    return settle


@mutant("no token in the WHERE", "I-13", scene=scenes.a_lost_attempt_ends_while_its_worker_runs_the_job_anew)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(settling, "settle", settle_by(lambda row: True))


@mutant("fenced by worker id only", "I-13", scene=scenes.a_lost_attempt_ends_while_its_worker_runs_the_job_anew)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(settling, "settle", settle_by(lambda row: row[1] == worker_here()))


@mutant("expired, unreaped lease treated as lost", "I-14")
def _(patch: pytest.MonkeyPatch) -> None:
    look = claiming.claim_states
    change_sql(patch, settling, "LOCK_RUNNING", "= 'running'", "= 'running' AND lease_until >= $now")

    async def pessimist(tx: Tx, tokens: Any) -> dict[Any, ClaimState]:
        return {
            token: ClaimState.TAKEN if hold is ClaimState.HELD else hold
            for token, hold in (await look(tx, tokens)).items()
        }

    patch.setattr(settling, "claim_states", pessimist)


@mutant(
    "reaper reads, then writes in a second transaction",
    "I-16",
    scene=scenes.a_lost_attempt_ends_while_its_worker_runs_the_job_anew,
)
def _(patch: pytest.MonkeyPatch) -> None:
    reap = reaping.reap
    change_sql(patch, reaping, "EXPIRED", "AND coalesce(lease_until, $now) < $now", "AND lease_until IS NOT NULL")
    found: dict[Any, list[Row]] = {}

    async def read_then_write(tx: Tx, *args: Any, **kwargs: Any) -> Any:
        process, fetch = here(), tx.fetch_all
        now, before = await fetch(reaping.FIND, quiet_ms=2**53, spared=[], most=50), found.get(process, [])

        class Late:
            database = tx.database
            execute = tx.execute

            async def fetch_all(self, sql: str, /, **values: object) -> list[Row]:
                return before if sql == reaping.FIND else await fetch(sql, **values)

        found[process] = now
        return await reap(Late(), *args, **kwargs)

    patch.setattr(reaping, "reap", read_then_write)


@mutant("reaper by host clock", "I-17")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, reaping, "FIND", "lease_until < $now", "lease_until < $now + 86400000")
    change_sql(patch, reaping, "EXPIRED", "< $now", "< $now + 86400000")


@mutant("no self-fence", "I-20", scene=scenes.a_worker_that_cannot_renew_stops_its_handlers)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leases.LeaseKeeper, "_give_up_late", lambda self, now: None)


@mutant("waiting for the write lock counted as a loss", "I-20", "stranger")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leases.LeaseKeeper, "_waits_to_write", False)


@mutant("renewal loop ends at an error", "I-21", scene=scenes.a_renewal_that_fails_once_is_tried_again)
def _(patch: pytest.MonkeyPatch) -> None:
    step, failing = leases.LeaseKeeper.step, leases.LeaseKeeper._failing
    ended: set[int] = set()

    def fail(self: leases.LeaseKeeper, error: Exception) -> None:
        ended.add(id(self))
        failing(self, error)

    patch.setattr(leases.LeaseKeeper, "_failing", fail)
    patch.setattr(leases.LeaseKeeper, "step", lambda self: None if id(self) in ended else step(self))


@mutant(
    "renewal stops when a cancel arrives", "I-21", scene=scenes.a_cancelled_handler_that_will_not_stop_keeps_its_lease
)
def _(patch: pytest.MonkeyPatch) -> None:
    abort = active.Active.abort

    def forget(self: active.Active, reasons: Any) -> None:
        abort(self, reasons)
        for token in reasons:
            here().worker._core.leases.drop(token)

    patch.setattr(active.Active, "abort", forget)


@mutant("reaper without hold-off", "I-22", scene=scenes.an_outage_outlasts_the_leases)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reaper.Upkeep, "_quiet_ms", lambda self, now: reaper.NO_OUTAGE)
    patch.setattr(reaper.Upkeep, "_expected_ms", lambda self, now: None)


@mutant("reaper does not write while no lease is over", "I-22", scene=scenes.a_write_lock_outlasts_the_leases)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, reaping, "PEEK", "lease_until IS NOT NULL", "lease_until < $now")


@mutant(
    "a job is run beside an earlier attempt of its own",
    "I-23",
    scene=scenes.a_lost_attempt_ends_while_its_worker_runs_the_job_anew,
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(active.Active, "by_seq", lambda _: {})


@mutant("crashes not counted", "I-24")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, settling, "WRITE_ENDS", "crashes = crashes + given.crashed", "crashes = crashes")


@mutant("suspects run beside others", "I-24", scene=scenes.what_two_loops_claim_at_once_is_sorted_by_suspicion)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dispatcher.Dispatcher, "_must_be_alone", lambda self, job: False)


@mutant(
    "what the other loop has claimed joins a suspect",
    "I-24",
    scene=scenes.what_two_loops_claim_at_once_is_sorted_by_suspicion,
)
def _(patch: pytest.MonkeyPatch) -> None:
    begin = dispatcher.Dispatcher.begin

    def crowd(self: dispatcher.Dispatcher, claimed: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(dispatcher.Dispatcher, "_runs_suspect", False)
            begin(self, claimed)

    patch.setattr(dispatcher.Dispatcher, "begin", crowd)


@mutant("reap forgets a requested cancel", "I-25", scene=scenes.a_process_dies_of_a_job_that_is_to_be_cancelled)
def _(patch: pytest.MonkeyPatch) -> None:
    as_requested = settling.as_requested
    patch.setattr(
        settling, "as_requested", lambda job, outcome: outcome if outcome.is_crash else as_requested(job, outcome)
    )


@mutant("reap forgets a requested pause", "I-25", scene=scenes.a_process_dies_of_a_job_that_is_to_be_paused)
def _(patch: pytest.MonkeyPatch) -> None:
    as_requested = settling.as_requested

    def forget(job: LockedJob, outcome: Outcome) -> Outcome:
        return outcome if outcome.is_crash and job.cancel_requested_at is None else as_requested(job, outcome)

    patch.setattr(settling, "as_requested", forget)


@mutant("cancel of a failed job leaves its lane halted", "I-27", scene=scenes.a_failed_head_is_given_up)
def _(patch: pytest.MonkeyPatch) -> None:
    kept = "head = CASE status WHEN 'failed' THEN head ELSE 0 END"
    change_sql(patch, steering, "CANCEL", "head = 0", kept)


@mutant("claim from a paused lane", "I-27", scene=scenes.a_lane_is_paused_while_its_head_runs)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, settling.lanes, "PROMOTE", "AND lane $any(running: text)", "AND (1 OR lane $any(running: text))")


@mutant("lane place given at start, not when runnable", "I-28")
def _(patch: pytest.MonkeyPatch) -> None:
    early = "(wake_at <= $now OR (lane IS NOT NULL AND place IS NULL AND status = 'pending'))"
    change_sql(patch, admission, "ARRIVALS", "AND wake_at <= $now", f"AND {early}")
    change_sql(patch, admission, "ARRIVALS", ", run_at <= $now", ", (run_at <= $now OR lane IS NOT NULL)")


@mutant("shutdown leaves the lane halted", "I-30", scene=scenes.a_worker_shuts_down_while_a_head_runs)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(settling.CHANGES, Kind.GIVE_BACK, (Change.PAUSE_RUNNING, "job:paused"))


@mutant(
    "an error forgets the cancel request, and the claim clears it",
    "I-31",
    scene=scenes.a_process_dies_of_a_job_that_is_to_be_cancelled,
)
def _(patch: pytest.MonkeyPatch) -> None:
    as_requested = settling.as_requested
    forgets = (Kind.RETRY, Kind.LOST, Kind.RESCHEDULE, Kind.GIVE_BACK)

    def forget(job: LockedJob, outcome: Outcome) -> Outcome:
        return outcome if outcome.kind in forgets else as_requested(job, outcome)

    patch.setattr(settling, "as_requested", forget)
    change_sql(patch, claiming, "CLAIM", "nonce = :nonce", "nonce = :nonce, cancel_requested_at = NULL")


@mutant("resume leaves an old request standing", "I-31")
def _(patch: pytest.MonkeyPatch) -> None:
    for name in ("RESUME", "RETRY"):
        change_sql(patch, steering, name, "cancel_requested_at = NULL, pause_requested_at = NULL,", "")


@mutant(
    "complete ignores the cancel request", "I-32", scene=scenes.a_cancelled_handler_that_will_not_stop_keeps_its_lease
)
def _(patch: pytest.MonkeyPatch) -> None:
    as_requested = settling.as_requested

    def ignore(job: LockedJob, outcome: Outcome) -> Outcome:
        return outcome if outcome.kind is Kind.COMPLETE else as_requested(job, outcome)

    patch.setattr(settling, "as_requested", ignore)
    for name in ("WRITE_ENDS", "COMPLETE"):
        change_sql(patch, settling, name, guard(Change.COMPLETE), guard(Change.FAIL))


@mutant("unblock twice", "I-38")
def _(patch: pytest.MonkeyPatch) -> None:
    one_less = blockers._one_less
    patch.setattr(
        blockers, "_one_less", lambda seq, opened, policy, ends: one_less(seq, max(opened - 1, len(ends)), policy, ends)
    )


@mutant(
    "a blocker is counted off before it was counted", "I-38", scene=scenes.a_blocker_closes_before_it_was_counted_anew
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, blockers, "LOCK_DEPENDENTS", "on_blocker_failure, gate", "on_blocker_failure, NULL")


@mutant("retry of a blocker leaves dependents failed", "I-39", scene=scenes.a_blocker_closes_before_it_was_counted_anew)
def _(patch: pytest.MonkeyPatch) -> None:
    async def leave_them(tx: Tx, links: Any) -> set[str]:
        return set()

    patch.setattr(blockers, "_block_failed_by", leave_them)


@mutant("the hint is the only wake-up", "I-45", scene=scenes.the_poll_finds_what_no_hint_told)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(wakeups.Wakeups, "seconds", lambda self: 3600.0)


@mutant("lost COMMIT answer counted as failure", "I-55", scene=scenes.a_claim_whose_answer_is_lost_is_read_back)
def _(patch: pytest.MonkeyPatch) -> None:
    async def believe(self: unknown_claims.UnknownClaims, begin: Any) -> None:
        self._open.clear()

    patch.setattr(unknown_claims.UnknownClaims, "resolve", believe)


@mutant(
    "an exchange whose answer is lost forgets what has ended",
    "I-55",
    scene=scenes.an_end_is_written_again_when_its_answer_is_lost,
)
def _(patch: pytest.MonkeyPatch) -> None:
    exchange = claimer.Claimer._exchange

    async def forget(self: claimer.Claimer, batch: Any, free: int, ahead: int) -> None:
        try:
            await exchange(self, batch, free, ahead)
        except UnknownOutcome:
            ended = self._core.unsettled
            ended._settlements = [each for each in ended._settlements if each not in batch]
            raise

    patch.setattr(claimer.Claimer, "_exchange", forget)


@mutant("nonce cleared when settled", "I-55")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, settling, "WRITE_ENDS", "worker = NULL,", "worker = NULL, nonce = NULL,")


@mutant("batched completion announced before its commit", "I-56")
def _(patch: pytest.MonkeyPatch) -> None:
    exchange = exchanging.exchange

    async def hasty(tx: Tx, request: exchanging.Request) -> exchanging.Exchanged:
        answer = await exchange(tx, request)
        here().hear(exchanging.exchange, (request,), answer)
        return answer

    patch.setattr(exchanging, "exchange", hasty)


@mutant("one failing part fails its whole batch", "I-64", scene=scenes.good_and_bad_wishes_share_a_commit)
def _(patch: pytest.MonkeyPatch) -> None:
    together = WriteConnection._run_together

    async def all_or_nothing(self: WriteConnection, turns: Any, tx: Tx) -> None:
        await together(self, turns, tx)
        error = next((turn.error for turn in turns if turn.error is not None), None)
        if error is not None:
            for turn in turns:
                turn.error = error
            raise error

    def write_group(self: WriteConnection, turns: Any, wanted: Any) -> None:
        try:
            self.commit_after(lambda tx: self._run_together(turns, tx))
        except BaseException as error:  # noqa: BLE001 - as ours does
            for turn in turns:
                turn.error = error

    patch.setattr(WriteConnection, "_run_together", all_or_nothing)
    patch.setattr(WriteConnection, "write_group", write_group)


@mutant("missing lock file taken for a dead worker", "I-69")
def _(patch: pytest.MonkeyPatch) -> None:
    take_of_the_dead = liveness_lock.take_of_the_dead

    def credulous(path: str, device: int, inode: int) -> HeldLock | None:
        found = take_of_the_dead(path, device, inode)
        if found is None and not importlib.import_module("os").path.exists(path):
            return importlib.import_module("holdfast.database.sqlite.file_locks").take_liveness_lock(
                path, model=WORLD[0].disk.path
            )
        return found

    patch.setattr(liveness_lock, "take_of_the_dead", credulous)


@mutant("guard of pause", "I-08", scene=scenes.people_ask_for_what_must_not_be)
def _(patch: pytest.MonkeyPatch) -> None:
    without_guard(patch, Change.PAUSE, steering, "PAUSE")


@mutant("guard of cancel", "I-08", scene=scenes.people_ask_for_what_must_not_be)
def _(patch: pytest.MonkeyPatch) -> None:
    without_guard(patch, Change.CANCEL, steering, "CANCEL")


@mutant("guard of resume", "I-08", scene=scenes.people_ask_for_what_must_not_be)
def _(patch: pytest.MonkeyPatch) -> None:
    without_guard(patch, Change.RESUME, steering, "RESUME")


@mutant("guard of retry", "I-08", scene=scenes.people_ask_for_what_must_not_be)
def _(patch: pytest.MonkeyPatch) -> None:
    without_guard(patch, Change.RETRY, steering, "RETRY")


@mutant("guard of reschedule", "I-08", scene=scenes.people_ask_for_what_must_not_be)
def _(patch: pytest.MonkeyPatch) -> None:
    without_guard(patch, Change.RESCHEDULE, steering, "RESCHEDULE")


@mutant("guard of claim, and the look before it", "I-08", scene=scenes.people_ask_for_what_must_not_be)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, claiming, "CLAIM", guard(Change.CLAIM), "1")
    change_sql(patch, claiming, "CLAIM", "ready.gate = 'ready'", "ready.sort_key IS NOT NULL")
    change_sql(patch, claiming, "PEEK", "gate = 'ready'", "sort_key IS NOT NULL")


@mutant("guard of settling, and the look before it", "I-08")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, settling, "COMPLETE", guard(Change.COMPLETE), "1")
    change_sql(patch, settling, "WRITE_ENDS", guard(Change.FAIL), "1")
    change_sql(patch, settling, "LOCK_RUNNING", "AND coalesce(status, '') = 'running'", "")


@mutant("guard of requests, and the look before it", "I-08", scene=scenes.people_ask_for_what_must_not_be)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, steering, "REQUEST_CANCEL", guard(Change.REQUEST), "1")

    async def ask_anyone(tx: Tx, ids: Any, asked: Any) -> list[Any]:
        named = await steering.lock(tx, ids)
        await steering._request(tx, named, steering.REQUEST_CANCEL, "job:cancelling", asked)
        return []

    patch.setattr(steering, "cancel", ask_anyone)


@mutant(
    "guard of unblocking and failing by a blocker, and the look before it",
    "I-08",
    scene=scenes.a_job_that_failed_by_its_blocker_is_given_up,
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, blockers, "MOVE", guard(Change.UNBLOCK), "1")
    change_sql(patch, blockers, "LOCK_DEPENDENTS", "SELECT seq, status,", "SELECT seq, 'blocked',")


@mutant(
    "guard of blocking again, and the look before it", "I-08", scene=scenes.a_job_that_failed_by_its_blocker_is_given_up
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, blockers, "BLOCK_AGAIN", guard(Change.BLOCK_AGAIN), "1")
    change_sql(patch, blockers, "LOCK_FAILED", "SELECT seq, status,", "SELECT seq, 'failed',")


@mutant("explain stops at the first reason", "I-86")
def _(patch: pytest.MonkeyPatch) -> None:
    waiting = explain._waiting

    async def first_only(*args: Any) -> list[Any]:
        return (await waiting(*args))[:1]

    patch.setattr(explain, "_waiting", first_only)
