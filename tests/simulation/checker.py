"""Looks at the tables after every commit and says what must never be.

Triggers of ours write every move of a job down, inside the transaction that makes it, so the history is as committed
as the moves. The law of states stands here once more, by hand, from DESIGN §3: a mistake in `states.py` is to be seen.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from tests.simulation import kept
from tests.simulation.kept import Kept
from tests.simulation.violations import Violation

if TYPE_CHECKING:
    from holdfast.store.jobs import Token
    from tests.simulation.process import Process
    from tests.simulation.world import World

# event → the moves that it may tell of
LEGAL: dict[str, set[tuple[str | None, str]]] = {
    "job:enqueued": {(None, "pending"), (None, "blocked"), (None, "paused")},
    "job:started": {("pending", "running")},
    "job:completed": {("running", "completed")},
    "job:retrying": {("running", "pending")},
    "job:rescheduled": {("running", "pending"), ("pending", "pending")},
    "job:reaped": {("running", "pending")},
    "job:failed": {("running", "failed"), ("blocked", "failed")},
    "job:paused": {("running", "paused"), ("pending", "paused"), ("blocked", "paused")},
    "job:cancelled": {(old, "cancelled") for old in ("running", "blocked", "pending", "paused", "failed")},
    "job:cancelling": {("running", "running")},
    "job:pausing": {("running", "running")},
    "job:progress": {("running", "running")},
    "job:phase:completed": {("running", "running")},
    "job:stale": {(end, end) for end in ("completed", "failed", "cancelled")},
    "job:blocked": {("blocked", "blocked"), ("failed", "blocked")},
    "job:unblocked": {("blocked", "pending")},
    "job:resumed": {(old, new) for old in ("paused", "failed", "cancelled") for new in ("pending", "blocked")},
}
BLOCKED_AGAIN = "job:resumed by its blocker"
LEGAL[BLOCKED_AGAIN] = {("failed", "blocked")}
OUTSIDE = "job:completed without a worker"
LEGAL[OUTSIDE] = {(old, "completed") for old in ("blocked", "pending", "running", "paused", "failed")}
BY_HAND = -1
"""The output of a job that somebody completes without a worker."""
TERMINAL = ("completed", "failed", "cancelled")
MOVES = {move for moves in LEGAL.values() for move in moves}
"""Those that a job which keeps no history may make."""

WATCHED = (
    "status", "attempt", "nonce", "worker", "lease_until", "cancel_requested_at", "pause_requested_at", "version",
    "head", "place", "crashes", "used", "closed_as", "open_blockers", "stale_at",
)  # fmt: skip
CONSTANT = (
    "seq",
    "id",
    "chain_id",
    "chain_index",
    "task",
    "lane",
    "unique_key",
    "on_blocker_failure",
    "run_at",
    "reason",
    "output",
    "error",
    "lease_ms",
    "completed_by",
    "history",
)

NEW = ", ".join(f"NEW.{name}" for name in (*CONSTANT, *WATCHED))
OLD = ", ".join(f"OLD.{name}" for name in WATCHED)
COLUMNS = ", ".join((*CONSTANT, *WATCHED, *(f"old_{name}" for name in WATCHED)))
CHANGED = " OR ".join(f"OLD.{name} IS NOT NEW.{name}" for name in WATCHED if name != "lease_until")
AUDIT = f"""
CREATE TABLE sim_ledger (n INTEGER PRIMARY KEY, job TEXT, attempt INTEGER, what TEXT);
CREATE TABLE sim_audit (n INTEGER PRIMARY KEY, at, {COLUMNS});
CREATE TRIGGER sim_inserted AFTER INSERT ON holdfast_job BEGIN
    INSERT INTO sim_audit (at, {COLUMNS}) VALUES (holdfast_now(), {NEW}, {", ".join("NULL" for _ in WATCHED)}); END;
