"""What callers asked for and were told: starts, completions without a worker, deletes, and why jobs do not run."""

from __future__ import annotations

from collections import defaultdict

from tests.law.changes import is_by_hand
from tests.law.reasons import wrong_reasons
from tests.torture.history import Call, Line
from tests.torture.rules import Findings, Known, Rules


class ClientRules(Rules):
    """Each call, and what is there of it."""

    def __init__(self, known: Known, findings: Findings) -> None:
        super().__init__(known, findings)
        self._doomed = {
            chain
            for call in known.history.calls
            if call.what == "delete" and call.end != "fail"
            for chain in (call.facts["chain"], *call.answer.get("chains", []))
        }

    def take_delete(self, line: Line) -> None:
        """I-49: nothing goes that nobody wanted to go; a job that holds its lane is a tombstone before it goes."""
        assert line.old is not None
        id_ = self._known.ids[line.old["seq"]]
        if self._known.jobs[id_].chain_id not in self._doomed:
            self._say("I-49", f"job {id_} was deleted, and nobody asked for it")
        self._reached["deleted"] += id_ not in self._known.gone
        self._reached["deleted while running"] += line.old["status"] == "running"

    def conclude(self) -> None:
        """Look at what came of each call."""
        self._look_at_starts()
        self._look_at_completions_by_hand()
        self._look_at_deletes()
        self._look_at_explanations()

    def _look_at_starts(self) -> None:
        """I-01, I-02, I-04: what was accepted is there, once; what was rolled back or refused is not."""
        ends: dict[str, set[str]] = defaultdict(set)
        inserts = self._known.inserts
        for call in self._history.calls:
            if call.what not in ("start", "start, and roll back"):
                continue
            end = "fail" if call.what != "start" and call.end == "ok" else call.end
            chains = dict(zip(call.facts["ids"], call.answer.get("chains", call.facts["ids"]), strict=True))
            for id_, chain in chains.items():
                ends[id_].add(end if chain == id_ else "fail")
                if end == "ok" and inserts[chain] != 1:
                    self._say("I-01", f"{chain} was started, and is there {inserts[chain]} times")
            if call.end == "unknown":
                self._reached["unknown start"] += 1
            self._look_at_batch(call)
        for id_, how in ends.items():
            allowed = {1} if "ok" in how else {0, 1} if "unknown" in how else {0}
            if inserts[id_] not in allowed:
                self._say("I-01" if "ok" in how else "I-02", f"{id_} ended {sorted(how)}: {inserts[id_]} rows")

    def _look_at_batch(self, call: Call) -> None:
        there = {self._known.inserts[id_] for id_ in call.facts["ids"]}
        if call.end == "unknown" and len(there) > 1 and not call.facts["keys"]:  # with a key it may have met its twin
            self._say("I-02", f"of one start some are there, and some are not: {call.facts['ids']}")

    def _look_at_completions_by_hand(self) -> None:
        """I-37: who was told that he has completed a job has; and nobody else does."""
        asked: dict[str, set[str]] = defaultdict(set)
        for call in self._history.calls:
            if call.what == "complete":
                asked[call.answer.get("completed", call.facts["job"])].add(call.end)
        chains = {each.chain_id for each in self._known.jobs.values() if each.id in asked}
        for job, ends in asked.items():
            found = self._known.completions.get(job)
            if "ok" in ends and (found is None or not is_by_hand(found[1])):
                self._say("I-37", f"somebody has completed {job}, and it is {self._known.jobs[job].status}")
        for job, (_, each) in self._known.completions.items():
            if is_by_hand(each) and each.chain_id not in chains:
                self._say("I-37", f"{job} was completed without a worker, and nobody asked for it")

    def _look_at_deletes(self) -> None:
        """I-58: all of what was deleted is gone."""
        for call in self._history.calls:
            if call.what == "delete" and call.end == "ok" and not self._known.gone.issuperset(call.answer["chains"]):
                self._say("I-58", f"{call.answer['chains']} were deleted, and are there")

    def _look_at_explanations(self) -> None:
        """I-86: whoever asked why a job does not run was told, and by what fits it."""
        for call in self._history.calls:
            if call.what != "explain" or call.end != "ok":
                continue
            status, codes, job = call.answer["status"], call.answer["codes"], call.facts["job"]
            self._reached["explained"] += 1
            if status is None and (codes != ["not_committed"] or job not in self._known.gone):
                self._say("I-86", f"{job} is explained by {codes}, as if it were not there")
            elif status is not None and (wrong := wrong_reasons(status, codes)):
                self._say("I-86", f"{job}: {wrong}")
