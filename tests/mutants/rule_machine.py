"""Wrong engines that the rule machine must tell from ours, by the states, answers, order and events of single steps.

What a mutant is, `tests/mutants/__init__.py` says; the simulation has mutants of its own, which need several processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.database.tx import Tx
from holdfast.outcomes import Kind
from holdfast.states import Change
from holdfast.store import lanes, phase_rows, phases, rows, unique
from holdfast.store.chains import blockers, deletes
from holdfast.store.jobs import claiming, reaping, settling, steering
from holdfast.store.log import events
from tests.mutants import change_sql, drawn, without_guard


@drawn("guard of resume", "I-08")
def _(patch: pytest.MonkeyPatch) -> None:
    without_guard(patch, Change.RESUME, steering, "RESUME")


@drawn("guard of retry", "I-11")
def _(patch: pytest.MonkeyPatch) -> None:
    without_guard(patch, Change.RETRY, steering, "RETRY")


@drawn("guard of pause", "I-08")
def _(patch: pytest.MonkeyPatch) -> None:
    without_guard(patch, Change.PAUSE, steering, "PAUSE")


@drawn("guard of cancel", "I-11")
def _(patch: pytest.MonkeyPatch) -> None:
    without_guard(patch, Change.CANCEL, steering, "CANCEL")


@drawn("guard of reschedule", "I-08")
def _(patch: pytest.MonkeyPatch) -> None:
    without_guard(patch, Change.RESCHEDULE, steering, "RESCHEDULE")


@drawn("a chain that closes keeps its key", "I-05")
def _(patch: pytest.MonkeyPatch) -> None:
    free = unique.free

    async def keep(tx: Tx, held: Sequence[Any], scopes: Sequence[str] = ("open", "any")) -> None:
        await free(tx, held, ("none",) if tuple(scopes) == ("open",) else scopes)

    patch.setattr(unique, "free", keep)


@drawn("retry opens a chain whose key another holds", "I-05")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, steering, "KEYS", "unique_key IS NOT NULL", "false")


@drawn("attempt number does not grow", "I-10")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, claiming, "CLAIM", "attempt = attempt + 1", "attempt = 1")


@drawn("progress without the token", "I-13")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, claiming, "PROGRESS", claiming.FENCE, "holdfast_job.seq = given.seq")


@drawn("renewal without the token", "I-13")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, claiming, "RENEW", "AND holdfast_job.nonce = given.nonce", "")
    change_sql(patch, claiming, "RENEW", "AND holdfast_job.attempt = given.attempt", "")


@drawn("lane promoted out of order", "I-28")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, lanes, "NEXT", "ORDER BY w.place", "ORDER BY w.place DESC")


@drawn("those who come together join their lane in any order", "I-28")
def _(patch: pytest.MonkeyPatch) -> None:
    join = lanes.join

    async def backwards(tx: Tx, joining: Sequence[tuple[int, str]], mine: Any) -> set[str]:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(lanes, "sorted", lambda items, **how: sorted(items, reverse=True, **how), raising=False)
            return await join(tx, joining, mine)

    patch.setattr(lanes, "join", backwards)


@drawn("a resumed job goes to the end of its lane", "I-28")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, steering, "RESUME", "UPDATE holdfast_job SET", "UPDATE holdfast_job SET head = 0, place = NULL,")


@drawn("a paused lane lets its head run", "I-27")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, lanes, "PARK", "WHERE lane = :key", "WHERE lane = :key AND false")


@drawn("a skipped job keeps its lane", "I-27")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, lanes, "SKIP", "head = 0, place = NULL", "head = head")


@drawn("a failed job does not halt its lane", "I-27")
def _(patch: pytest.MonkeyPatch) -> None:
    holds_its_lane = lanes.keeps_its_lane
    patch.setattr(lanes, "keeps_its_lane", lambda status, halts: status != "failed" and holds_its_lane(status, halts))


@drawn("claim from a paused queue", "I-27")
def _(patch: pytest.MonkeyPatch) -> None:
    for name in ("CLAIM", "PEEK"):
        change_sql(patch, claiming, name, f"AND {claiming.IS_PAUSED} IS NULL", "")


@drawn("priority counts for nothing", "I-73")
def _(patch: pytest.MonkeyPatch) -> None:
    for name in ("INSERT", "INSERT_PLAIN"):
        change_sql(patch, rows, name, f"$now - {rows.PRIORITY_MS} * given.priority", "$now")


@drawn("cancel request lost when the handler raised", "I-31")
def _(patch: pytest.MonkeyPatch) -> None:
    as_requested = settling.as_requested
    patch.setattr(settling, "as_requested", lambda job, end: end if end.kind is Kind.RETRY else as_requested(job, end))


@drawn("cancel asks again each time", "I-31")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, steering, "REQUEST_CANCEL", "AND cancel_requested_at IS NULL", "")


@drawn("a retried job is still asked to stop", "I-31")
def _(patch: pytest.MonkeyPatch) -> None:
    for name in ("RESUME", "RETRY"):
        change_sql(patch, steering, name, "cancel_requested_at = NULL, pause_requested_at = NULL,", "")


@drawn("cancel leaves phases unfinished", "I-35")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, phase_rows, "CANCEL", "AND status <> 'completed'", "AND false")


@drawn("a run that ends leaves its phase under way", "I-35")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, phase_rows, "END", "ELSE given.how END,", "ELSE holdfast_phase.status END,")


@drawn("a phase begins without the token", "I-13")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, phases, "BEGIN", claiming.FENCE, "holdfast_job.seq = given.seq")


@drawn("a phase completes without the token", "I-13")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, phases, "COMPLETE", claiming.FENCE, "holdfast_job.seq = given.seq")


@drawn("a job that is to stop begins a phase", "I-31")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, phases, "BEGIN", "cancel_requested_at IS NULL AND pause_requested_at IS NULL", "true")


@drawn("a chain that is retried stays closed", "I-36")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, steering, "RETRY", "closed_as = NULL, closed_at = NULL,", "")


@drawn("blocker released twice", "I-39")
def _(patch: pytest.MonkeyPatch) -> None:
    one_less = blockers._one_less
    patch.setattr(
        blockers, "_one_less", lambda seq, opened, policy, ends: one_less(seq, max(opened - 1, len(ends)), policy, ends)
    )


@drawn("who waits for a blocker to be tried again is released by its failure", "I-39")
def _(patch: pytest.MonkeyPatch) -> None:
    link_state = blockers.link_state
    patch.setattr(blockers, "link_state", lambda end, policy: link_state(end, policy.replace("wait", "ignore")))
    count = blockers._count
    patch.setattr(blockers, "_count", lambda seq, ends, policy: count(seq, ends, policy.replace("wait", "ignore")))


@drawn("retry of a blocker leaves dependents failed", "I-39")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, blockers, "FAILED_BY", "state = 'failed'", "state = 'never'")


@drawn("retry keeps the used attempts", "I-42")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, steering, "RETRY", "used = 0,", "")


@drawn("what is given back uses an attempt", "I-42")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, settling, "WRITE_ENDS", "used = used - given.given_back,", "")


@drawn("a lost job forgets its crash", "I-42")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, settling, "WRITE_ENDS", "crashes = crashes + given.crashed,", "")


@drawn("the lease is longer than its task says", "I-25")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, reaping, "FIND", "lease_until < $now", "lease_until < $now - 60000")


@drawn("an event is appended twice", "I-54")
def _(patch: pytest.MonkeyPatch) -> None:
    append = events.append

    async def twice(tx: Tx, facts: Sequence[events.NewEvent], **how: Any) -> None:
        again = [each for each in facts if each.name == "job:paused"]
        await append(tx, [*facts, *again], **how)

    patch.setattr(events, "append", twice)


@drawn("the lane is not told to be halted", "I-54")
def _(patch: pytest.MonkeyPatch) -> None:
    append = events.append

    async def forget(tx: Tx, facts: Sequence[events.NewEvent], **how: Any) -> None:
        await append(tx, [each for each in facts if each.name != "lane:halted"], **how)

    patch.setattr(events, "append", forget)


@drawn("a chain is deleted although a job waits for it", "I-58")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, deletes, "REFERENCES", "ORDER BY", "AND false ORDER BY")


@drawn("cascade takes one step only", "I-58")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, deletes, "WAITED_FOR", "WHERE job", "WHERE false AND job")


@drawn("a deleted chain keeps its key", "I-58")
def _(patch: pytest.MonkeyPatch) -> None:
    free = unique.free

    async def keep(tx: Tx, held: Sequence[Any], scopes: Sequence[str] = ("open", "any")) -> None:
        await free(tx, held, ("none",) if tuple(scopes) == ("open", "any") else scopes)

    patch.setattr(unique, "free", keep)


@drawn("JSON is stored as the database likes it", "I-06")
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, rows, "INSERT", "given.input, given.webhook", "replace(given.input, ':', ': '), given.webhook")
