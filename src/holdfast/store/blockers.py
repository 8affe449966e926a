"""Blockers: which chains a job waits for, in the order in which they were given.

A start only writes the links down. Whether a blocker is still open is counted by admission, after the commit and
under the lock of the blocker's row: a count made here would be out of date before it was committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from holdfast.errors import BlockerCycle, ChainNotFound
from holdfast.models import Start
from holdfast.store.tx import Tx

CHAINS = """SELECT id, chain_id FROM holdfast_job WHERE id $any(ids: text)"""


async def resolve(tx: Tx, starts: Sequence[Start]) -> dict[UUID, UUID]:
    """Find the chain of every blocker of *starts*, each given by the id of any of its jobs."""
    wanted = {blocker for each in starts for blocker in each.blockers}
    if not wanted:
        return {}
    _refuse_own(starts)
    rows = await tx.fetch_all(CHAINS, ids=[str(each) for each in wanted])
    found = {UUID(id_): UUID(chain_id) for id_, chain_id in rows}
    if missing := wanted - found.keys():
        raise ChainNotFound(min(missing))
    return found


def _refuse_own(starts: Iterable[Start]) -> None:
    for each in starts:
        if each.id in each.blockers:
            raise BlockerCycle(each.id)


LINK = """
    INSERT INTO holdfast_blocker (job, position, chain_id)
    SELECT given.job, given.position, given.chain_id
    FROM $list(given: job bigint, position bigint, chain_id text)
    WHERE true"""


async def link(tx: Tx, waiting: Iterable[tuple[int, Start]], chains: Mapping[UUID, UUID]) -> None:
    """Write down what each job, given by its seq, waits for."""
    given = [
        (seq, position, str(chains[blocker]))
        for seq, start in waiting
        for position, blocker in enumerate(start.blockers)
    ]
    if given:
        await tx.execute(LINK, given=given)
