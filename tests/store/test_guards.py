"""Every guard of `states.py` counts: take any one away, and a test turns red (GUARANTEES Q-05).

A guard stands in a statement behind a look under the row's lock, so that most of the time it has nothing to refuse.
Here each statement meets a row that no look has kept from it; then it is made anew from a law with one row edited, and
must do otherwise. What a whole engine without a guard would do, the simulation shows; `SIMULATED` names the mutant.
Where it cannot come by, the pair test of `test_moves.py` must do.
"""

from __future__ import annotations

import importlib.util
import pkgutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from holdfast import Status, store
from holdfast.database.tx import Tx
from holdfast.errors import StoreError
from holdfast.outcomes import Kind, Outcome
from holdfast.states import MOVES, Change
from holdfast.store import retention
from holdfast.store.chains import blockers
from holdfast.store.jobs import claiming, completing, settling, steering
from holdfast.store.jobs.claiming import Want, token_of
from holdfast.store.jobs.settling import Settlement
from holdfast.store.rows import LOCKED, to_locked
from tests import mutants as mutant_registry
from tests.store import test_moves
from tests.store.test_moves import ALSO, LAW, PAIRS, STATUSES, on_both_stores, on_one_store
from tests.support.factories import make_job, seq_of
from tests.support.ways import Way

SETTLING = "guard of settling, and the look before it"
UNBLOCKING = "guard of unblocking and failing by a blocker, and the look before it"
SIMULATED = {
    Change.CLAIM: "guard of claim, and the look before it",
    Change.COMPLETE: "complete ignores the cancel request",
    Change.RETRY_LATER: SETTLING,
    Change.RESCHEDULE_RUNNING: SETTLING,
    Change.GIVE_BACK: SETTLING,
    Change.REAP: SETTLING,
    Change.FAIL: SETTLING,
    Change.PAUSE_RUNNING: SETTLING,
    Change.CANCEL_RUNNING: SETTLING,
    Change.REQUEST: "guard of requests, and the look before it",
    Change.UNBLOCK: UNBLOCKING,
    Change.FAIL_BLOCKED: UNBLOCKING,
    Change.BLOCK_AGAIN: "guard of blocking again, and the look before it",
    Change.PAUSE: "guard of pause",
    Change.CANCEL: "guard of cancel",
    Change.RESUME: "guard of resume",
    Change.RETRY: "guard of retry",
    Change.RESCHEDULE: "guard of reschedule",
}
NOT_SIMULATED = {
    Change.COMPLETE_OUTSIDE: "nobody in the simulation completes a job without a worker",
    Change.MARK_STALE: "nothing gets old enough in the simulation",
}
LETS_ALL_PASS = {Change.DELETE}


def test_every_guard_is_accounted_for() -> None:
    assert SIMULATED.keys() | NOT_SIMULATED.keys() | LETS_ALL_PASS == set(Change)
    mutant_registry.load()

    assert set(SIMULATED.values()) <= {each.name for each in mutant_registry.SIMULATED}
    assert all(set(MOVES[change].sources) == set(Status) for change in LETS_ALL_PASS)


# ---- the law itself


# who is not pending is at no gate either, so that the further condition of a claim hides its sources from the pair
# test; the test of its statement, below, sees them
HIDDEN = {Change.CLAIM}


@on_one_store
@pytest.mark.parametrize("change", [change for change in LAW if change not in LETS_ALL_PASS | HIDDEN])
async def test_without_its_sources_the_pair_test_of_a_change_turns_red(
    way: Way, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MOVES, Change(change), MOVES[Change(change)]._replace(sources=tuple(Status)))

    with pytest.raises(AssertionError):
        await test_moves.test_a_change_happens_to_the_statuses_of_the_law_and_to_no_other(way, change)


def test_every_further_condition_of_the_law_has_its_pair_test() -> None:
    assert {change for change, _, _ in ALSO} == {change for change in LAW if MOVES[Change(change)].also}


@on_one_store
@pytest.mark.parametrize(("change", "status", "columns"), ALSO)
async def test_without_its_further_condition_the_pair_test_of_a_change_turns_red(
    way: Way, change: str, status: str, columns: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MOVES, Change(change), MOVES[Change(change)]._replace(also=()))

    with pytest.raises(AssertionError):
        await test_moves.test_a_lawful_status_is_not_enough_where_the_law_asks_for_more(way, change, status, columns)


# ---- each statement that carries a guard, with no look before it

Act = Callable[[Tx, int], Any]


async def claim(tx: Tx, seq: int) -> None:
    """Claim a row that stands among the ready ones, whatever its status."""
    await tx.execute("UPDATE holdfast_job SET gate = 'ready', sort_key = 1 WHERE seq = :seq", seq=seq)
    await claiming.claim(tx, [Want("default", "greet", 1000)], 10, "worker-2", "nonce-2")


