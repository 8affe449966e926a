"""Wrong engines of chains that the simulation catches: continuing, blocks, completing without a worker.

On SQLite nobody writes while a block is open, so what is true when it opens is true at its end: a block that is fenced
at one of the two only is an equal engine there, and a mutant takes both looks away. Each alone is met on PostgreSQL, in
`tests/mutants/races.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast import current_block
from holdfast.client.completion import BlockState, CompletionBlock
from holdfast.database.sqlite import block as sqlite_block
from holdfast.database.sqlite.connection import WriteConnection
from holdfast.database.tx import Last, Tx
from holdfast.errors import LeaseLost, UnknownOutcome
from holdfast.states import Change, guard
from holdfast.store.chains import blockers, continuations
from holdfast.store.chains.blockers import Moved
from holdfast.store.jobs import block_ends, completing, settling
from holdfast.store.jobs.claiming import ClaimState, Token, token_of
from holdfast.store.jobs.settling import Settlement
from holdfast.store.log import events
from holdfast.store.rows import LOCKED, to_locked
from holdfast.worker.attempts import blocks
from holdfast.worker.attempts.aborts import AbortReason
from holdfast.worker.claiming import slot_group
from tests.mutants import change_sql, mutant, without_guard
from tests.mutants.simulation import here
from tests.simulation import chain_scenes, scenes
from tests.simulation.handlers import WORLD


async def finish_anyway(tx: Tx, settlement: Settlement) -> None:
    """Write down what an attempt came to, whosever the job is by now, and whatever is asked of it."""
    rows = await tx.fetch_all(f"SELECT {LOCKED} FROM holdfast_job WHERE seq = :seq", seq=settlement.token.seq)
    held = to_locked(rows[0])
    decided = [(held, settlement._replace(token=token_of(held)))]
    judged = await continuations.judge(tx, settling.steps_of(decided))
    await settling.write_ends(tx, decided, judged.chains)


async def say_held(tx: Tx, token: Token) -> ClaimState:
    """Find nothing wrong with a claim."""
    return ClaimState.HELD


def without_looking(patch: pytest.MonkeyPatch) -> None:
    """Take away every look at the token of a block."""
    patch.setattr(block_ends, "check", say_held)
    patch.setattr(block_ends, "lock_job", say_held)
    patch.setattr(block_ends, "finish_block", finish_anyway)


@mutant("double successor", "I-36", scene=chain_scenes.a_chain_goes_on_in_its_lane)
def _(patch: pytest.MonkeyPatch) -> None:
    insert, sql = continuations.insert, continuations.INSERT

    async def insert_twice(tx: Tx, steps: Any, *args: Any) -> list[events.NewEvent]:
        facts = await insert(tx, steps, *args)
        others = [replace(each.next, start=each.next.start._replace(id=WORLD[0].new_id())) for each in steps]
        seconds = [each._replace(next=other, place=None) for each, other in zip(steps, others, strict=True)]
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(continuations, "INSERT", sql.replace("chain_index + 1", "chain_index + 2"))
            return facts + await insert(tx, seconds, *args)

    patch.setattr(continuations, "insert", insert_twice)


@mutant("a chain ends with its first step", "I-36", scene=chain_scenes.a_job_waits_for_a_chain_of_several_steps)
def _(patch: pytest.MonkeyPatch) -> None:
    closes = settling._closes
    patch.setattr(
        settling, "_closes", lambda each: closes(each._replace(outcome=replace(each.outcome, successor=None)))
    )


@mutant(
    "completion without a worker closes the chain that it continues",
    "I-36",
    scene=chain_scenes.people_complete_several_steps,
)
def _(patch: pytest.MonkeyPatch) -> None:
    given = "CAST(:closed_as AS text)"
    change_sql(patch, completing, "COMPLETE", given, f"coalesce({given}, 'completed')")


@mutant("continuation goes to the end of its lane", "I-28", scene=chain_scenes.a_chain_goes_on_in_its_lane)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(continuations.ChainStep, "hands_on_its_place", False)


@mutant("lost unblock", "I-38", scene=chain_scenes.a_job_waits_for_a_chain_of_several_steps)
def _(patch: pytest.MonkeyPatch) -> None:
    async def tell_nobody(tx: Tx, closed: Any) -> tuple[list[Moved], set[str]]:
        return [], set()

    patch.setattr(blockers, "release", tell_nobody)


@mutant("blockers of a continuation are not written down", "I-38", scene=chain_scenes.a_continuation_waits_for_others)
def _(patch: pytest.MonkeyPatch) -> None:
    link = blockers.link

    async def forget(tx: Tx, waiting: Any, chains: Any) -> None:
        ((later,),) = await tx.fetch_all("SELECT coalesce(max(seq), 0) FROM holdfast_job WHERE chain_index > 0")
        await link(tx, [(seq, start) for seq, start in waiting if seq != later], chains)

    patch.setattr(blockers, "link", forget)


@mutant("a block commits without its token", "I-13", scene=chain_scenes.a_job_is_taken_before_its_block_opens)
def _(patch: pytest.MonkeyPatch) -> None:
    without_looking(patch)


@mutant(
    "a block completes what was completed without it",
    "I-37",
    scene=chain_scenes.a_job_is_completed_before_its_block_opens,
)
def _(patch: pytest.MonkeyPatch) -> None:
    without_looking(patch)
    change_sql(patch, settling, "WRITE_ENDS", guard(Change.FAIL), "1")


@mutant(
    "a block ignores the cancel request", "I-32", scene=chain_scenes.a_job_is_to_be_cancelled_before_its_block_opens
)
def _(patch: pytest.MonkeyPatch) -> None:
    without_looking(patch)
    change_sql(patch, settling, "WRITE_ENDS", guard(Change.COMPLETE), guard(Change.FAIL))


@mutant(
    "user's writes kept although the completion was lost",
    "I-66",
    scene=chain_scenes.a_job_is_taken_before_its_block_opens,
)
def _(patch: pytest.MonkeyPatch) -> None:
    commit = sqlite_block.SqliteTransaction.commit
    patch.setattr(block_ends, "check", say_held)

    def keep(self: sqlite_block.SqliteTransaction, last: Last) -> None:
        try:
            self.run(last)
        except LeaseLost:
            commit(self)
            raise
        commit(self)

    async def let_it_be(self: blocks.TokenFence, error: LeaseLost) -> None:
        raise self._attempt.lost(AbortReason(error.reason)) from error

    patch.setattr(blocks.TokenFence, "explain", let_it_be)
    patch.setattr(sqlite_block.SqliteTransaction, "commit", keep)


@mutant("user's writes commit before the completion", "I-66", scene=chain_scenes.a_process_dies_in_its_block)
def _(patch: pytest.MonkeyPatch) -> None:
    query = sqlite_block.SqliteTransaction.query

    def commit_each(self: sqlite_block.SqliteTransaction, *args: Any) -> Any:
        rows = query(self, *args)
        self._connection.commit()
        self._connection.begin(lambda: True)
        return rows

    patch.setattr(sqlite_block.SqliteTransaction, "query", commit_each)


@mutant("a block that raises keeps its writes", "I-66", scene=chain_scenes.a_block_raises_after_it_has_written)
def _(patch: pytest.MonkeyPatch) -> None:
    leave = CompletionBlock._leave

    async def keep(self: CompletionBlock[Any], error: BaseException | None) -> None:
        fence = self._fence
        if error is None or fence.open_tx is None:
            return await leave(self, error)
        current_block.leave(fence.mark)
        await fence.open_tx.commit()
        fence.state = BlockState.ROLLED_BACK
        return None

    patch.setattr(CompletionBlock, "_leave", keep)


@mutant(
    "lost COMMIT answer of a block counted as failure",
    "I-55",
    scene=chain_scenes.a_block_whose_answer_is_lost_is_read_back,
)
def _(patch: pytest.MonkeyPatch) -> None:
    async def believe(self: blocks.TokenFence, error: UnknownOutcome) -> None:
        raise error

    patch.setattr(blocks.TokenFence, "resolve", believe)


@mutant(
    "guard of completing without a worker, and the look before it",
    "I-08",
    scene=scenes.people_ask_for_what_must_not_be,
)
def _(patch: pytest.MonkeyPatch) -> None:
    without_guard(patch, Change.COMPLETE_OUTSIDE, completing, "COMPLETE")


@mutant("claim's floor never lowered", "I-72", scene=chain_scenes.what_is_urgent_sorts_below_the_floor)
def _(patch: pytest.MonkeyPatch) -> None:
    def raise_only(self: slot_group.ScanPosition, place: Any, sent: float, claimed: Any, most: int) -> None:
        if claimed:
            self._place = max(self._place, (claimed[-1].sort_key, claimed[-1].token.seq))

    patch.setattr(slot_group.ScanPosition, "place", lambda self: self._place)
    patch.setattr(slot_group.ScanPosition, "note", raise_only)


@mutant("hold-off begun anew by each connection", "I-22", scene=chain_scenes.connections_are_replaced_every_second)
def _(patch: pytest.MonkeyPatch) -> None:
    connect = WriteConnection._connect

    def begin_anew(self: WriteConnection) -> Any:
        connection, worker = connect(self), here().worker
        if worker is not None and worker._upkeep is not None:
            worker._upkeep._quiet_since = worker._core.runtime.monotonic()
        return connection

    patch.setattr(WriteConnection, "_connect", begin_anew)
