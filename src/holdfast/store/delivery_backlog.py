"""Deliveries for receivers in trouble: put off before they are claimed, so that those behind them have their turn.

To claim one and give it back would be an attempt in its history, two events and three writes, for each of them, again
and again. To put one off is one write, which nobody sees but in `run_at`. Only the heads of their lanes are ready, so
what is put off keeps its place: the deliveries of one job to one receiver stay in their order.

They come back in groups, at a few moments and not each at its own: to look at 5,000 one by one, over half a minute, was
half of the time of a processor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.database.tx import Tx
from holdfast.models import DELIVER, INTERNAL_QUEUE
from holdfast.webhooks.receivers import ReceiverTrouble, troubles_of

PAGE, MOST_PAGES = 200, 5
GROUPS, LEAST_STEP_MS = 10, 1_000
"""At how many moments what is put off together comes back, and how far apart these are at least."""
SPREAD = 0.6180339887498949
"""By multiples of it, as far as they go beyond a whole, numbers that follow one another are spread evenly."""

# a scalar subquery stays a probe, whatever the planner believes of the length of the page
NEXT = f"""
    SELECT ready.seq, (SELECT about.receiver FROM holdfast_delivery AS about WHERE about.job = ready.seq),
        $now - ready.created_at
    FROM holdfast_job AS ready
    WHERE ready.queue = '{INTERNAL_QUEUE}' AND ready.task = '{DELIVER}' AND ready.gate = 'ready'
    ORDER BY ready.sort_key, ready.seq LIMIT :most"""
PUT_OFF = """
    UPDATE holdfast_job
    SET gate = 'arrival', run_at = ($now + given.delay) / given.step * given.step + given.step,
        wake_at = ($now + given.delay) / given.step * given.step + given.step
    FROM $list(given: seq bigint, delay bigint, step bigint)
    WHERE holdfast_job.seq = given.seq AND coalesce(holdfast_job.gate, '') = 'ready' AND holdfast_job.seq $free(seqs)"""


async def put_off(tx: Tx, troubles: Sequence[ReceiverTrouble]) -> list[tuple[int, str]]:
    """Put off the next deliveries for receivers in *troubles*, beyond their turns; give them with their receivers.

    It goes on until the next page holds none of them, for some pages at most.
    """
    by_key = {each.key: each for each in troubles}
    turns = {each.key: each.turns for each in troubles}
    kept, gone = set[int](), list[tuple[int, str]]()
    for _ in range(MOST_PAGES):
        page = await tx.fetch_all(NEXT, most=PAGE)
        moving: list[tuple[int, int, int]] = []
        for seq, receiver, age_ms in page:
            if receiver is None or seq in kept:
                continue  # a release that named no receivers has made it
            if (trouble := _held_by(by_key, turns, receiver, age_ms)) is None:
                kept.add(seq)
                continue
            moving.append((seq, *_when(trouble, seq)))
            gone.append((seq, receiver))
        if moving:
            await tx.execute(PUT_OFF, given=moving, seqs=[seq for seq, *_ in moving])
        if not moving or len(page) < PAGE:
            break
    return gone


def _held_by(
    troubles: Mapping[str, ReceiverTrouble], turns: dict[str, int], receiver: str, age_ms: int
) -> ReceiverTrouble | None:
    """Say by what trouble a delivery is put off; None if it is not, and takes a turn."""
    found = troubles_of(receiver, troubles)
    if any(each.give_up_ms is not None and age_ms >= each.give_up_ms for each in found):
        return None
    without = [each for each in found if turns[each.key] <= 0]
    if not without:
        for each in found:
            turns[each.key] -= 1
        return None
    return max(without, key=lambda each: (each.delay_ms, each.spread_ms))


def _when(trouble: ReceiverTrouble, seq: int) -> tuple[int, int]:
    """Say by how many milliseconds delivery *seq* is put off, before it waits for the end of a step of so many."""
    step = max(LEAST_STEP_MS, trouble.spread_ms // GROUPS)
    return trouble.delay_ms + round(max(0, trouble.spread_ms - step) * (seq * SPREAD % 1.0)), step
