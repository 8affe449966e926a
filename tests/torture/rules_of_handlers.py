"""What handlers did: which ran when, in which process and beside whom, and what they wrote in phases and blocks."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from tests.law.blocks import BlockRules, Written
from tests.law.changes import Change, is_by_hand, is_death_of_child, is_left_behind, is_reap
from tests.torture.history import Line, deaths_at
from tests.torture.rules import CLOCK_SLACK_MS, Findings, Known, Rules

IN_BLOCKS = ("booked", "booked_in_thread", "booked_in_child")


class HandlerRules(Rules):
    """Each run of a handler, and what it has left in the database."""

    def __init__(self, known: Known, findings: Findings) -> None:
        super().__init__(known, findings)
        self._phases: dict[tuple[str, str], str] = {}
        self._effects: list[Written] = []
        self._blocks = BlockRules(findings.say, findings.reached)

    def take_phase(self, line: Line) -> None:
        """I-40: what a phase gave stays as it was."""
        assert line.new is not None
        assert line.old is not None
        key = self._known.ids[line.new["job"]], line.new["name"]
        if line.old["status"] == "completed":
            self._say("I-40", f"phase {key} was completed, and is {line.new['status']} {line.new['result']}")
        elif line.new["status"] == "completed":
            if key in self._phases:
                self._say("I-40", f"phase {key} completes twice")
            self._phases[key] = json.loads(line.new["result"])

    def take_effect(self, line: Line) -> None:
        """Look at what a block has written."""
        written = Written(line.xid, line.row["job"], line.row["attempt"], line.row["what"])
        self._effects.append(written)
        job = self._known.jobs.get(written.job)
        if written.what == "prepared":
            self._blocks.look_at_prepared(written, None if job is None else (job.status, job.attempt))

    def conclude(self) -> None:
        """Look at what handlers have written down, beside what is known of their jobs."""
        intervals = self._intervals()
        self._look_at_runs()
        self._look_at_overlaps(intervals)
        self._look_at_suspects(intervals)
        self._look_at_phases()
        completions = {job: (line.xid, each) for job, (line, each) in self._known.completions.items()}
        self._blocks.look_at_writes(self._effects, completions, self._completes_in_block)

    def _look_at_runs(self) -> None:
        """I-03, I-15, I-23: an attempt runs once, and because it was claimed."""
        begun: set[tuple[str, int]] = set()
        for line in self._history.runs:
            key = line["job"], line["attempt"]
            if line["what"] != "begin":
                continue
            if key in begun:
                self._say("I-23", f"attempt {key[1]} of job {key[0]} began twice")
            begun.add(key)
            if key not in self._known.claims:
                self._say("I-03", f"attempt {key[1]} of job {key[0]} began, and was not claimed")
            elif self._known.claims[key].at > self._history.wall_ms(line["at"]) + CLOCK_SLACK_MS:
                self._say("I-03", f"attempt {key[1]} of job {key[0]} began before it was claimed")

    def _intervals(self) -> list[Interval]:
        ends = {(line["job"], line["attempt"]): line for line in self._history.runs if line["what"] in ("end", "abort")}
        died, found = deaths_at(self._history), []
        for line in self._history.runs:
            if line["what"] != "begin":
                continue
            end = ends.get((line["job"], line["attempt"]))
            found.append(Interval(line, line["at"], self._unseen_end(line, died) if end is None else end["at"]))
        return found

    def _unseen_end(self, line: dict[str, Any], died: dict[int, float]) -> float:
        """Tell when a handler that did not say so ended at the earliest: with its process, or with its worker's."""
        if line["parent"] not in self._known.workers.values():
            return died.get(line["process"], float("inf"))
        settled, _ = self._known.ends.get((line["job"], line["attempt"]), (None, None))
        killed = float("inf") if settled is None else self._history.monotonic(settled.at)
        return min(killed, died.get(line["parent"], float("inf")))

    def _look_at_overlaps(self, intervals: list[Interval]) -> None:
        """I-26, I-20: two handlers of a lane run at once only if the first one has lost its job."""
        lanes: dict[str, list[Interval]] = defaultdict(list)
        for each in intervals:
            if each.line["lane"] is not None:
                lanes[each.line["lane"]].append(each)
        for lane, those in lanes.items():
            for first, second in overlaps(those):
                key = first.line["job"], first.line["attempt"]
                line, end = self._known.ends.get(key, (None, None))
                ways = (is_reap, is_death_of_child, is_by_hand, is_left_behind)
                is_lost = end is not None and any(is_so(end) for is_so in ways)
                self._reached["zombie beside its successor"] += 1
                if not is_lost and (line is not None or key[0] not in self._known.gone):
                    self._say("I-26", f"in lane {lane} {second.line['job']} began while {key} ran")

    def _look_at_suspects(self, intervals: list[Interval]) -> None:
        """I-24: a job that has crashed twice runs alone in its process."""
        processes: dict[int, list[Interval]] = defaultdict(list)
        for each in intervals:
            processes[each.line["process"]].append(each)
        for process, those in processes.items():
            for first, second in overlaps(those):
                suspects = [each.line["job"] for each in (first, second) if each.line["crashes"] >= 2]
                if suspects:
                    self._say("I-24", f"in process {process} {suspects} ran beside another: {first} {second}")
        self._reached["suspect run"] += sum(each.line["crashes"] >= 2 for each in intervals)

    def _look_at_phases(self) -> None:
        """I-40: no attempt executes a phase that another has finished; each is given what was stored."""
        for line in self._history.runs:
            stored = self._phases.get((line["job"], line.get("name", "")))
            if line["what"] == "phase" and stored is not None and int(stored.split()[1]) < line["attempt"]:
                self._say("I-40", f"attempt {line['attempt']} of job {line['job']} runs phase {stored} again")
            if line["what"] == "given" and stored != line["result"]:
                self._say("I-40", f"{line['result']} was given to job {line['job']}, and {stored} is stored")

    def _completes_in_block(self, each: Change) -> bool:
        left = self._known.inputs[each.id].get("left", 0)
        return not is_by_hand(each) and (each.task in IN_BLOCKS or (each.task == "chained" and left > 0 == left % 2))


class Interval:
    """A handler under way, by the monotonic clock."""

    def __init__(self, line: dict[str, Any], begin: float, end: float) -> None:
        self.line = line
        self.begin = begin
        self.end = end

    def __repr__(self) -> str:
        return f"{self.line['job']} attempt {self.line['attempt']} [{self.begin:.3f}, {self.end:.3f}]"


def overlaps(intervals: list[Interval]) -> list[tuple[Interval, Interval]]:
    """Name the pairs that ran at once, the earlier one first."""
    found = []
    running: list[Interval] = []
    for each in sorted(intervals, key=lambda interval: interval.begin):
        running = [other for other in running if other.end > each.begin]
        found += [(other, each) for other in running]
        running.append(each)
    return found
