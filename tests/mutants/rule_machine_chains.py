"""Wrong engines of chains that the rule machine must tell from ours: going on, and completing without a worker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from holdfast.database.tx import Tx
from holdfast.states import Change
from holdfast.store.chains import blockers, chain_ends, continuations, deletes
from holdfast.store.jobs import completing, settling, steering
from holdfast.store.log import events
from tests.mutants import change_sql, drawn, without_guard


@drawn("double successor", "I-36")
def _(patch: pytest.MonkeyPatch) -> None:
    insert, sql = continuations.insert, continuations.INSERT

    async def insert_twice(tx: Tx, steps: Any, *args: Any) -> list[events.NewEvent]:
        facts = await insert(tx, steps, *args)
        others = [replace(each.next, start=each.next.start._replace(id=uuid4())) for each in steps]
        seconds = [each._replace(next=other, place=None) for each, other in zip(steps, others, strict=True)]
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(continuations, "INSERT", sql.replace("chain_index + 1", "chain_index + 2"))
            return facts + await insert(tx, seconds, *args)

    patch.setattr(continuations, "insert", insert_twice)


@drawn("continuation goes to the end of its lane", "I-28")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(continuations.ChainStep, "hands_on_its_place", False)


@drawn("guard of completing without a worker", "I-11")
def _(patch: pytest.MonkeyPatch) -> None:
    without_guard(patch, Change.COMPLETE_OUTSIDE, completing, "COMPLETE")


@drawn("a chain is not closed by its last job", "I-36")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, chain_ends, "CLOSE", "WHERE holdfast_job.id = given.id", "WHERE false AND given.id = ''")


@drawn("a chain ends with its first step", "I-36")
def _(patch: pytest.MonkeyPatch) -> None:
    closes = settling._closes
    patch.setattr(
        settling, "_closes", lambda each: closes(each._replace(outcome=replace(each.outcome, successor=None)))
    )


@drawn("retry of a later step leaves its chain closed", "I-36")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, chain_ends, "REOPEN", "closed_as = NULL, closed_at = NULL,", "")


@drawn("a continued chain that is retried goes without its key", "I-05")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, steering, "KEYS", "unique_key IS NOT NULL", "unique_key IS NOT NULL AND status <> 'completed'")


@drawn("the id of an earlier job means that job", "I-76")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, steering, "CURRENT", "AND later.chain_index > 0", "AND false")


@drawn("a continuation has the queue of its task", "I-36")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(
        patch, continuations, "INSERT", "coalesce(given.queue, before.queue)", "coalesce(given.queue, 'default')"
    )


@drawn("a continuation may close a ring", "I-38")
def _(patch: pytest.MonkeyPatch) -> None:
    async def find_none(tx: Tx, edges: Any) -> set[str]:
        return set()

    patch.setattr(blockers, "cyclic", find_none)


@drawn("delete leaves the later steps of a chain", "I-58")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, deletes, "JOBS", "AND chain_index > 0", "AND false")


@drawn("completion without a worker leaves the lane halted", "I-27")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(
        patch,
        completing,
        "COMPLETE",
        "gate = CASE WHEN lane IS NOT NULL OR watched = 1",
        "gate = CASE WHEN watched = 1",
    )


@drawn("who waits for a chain that was completed without a worker is not told", "I-38")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, completing, "COMPLETE", "OR watched = 1", "")