async def claim_ahead(tx: Tx, seq: int) -> None:
    """Claim such a row before there is a slot for it."""
    await tx.execute("UPDATE holdfast_job SET gate = 'ready', sort_key = 1 WHERE seq = :seq", seq=seq)
    await claiming.claim(tx, [Want("default", "greet", 1000, 9)], 0, "worker-2", "nonce-2", ahead=10)


async def leave(tx: Tx, seq: int, kind: Kind) -> None:
    """Settle a row with its own token, whatever its status."""
    await tx.execute("UPDATE holdfast_job SET nonce = 'nonce-1' WHERE seq = :seq", seq=seq)
    sql = f"SELECT {LOCKED} FROM holdfast_job WHERE seq = :seq"
    (row,) = await tx.fetch_all(sql, seq=seq)
    held = to_locked(row)
    with suppress(KeyError):  # what was not moved has no new version to be told of
        await settling.write_ends(tx, [(held, Settlement(token_of(held), Outcome(kind)))])


async def complete(tx: Tx, seq: int) -> None:
    """Complete a row with its own token, whatever its status, in the one statement that does it for most jobs."""
    await tx.execute("UPDATE holdfast_job SET nonce = 'nonce-1' WHERE seq = :seq", seq=seq)
    ((attempt,),) = await tx.fetch_all("SELECT attempt FROM holdfast_job WHERE seq = :seq", seq=seq)
    await tx.fetch_all(settling.COMPLETE, given=[(seq, attempt, "nonce-1", "null")], seqs=[seq])


async def in_block(tx: Tx, seq: int, name: str) -> None:
    """Do the same in the block of a job, by a statement of `settling`."""
    await tx.execute("UPDATE holdfast_job SET nonce = 'nonce-1' WHERE seq = :seq", seq=seq)
    ((attempt,),) = await tx.fetch_all("SELECT attempt FROM holdfast_job WHERE seq = :seq", seq=seq)
    await tx.fetch_all(getattr(settling, name), given=[(seq, attempt, "nonce-1", "null")])


async def complete_outside(tx: Tx, seq: int) -> None:
    """Complete a row without a worker."""
    await tx.fetch_all(completing.COMPLETE, seq=seq, output="null", closed_as="completed")


async def update(tx: Tx, seq: int, name: str, **values: object) -> None:
    """Run a statement of `steering`."""
    await tx.fetch_all(getattr(steering, name), seqs=[seq], **values)


async def move(tx: Tx, seq: int, status: Status) -> None:
    """Do what counting the blockers does."""
    await blockers.move(tx, [blockers.Moved(seq, 0, status)], announce_blocked=False)


async def block_again(tx: Tx, seq: int) -> None:
    """Block a row again."""
    await blockers.block_failed(tx, [seq])


async def mark_stale(tx: Tx, seq: int) -> None:
    """Mark a row."""
    await tx.fetch_all(retention.MARK, seqs=[seq])


STATEMENTS: dict[str, tuple[Change, ModuleType, str, Act]] = {
    "claim": (Change.CLAIM, claiming, "CLAIM", claim),
    "claim ahead": (Change.CLAIM, claiming, "CLAIM_AHEAD", claim_ahead),
    "complete": (Change.COMPLETE, settling, "COMPLETE", complete),
    "complete in a block": (Change.COMPLETE, settling, "COMPLETE_BLOCK", partial(in_block, name="COMPLETE_BLOCK")),
    "complete with COMMIT": (Change.COMPLETE, settling, "COMPLETE_ALONE", partial(in_block, name="COMPLETE_ALONE")),
    "leave": (Change.FAIL, settling, "WRITE_ENDS", partial(leave, kind=Kind.FAIL)),
    "leave as completed": (Change.COMPLETE, settling, "WRITE_ENDS", partial(leave, kind=Kind.COMPLETE)),
    "leave to be retried": (Change.RETRY_LATER, settling, "WRITE_ENDS", partial(leave, kind=Kind.RETRY)),
    "leave to a later time": (Change.RESCHEDULE_RUNNING, settling, "WRITE_ENDS", partial(leave, kind=Kind.RESCHEDULE)),
    "leave as given back": (Change.GIVE_BACK, settling, "WRITE_ENDS", partial(leave, kind=Kind.GIVE_BACK)),
    "leave as lost": (Change.REAP, settling, "WRITE_ENDS", partial(leave, kind=Kind.LOST)),
    "leave as paused": (Change.PAUSE_RUNNING, settling, "WRITE_ENDS", partial(leave, kind=Kind.PAUSE)),
    "leave as cancelled": (Change.CANCEL_RUNNING, settling, "WRITE_ENDS", partial(leave, kind=Kind.CANCEL)),
    "request cancel": (Change.REQUEST, steering, "REQUEST_CANCEL", partial(update, name="REQUEST_CANCEL", reason="x")),
    "request pause": (Change.REQUEST, steering, "REQUEST_PAUSE", partial(update, name="REQUEST_PAUSE", reason="x")),
    "unblock": (Change.UNBLOCK, blockers, "MOVE", partial(move, status=Status.PENDING)),
    "fail by a blocker": (Change.FAIL_BLOCKED, blockers, "MOVE", partial(move, status=Status.FAILED)),
    "block again": (Change.BLOCK_AGAIN, blockers, "BLOCK_AGAIN", block_again),
    "pause": (Change.PAUSE, steering, "PAUSE", partial(update, name="PAUSE", reason="x")),
    "cancel": (Change.CANCEL, steering, "CANCEL", partial(update, name="CANCEL", reason="x")),
    "resume": (Change.RESUME, steering, "RESUME", partial(update, name="RESUME")),
    "retry": (Change.RETRY, steering, "RETRY", partial(update, name="RETRY")),
    "complete outside": (Change.COMPLETE_OUTSIDE, completing, "COMPLETE", complete_outside),
    "mark stale": (Change.MARK_STALE, retention, "MARK", mark_stale),
    "reschedule": (Change.RESCHEDULE, steering, "RESCHEDULE", partial(update, name="RESCHEDULE", run_at=0, delay=0)),
}