CREATE TRIGGER sim_updated AFTER UPDATE ON holdfast_job WHEN {CHANGED} BEGIN
    INSERT INTO sim_audit (at, {COLUMNS}) VALUES (holdfast_now(), {NEW}, {OLD}); END;
{kept.AUDIT}"""


@dataclass(frozen=True, slots=True)
class Change:
    """One write to a job's row; `old_status` None is its insert."""

    n: int
    at: int
    seq: int
    id: str
    chain_id: str
    chain_index: int
    task: str
    lane: str | None
    unique_key: str | None
    on_blocker_failure: str
    run_at: int
    reason: str | None
    output: str | None
    error: str | None
    lease_ms: int | None
    completed_by: str | None
    history: int
    status: str
    attempt: int
    nonce: str | None
    worker: str | None
    lease_until: int | None
    cancel_requested_at: int | None
    pause_requested_at: int | None
    version: int
    head: int
    place: int | None
    crashes: int
    used: int
    closed_as: str | None
    open_blockers: int
    stale_at: int | None
    old_status: str | None
    old_attempt: int
    old_nonce: str | None
    old_worker: str | None
    old_lease_until: int | None
    old_cancel_requested_at: int | None
    old_pause_requested_at: int | None
    old_version: int
    old_head: int
    old_place: int | None
    old_crashes: int
    old_used: int
    old_closed_as: str | None
    old_open_blockers: int
    old_stale_at: int | None

    @property
    def completes(self) -> bool:
        """Tell whether the job is completed by it."""
        return self.status == "completed" and self.old_status != "completed"


assert [each.name for each in fields(Change)][2:] == COLUMNS.split(", ")


def fields_of_change(new: Mapping[str, Any], old: Mapping[str, Any]) -> list[Any]:
    """Give the fields of a change behind its number and time, of the row as it became and, if there was one, was."""
    return [new[name] for name in (*CONSTANT, *WATCHED)] + [old.get(name) for name in WATCHED]


