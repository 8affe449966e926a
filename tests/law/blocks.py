"""What a handler writes in a block is there exactly if that block has committed under its token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from tests.law.changes import Change, is_by_hand, show
from tests.law.rules import LawRules


class Written(NamedTuple):
    """A row that a block has written: by which attempt, and `prepared`, `done` or, without a worker, `outside`."""

    transaction: int
    job: str
    attempt: int
    what: str


class BlockRules(LawRules):
    """The rows that blocks have written, beside the completions of their jobs."""

    def look_at_prepared(self, written: Written, stands: tuple[str, int] | None) -> None:
        """I-13: also the first block commits only under its token; *stands* is the job's status and attempt."""
        self._reached["prepared"] += 1
        if stands != ("running", written.attempt):
            self._say("I-13", f"attempt {written.attempt} of job {written.job} has prepared, and it is {stands}")

    def look_at_writes(
        self,
        writes: Iterable[Written],
        completions: Mapping[str, tuple[int, Change]],
        completes_in_block: Callable[[Change], bool],
    ) -> None:
        """I-13, I-37, I-66: what a block writes is there exactly if that block has completed its job; once."""
        done: Counter[str] = Counter()
        for each in writes:
            if each.what == "prepared":
                continue
            done[each.job] += 1
            transaction, end = completions.get(each.job, (0, None))
            if (
                end is None
                or (transaction, end.attempt) != (each.transaction, each.attempt)
                or is_by_hand(end) != (each.what == "outside")
            ):
                came = None if end is None else show(end)
                self._say("I-66", f"attempt {each.attempt} of job {each.job} wrote {each.what}, and this came: {came}")
        for job, (_, end) in completions.items():
            if done[job] > 1:
                self._say("I-66", f"the writes of job {end.seq} are there {done[job]} times")
            if completes_in_block(end) and not done[job]:
                self._say("I-66", f"the block of job {end.seq} has completed it, and its writes are gone")
