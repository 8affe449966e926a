"""What the law says of every write to the tables, applied to the audit."""

from __future__ import annotations

from collections import defaultdict

from holdfast.models import INTERNAL_QUEUE
from holdfast.store.workers import IN_CHILD
from tests.law.chains import ChainRules, Link
from tests.law.changes import Change, is_death_of_child, is_end, is_reap
from tests.law.events import EventRules, Told
from tests.law.jobs import JobRules
from tests.law.lanes import LaneRules
from tests.law.moves import named
from tests.support.log_rows import as_events
from tests.torture.history import Line, deaths_of
from tests.torture.rules import CLOCK_SLACK_MS, Findings, Known, Rules


class LawRules(Rules):
    """The rules of `tests/law`, with what a recorded history knows beside the rows."""

    def __init__(self, known: Known, findings: Findings) -> None:
        super().__init__(known, findings)
        self._deaths = deaths_of(known.history)
        self._paused: set[str] = set()
        self._changes: list[tuple[int, Change]] = []
        self._told: list[Told] = []
        self._blockers: dict[int, list[str]] = defaultdict(list)
        for row in known.history.final["blocker"]:
            self._blockers[row["job"]].append(row["chain_id"])
        say, reached = findings.say, findings.reached
        self._events = EventRules(say, reached)
        self._jobs = JobRules(
            say, reached, is_taken=is_reap, is_dead=self._is_proved_dead, is_internal=self._is_internal
        )
        self._lanes = LaneRules(say, reached, is_paused=self._paused.__contains__)
        self._chains = ChainRules(
            say,
            reached,
            blockers_of=self._blockers.get,
            after_of=lambda step: int(known.inputs[step.id]["after"]),
            is_internal=self._is_internal,
        )

    def take_job(self, line: Line, each: Change) -> None:
        """Look at a row as it was written."""
        self._changes.append((line.xid, each))
        self._jobs.take(each)
        self._lanes.take(each)
        self._chains.take(each)
        if is_end(each) and is_death_of_child(each):
            self._reached["child died of its job"] += 1

    def take_event(self, line: Line) -> None:
        """Remember an event as it was written."""
        row = line.row
        for name, facts in as_events([(row["name"], row["facts"])], "name, facts"):
            self._told.append(Told(line.xid, row["job"], row["version"], named(name, facts)))

    def take_lane(self, line: Line) -> None:
        """Remember whether a lane is paused."""
        if line.new is not None and line.new["paused_at"] is not None:
            self._paused.add(line.row["key"])
        else:
            self._paused.discard(line.row["key"])

    def take_delete(self, line: Line) -> None:
        """Have a job that is deleted leave its lane, and its chain let go of its key."""
        self._lanes.forget(line.row["seq"])
        self._chains.forget(self._known.ids[line.row["seq"]])

    def conclude(self) -> None:
        """Look at what belongs together: moves and their events, the steps of a chain, and how chains were left."""
        self._events.match(self._changes, self._told)
        self._chains.look_at_steps(self._changes)
        chains: dict[str, list[Link]] = defaultdict(list)
        for row in self._history.final["job"]:
            link = Link(row["chain_index"], row["status"], row["closed_as"], row["stale_at"])
            chains[row["chain_id"]].append(link)
        for chain, links in chains.items():
            self._chains.look_at_chain(chain, sorted(links))

    def _is_internal(self, each: Change) -> bool:
        return self._known.queues[each.id] == INTERNAL_QUEUE

    def _is_proved_dead(self, each: Change) -> bool:
        """Tell whether a worker was dead by then; on PostgreSQL nobody can prove it, and the lease must be over."""
        process = self._known.workers.get((each.old_worker or "").removesuffix(IN_CHILD))
        died = None if process is None else self._deaths.get(process)
        return not self._history.is_postgres and died is not None and died <= each.at + CLOCK_SLACK_MS