class Checker:
    """Reads what each commit has added."""

    def __init__(self, world: World, path: str) -> None:
        self._world = world
        self._rows = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._seen_change = self._seen_event = self._seen_entry = 0
        self._nonces: set[tuple[int, str]] = set()
        self._unhappy: set[str] = set()
        """The chains that were closed otherwise than by completing, though they may be open again."""
        self.commits = 0
        self.reached: Counter[str] = Counter()
        self.kept = Kept(world, self.ask)
        self.log: dict[int, list[tuple[int, str, int | None]]] = {}
        """All events that readers may be told of, by job: number, name, version."""

    def look(self, committer: Process) -> None:
        """Look at what *committer* has just committed."""
        self.commits += 1
        changes = [
            Change(*row) for row in self.ask(f"SELECT n, at, {COLUMNS} FROM sim_audit WHERE n > ?", self._seen_change)
        ]
        events = self.ask(
            "SELECT seq, job, name, status, version, attempt, facts FROM holdfast_event WHERE seq > ?", self._seen_event
        )
        if events:
            self._seen_event = events[-1][0]
        self._match(
            changes,
            [(job, version, named(name, facts)) for _, job, name, _, version, _, facts in events if name in LEGAL],
        )
        self._look_at_ledger(changes)
        self.kept.look(changes, [(job, name) for _, job, name, *_ in events])
        for number, job, name, _, version, _, _ in events:
            if job not in self.kept.internal:
                self.log.setdefault(job, []).append((number, name, version))
        if not changes:
            return
        self._seen_change = changes[-1].n
        self._unhappy |= {each.id for each in changes if each.closed_as in ("failed", "cancelled")}
        for each in changes:
            self._world.note(
                f"{each.at} {committer.name}: {each.seq} {each.old_status} -> {each.status} attempt {each.attempt} "
                f"lane {each.lane} head {each.head} place {each.place} "
                f"open {each.old_open_blockers}>{each.open_blockers} {each.reason or ''}"
            )
            self._look_at(each, committer)
        self._look_at_steps(changes)
        self._look_at_chains({each.chain_id for each in changes})
        self._look_at_dependents({each.id for each in changes if each.closed_as is not None})
        self._look_at_counts({each.seq for each in changes if each.status == "blocked"})
        self._look_at_lanes({each.lane for each in changes if each.lane is not None})
        self._look_at_keys({(each.task, each.unique_key) for each in changes if each.unique_key is not None})

    def close(self) -> None:
        """Close the connection."""
        self._rows.close()

    def ask(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Look into the tables."""
        return self._rows.execute(sql, values).fetchall()

    def _match(self, changes: list[Change], events: list[tuple[int, int, str]]) -> None:
        """I-12: every move has its event in the same commit, and every event its move. I-08: the move is legal."""
        told = {(job, version): name for job, version, name in events}
        if len(told) != len(events):
            raise Violation(f"I-12: two events tell of one move: {events}")
        silent = {each.seq for each in changes if not each.history}
        if any(job in silent for job, _, _ in events):
            raise Violation(f"an event of a job that keeps no history: {events}")
        for each in changes:
            name = told.pop((each.seq, each.version), None) if each.version != each.old_version else None
            if each.seq in silent:
                self._look_at_silent(each)
                continue
            if name is None:
                if each.status != each.old_status:
                    raise Violation(f"I-12: no event in the commit of {show(each)}")
            elif (each.old_status, each.status) not in LEGAL[name]:
                raise Violation(f"I-08: {name} tells of {show(each)}")
            elif name in ("job:cancelling", "job:pausing"):
                self.reached["cancel while running" if name == "job:cancelling" else "pause while running"] += 1
        if told:
            raise Violation(f"I-12: events without a move in their commit: {told}")

    def _look_at_silent(self, each: Change) -> None:
        """I-08: also what keeps no history makes lawful moves only."""
        self.reached["moved without history"] += 1
        if each.status != each.old_status and (each.old_status, each.status) not in MOVES:
            raise Violation(f"I-08: there is no such move: {show(each)}")

    def _look_at(self, each: Change, committer: Process) -> None:
        if each.old_status is not None and each.status != each.old_status and each.version != each.old_version + 1:
            raise Violation(f"a move that leaves the version alone: {show(each)}")
        if each.attempt != (each.old_attempt or 0) and (each.status, each.attempt) != ("running", each.old_attempt + 1):
            raise Violation(f"I-10: the attempt number goes from {each.old_attempt} to {each.attempt} at {show(each)}")
        if each.old_nonce is not None and each.nonce is None:
            raise Violation(f"I-55: the nonce is gone at {show(each)}")
        if each.status in ("completed", "cancelled") and each.head:
            raise Violation(f"I-27: the ended job {each.seq} holds its lane")
        if each.place is not None and each.old_place is None and (each.run_at > each.at or each.status != "pending"):
            raise Violation(f"I-28: job {each.seq} was given a place before it could run")
        if each.old_place is not None and each.place not in (None, each.old_place):
            raise Violation(f"I-28: job {each.seq} lost its place: {each.old_place} to {each.place}")
        self._look_at_requests(each)
        if each.status == "running" and each.old_status != "running":
            self._look_at_claim(each)
        elif each.old_status == "running" and each.status != "running":
            self._look_at_end(each, committer)
        elif each.old_status == "blocked" and each.status in ("pending", "failed"):
            self._look_at_blockers(each)

    def _look_at_requests(self, each: Change) -> None:
        """I-31: an accepted request is erased by resume and retry only."""
        for kind, old, new in (
            ("cancel", each.old_cancel_requested_at, each.cancel_requested_at),
            ("pause", each.old_pause_requested_at, each.pause_requested_at),
        ):
            opened = each.old_status in ("paused", "failed", "cancelled") and each.status in ("pending", "blocked")
            if old is not None and new is None and not opened and not is_by_hand(each):
                raise Violation(f"I-31: a requested {kind} was erased by {show(each)}")
            if opened and new is not None:
                raise Violation(f"I-31: resume or retry left a requested {kind} standing on job {each.seq}")

    def _look_at_claim(self, each: Change) -> None:
        if each.worker is None or each.lease_until is None or each.nonce is None or each.attempt < 1:
            raise Violation(f"I-09: running without worker, lease or token: {show(each)}")
        if each.lease_until <= each.at or each.lease_until - each.at > (each.lease_ms or 0):
            raise Violation(f"I-09: a lease of {each.lease_until - each.at} ms at {show(each)}")
        if (each.seq, each.nonce) in self._nonces:
            raise Violation(f"I-10: two claims of job {each.seq} have one nonce")
        self._nonces.add((each.seq, each.nonce))
        if each.crashes >= 3:
            raise Violation(f"I-24: job {each.seq} was claimed after {each.crashes} crashes")
        if each.used != each.old_used + 1:
            raise Violation(f"I-42: a claim uses up {each.used - each.old_used} attempts at {show(each)}")
        if each.lane is not None:
            self._look_at_turn(each)
        self._world.claimed(each)

    def _look_at_turn(self, each: Change) -> None:
        """I-28: of those that have a place in the lane the first one runs. I-27: but none while the lane is paused."""
        ((first, paused),) = self.ask(
            """SELECT (SELECT min(place) FROM holdfast_job WHERE lane = ?1 AND place IS NOT NULL),
                (SELECT paused_at FROM holdfast_lane WHERE key = ?1)""",
            each.lane,
        )
        if each.place is None or (first is not None and first < each.place):
            raise Violation(
                f"I-28: job {each.seq} of lane {each.lane} starts at place {each.place} before place {first}"
            )
        if paused is not None:
            raise Violation(f"I-27: job {each.seq} starts although its lane {each.lane} is paused")

    def _look_at_end(self, each: Change, committer: Process) -> None:
        if is_by_hand(each):
            self.reached["completed outside while it ran"] += 1
            return
        if each.status == "completed" and each.old_cancel_requested_at is not None:
            raise Violation(f"I-32: job {each.seq} completed after a cancel was accepted")
        if each.old_cancel_requested_at is not None and each.status != "cancelled":
            raise Violation(f"I-25: a requested cancel was passed over by {show(each)}")
        if each.old_pause_requested_at is not None and each.status == "pending":
            raise Violation(f"I-25: a requested pause was passed over by {show(each)}")
        is_asked = each.old_pause_requested_at is not None or each.task == "elsewhere"
        if each.status == "paused" and each.reason == "shutdown" and not is_asked:
            raise Violation(f"I-30: shutdown left job {each.seq} paused")
        if each.used < 0 or each.used > each.old_used:
            raise Violation(f"I-42: used attempts go from {each.old_used} to {each.used} at {show(each)}")
        if committer.worker is not None and each.old_worker == committer.worker.id and each.crashes == each.old_crashes:
            self._look_at_settlement(each)
        else:
            self._look_at_reap(each, committer)
        self._world.ended(each)

    def _look_at_settlement(self, each: Change) -> None:
        """I-13: what is written is what this very attempt came to."""
        if (
            each.completes
            and each.seq not in self.kept.internal
            and each.output is not None
            and json.loads(each.output) != each.attempt
        ):
            raise Violation(f"I-13: attempt {each.output} of job {each.seq} completed while {each.attempt} held it")

    def _look_at_reap(self, each: Change, committer: Process) -> None:
        self.reached["reaped"] += 1
        if each.status == "completed":
            raise Violation(f"I-13: {committer.name} completed job {each.seq}, which {each.old_worker} holds")
        owner = self._world.owner(each.old_worker)
        is_dead = owner is not None and not owner.is_alive
        if (each.old_lease_until or 0) >= each.at and not is_dead:
            raise Violation(
                f"I-16: a live lease of job {each.seq} was reaped {each.old_lease_until - each.at} ms early"
            )
        blamed = each.crashes - each.old_crashes
        if blamed != 1 and (blamed != 0 or self._world.has_begun(each.id, each.attempt)):
            raise Violation(f"I-24: the crash of job {each.seq} was counted {blamed} times")
        if (each.reason == "poison") != (each.crashes >= 3) and each.status == "failed":
            raise Violation(f"I-24: crash {each.crashes} of job {each.seq} ends as {each.reason}")
        if each.crashes >= 3 and each.status == "pending":
            raise Violation(f"I-24: job {each.seq} goes on after {each.crashes} crashes")
        if each.reason == "poison":
            self.reached["poison"] += 1
        self._world.reaped(each, committer, owner)

    def _look_at_ledger(self, changes: list[Change]) -> None:
        """I-13, I-37, I-66: what is written in a block is there exactly if that block has completed its job."""
        entries = self.ask("SELECT n, job, attempt, what FROM sim_ledger WHERE n > ?", self._seen_entry)
        ends = {each.id: each for each in changes if each.completes}
        done = {job for _, job, _, what in entries if what == "done"}
        for n, job, attempt, what in entries:
            self._seen_entry = n
            end = ends.get(job)
            if what == "prepared":
                self._look_at_prepared(job, attempt)
            elif end is None or end.attempt != attempt or (end.completed_by is None) != (what == "outside"):
                raise Violation(
                    f"I-66: attempt {attempt} of job {job} has written {what!r}, and this came of it: {end}"
                )
        for each in ends.values():
            if each.task == "booking" and each.completed_by is not None and each.id not in done:
                raise Violation(f"I-66: the block of job {each.seq} has completed it, and its writes are gone")

    def _look_at_prepared(self, job: str, attempt: int) -> None:
        """I-13: also the first block commits only under its token."""
        self.reached["prepared"] += 1
        ((status, now),) = self.ask("SELECT status, attempt FROM holdfast_job WHERE id = ?", job)
        if (status, now) != ("running", attempt):
            raise Violation(f"I-13: attempt {attempt} of job {job} has prepared, and the job is {status} at {now}")

    def _look_at_steps(self, changes: Iterable[Change]) -> None:
        """I-36: who completes is continued in that very commit, once, or never. I-28: in its place, if it has one."""
        ends = {(each.chain_id, each.chain_index): each for each in changes if each.completes}
        steps = {
            (each.chain_id, each.chain_index - 1): each
            for each in changes
            if each.old_status is None and each.chain_index > 0
        }
        for key, step in steps.items():
            if key not in ends:
                raise Violation(f"I-36: {show(step)} continues a job that was not completed in the same commit")
            self._look_at_step(ends[key], step)
        for key, each in ends.items():
            if is_by_hand(each):
                self.reached["completed outside"] += 1
            if each.output is None and key not in steps:
                raise Violation(f"I-36: {show(each)} without an output, and nothing continues it")

    def _look_at_step(self, end: Change, step: Change) -> None:
        ((after,),) = self.ask("SELECT json_extract(input, '$.after') FROM holdfast_job WHERE id = ?", step.id)
        if after != (BY_HAND if is_by_hand(end) else end.attempt):
            raise Violation(f"I-13: attempt {after} of job {end.seq} has continued it while {end.attempt} held it")
        self.reached["continued"] += 1
        may_run = step.lane is not None and step.status == "pending" and step.run_at <= step.at
        if may_run and end.lane == step.lane and end.old_place is not None:
            self.reached["continued in its place"] += 1
            if step.place != end.old_place:
                raise Violation(f"I-28: job {step.seq} continues {end.seq} at place {step.place}, not {end.old_place}")

    def _look_at_dependents(self, chains: set[str]) -> None:
        """I-38: who waits for a chain that has closed is told in that commit, or admission is asked to tell."""
        for chain in chains:
            left = self.ask(
                """SELECT link.job, first.closed_as FROM holdfast_job AS first
                    JOIN holdfast_blocker AS link ON link.chain_id = first.id AND link.state = 'armed'
                    JOIN holdfast_job AS waiting ON waiting.seq = link.job AND waiting.status = 'blocked'
                    WHERE first.id = ? AND coalesce(first.gate, '') <> 'arrival'
                        AND (first.closed_as = 'completed'
                            OR (first.closed_as IS NOT NULL AND waiting.on_blocker_failure <> 'wait'))""",
                chain,
            )
            if left:
                raise Violation(f"I-38: chain {chain} has closed, and nobody tells (job, end) {left}")

    def look_at_block(self, job: str, attempt: int, worker: str, *, is_committed: bool) -> None:
        """I-66: what a handler hears of its block is so."""
        ((written,),) = self.ask(
            "SELECT count(*) FROM sim_ledger WHERE job = ? AND attempt = ? AND what = 'done'", job, attempt
        )
        found = self.ask("SELECT status, completed_by, attempt FROM holdfast_job WHERE id = ?", job)
        if not found and is_committed and job in self.kept.gone.values():
            return
        ((status, completed_by, now),) = found
        is_ours = (status, completed_by, now) == ("completed", worker, attempt)
        if is_committed != is_ours or is_committed != bool(written):
            heard = "committed" if is_committed else "rolled back"
            raise Violation(
                f"I-66: attempt {attempt} of job {job} heard that its block was {heard}, which wrote {written} rows; "
                f"the job is {status} by {completed_by}"
            )

    def _look_at_blockers(self, each: Change) -> None:
        """I-38, I-39: who leaves `blocked` has a reason to."""
        ends = self.ask(
            """SELECT chain_id, (SELECT closed_as FROM holdfast_job WHERE id = holdfast_blocker.chain_id)
                FROM holdfast_blocker WHERE job = ?""",
            each.seq,
        )
        if each.status == "failed":
            self.reached["failed by a blocker"] += 1
            if not {id_ for id_, _ in ends} & (self._unhappy | set(self.kept.gone.values())):
                raise Violation(f"I-39: job {each.seq} failed by blockers that ended {ends}")
            return
        self.reached["unblocked"] += 1
        if any(
            end != "completed"
            and not (each.on_blocker_failure == "ignore" and (id_ in self._unhappy or id_ in self.kept.gone.values()))
            for id_, end in ends
        ):
            raise Violation(f"I-38: job {each.seq} was let go by blockers that stand {ends}")

    def _look_at_chains(self, chains: set[str]) -> None:
        """I-36: the jobs of a chain are a line, all but the last have completed; the first says how the last ended."""
        for chain in chains:
            (first, *others) = rows = self.ask(
                """SELECT chain_index, status, closed_as, stale_at FROM holdfast_job
                    WHERE id = ?1 OR (chain_id = ?1 AND chain_index > 0) ORDER BY chain_index""",
                chain,
            )
            (*before, last) = [status for _, status, _, _ in rows]
            end = last if last in TERMINAL else None
            is_line = [index for index, *_ in rows] == list(range(len(rows)))
            if end is None and any(stale_at is not None for *_, stale_at in rows):
                raise Violation(f"I-49: chain {chain} is open, and marked stale: {rows}")
            if not is_line or set(before) - {"completed"} or first[2] != end or any(each[2] for each in others):
                raise Violation(f"I-36: chain {chain} consists of {rows}")

    def _look_at_counts(self, blocked: set[int]) -> None:
        """I-38: a blocked job that is not to be counted anew waits for as many blockers as will tell it."""
        for seq in blocked:
            wrong = self.ask(
                """SELECT open_blockers,
                        (SELECT count(*) FROM holdfast_blocker WHERE job = seq AND state = 'armed') AS armed
                    FROM holdfast_job
                    WHERE seq = ? AND status = 'blocked' AND gate IS NULL AND open_blockers <> armed""",
                seq,
            )
            if wrong:
                raise Violation(f"I-38: job {seq} waits for {wrong[0][0]} blockers, and {wrong[0][1]} will tell it")

    def _look_at_lanes(self, lanes: set[str]) -> None:
        """I-26: one running or halting job in a lane, and that is its head."""
        for lane in lanes:
            holders = self.ask(
                "SELECT seq, status, head FROM holdfast_job WHERE lane = ? AND (status = 'running' OR head = 1)", lane
            )
            if len(holders) > 1 or any(not head for _, _, head in holders):
                raise Violation(f"I-26: lane {lane} is held by {holders}")
            if holders and holders[0][1] in ("paused", "failed"):
                self.reached["lane halted"] += 1
            if not holders:
                self._look_at_waiting(lane)

    def _look_at_waiting(self, lane: str) -> None:
        """I-12: a lane that is free is passed on in the commit that frees it, or left to admission."""
        ((waiting, left),) = self.ask(
            """SELECT (SELECT count(*) FROM holdfast_job WHERE lane = ?1 AND gate = 'lane'),
                (SELECT count(*) FROM holdfast_job WHERE lane = ?1 AND gate = 'arrival'
                    AND status IN ('completed', 'failed', 'cancelled', 'paused'))""",
            lane,
        )
        if waiting and not left:
            raise Violation(f"I-12: lane {lane} is free, {waiting} jobs wait in it and nobody was promoted")

    def look_at_answer(self, token: Token, is_done: bool) -> None:
        """I-14, I-56: what a worker hears of a settlement is so, once it has heard it."""
        ((held,),) = self.ask(
            "SELECT count(*) FROM holdfast_job WHERE seq = ? AND attempt = ? AND nonce = ? AND status = 'running'",
            *token.values(),
        )
        if held:
            heard = "was written" if is_done else "was lost"
            raise Violation(f"I-14: a worker heard that attempt {token.attempt} of job {token.seq} {heard}; it is held")

    def spares(self, quiet_ms: int) -> bool:
        """Tell whether a reaper that waits for *quiet_ms* leaves an expired lease alone."""
        now = self._world.store_ms()
        return bool(self.ask("SELECT 1 FROM holdfast_job WHERE lease_until < ? AND lease_ms > ?", now, quiet_ms))

    def look_at_the_end(self) -> str | None:
        """I-39: who failed by a blocker that is tried again does not stay so."""
        left = self.ask(
            """SELECT link.job, other.seq
                FROM holdfast_blocker AS link JOIN holdfast_job AS other ON other.id = link.chain_id
                JOIN holdfast_job AS waiting ON waiting.seq = link.job
                WHERE link.state = 'failed' AND waiting.status = 'failed' AND other.closed_as = 'completed'"""
        )
        return f"I-39: failed by a blocker that has completed since: {left}" if left else None

    def _look_at_keys(self, keys: set[tuple[str, str]]) -> None:
        """I-05: one open chain for a key."""
        for task, key in keys:
            ((opened,),) = self.ask(
                "SELECT count(*) FROM holdfast_job WHERE task = ? AND unique_key = ? AND closed_as IS NULL", task, key
            )
            if opened > 1:
                raise Violation(f"I-05: {opened} open chains of {task} have the key {key}")


def named(event: str, facts: str | None) -> str:
    """Give the name of an event; what a person does, or a job's blocker, has no name of its own."""
    is_asked = '"by"' in (facts or "")
    if event == "job:resumed" and not is_asked:
        return BLOCKED_AGAIN
    return OUTSIDE if event == "job:completed" and is_asked else event


def is_by_hand(each: Change) -> bool:
    """Tell whether somebody has completed the job without a worker."""
    return each.completes and each.completed_by is None


def show(each: Change) -> str:
    """Write a change in one line."""
    return f"job {each.seq} ({each.task}, attempt {each.attempt}) {each.old_status} -> {each.status} ({each.reason})"
