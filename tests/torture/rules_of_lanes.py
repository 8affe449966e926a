"""Who holds a lane, and whose turn it is."""

from __future__ import annotations

from collections import defaultdict

from tests.simulation.checker import Change, show
from tests.torture.changes import is_claim
from tests.torture.history import Line
from tests.torture.rules import Findings, Known, Rules


class LaneRules(Rules):
    """Each lane at each line: its head, the places in it, and whether it is paused."""

    def __init__(self, known: Known, findings: Findings) -> None:
        super().__init__(known, findings)
        self._heads: dict[str, set[str]] = defaultdict(set)
        self._places: dict[str, dict[str, int]] = defaultdict(dict)
        self._paused: set[str] = set()

    def take_lane(self, line: Line) -> None:
        """Remember whether a lane is paused."""
        if line.new is not None and line.new["paused_at"] is not None:
            self._paused.add(line.row["key"])
        else:
            self._paused.discard(line.row["key"])

    def take_delete(self, line: Line) -> None:
        """Have a job that is deleted leave its lane."""
        assert line.old is not None
        lane, id_ = line.old["lane"], self._known.ids[line.old["seq"]]
        if lane is not None:
            self._places[lane].pop(id_, None)
            self._heads[lane].discard(id_)

    def take_job(self, each: Change) -> None:
        """Look at what a job has of its lane."""
        if each.lane is None:
            return
        if is_claim(each):
            self._look_at_turn(each, each.lane)
        self._look_at_place(each, each.lane)
        self._look_at_head(each, each.lane)

    def _look_at_turn(self, each: Change, lane: str) -> None:
        """I-28: of those that have a place in the lane the first one runs. I-27: but none while the lane is paused."""
        first = min(self._places[lane].values(), default=None)
        if each.place is None or (first is not None and first < each.place):
            self._say("I-28", f"{show(each)} of lane {lane} at place {each.place}, before {first}")
        if lane in self._paused:
            self._say("I-27", f"{show(each)}, although its lane {lane} is paused")

    def _look_at_place(self, each: Change, lane: str) -> None:
        if each.old_place is not None and each.place not in (None, each.old_place):
            self._say("I-28", f"job {each.seq} lost its place: {each.old_place} to {each.place}")
        self._places[lane].pop(each.id, None)
        if each.place is not None:
            self._places[lane][each.id] = each.place

    def _look_at_head(self, each: Change, lane: str) -> None:
        """I-26: a lane is held by one job, and no other runs in it."""
        heads = self._heads[lane]
        if each.status in ("completed", "cancelled") and each.head:
            self._say("I-27", f"the ended job {each.seq} holds its lane")
        heads.discard(each.id)
        if each.head:
            heads.add(each.id)
            if each.status in ("paused", "failed") and not (each.old_head and each.old_status == each.status):
                self._reached["lane halted"] += 1
        if len(heads) > 1:
            self._say("I-26", f"lane {lane} is held by {sorted(heads)}")
        if each.status == "running" and not each.head:
            self._say("I-26", f"job {each.seq} runs, and lane {lane} is not its own")
