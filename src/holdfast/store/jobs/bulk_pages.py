"""Acting on many jobs, a page at a time: find a page without a lock, then do one verb to what is still so.

A page goes by `seq`, up to the number that was the highest at the beginning, so that what comes later is never touched
and no job is looked at twice. It has the *current* jobs of chains only: whoever has continued is history, and a verb
under its id would act on another job, of which the filter knows nothing.

A verb on a list is all or nothing. So whatever it could refuse, or would have to wait for, is *passed over* before it,
under the locks that it takes: what somebody has locked, what has changed since it was found, whose status does not
allow the verb, whose unique key another chain holds, and whom others wait for. What is left, the ordinary verb does.
The number of statements is constant; only a key that is taken between the look and the taking costs another round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from holdfast.bulks import BulkAct, BulkVerb
from holdfast.database.tx import Tx
from holdfast.errors import Busy, JobNotFound, StateConflict, StatusConflict, StillReferenced, UniqueConflict
from holdfast.models import BULK, DELIVER, Asked, JobQuery
from holdfast.states import MOVES, Change, State, Status
from holdfast.store import audit, lists, unique
from holdfast.store.audit import NewAuditEntry
from holdfast.store.chains import deletes
from holdfast.store.jobs import steering
from holdfast.store.log import fan_out
from holdfast.store.reads import Paging
from holdfast.store.rows import LockedJob, to_locked

PAGE = 500

CHANGES: dict[BulkVerb, Change] = {
    "cancel": Change.CANCEL,
    "pause": Change.PAUSE,
    "resume": Change.RESUME,
    "retry": Change.RETRY,
    "reschedule": Change.RESCHEDULE,
    "delete": Change.DELETE,
}

HIGHEST = """SELECT max(seq) FROM holdfast_job"""


async def highest_seq(tx: Tx) -> int:
    """Give the number of the newest job; 0 if there is none."""
    ((highest,),) = await tx.fetch_all(HIGHEST)
    return highest or 0


class BulkPage(NamedTuple):
    """The jobs of one page; *cursor* leads to the next, and None means that there is none."""

    ids: tuple[UUID, ...]
    cursor: str | None
    states: tuple[State, ...] = ()


async def find(tx: Tx, wanted: JobQuery, upto: int, cursor: str | None, verb: BulkVerb) -> BulkPage:
    """Find the next page of current jobs that fit *wanted*, up to number *upto*, without a lock.

    It may be empty and not the last: a request looks at a bounded number of jobs. What itself acts on many jobs is
    retried only if *wanted* names it: nobody who revives cancelled jobs means a bulk delete that somebody has stopped.
    """
    page = await lists.list_jobs(tx, wanted, Paging(PAGE, "oldest", cursor, upto))
    current = await steering.find_current(tx, [job.id for job in page]) if page else {}
    found = [job for job in page if job.id in current and current[job.id].seq == job.seq]
    if verb == "retry" and not (wanted.internal or BULK in (*wanted.tasks, *wanted.queues)):
        found = [job for job in found if job.task != BULK]
    return BulkPage(tuple(job.id for job in found), page.next_cursor, tuple(job.state for job in found))


class Acted(NamedTuple):
    """What acting on a page has come to; *passed_over* by the code of what the verb would have raised."""

    done: int = 0
    passed_over: dict[str, int] = {}  # noqa: RUF012 - nobody writes into it
    seqs: tuple[int, int] | None = None
    """The lowest and the highest number of the jobs that were looked at."""


class ToldOfPage(NamedTuple):
    """What the audit is told of a page."""

    subject: str
    facts: dict[str, Any]


def told(acted: Acted) -> ToldOfPage:
    """Tell what acting on a page has come to: on how many jobs, and on which stretch of them."""
    matched = acted.done + sum(acted.passed_over.values())
    said = {"matched": matched, "done": acted.done, "passed_over": acted.passed_over, "seqs": acted.seqs}
    return ToldOfPage(f"{acted.done:,} job{'' if acted.done == 1 else 's'}", said)


async def act_and_tell(tx: Tx, what: BulkAct, wanted: JobQuery, ids: Sequence[UUID], audit_id: str) -> Acted:
    """Do what `act` does, and write it into the audit as *audit_id*."""
    acted = await act(tx, what, wanted, ids)
    subject, facts = told(acted)
    action, who = f"bulk.{what.verb}", what.by or ""
    await audit.write(tx, NewAuditEntry(audit_id, who, action, subject, what.why, what.request, facts))
    return acted


async def act(tx: Tx, what: BulkAct, wanted: JobQuery, ids: Sequence[UUID]) -> Acted:
    """Do *what* to those of *ids* that nobody has locked and that still fit *wanted*; count the others by cause."""
    page = _Page(ids)
    locked = await _lock(tx, page)
    await _keep_fitting(tx, page, wanted)
    change = CHANGES[what.verb]
    page.drop(StatusConflict.code, [id_ for id_ in page.left if not _allows(locked[id_], change)])
    if what.verb == "delete":
        await _delete(tx, page, locked, what)
        return page.acted()
    if what.verb == "cancel":
        busy = await fan_out.lock_targets(tx, [locked[id_].seq for id_ in page.left if locked[id_].task == DELIVER])
        page.drop(Busy.code, [id_ for id_ in page.left if locked[id_].seq in busy])
    if what.verb == "retry":
        await _drop_taken_keys(tx, page, locked)
    while page.left:
        try:
            await _steer(tx, what, page.left)
            break
        except UniqueConflict as error:  # somebody was faster; nothing has been changed
            page.drop(error.code, [id_ for id_ in page.left if locked[id_].chain_id == str(error.job_id)])
    return page.acted()


class _Page:
    """Which jobs of a page are left to act on, and why the others are not."""

    def __init__(self, ids: Sequence[UUID]) -> None:
        self.left = list(ids)
        self.seqs: tuple[int, int] | None = None
        self._passed_over: Counter[str] = Counter()

    def drop(self, code: str, ids: Iterable[UUID]) -> None:
        gone = set(ids)
        self._passed_over[code] += len(gone)
        self.left = [each for each in self.left if each not in gone]

    def acted(self) -> Acted:
        return Acted(len(self.left), dict(+self._passed_over), self.seqs)


async def _lock(tx: Tx, page: _Page) -> dict[UUID, LockedJob]:
    """Lock the rows of *page* and the first rows of their chains, as far as nobody else has; drop the others.

    What has continued between the look and the lock is dropped, too: from then on it cannot.
    """
    named = await steering.find_current(tx, page.left)
    own = sorted(each.seq for each in named.values())
    page.seqs = (own[0], own[-1]) if own else None
    seqs = sorted({seq for each in named.values() for seq in (each.seq, each.first)})
    rows = {row[0]: to_locked(row) for row in await tx.fetch_all(steering.LOCK_FREE, seqs=seqs)} if seqs else {}
    current = await steering.find_current(tx, page.left)
    page.drop(JobNotFound.code, [id_ for id_ in page.left if id_ not in current])
    page.drop(StateConflict.code, [id_ for id_ in page.left if current[id_].id != id_])
    page.drop(Busy.code, [id_ for id_ in page.left if not {current[id_].seq, current[id_].first} <= rows.keys()])
    return {id_: rows[current[id_].seq] for id_ in page.left}


async def _keep_fitting(tx: Tx, page: _Page, wanted: JobQuery) -> None:
    """Drop what has changed since it was found, and no longer fits."""
    if page.left:
        still = await lists.list_jobs(tx, wanted._replace(ids=tuple(page.left)), Paging(PAGE, "oldest"))
        fitting = {job.id for job in still}
        page.drop(StateConflict.code, [id_ for id_ in page.left if id_ not in fitting])


def _allows(job: LockedJob, change: Change) -> bool:
    """Tell whether *change* may happen to *job*, or be requested while it runs, and was not requested before."""
    if job.status is Status.RUNNING and change is Change.CANCEL:
        return job.cancel_requested_at is None
    if job.status is Status.RUNNING and change is Change.PAUSE:
        return job.cancel_requested_at is None and job.pause_requested_at is None
    return job.status in MOVES[change].sources


async def _steer(tx: Tx, what: BulkAct, ids: Sequence[UUID]) -> None:
    asked = Asked(what.by, what.why)
    match what.verb:
        case "cancel":
            await steering.at_once(tx, steering.cancel, ids, asked)
        case "pause":
            await steering.at_once(tx, steering.pause, ids, asked)
        case "resume":
            await steering.at_once(tx, steering.resume, ids, asked)
        case "retry":
            await steering.at_once(tx, steering.retry, ids, asked)
        case "reschedule":
            await steering.at_once(tx, steering.reschedule, ids, what.run_at_ms, what.delay_ms, asked)


async def _drop_taken_keys(tx: Tx, page: _Page, locked: dict[UUID, LockedJob]) -> None:
    """Drop those whose chain's unique key another chain holds; of several with one key, the oldest keeps it."""
    chains = {locked[id_].chain_id: id_ for id_ in page.left}
    rows = await tx.fetch_all(steering.KEYS, ids=sorted(chains)) if chains else []
    keys = {chain_id: (task, key) for chain_id, task, key in rows}
    holders = await unique.holders(tx, list(dict.fromkeys(keys.values())))
    for id_ in list(page.left):
        chain_id = locked[id_].chain_id
        if chain_id in keys and str(holders.setdefault(keys[chain_id], UUID(chain_id))) != chain_id:
            page.drop(UniqueConflict.code, [id_])


async def _delete(tx: Tx, page: _Page, locked: dict[UUID, LockedJob], what: BulkAct) -> None:
    """Delete the chains of *page*, as far as nobody holds or needs one of their jobs, or of what `cascade` adds."""
    reached = await deletes.closures(tx, sorted({locked[id_].chain_id for id_ in page.left}), what.cascade)

    def drop(code: str, chains: set[str]) -> None:
        page.drop(code, [id_ for id_ in page.left if not chains.isdisjoint(reached[locked[id_].chain_id])])

    drop(Busy.code, await deletes.held_elsewhere(tx, sorted({each for some in reached.values() for each in some})))
    while page.left:
        try:
            await deletes.delete(tx, page.left, what.cascade, Asked(what.by, what.why))
            break
        except StillReferenced as error:  # nothing has been changed
            drop(error.code, {str(chain_id) for chain_id, _ in error.references})
