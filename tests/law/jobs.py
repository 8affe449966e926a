"""What holds of each write to a job: its version, its token, requests to it, and how its attempts begin and end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Container

from tests.law.changes import Change, is_by_hand, is_claim, is_end, is_opened, show
from tests.law.rules import CLOCK_SLACK_MS, LawRules, Say

Tells = Callable[[Change], bool]

CONVICTED = 3
"""After so many crashes a job is not run again."""


class JobRules(LawRules):
    """Each write by itself, and what the writes before it have used up.

    The driver says what a row does not: whether a job was *taken* from its worker, whether that worker was *dead*, and
    whether the job is a webhook delivery, which is *internal*. Tasks that *interrupt* by pausing may pause at shutdown.
    """

    def __init__(
        self,
        say: Say,
        reached: Counter[str],
        *,
        is_taken: Tells,
        is_dead: Tells,
        is_internal: Tells,
        interrupt_pauses: Container[str] = (),
    ) -> None:
        super().__init__(say, reached)
        self._is_taken = is_taken
        self._is_dead = is_dead
        self._is_internal = is_internal
        self._interrupt_pauses = interrupt_pauses
        self._nonces: set[tuple[int, str]] = set()
        self._completed: set[int] = set()

    def take(self, each: Change) -> None:
        """Look at a row as it was written."""
        if each.old_status is not None and each.is_move and each.version != each.old_version + 1:
            self._say("I-12", f"a move that leaves the version alone: {show(each)}")
        if each.attempt != (each.old_attempt or 0) + is_claim(each):
            self._say("I-10", f"the attempt number goes from {each.old_attempt} to {each.attempt} at {show(each)}")
        if each.old_nonce is not None and each.nonce is None:
            self._say("I-55", f"the nonce is gone at {show(each)}")
        self._look_at_completion(each)
        self._look_at_requests(each)
        if is_claim(each):
            self._look_at_claim(each)
        elif is_end(each):
            self._look_at_end(each)

    def _look_at_completion(self, each: Change) -> None:
        """I-11: completed is final."""
        if each.completes:
            if each.seq in self._completed:
                self._say("I-11", f"{show(each)}, and it was completed before")
            self._completed.add(each.seq)

    def _look_at_requests(self, each: Change) -> None:
        """I-31: resume and retry erase an accepted request, and nothing else does."""
        for kind, old, new in (
            ("cancel", each.old_cancel_requested_at, each.cancel_requested_at),
            ("pause", each.old_pause_requested_at, each.pause_requested_at),
        ):
            if old is not None and new is None and not is_opened(each) and not is_by_hand(each):
                self._say("I-31", f"a requested {kind} was erased by {show(each)}")
            if is_opened(each) and new is not None:
                self._say("I-31", f"resume or retry left a requested {kind} standing on job {each.seq}")
            if old is None and new is not None and each.status == "running":
                self._reached[f"{kind} while running"] += 1

    def _look_at_claim(self, each: Change) -> None:
        self._reached["claimed"] += 1
        self._look_at_lease(each)
        if (each.seq, each.nonce) in self._nonces:
            self._say("I-10", f"two claims of job {each.seq} have one nonce")
        self._nonces.add((each.seq, each.nonce or ""))
        if each.crashes >= CONVICTED:
            self._say("I-24", f"job {each.seq} was claimed after {each.crashes} crashes")
        if each.used != each.old_used + 1:
            self._say("I-42", f"a claim uses up {each.used - each.old_used} attempts at {show(each)}")

    def _look_at_lease(self, each: Change) -> None:
        """I-09: a running job has a worker, a lease and a token, and the lease is as long as its task says at most."""
        if each.worker is None or each.lease_until is None or each.nonce is None:
            self._say("I-09", f"running without worker, lease or token: {show(each)}")
        elif not each.at < each.lease_until <= each.at + (each.lease_ms or 0) + CLOCK_SLACK_MS:
            self._say("I-09", f"a lease of {each.lease_until - each.at} ms at {show(each)}")

    def _look_at_end(self, each: Change) -> None:
        if is_by_hand(each):
            self._reached["completed outside while it ran"] += 1
            return
        self._look_at_answer(each)
        if each.used < 0 or each.used > each.old_used:
            self._say("I-42", f"used attempts go from {each.old_used} to {each.used} at {show(each)}")
        if each.crashes >= CONVICTED and each.status == "pending":
            self._say("I-24", f"job {each.seq} goes on after {each.crashes} crashes")
        if each.reason == "poison":
            self._reached["poison"] += 1
        if self._is_taken(each):
            self._look_at_reap(each)
        else:
            self._look_at_output(each)

    def _look_at_answer(self, each: Change) -> None:
        """I-25, I-32: an attempt ends as was requested. I-30: it is not paused if nobody has requested it."""
        if each.status == "completed" and each.old_cancel_requested_at is not None:
            self._say("I-32", f"job {each.seq} completed after a cancel was accepted")
        elif each.old_cancel_requested_at is not None and each.status != "cancelled":
            self._say("I-25", f"a requested cancel was passed over by {show(each)}")
        if each.old_pause_requested_at is not None and each.status == "pending":
            self._say("I-25", f"a requested pause was passed over by {show(each)}")
        may_pause = each.old_pause_requested_at is not None or each.task in self._interrupt_pauses
        if each.status == "paused" and each.reason == "shutdown" and not may_pause:
            self._say("I-30", f"shutdown left job {each.seq} paused")

    def _look_at_reap(self, each: Change) -> None:
        """I-16: only an expired lease is reaped, or a dead worker's. I-24: the third crash convicts."""
        self._reached["reaped"] += 1
        if each.status == "completed":
            self._say("I-13", f"a reaper completed job {each.seq}, which {each.old_worker} held")
        lease = each.old_lease_until or 0
        if each.at <= lease:
            self._reached["proved dead"] += 1
            if not self._is_dead(each):
                self._say("I-16", f"a live lease of job {each.seq} was reaped {lease - each.at} ms early")
        if each.status == "failed" and (each.reason == "poison") != (each.crashes >= CONVICTED):
            self._say("I-24", f"crash {each.crashes} of job {each.seq} ends as {each.reason}")

    def _look_at_output(self, each: Change) -> None:
        """I-13: what is written is what this very attempt came to; the handlers of the drivers return its number."""
        if each.completes and each.output is not None and not self._is_internal(each):
            if json.loads(each.output) != each.attempt:
                self._say("I-13", f"attempt {each.output} of job {each.seq} completed it while {each.attempt} held it")
        elif each.status == "pending" and each.used < each.old_used and each.reason == "shutdown":
            self._reached["given back"] += 1
