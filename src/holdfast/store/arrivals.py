"""Leaving work to admission: a row that is marked as an arrival is taken up in the next step for its queue."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.database.tx import Tx

AGAIN_MS = 25
"""When to look again at what somebody had locked."""

LEAVE = """
    UPDATE holdfast_job SET gate = 'arrival', wake_at = $now + :milliseconds
    WHERE seq $any(seqs: bigint)"""


async def leave(tx: Tx, seqs: Sequence[int], milliseconds: int = 0) -> None:
    """Have admission look at rows that we have locked."""
    if seqs:
        await tx.execute(LEAVE, seqs=seqs, milliseconds=milliseconds)
