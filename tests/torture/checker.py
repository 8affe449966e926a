"""Decides whether a recorded history keeps what is promised: one pass, and every finding names its invariant.

What holds of every write to the tables stands in `tests/law`, and the simulation looks by it at each commit while it is
made. This checker has only what was written down, but of real processes: who asked for what, which handlers ran when in
which process, what was done to them, and what readers and receivers were given.

The rules stand in `rules_of_…`, a file for each thing that they are about. They see each line of the audit before it is
`Known`, so they judge a change by how things stood; what needs more than the audit up to there is judged in the end.
"""

from __future__ import annotations

from holdfast.store.chains.deletes import TOMBSTONE
from tests.torture.history import History, Line
from tests.torture.rules import Findings, Known, Rules
from tests.torture.rules_of_clients import ClientRules
from tests.torture.rules_of_endings import EndingRules
from tests.torture.rules_of_handlers import HandlerRules
from tests.torture.rules_of_streams import StreamRules
from tests.torture.rules_of_the_law import LawRules


def check(history: History) -> Findings:
    """Say what is wrong with *history*; nothing, if all is as promised."""
    checker = Checker(history)
    checker.run()
    return checker.findings


class Checker:
    """Reads a history, and shows each line to the rules that it concerns."""

    def __init__(self, history: History) -> None:
        self.findings = Findings()
        self._known = Known(history)
        self._law = LawRules(self._known, self.findings)
        self._clients = ClientRules(self._known, self.findings)
        self._handlers = HandlerRules(self._known, self.findings)
        self._streams = StreamRules(self._known, self.findings)
        self._endings = EndingRules(self._known, self.findings)

    def run(self) -> None:
        """Read all of it."""
        take = {
            "job": self._take_job,
            "event": self._take_event,
            "phase": self._handlers.take_phase,
            "lane": self._law.take_lane,
            "delivery": self._streams.take_delivery,
            "effect": self._handlers.take_effect,
        }
        for line in self._known.history.audit:
            take[line.what](line)
        for rules in self._rules():
            rules.conclude()

    def _rules(self) -> tuple[Rules, ...]:
        return (
            self._law,
            self._clients,
            self._handlers,
            self._streams,
            self._endings,
        )

    def _take_job(self, line: Line) -> None:
        if line.new is None or line.new["closed_as"] == TOMBSTONE:
            self._take_delete(line)
            return
        each = line.change
        self._law.take_job(line, each)
        self._known.learn_job(line, each)

    def _take_delete(self, line: Line) -> None:
        self._clients.take_delete(line)
        self._law.take_delete(line)
        self._known.learn_delete(line)

    def _take_event(self, line: Line) -> None:
        self._law.take_event(line)
        self._known.learn_event(line)
