"""Every move has its event in the same commit, every event its move, and the move is legal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tests.law.changes import Change, show
from tests.law.moves import LEGAL, MOVES
from tests.law.rules import LawRules


class Told(NamedTuple):
    """An event of a job, by its name in the law, and the transaction in which it was appended."""

    transaction: int
    job: int
    version: int
    name: str


class EventRules(LawRules):
    """The writes of some transactions beside their events."""

    def match(self, changes: Sequence[tuple[int, Change]], events: Iterable[Told]) -> None:
        """I-12: each move has its event and each event its move, in one commit. I-08: the move is legal."""
        told = self._by_version(events)
        for transaction, each in changes:
            is_new = each.version != each.old_version or each.is_move
            event = told.pop((each.seq, each.version), None) if is_new else None
            if not each.history:
                self._look_at_silent(each, event)
            elif event is None:
                self._look_at_untold(each)
            else:
                self._look_at_told(transaction, each, event)
        for event in told.values():
            self._say(
                "I-12", f"{event.name} tells of version {event.version} of job {event.job}, and there was no such move"
            )

    def _by_version(self, events: Iterable[Told]) -> dict[tuple[int, int], Told]:
        told: dict[tuple[int, int], Told] = {}
        for event in events:
            if event.name in LEGAL:
                if (event.job, event.version) in told:
                    self._say("I-12", f"two events tell of version {event.version} of job {event.job}")
                told[event.job, event.version] = event
        return told

    def _look_at_silent(self, each: Change, event: Told | None) -> None:
        """I-08: a job that keeps no history makes legal moves only, too, and no event tells of them."""
        self._reached["moved without history"] += 1
        if event is not None:
            self._say("I-12", f"{event.name} tells of job {each.seq}, which keeps no history")
        self._look_at_pair(each)

    def _look_at_untold(self, each: Change) -> None:
        if each.is_move:
            self._say("I-12", f"no event in the commit of {show(each)}")
            self._look_at_pair(each)

    def _look_at_pair(self, each: Change) -> None:
        if each.is_move and (each.old_status, each.status) not in MOVES:
            self._say("I-08", f"there is no such move: {show(each)}")

    def _look_at_told(self, transaction: int, each: Change, event: Told) -> None:
        if (each.old_status, each.status) not in LEGAL[event.name]:
            self._say("I-08", f"{event.name} tells of {show(each)}")
        if event.transaction != transaction:
            self._say("I-12", f"{event.name} of {show(each)} was not in its transaction")
