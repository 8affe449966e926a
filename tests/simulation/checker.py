"""Looks at the tables after every commit and says what must never be.

Triggers of ours write every move of a job down, inside the transaction that makes it, so the history is as committed
as the moves. What holds of every history stands in `tests/law`; here is what only the simulation can know: how the
tables stand after this very commit, which process made it, and what the processes have heard.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from typing import TYPE_CHECKING, Any

from holdfast.wire.cursors import behind_row
from tests.law.blocks import BlockRules, Written
from tests.law.chains import ChainRules, Link
from tests.law.changes import CONSTANT, SPARED, WATCHED, Change, is_by_hand, is_claim, is_end
from tests.law.events import EventRules, Told
from tests.law.jobs import JobRules
from tests.law.lanes import LaneRules
from tests.law.moves import named
from tests.simulation import kept, ticks
from tests.simulation.kept import Kept
from tests.simulation.ticks import Ticks
from tests.simulation.violations import Violation
from tests.support.log_rows import as_events

if TYPE_CHECKING:
    from holdfast.store.jobs.claiming import Token
    from tests.simulation.process import Process
    from tests.simulation.world import World

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
{kept.AUDIT}{ticks.AUDIT}"""
LOG_COLUMNS = "seq, job, name, version, facts"


class Checker:
    """Reads what each commit has added."""

    def __init__(self, world: World, path: str) -> None:
        self._world = world
        self._rows = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._seen_change = self._seen_event = self._seen_entry = 0
        self._committer: Process | None = None
        self.commits = 0
        self.reached: Counter[str] = Counter()
        self.kept = Kept(world, self.ask)
        self.ticks = Ticks(world, self.ask)
        self.log: dict[int, list[tuple[int, str, int | None]]] = {}
        """All events that readers may be told of, by job: number, name, version."""
        self._events = EventRules(refuse, self.reached)
        self._jobs = JobRules(
            refuse,
            self.reached,
            is_taken=self._is_taken,
            is_dead=self._is_dead,
            is_internal=self._is_internal,
            interrupt_pauses=("elsewhere",),
        )
        self._lanes = LaneRules(refuse, self.reached, is_paused=self._is_paused)
        self._chains = ChainRules(
            refuse,
            self.reached,
            blockers_of=self._blockers_of,
            after_of=self._after_of,
            is_internal=self._is_internal,
        )
        self._blocks = BlockRules(refuse, self.reached)
        self._spared: set[int] = set()
        """The jobs that were given back although their handlers had begun, unblamed."""

    def look(self, committer: Process) -> None:
        """Look at what *committer* has just committed."""
        self.commits += 1
        self._committer = committer
        changes = [
            Change(*row) for row in self.ask(f"SELECT n, at, {COLUMNS} FROM sim_audit WHERE n > ?", self._seen_change)
        ]
        rows = self.ask(f"SELECT {LOG_COLUMNS} FROM holdfast_event WHERE seq > ?", self._seen_event)
        if rows:
            self._seen_event = rows[-1][0]
        events = as_events(rows, LOG_COLUMNS)
        told = [Told(self.commits, job, version, named(name, facts)) for _, job, name, version, facts in events]
        self._events.match([(self.commits, each) for each in changes], told)
        self._look_at_ledger(changes)
        self.kept.look(changes, [(job, name) for _, job, name, *_ in events])
        for (seq, job, name, version, _), after in zip(events, [*events[1:], (None,)], strict=False):
            if job not in self.kept.internal:
                place = behind_row(seq) - (after[0] == seq)
                self.log.setdefault(job, []).append((place, name, version))
        self._look_at_changes(changes, committer)
        self.ticks.look(committer)

    def _look_at_changes(self, changes: list[Change], committer: Process) -> None:
        gone = self.kept.take_gone()
        for _, id_ in gone:
            self._chains.forget(id_)
        for each in changes:
            self._seen_change = each.n
            self._world.note(
                f"{each.at} {committer.name}: {each.seq} {each.old_status} -> {each.status} attempt {each.attempt} "
                f"lane {each.lane} head {each.head} place {each.place} "
                f"open {each.old_open_blockers}>{each.open_blockers} {each.reason or ''}"
            )
            self._look_at(each, committer)
        for seq, _ in gone:
            self._lanes.forget(seq)
        self._chains.look_at_steps([(self.commits, each) for each in changes])
        self._look_at_chains({each.chain_id for each in changes})
        self._look_at_dependents({each.id for each in changes if each.closed_as is not None})
        self._look_at_counts({each.seq for each in changes if each.status == "blocked"})
        self._look_at_waiting({each.lane for each in changes if each.lane is not None})

    def close(self) -> None:
        """Close the connection."""
        self._rows.close()

    def ask(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Look into the tables."""
        return self._rows.execute(sql, values).fetchall()

    # what the law asks

    def _is_taken(self, each: Change) -> bool:
        """Tell whether somebody else has ended an attempt than the worker that ran it."""
        worker = None if self._committer is None else self._committer.worker
        return worker is None or each.old_worker != worker.id or each.crashes != each.old_crashes

    def _is_dead(self, each: Change) -> bool:
        owner = self._world.owner(each.old_worker)
        return owner is not None and not owner.is_alive

    def _is_internal(self, each: Change) -> bool:
        return each.seq in self.kept.internal

    def _is_paused(self, lane: str) -> bool:
        return bool(self.ask("SELECT 1 FROM holdfast_lane WHERE key = ? AND paused_at IS NOT NULL", lane))

    def _blockers_of(self, job: int) -> list[str]:
        return [chain for (chain,) in self.ask("SELECT chain_id FROM holdfast_blocker WHERE job = ?", job)]

    def _after_of(self, step: Change) -> int:
        ((after,),) = self.ask("SELECT json_extract(input, '$.after') FROM holdfast_job WHERE id = ?", step.id)
        return int(after)

    # what only the simulation knows

    def _look_at(self, each: Change, committer: Process) -> None:
        self._jobs.take(each)
        self._lanes.take(each)
        self._chains.take(each)
        if is_claim(each):
            self._world.claimed(each)
        elif is_end(each) and not is_by_hand(each):
            if self._is_taken(each):
                self._look_at_blame(each)
                self._world.reaped(each, committer, self._world.owner(each.old_worker))
            self._world.ended(each)

    def _look_at_blame(self, each: Change) -> None:
        """I-24: a crash is counted once; a job is spared once if its row does not say yet that it has begun.

        That is its reason then, unless somebody has asked to cancel or pause it: what was asked comes first.
        """
        blamed = each.crashes - each.old_crashes
        if blamed == 0 and self._world.has_begun(each.id, each.attempt):
            may_be_spared = each.reason == SPARED or each.status in ("cancelled", "paused")
            if not may_be_spared or each.seq in self._spared:
                raise Violation(f"I-24: the crash of job {each.seq} was not counted")
            self._spared.add(each.seq)
        elif blamed not in (0, 1):
            raise Violation(f"I-24: the crash of job {each.seq} was counted {blamed} times")

    def _look_at_ledger(self, changes: list[Change]) -> None:
        """Look at what blocks have written in this commit."""
        entries = self.ask("SELECT n, job, attempt, what FROM sim_ledger WHERE n > ?", self._seen_entry)
        writes = [Written(self.commits, *entry) for _, *entry in entries]
        for each in writes:
            if each.what == "prepared":
                (stands,) = self.ask("SELECT status, attempt FROM holdfast_job WHERE id = ?", each.job)
                self._blocks.look_at_prepared(each, (stands[0], stands[1]))
        completions = {each.id: (self.commits, each) for each in changes if each.completes}
        self._blocks.look_at_writes(
            writes, completions, lambda each: each.task == "booking" and each.completed_by is not None
        )
        self._seen_entry = max((n for n, *_ in entries), default=self._seen_entry)

    def _look_at_chains(self, chains: set[str]) -> None:
        for chain in chains:
            rows = self.ask(
                """SELECT chain_index, status, closed_as, stale_at FROM holdfast_job
                    WHERE id = ?1 OR (chain_id = ?1 AND chain_index > 0) ORDER BY chain_index""",
                chain,
            )
            self._chains.look_at_chain(chain, [Link(*row) for row in rows])

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

    def _look_at_waiting(self, lanes: set[str]) -> None:
        """I-12: a lane that is free is passed on in the commit that frees it, or left to admission."""
        for lane in lanes:
            ((held, waiting, left),) = self.ask(
                """SELECT (SELECT count(*) FROM holdfast_job WHERE lane = ?1 AND (status = 'running' OR head = 1)),
                    (SELECT count(*) FROM holdfast_job WHERE lane = ?1 AND gate = 'lane'),
                    (SELECT count(*) FROM holdfast_job WHERE lane = ?1 AND gate = 'arrival'
                        AND status IN ('completed', 'failed', 'cancelled', 'paused'))""",
                lane,
            )
            if waiting and not held and not left:
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


def refuse(invariant: str, what: str) -> None:
    """Say what must never be, at once."""
    raise Violation(f"{invariant}: {what}")
