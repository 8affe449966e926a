"""Those who failed by a chain, and the unique keys that are taken for them.

Who fails by a blocker closes its chain, and its key is free. When the blocker is tried again, they go back to blocked:
whoever opens it takes their keys before that, and admission puts them back. A key that comes to nothing, because the
blocker closes again before they were put back, or because its own chain has closed meanwhile, is *let go*.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from holdfast.database.tx import Tx
from holdfast.store import unique

Key = tuple[str, str]
"""What is unique: a task and a key."""


class Failed(NamedTuple):
    """A chain that failed by another one, by its job *seq*, and the key that it held while it was open."""

    seq: int
    id: UUID
    key: Key | None


# coalesce: plainly written it goes by the index of what has failed
FAILED_BY = """
    SELECT DISTINCT link.chain_id, link.job, first.id, first.task, first.unique_key
    FROM holdfast_blocker AS link JOIN holdfast_job AS waiting ON waiting.seq $is(link.job)
    JOIN holdfast_job AS first ON first.id $is(waiting.chain_id)
    WHERE link.chain_id $any(ids: text) AND link.state = 'failed' AND coalesce(waiting.status, '') = 'failed'
    ORDER BY link.job"""


async def failed_by(tx: Tx, chain_ids: Iterable[str]) -> dict[str, list[Failed]]:
    """Name the chains that failed by *chain_ids*, by one of these, and so on; each under those it failed by."""
    found: dict[str, list[Failed]] = defaultdict(list)
    newest = sorted(chain_ids)
    seen = set(newest)
    while newest:
        rows = await tx.fetch_all(FAILED_BY, ids=newest)
        for chain_id, seq, id_, task, key in rows:
            found[chain_id].append(Failed(seq, UUID(id_), None if key is None else (task, key)))
        newest = sorted({id_ for _, _, id_, _, _ in rows} - seen)
        seen.update(newest)
    return found


def keys_of(failed: Mapping[str, Sequence[Failed]]) -> list[Key]:
    """Name the keys of those who failed, each once."""
    return list({each.key: None for some in failed.values() for each in some if each.key is not None})


def keys_put_back(
    chain_ids: Iterable[str], failed: Mapping[str, Sequence[Failed]], held: Mapping[Key, UUID]
) -> dict[Key, UUID]:
    """Say which keys belong to those of *failed* that go back to blocked when *chain_ids* open again.

    A chain stays failed if another has its key, as *held* says, or comes first; so does who failed by that one only.
    """
    owners = dict(held)
    opening = list(chain_ids)
    seen = set(opening)
    theirs: dict[Key, UUID] = {}
    for chain_id in opening:
        for each in failed.get(chain_id, ()):
            if str(each.id) in seen or (each.key is not None and owners.setdefault(each.key, each.id) != each.id):
                continue
            seen.add(str(each.id))
            opening.append(str(each.id))
            if each.key is not None:
                theirs[each.key] = each.id
    return theirs


# who failed by several chains is still wanted back by one that is open, or has completed, and has not put it back yet
WANTED_BACK = """
    SELECT waiting.chain_id, link.chain_id
    FROM holdfast_blocker AS link JOIN holdfast_job AS waiting ON waiting.seq $is(link.job)
    JOIN holdfast_job AS blocker ON blocker.id $is(link.chain_id)
    WHERE link.job $any(seqs: bigint) AND link.state = 'failed'
        AND coalesce(blocker.closed_as, 'completed') = 'completed'"""


async def free_keys(tx: Tx, chain_ids: Sequence[str]) -> bool:
    """Free the keys of those who failed by *chain_ids*, which do not open again; tell whether somebody has one locked.

    Usually they hold none: these were taken by whoever opened the chains again, and the dependents not put back since.
    """
    failed = await failed_by(tx, chain_ids) if chain_ids else {}
    holders = await unique.holders(tx, keys_of(failed))
    everybody = {str(each.id): each for some in failed.values() for each in some}
    holding = {id_ for id_, each in everybody.items() if each.key is not None and holders.get(each.key) == each.id}
    if not holding:
        return False
    rows = await tx.fetch_all(WANTED_BACK, seqs=sorted({each.seq for each in everybody.values()}))
    wanted = {id_ for id_, blocker in rows if blocker not in chain_ids}
    return await _free(tx, sorted(holding - _with_all_behind(wanted, failed)))


def _with_all_behind(chain_ids: Iterable[str], failed: Mapping[str, Sequence[Failed]]) -> set[str]:
    seen: set[str] = set()
    newest = set(chain_ids)
    while newest := newest - seen:
        seen |= newest
        newest = {str(each.id) for chain_id in newest for each in failed.get(chain_id, ())}
    return seen


# only under the lock of its first row it is known that a chain is closed, and stays so
LOCK_FIRSTS = """
    SELECT id, task, unique_key, closed_as FROM holdfast_job
    WHERE id $any(ids: text) ORDER BY seq $skip_locked"""


async def _free(tx: Tx, chain_ids: Sequence[str]) -> bool:
    """Free the keys of those chains that are closed; tell whether somebody has one of them locked."""
    rows = await tx.fetch_all(LOCK_FIRSTS, ids=chain_ids) if chain_ids else []
    closed = [(task, key, UUID(id_)) for id_, task, key, closed_as in rows if key is not None and closed_as is not None]
    await unique.free(tx, closed, scopes=("open",))
    return len(rows) < len(chain_ids)