LET_ALL_PASS = {(Change.DELETE, "deletes", "LOCK"), (Change.DELETE, "deletes", "BURY")}


def made_anew(module: ModuleType) -> ModuleType:
    """Run the text of *module* again: make its statements from the law as it is now, and leave *module* as it is."""
    spec = module.__spec__
    assert spec is not None
    assert spec.loader is not None
    anew = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(anew)
    return anew


def statements_of(module: ModuleType) -> dict[str, str]:
    """Give the statements of *module* by their names, the texts of both databases as one."""
    constants = {name: value for name, value in vars(module).items() if name.isupper()}
    texts = {name: value.values() if isinstance(value, dict) else [value] for name, value in constants.items()}
    return {name: "".join(text for text in several if isinstance(text, str)) for name, several in texts.items()}


def test_every_row_of_the_law_guards_statements_and_each_of_them_is_met_here(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [each.name for each in pkgutil.walk_packages(store.__path__, f"{store.__name__}.") if not each.ispkg]
    marks = {change: f"'{change}' = '{change}'" for change in Change}
    for change, mark in marks.items():
        monkeypatch.setitem(MOVES, change, MOVES[change]._replace(also=(mark,)))

    guarded = {
        (change, module.rpartition(".")[2], name)
        for module in names
        for name, text in statements_of(made_anew(importlib.import_module(module))).items()
        for change, mark in marks.items()
        if mark in text
    }

    met = {(change, module.__name__.rpartition(".")[2], name) for change, module, name, _ in STATEMENTS.values()}
    assert guarded == met | LET_ALL_PASS
    assert {change for change, _, _ in guarded} == set(Change)


CANNOT_BE = {(Change.CLAIM, "running")}  # the table itself lets no running row stand at a gate


async def moved_unlawfully(way: Way, name: str) -> list[str]:
    """Meet a job in every status that the law forbids; name those to which it happened all the same.

    That a constraint of the table stops what the guard has let pass counts as having happened.
    """
    change, _, _, act = STATEMENTS[name]
    moved: list[str] = []
    for status in (each for each in STATUSES if not PAIRS[change, each] and (change, each) not in CANNOT_BE):
        seq = await seq_of(way, await make_job(way, status))
        if await versions_differ(way, act, seq):
            moved.append(status)
    return moved


async def versions_differ(way: Way, act: Act, seq: int) -> bool:
    """Tell whether *act* changes the version of a row, or would, if the table allowed it."""
    try:
        await way.call(act, seq)
    except StoreError:
        return True
    return await way.rows("SELECT version FROM holdfast_job WHERE seq = :seq", seq=seq) != [(1,)]


@on_both_stores
@pytest.mark.parametrize("name", STATEMENTS)
async def test_a_statement_leaves_alone_what_no_look_has_kept_from_it(way: Way, name: str) -> None:
    assert await moved_unlawfully(way, name) == []


@on_both_stores
@pytest.mark.parametrize("name", STATEMENTS)
async def test_without_its_guard_a_statement_moves_what_it_meets(
    way: Way, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, module, constant, _ = STATEMENTS[name]
    monkeypatch.setitem(MOVES, change, MOVES[change]._replace(sources=tuple(Status)))

    monkeypatch.setattr(module, constant, getattr(made_anew(module), constant))

    assert await moved_unlawfully(way, name) != []
