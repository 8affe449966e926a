"""How a job may move: every row that is written obeys the law of states, and has its event in the same commit."""

from __future__ import annotations

import json

from holdfast.models import INTERNAL_QUEUE
from tests.simulation.checker import LEGAL, MOVES, Change, is_by_hand, named, show
from tests.torture.changes import is_claim, is_death_of_child, is_end, is_reap
from tests.torture.history import Line, deaths_of
from tests.torture.rules import CLOCK_SLACK_MS, Findings, Known, Rules


class StateRules(Rules):
    """Each write to a job, and the event that tells of it."""

    def __init__(self, known: Known, findings: Findings) -> None:
        super().__init__(known, findings)
        self._deaths = deaths_of(known.history)
        self._nonces: set[tuple[int, str]] = set()
        self._moves: list[tuple[Line, Change]] = []
        self._told: dict[tuple[int, int], tuple[str, int]] = {}
        """The name and the transaction of the event of each version of each job."""

    def take_job(self, line: Line, each: Change) -> None:
        """Look at a row as it was written."""
        if each.version != each.old_version or each.status != each.old_status:
            self._moves.append((line, each))
        if each.old_status is not None and each.status != each.old_status and each.version != each.old_version + 1:
            self._say("I-12", f"a move that leaves the version alone: {show(each)}")
        if each.attempt != (each.old_attempt or 0) + is_claim(each):
            self._say("I-10", f"the attempt number goes from {each.old_attempt} to {each.attempt} at {show(each)}")
        if each.old_nonce is not None and each.nonce is None:
            self._say("I-55", f"the nonce is gone at {show(each)}")
        if each.completes and each.id in self._known.completions:
            self._say("I-11", f"{show(each)}, and it was completed before")
        self._look_at_requests(each)
        if is_claim(each):
            self._look_at_claim(each)
        elif is_end(each):
            self._look_at_end(each)

    def take_event(self, line: Line) -> None:
        """Look at an event as it was written."""
        row = line.row
        name = named(row["name"], row["facts"])
        if name in LEGAL:
            if (row["job"], row["version"]) in self._told:
                self._say("I-12", f"two events tell of version {row['version']} of job {row['job']}")
            self._told[row["job"], row["version"]] = (name, line.xid)

    def conclude(self) -> None:
        """I-12: every move has its event in the same commit, and every event its move. I-08: the move is lawful."""
        for line, each in self._moves:
            name, xid = self._told.pop((each.seq, each.version), (None, 0))
            if name is None:
                if each.status != each.old_status:
                    self._say("I-12", f"no event of {show(each)}")
                    if (each.old_status, each.status) not in MOVES:
                        self._say("I-08", f"there is no such move: {show(each)}")
                continue
            if (each.old_status, each.status) not in LEGAL[name]:
                self._say("I-08", f"{name} tells of {show(each)}")
            if xid != line.xid:
                self._say("I-12", f"{name} of {show(each)} was not in its transaction")
        for (job, version), (name, _) in self._told.items():
            self._say("I-12", f"{name} tells of version {version} of job {job}, and there was no such move")

    def _look_at_requests(self, each: Change) -> None:
        """I-31: an accepted request is erased by resume and retry only."""
        opened = each.old_status in ("paused", "failed", "cancelled") and each.status in ("pending", "blocked")
        for kind, old, new in (
            ("cancel", each.old_cancel_requested_at, each.cancel_requested_at),
            ("pause", each.old_pause_requested_at, each.pause_requested_at),
        ):
            if old is not None and new is None and not opened and not is_by_hand(each):
                self._say("I-31", f"a requested {kind} was erased by {show(each)}")
            if old is None and new is not None and each.status == "running":
                self._reached[f"{kind} while running"] += 1

    def _look_at_claim(self, each: Change) -> None:
        self._reached["claimed"] += 1
        if each.worker is None or each.lease_until is None or each.nonce is None or each.lease_until <= each.at:
            self._say("I-09", f"running without worker, lease or token: {show(each)}")
        if each.nonce is not None and (each.seq, each.nonce) in self._nonces:
            self._say("I-10", f"two claims of job {each.seq} have one nonce")
        self._nonces.add((each.seq, each.nonce or ""))
        if each.crashes >= 3:
            self._say("I-24", f"job {each.seq} was claimed after {each.crashes} crashes")
        if each.used != each.old_used + 1:
            self._say("I-42", f"a claim uses up {each.used - each.old_used} attempts at {show(each)}")

    def _look_at_end(self, each: Change) -> None:
        if is_by_hand(each):
            self._reached["completed outside while running"] += 1
            return
        self._look_at_answer(each)
        if each.used < 0 or each.used > each.old_used:
            self._say("I-42", f"used attempts go from {each.old_used} to {each.used} at {show(each)}")
        if each.crashes >= 3 and each.status == "pending":
            self._say("I-24", f"job {each.seq} goes on after {each.crashes} crashes")
        if each.reason == "poison":
            self._reached["poison"] += 1
        if each.crashes > each.old_crashes and is_death_of_child(each):
            self._reached["child died of its job"] += 1
        elif is_reap(each):
            self._look_at_reap(each)
        elif each.completes and each.output is not None and self._known.queues[each.id] != INTERNAL_QUEUE:
            if json.loads(each.output) != each.attempt:
                self._say("I-13", f"attempt {each.output} of job {each.seq} completed it while {each.attempt} held it")
        elif each.status == "pending" and each.used < each.old_used and each.reason == "shutdown":
            self._reached["given back"] += 1

    def _look_at_answer(self, each: Change) -> None:
        """I-25, I-32: an attempt ends as was requested. I-30: it is not paused if nobody has requested it."""
        if each.status == "completed" and each.old_cancel_requested_at is not None:
            self._say("I-32", f"job {each.seq} completed after a cancel was accepted")
        elif each.old_cancel_requested_at is not None and each.status != "cancelled":
            self._say("I-25", f"a requested cancel was passed over by {show(each)}")
        if each.old_pause_requested_at is not None and each.status == "pending":
            self._say("I-25", f"a requested pause was passed over by {show(each)}")
        if each.status == "paused" and each.reason == "shutdown" and each.old_pause_requested_at is None:
            self._say("I-30", f"shutdown left job {each.seq} paused")

    def _look_at_reap(self, each: Change) -> None:
        self._reached["reaped"] += 1
        if each.status == "completed":
            self._say("I-13", f"a reaper completed job {each.seq}")
        lease = each.old_lease_until or 0
        if each.at <= lease:
            self._reached["proved dead"] += 1
            process = self._known.workers.get(each.old_worker or "")
            died = None if process is None else self._deaths.get(process)
            if self._history.is_postgres or died is None or died > each.at + CLOCK_SLACK_MS:
                self._say("I-16", f"a live lease of job {each.seq} was reaped {lease - each.at} ms early")
