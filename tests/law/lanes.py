"""One job of a lane runs at a time, in its turn."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable

from tests.law.changes import Change, is_claim, show
from tests.law.moves import HALTING
from tests.law.rules import CLOCK_SLACK_MS, LawRules, Say


class LaneRules(LawRules):
    """Each lane at each write: its head and the places in it; the driver says whether it *is paused*."""

    def __init__(self, say: Say, reached: Counter[str], *, is_paused: Callable[[str], bool]) -> None:
        super().__init__(say, reached)
        self._is_paused = is_paused
        self._heads: dict[str, set[int]] = defaultdict(set)
        self._places: dict[str, dict[int, int]] = defaultdict(dict)

    def take(self, each: Change) -> None:
        """Look at what a job has of its lane."""
        if each.lane is None:
            return
        if is_claim(each):
            self._look_at_turn(each, each.lane)
        self._look_at_place(each, each.lane)
        self._look_at_head(each, each.lane)

    def forget(self, seq: int) -> None:
        """Have a job that is deleted leave its lane."""
        for places in self._places.values():
            places.pop(seq, None)
        for heads in self._heads.values():
            heads.discard(seq)

    def _look_at_turn(self, each: Change, lane: str) -> None:
        """I-28: of those that have a place in the lane the first one runs. I-27: but none while the lane is paused."""
        first = min(self._places[lane].values(), default=None)
        if each.place is None or (first is not None and first < each.place):
            self._say("I-28", f"{show(each)} of lane {lane} at place {each.place}, before {first}")
        if self._is_paused(lane):
            self._say("I-27", f"{show(each)}, although its lane {lane} is paused")

    def _look_at_place(self, each: Change, lane: str) -> None:
        """I-28: a job is given its place when it can first run, and keeps it."""
        is_given = each.place is not None and each.old_place is None
        if is_given and (each.run_at > each.at + CLOCK_SLACK_MS or each.status != "pending"):
            self._say("I-28", f"job {each.seq} was given a place before it could run")
        if each.old_place is not None and each.place not in (None, each.old_place):
            self._say("I-28", f"job {each.seq} lost its place: {each.old_place} to {each.place}")
        self._places[lane].pop(each.seq, None)
        if each.place is not None:
            self._places[lane][each.seq] = each.place

    def _look_at_head(self, each: Change, lane: str) -> None:
        """I-26: a lane is held by one job, and no other runs in it."""
        heads = self._heads[lane]
        if each.status in ("completed", "cancelled") and each.head:
            self._say("I-27", f"the ended job {each.seq} holds its lane")
        heads.discard(each.seq)
        if each.head:
            heads.add(each.seq)
            if each.status in HALTING and not (each.old_head and not each.is_move):
                self._reached["lane halted"] += 1
        if len(heads) > 1:
            self._say("I-26", f"lane {lane} is held by {sorted(heads)}")
        if each.status == "running" and not each.head:
            self._say("I-26", f"job {each.seq} runs, and lane {lane} is not its own")
