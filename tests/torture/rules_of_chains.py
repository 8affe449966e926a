"""How jobs follow one another: the steps of a chain, who waits for which chain, and one open chain for a key."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from holdfast.models import INTERNAL_QUEUE
from tests.simulation.checker import BY_HAND, Change, is_by_hand, show
from tests.torture.history import Line
from tests.torture.rules import Findings, Known, Rules


class ChainRules(Rules):
    """Each chain at each line: how it was closed, what it holds, and what continues it."""

    def __init__(self, known: Known, findings: Findings) -> None:
        super().__init__(known, findings)
        self._closed: dict[str, str | None] = {}
        self._unhappy: set[str] = set()
        """The chains that were closed otherwise than by completing, though they may be open again."""
        self._keys: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._steps: list[tuple[Line, Change]] = []
        self._blockers: dict[int, list[str]] = defaultdict(list)
        for row in known.history.final["blocker"]:
            self._blockers[row["job"]].append(row["chain_id"])

    def take_job(self, line: Line, each: Change) -> None:
        """Look at a job as a part of its chain."""
        if line.old is None and each.chain_index > 0:
            self._steps.append((line, each))
        if each.old_status == "blocked" and each.status == "pending":
            self._look_at_unblocked(each)
        self._look_at_key(each)
        if each.chain_index == 0:
            self._closed[each.id] = each.closed_as
            if each.closed_as in ("failed", "cancelled"):
                self._unhappy.add(each.id)

    def take_delete(self, line: Line) -> None:
        """Have a chain that is deleted let go of its key."""
        id_ = self._known.ids[line.row["seq"]]
        for holders in self._keys.values():
            holders.discard(id_)

    def conclude(self) -> None:
        """I-36: who completes is continued in that very commit, once, or never; and so the chain is left."""
        self._look_at_steps()
        self._look_at_final_chains()

    def _look_at_unblocked(self, each: Change) -> None:
        """I-38: who leaves `blocked` has a reason to."""
        self._reached["unblocked"] += 1
        for chain in self._blockers[each.seq]:
            is_ignored = each.on_blocker_failure == "ignore" and chain in self._unhappy
            if self._closed.get(chain) != "completed" and not is_ignored and chain not in self._known.gone:
                self._say("I-38", f"job {each.seq} was let go by chain {chain}, which stands {self._closed.get(chain)}")

    def _look_at_key(self, each: Change) -> None:
        """I-05: one open chain for a key."""
        if each.unique_key is None:
            return
        holders = self._keys[each.task, each.unique_key]
        if each.closed_as is None:
            holders.add(each.id)
        else:
            holders.discard(each.id)
        if len(holders) > 1:
            self._say("I-05", f"{sorted(holders)} are open, and have the key {each.unique_key} of {each.task}")

    def _look_at_steps(self) -> None:
        completions = self._known.completions.values()
        ends = {(each.chain_id, each.chain_index): (line, each) for line, each in completions}
        steps = {(each.chain_id, each.chain_index - 1): each for _, each in self._steps}
        if len(steps) != len(self._steps):
            self._say("I-36", "two jobs have one place in a chain")
        for line, step in self._steps:
            end = ends.get((step.chain_id, step.chain_index - 1))
            if end is None or end[0].xid != line.xid:
                self._say("I-36", f"{show(step)} continues a job that was not completed in the same commit")
            else:
                self._look_at_step(end[1], step)
        for key, (_, each) in ends.items():
            if (each.output is None) != (key in steps) and self._known.queues[each.id] != INTERNAL_QUEUE:
                self._say("I-36", f"{show(each)} has an output and is continued, or neither")

    def _look_at_step(self, end: Change, step: Change) -> None:
        """I-13: a job is continued by the attempt that holds it."""
        after = self._known.inputs[step.id]["after"]
        if after != (BY_HAND if is_by_hand(end) else end.attempt):
            self._say("I-13", f"attempt {after} of job {end.seq} continued it while {end.attempt} held it")

    def _look_at_final_chains(self) -> None:
        """I-36: the jobs of a chain are a line, all but the last have completed; the first says how the last ended."""
        chains: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in self._history.final["job"]:
            chains[row["chain_id"]].append(row)
        for chain, jobs in chains.items():
            jobs.sort(key=lambda row: row["chain_index"])
            (*before, last) = [row["status"] for row in jobs]
            is_line = [row["chain_index"] for row in jobs] == list(range(len(jobs)))
            if not is_line or set(before) - {"completed"} or jobs[0]["closed_as"] != last:
                self._say("I-36", f"chain {chain} consists of {jobs}")
