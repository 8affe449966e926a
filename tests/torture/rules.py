"""What all rules have at hand: what is known so far, and whom to tell what is wrong."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import Any

from tests.law.changes import Change, is_claim, is_end
from tests.support.log_rows import as_events
from tests.torture.history import History, Line

CLOCK_SLACK_MS = 5.0
"""Two clocks are read one after the other when they are compared."""


class Known:
    """What the audit has told before the line that is looked at, and in the end all of it."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.jobs: dict[str, Change] = {}
        """How each job stands, by its id."""
        self.ids: dict[int, str] = {}
        self.inserts: Counter[str] = Counter()
        self.queues: dict[str, str] = {}
        self.webhooks: dict[str, str | None] = {}
        self.inputs: dict[str, dict[str, Any]] = {}
        self.claims: dict[tuple[str, int], Line] = {}
        self.ends: dict[tuple[str, int], tuple[Line, Change]] = {}
        """How each attempt ended, by job and number."""
        self.completions: dict[str, tuple[Line, Change]] = {}
        self.events: dict[str, list[tuple[int, str, int | None]]] = defaultdict(list)
        """Place, name and version of all events, by job; those of lanes have none."""
        self.gone: set[str] = set()
        self.workers: dict[str, int] = {row["id"]: row["process"] for row in history.final["worker"]}
        """The process of each worker."""

    def learn_job(self, line: Line, each: Change) -> None:
        """Remember how a job stands now."""
        self.ids[each.seq] = each.id
        self.jobs[each.id] = each
        if line.old is None:
            self.inserts[each.id] += 1
            self.queues[each.id] = line.row["queue"]
            self.webhooks[each.id] = line.row["webhook"]
            self.inputs[each.id] = json.loads(line.row["input"])
        if is_claim(each):
            self.claims[each.id, each.attempt] = line
        if is_end(each):
            self.ends[each.id, each.attempt] = (line, each)
        if each.completes:
            self.completions[each.id] = (line, each)

    def learn_delete(self, line: Line) -> None:
        """Remember that a job is gone."""
        self.gone.add(self.ids[line.row["seq"]])

    def learn_event(self, line: Line) -> None:
        """Remember what readers are to be told."""
        row = line.row
        for half, (name, _) in enumerate(as_events([(row["name"], row["facts"])], "name, facts")):
            self.events[self.ids.get(row["job"], "")].append((2 * row["seq"] + half, name, row["version"]))


class Findings:
    """What is wrong with a history, and how often it came by what the rules are about."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.reached: Counter[str] = Counter()

    def say(self, invariant: str, what: str) -> None:
        """Write down what is wrong, and what it breaks."""
        self.violations.append(f"{invariant}: {what}")


class Rules:
    """The rules about one thing: `take_…` is told the lines that concern it, `conclude` that there are no more."""

    def __init__(self, known: Known, findings: Findings) -> None:
        self._known = known
        self._history = known.history
        self._say = findings.say
        self._reached = findings.reached

    def conclude(self) -> None:
        """Look at what can be judged only when all is known; nothing, if each line was judged by itself."""
