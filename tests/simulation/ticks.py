"""Looks after every commit at schedules: at each look of a worker, and that a tick and its job are one commit.

What a look may do stands in `tests/law/ticks.py`. Here is what only the simulation knows: which commit it was, what the
clock has done meanwhile, and which times must have had their job by now.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.law.ticks import LONGEST_WALK_MS, Look, ScheduleRow, Tick, times, wrong_look
from tests.simulation.violations import Violation

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

REPAIRED_MS = 75_000
"""By when a schedule is right again after a step of the clock: workers compare about once a minute."""
FIELDS = ", ".join(ScheduleRow._fields)
NEW = ", ".join(f"NEW.{name}" for name in ScheduleRow._fields)
AUDIT = f"""
CREATE TABLE sim_schedule (n INTEGER PRIMARY KEY, now, name, is_there, {FIELDS});
CREATE TRIGGER sim_schedule_put AFTER INSERT ON holdfast_schedule BEGIN
    INSERT INTO sim_schedule (now, name, is_there, {FIELDS}) VALUES (holdfast_now(), NEW.name, 1, {NEW}); END;
CREATE TRIGGER sim_schedule_changed AFTER UPDATE ON holdfast_schedule BEGIN
    INSERT INTO sim_schedule (now, name, is_there, {FIELDS}) VALUES (holdfast_now(), NEW.name, 1, {NEW}); END;
CREATE TRIGGER sim_schedule_deleted AFTER DELETE ON holdfast_schedule BEGIN
    INSERT INTO sim_schedule (now, name, is_there) VALUES (holdfast_now(), OLD.name, 0); END;
CREATE TABLE sim_tick (n INTEGER PRIMARY KEY, schedule, at, chain_id, outcome);
CREATE TRIGGER sim_ticked AFTER INSERT ON holdfast_tick BEGIN
    INSERT INTO sim_tick (schedule, at, chain_id, outcome)
    VALUES (NEW.schedule, NEW.at, NEW.chain_id, NEW.outcome); END;
CREATE TRIGGER sim_tick_changed AFTER UPDATE ON holdfast_tick BEGIN
    INSERT INTO sim_tick (schedule, at, chain_id, outcome)
    VALUES (NEW.schedule, NEW.at, NEW.chain_id, NEW.outcome); END;
"""


@dataclass(slots=True)
class Known:
    """What is known of a schedule that is there."""

    row: ScheduleRow
    active_since: int
    """Since when by the store's clock it has ticks: put with its rule, or resumed."""
    wanted_since: int = 0
    """From when on it must have its ticks: a clock that goes back to before that may pass over some."""
    clock_from: int | None = None
    """What the clock showed after a step, until the next ticks are written."""
    left_out: list[tuple[int, int]] = field(default_factory=list)
    """From when to when times were left out, because there were too many."""


