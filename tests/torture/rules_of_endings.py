"""How all was left when the run was over: the tables, the server and the processes."""

from __future__ import annotations

from tests.law.moves import TERMINAL
from tests.torture.rules import Rules

EXITS = (0, 5, 143, -6, -9, -15)
"""How a process may end: by itself, without its database, by a second signal, by its own or a foreign hand."""


class EndingRules(Rules):
    """Each row that is left, and each process that has ended."""

    def conclude(self) -> None:
        """Look at what is left."""
        self._look_at_jobs()
        self._look_at_rows_beside_jobs()
        self._look_at_processes()
        if self._history.deadlocks:
            self._say("P-26", f"the server has seen {self._history.deadlocks} deadlocks")

    def _look_at_jobs(self) -> None:
        """I-61: all jobs have ended. I-01: none is lost."""
        jobs, made, gone = self._history.final["job"], len(self._known.ids), len(self._known.gone)
        for row in jobs:
            if row["status"] not in TERMINAL or row["head"] or row["gate"] is not None:
                self._say("I-61", f"left over: {row}")
        there = len({row["seq"] for row in jobs})
        if there + gone != made:
            self._say("I-01", f"{made} jobs were made, {gone} deleted, and {there} are there")

    def _look_at_rows_beside_jobs(self) -> None:
        """I-51: no row outlives its jobs."""
        final = self._history.final
        for row in final["lane"]:
            self._say("I-51", f"lane {row} has outlived its jobs")
        for row in final["unique"]:
            self._say("I-51", f"the key {row} has outlived its chain")
        jobs = {row["seq"] for row in final["job"]}
        for row in final["blocker"]:
            if row["job"] not in jobs:
                self._say("I-51", f"{row} has outlived its job")

    def _look_at_processes(self) -> None:
        """I-50: every process ends, and as it may. I-61: all was done in time."""
        for line in self._history.harm:
            if line["what"] == "exit" and line["code"] not in EXITS:
                self._say("I-50", f"{line['role']} ended with code {line['code']}")
            if line["what"] in ("left", "not done"):
                self._say("I-61", f"still there in the end: {line}")
