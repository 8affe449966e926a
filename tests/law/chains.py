"""How jobs follow one another: the steps of a chain, who waits for which chain, and one open chain for a key."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from tests.law.changes import BY_HAND, Change, is_by_hand, show
from tests.law.moves import TERMINAL
from tests.law.rules import LawRules, Say


class Link(NamedTuple):
    """One job of a chain, as it stands."""

    index: int
    status: str
    closed_as: str | None
    stale_at: int | None


class ChainRules(LawRules):
    """Each chain at each write: how it was closed, what waits for it, and what continues it.

    The driver gives the *blockers* of a job, None if it does not know them, and the attempt that a step says that it
    comes *after*. A webhook delivery is *internal*: it has an output of its own and goes on with nothing.
    """

    def __init__(
        self,
        say: Say,
        reached: Counter[str],
        *,
        blockers_of: Callable[[int], Sequence[str] | None],
        after_of: Callable[[Change], int],
        is_internal: Callable[[Change], bool],
    ) -> None:
        super().__init__(say, reached)
        self._blockers_of = blockers_of
        self._after_of = after_of
        self._is_internal = is_internal
        self._closed: dict[str, str | None] = {}
        self._unhappy: set[str] = set()
        """The chains that were closed otherwise than by completing, though they may be open again, or are deleted."""
        self._keys: dict[tuple[str, str], set[str]] = defaultdict(set)

    def take(self, each: Change) -> None:
        """Look at a job as a part of its chain."""
        if each.old_status == "blocked" and each.status in ("pending", "failed"):
            self._look_at_blockers(each, self._blockers_of(each.seq))
        self._look_at_key(each)
        if each.chain_index == 0:
            self._closed[each.id] = each.closed_as
            if each.closed_as in ("failed", "cancelled"):
                self._unhappy.add(each.id)

    def forget(self, id_: str) -> None:
        """Have a chain that is deleted let go of its key; who waits for it takes it for cancelled."""
        self._unhappy.add(id_)
        for holders in self._keys.values():
            holders.discard(id_)

    def _look_at_blockers(self, each: Change, blockers: Sequence[str] | None) -> None:
        """I-38, I-39: a job leaves `blocked` for a reason."""
        stands = {chain: self._closed.get(chain) for chain in blockers or ()}
        if each.status == "failed":
            self._reached["failed by a blocker"] += 1
            if blockers is not None and not self._unhappy & stands.keys():
                self._say("I-39", f"job {each.seq} failed by blockers that ended {stands}")
            return
        self._reached["unblocked"] += 1
        ignored = self._unhappy if each.on_blocker_failure == "ignore" else set[str]()
        if any(end != "completed" and chain not in ignored for chain, end in stands.items()):
            self._say("I-38", f"job {each.seq} was let go by blockers that stand {stands}")

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

    def look_at_steps(self, changes: Iterable[tuple[int, Change]]) -> None:
        """I-36: who completes is continued in that very commit, once, or never."""
        ends: dict[tuple[str, int], tuple[int, Change]] = {}
        steps: dict[tuple[str, int], tuple[int, Change]] = {}
        for transaction, each in changes:
            key = each.chain_id, each.chain_index - 1
            if each.completes:
                ends[each.chain_id, each.chain_index] = transaction, each
            if each.old_status is None and each.chain_index > 0:
                if key in steps:
                    self._say("I-36", f"two jobs have one place in a chain: {show(steps[key][1])} and {show(each)}")
                steps[key] = transaction, each
        for key, (transaction, step) in steps.items():
            if key not in ends or ends[key][0] != transaction:
                self._say("I-36", f"{show(step)} continues a job that was not completed in the same commit")
            else:
                self._look_at_step(ends[key][1], step)
        for key, (_, end) in ends.items():
            self._reached["completed outside"] += is_by_hand(end)
            if (end.output is None) != (key in steps) and not self._is_internal(end):
                self._say("I-36", f"{show(end)} has an output and is continued, or neither")

    def _look_at_step(self, end: Change, step: Change) -> None:
        """I-13: a job is continued by the attempt that holds it. I-28: in its place, if it has one."""
        self._reached["continued"] += 1
        after = self._after_of(step)
        if after != (BY_HAND if is_by_hand(end) else end.attempt):
            self._say("I-13", f"attempt {after} of job {end.seq} continued it while {end.attempt} held it")
        may_run = step.lane is not None and step.status == "pending" and step.run_at <= step.at
        if may_run and end.lane == step.lane and end.old_place is not None:
            self._reached["continued in its place"] += 1
            if step.place != end.old_place:
                self._say("I-28", f"job {step.seq} continues {end.seq} at place {step.place}, not {end.old_place}")

    def look_at_chain(self, chain: str, links: Sequence[Link]) -> None:
        """I-36: the jobs of a chain are a line, all but the last have completed; the first says how the last ended."""
        (first, *others) = links
        end = links[-1].status if links[-1].status in TERMINAL else None
        is_line = [link.index for link in links] == list(range(len(links)))
        has_open_step = any(link.status != "completed" for link in links[:-1])
        if not is_line or has_open_step or first.closed_as != end or any(link.closed_as for link in others):
            self._say("I-36", f"chain {chain} consists of {list(links)}")
        if end is None and any(link.stale_at is not None for link in links):
            self._say("I-49", f"chain {chain} is open, and marked stale: {list(links)}")