class Ticks:
    """Reads what each commit has added."""

    def __init__(self, world: World, ask: Callable[..., list[tuple[Any, ...]]]) -> None:
        self._world = world
        self._ask = ask
        self._seen_row = self._seen_tick = self._seen_job = 0
        self.known: dict[str, Known] = {}
        self.had: defaultdict[str, set[int]] = defaultdict(set)
        """The times of each schedule that have had their job, ever."""

    def look(self, committer: Process) -> None:
        """Look at what *committer* has just committed."""
        rows = self._ask(f"SELECT n, now, name, is_there, {FIELDS} FROM sim_schedule WHERE n > ?", self._seen_row)
        ticks = self._ask("SELECT n, schedule, at, chain_id, outcome FROM sim_tick WHERE n > ?", self._seen_tick)
        if not (self.known or rows or ticks):
            return
        self._seen_row = max((n for n, *_ in rows), default=self._seen_row)
        self._seen_tick = max((n for n, *_ in ticks), default=self._seen_tick)
        # a tick that has met an open chain is written twice in its commit
        written = {(name, at): Tick(at, chain, outcome) for _, name, at, chain, outcome in ticks}
        self._look_at_jobs(set(written.values()))
        last = {name: (now, ScheduleRow(*row) if is_there else None) for _, now, name, is_there, *row in rows}
        for name in sorted(last.keys() | {name for name, _ in written}):
            of_it = [tick for (schedule, _), tick in written.items() if schedule == name]
            now, row = last[name] if name in last else (self._world.store_ms(), self.known[name].row)
            if committer.worker is not None and row is not None:
                self._look_at_look(name, now, row, of_it)
            else:
                self._note_wish(name, now, row, of_it)
            self.had[name] |= {each.at for each in of_it}

    def _look_at_jobs(self, ticks: set[Tick]) -> None:
        """I-83: a tick and its job are one commit; one that started none has met a chain that is there."""
        sql = "SELECT seq, id, scheduled_at FROM holdfast_job WHERE seq > ? AND scheduled_at IS NOT NULL"
        jobs = self._ask(f"{sql} AND chain_index = 0", self._seen_job)
        self._seen_job = max((seq for seq, *_ in jobs), default=self._seen_job)
        made = {(id_, at) for _, id_, at in jobs}
        started = {(each.chain_id, each.at) for each in ticks if each.outcome == "started"}
        if made != started:
            raise Violation(f"I-83: {made - started} are jobs without ticks, and {started - made} ticks without jobs")
        for each in ticks:
            if each.outcome == "met" and not self._ask("SELECT 1 FROM holdfast_job WHERE id = ?", each.chain_id):
                raise Violation(f"I-83: {each} has met nobody")

    def _look_at_look(self, name: str, now: int, row: ScheduleRow, ticks: list[Tick]) -> None:
        known = self.known[name]
        before = known.row
        if before.paused_at is not None and row.paused_at is None:
            known.active_since = min(before.until or now, now) - 1
        elif before.next_at is not None:
            before = before._replace(next_at=max(before.next_at, known.active_since + 1))
        clock_from = known.clock_from
        if clock_from is not None:
            clock_from = max(clock_from, known.active_since + 1, known.wanted_since)
        if wrong := wrong_look(Look(now, before, row, tuple(ticks), self.had[name], clock_from)):
            raise Violation(f"I-83: {name} at {now}: {wrong}")
        if ticks:
            known.clock_from = None
        for each in ticks:
            self._world.reached[f"tick {each.outcome}"] += 1
            self._world.reached["tick late"] += now - each.at > 60_000
        if row.left_out > before.left_out:
            self._world.reached["tick left out"] += 1
            known.left_out.append((before.next_at or 0, now))
        if (row.next_at or 0) < (before.next_at or 0):
            self._world.reached["repaired"] += 1
        known.row = row

    def _note_wish(self, name: str, now: int, row: ScheduleRow | None, ticks: list[Tick]) -> None:
        """Note what people did to a schedule."""
        if ticks:
            raise Violation(f"I-83: {name} at {now}: people have made {ticks}")
        known = self.known.get(name)
        if row is None:
            self.known.pop(name, None)
        elif known is None or known.row.rule != row.rule:
            self.known[name] = Known(row, now)
        else:
            if known.row.paused_at is not None and row.paused_at is None:
                known.active_since = now
            known.row = row

    def clock_stepped(self, *, is_back: bool) -> None:
        """Take note that the store's clock is elsewhere: what it had left out, and had shown, is to come again."""
        now = self._world.store_ms()
        for each in self.known.values():
            each.clock_from = now if is_back else each.clock_from
            if now < (each.row.changed_at or 0):
                each.wanted_since = now + REPAIRED_MS
            each.active_since = min(each.active_since, now)
            each.left_out = [(begin, min(end, now)) for begin, end in each.left_out if begin < now]

    def missing(self, since: int, upto: int) -> dict[str, list[int]]:
        """Give the times of the schedules between two instants that should have had their job, and had not."""
        found = {}
        for name, each in self.known.items():
            if not each.row.is_paused(upto) and each.row.trouble is None:
                begin = max(since, each.active_since + 1, each.wanted_since, each.row.until or 0)
                wanted = set(times(each.row.rule, begin, upto)) - self.had[name]
                if wanted:
                    found[name] = sorted(wanted)
        return found

    def lost(self, upto: int) -> dict[str, list[int]]:
        """Give the times, of schedules that leave out none, that were never had."""
        found = {}
        for name, late in self.missing(upto - LONGEST_WALK_MS, upto).items():
            known = self.known[name]
            kept = [at for at in late if not any(begin <= at <= end for begin, end in known.left_out)]
            if known.row.missed == "all" and kept:
                found[name] = kept
        return found
