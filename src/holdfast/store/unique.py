"""Unique keys: of all chains that ask for one key, one holds it, by the primary key of a table.

The rows of a key are its turns 0, 1, …; the highest turn holds the key while its `until` is NULL or still to come. A
start inserts turn 0, or the turn after one whose `until` has passed, and does nothing on conflict: it never updates,
so it locks no row that a closing chain needs. Two rules keep the turns sound whoever is half-way through a commit:
- a row is deleted only if it is turn 0 and has no `until`: then nobody can have gone on to turn 1 from it;
- every other row is *retired* instead (`until` := 0); the next start goes on from it.
Rows whose time has passed are swept by retention, under a lock on the table.

*One order.* To take a key that an open transaction is just taking waits for it, so whoever takes several takes them in
one order, or two would wait for each other. A holder may let go between the statement that meets it and the one that
reads who it is. To take just that key then would be out of order, with higher ones in the hand: so everything is let
go first, by a savepoint, and taken anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from holdfast.database.tx import R, Tx
from holdfast.errors import Busy, HoldfastError
from holdfast.models import Unique

TRIES = 5
SCOPES = ("open", "any")


class WantedKey(NamedTuple):
    """A chain of *task* that wants to hold *unique*."""

    task: str
    unique: Unique
    chain_id: UUID

    @property
    def key(self) -> tuple[str, str]:
        """What is unique: a task and a key."""
        return self.task, self.unique.key

    @property
    def within_ms(self) -> int | None:
        """For how long it is held at most."""
        within = self.unique.within
        seconds = within.total_seconds() if isinstance(within, timedelta) else within
        return None if seconds is None else round(seconds * 1000)


TAKE = """
    INSERT INTO holdfast_unique (task, key, turn, chain_id, scope, until)
    SELECT given.task, given.key,
        coalesce((SELECT CASE WHEN last.until <= $now THEN last.turn + 1 ELSE last.turn END
            FROM holdfast_unique AS last WHERE last.task = given.task AND last.key = given.key
            ORDER BY last.turn DESC LIMIT 1), 0),
        given.chain_id, given.scope, $now + given.within
    FROM $list(given: task text, key text, chain_id text, scope text, within bigint)
    WHERE true
    ORDER BY given.task, given.key  -- whoever takes several keys takes them in one order
    ON CONFLICT DO NOTHING
    RETURNING task, key"""

HOLDERS = """
    SELECT held.task, held.key, held.chain_id
    FROM $list(given: task text, key text)
    JOIN holdfast_unique AS held ON held.task = given.task AND held.key = given.key
    WHERE held.until IS NULL OR held.until > $now
    ORDER BY held.turn  -- if the clock was set back, a former holder's time may not have come: the last row counts"""


async def holders(tx: Tx, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], UUID]:
    """Tell which chains hold those of *keys* (task, key) that are held."""
    rows = await tx.fetch_all(HOLDERS, given=keys) if keys else []
    return {(task, key): UUID(chain_id) for task, key, chain_id in rows}


async def take(tx: Tx, wanted: Sequence[WantedKey]) -> dict[tuple[str, str], UUID]:
    """Take the keys of *wanted*, each a different one; tell for each which chain holds it now."""
    return await retry_in_order(tx, lambda: try_to_take(tx, wanted), is_alone=len(wanted) == 1)


async def try_to_take(tx: Tx, wanted: Sequence[WantedKey]) -> dict[tuple[str, str], UUID] | None:
    """Take keys as `take` does; None if a holder has let go while we looked."""
    given = [(*each.key, str(each.chain_id), each.unique.scope, each.within_ms) for each in wanted]
    taken = {(task, key) for task, key in await tx.fetch_all(TAKE, given=given)}
    taken_by = {each.key: each.chain_id for each in wanted if each.key in taken}
    if len(taken_by) < len(wanted):
        taken_by |= await holders(tx, [each.key for each in wanted if each.key not in taken_by])
    return taken_by if len(taken_by) == len(wanted) else None


SAVE, UNDO, RELEASE = "SAVEPOINT holdfast_keys", "ROLLBACK TO holdfast_keys", "RELEASE holdfast_keys"


async def retry_in_order(tx: Tx, attempt: Callable[[], Coroutine[Any, Any, R | None]], *, is_alone: bool) -> R:
    """Have *attempt* take keys, and again, from the beginning, as long as it gives None.

    One that takes a single key (*is_alone*) has none in the hand when it begins again. On SQLite nobody can let go
    meanwhile.
    """
    if is_alone or tx.database == "sqlite":
        return await _tried(attempt, undo=None)
    await tx.execute(SAVE)
    try:
        answer = await _tried(attempt, undo=lambda: tx.execute(UNDO))
    except HoldfastError as error:
        if error.__cause__ is None:  # else it is the database that refuses, and it does not go on
            await tx.execute(RELEASE)
        raise
    await tx.execute(RELEASE)
    return answer


async def _tried(
    attempt: Callable[[], Coroutine[Any, Any, R | None]], undo: Callable[[], Coroutine[Any, Any, None]] | None
) -> R:
    for _ in range(TRIES):
        if (answer := await attempt()) is not None:
            return answer
        if undo is not None:
            await undo()
    raise Busy("chains of this id or key come and go too fast; try again")


HELD_BY = """
    SELECT held.task, held.key, held.chain_id, held.scope, held.until - $now
    FROM $list(given: task text, key text, chain_id text)
    JOIN holdfast_unique AS held
        ON held.task = given.task AND held.key = given.key AND held.chain_id = given.chain_id
    WHERE held.until IS NULL OR held.until > $now"""


async def give_up(tx: Tx, keys: Sequence[tuple[str, str, UUID]]) -> list[WantedKey]:
    """Free those keys (task, key, chain) that the chains hold, so that a start in this transaction can take them over.

    Answer what was held, as what is wanted again, should the start come to nothing. Until we commit, nobody else
    gets a key that was given up.
    """
    given = [(task, key, str(chain_id)) for task, key, chain_id in keys]
    rows = await tx.fetch_all(HELD_BY, given=given) if given else []
    held = [
        WantedKey(task, Unique(key, scope, None if left_ms is None else left_ms / 1000), UUID(chain_id))
        for task, key, chain_id, scope, left_ms in rows
    ]
    await free(tx, [(each.task, each.unique.key, each.chain_id) for each in held])
    return held


# a key is taken before its chain is inserted, so one whose chain is not there is ours
TAKE_BACK = """
    DELETE FROM holdfast_unique
    WHERE (task, key, chain_id) IN (
            SELECT given.task, given.key, given.chain_id FROM $list(given: task text, key text, chain_id text))
        AND (SELECT 1 FROM holdfast_job AS chain
            WHERE chain.id = holdfast_unique.chain_id AND chain.task = holdfast_unique.task) IS NULL"""


async def take_back(tx: Tx, taken: Sequence[tuple[str, str, UUID]]) -> None:
    """Take back keys (task, key, chain) that this transaction has taken for chains which it does not make after all.

    Nobody else has seen these rows, so they are no turns that others may have gone on from.
    """
    if taken:
        await tx.execute(TAKE_BACK, given=[(task, key, str(chain_id)) for task, key, chain_id in taken])


# subselects are not locked: just the rows of the keys are
LOCK = """
    SELECT chain_id FROM holdfast_unique
    WHERE (task, key, chain_id) IN (
        SELECT given.task, given.key, given.chain_id FROM $list(given: task text, key text, chain_id text))
    ORDER BY task, key, turn $skip_locked"""


async def held_elsewhere(tx: Tx, keys: Sequence[tuple[str, str, UUID]]) -> set[str]:
    """Lock the rows of *keys* (task, key, chain); name the chains of which somebody else has one locked."""
    if not keys:
        return set()
    given = [(task, key, str(chain_id)) for task, key, chain_id in keys]
    mine = Counter(chain_id for (chain_id,) in await tx.fetch_all(LOCK, given=given))
    there = Counter(chain_id for _, _, chain_id, _, _ in await tx.fetch_all(HELD_BY, given=given))
    return {chain_id for chain_id, rows in there.items() if mine[chain_id] < rows}


DELETE = """
    DELETE FROM holdfast_unique
    WHERE turn = 0 AND until IS NULL AND scope $any(scopes: text) AND (task, key, chain_id) IN (
        SELECT given.task, given.key, given.chain_id FROM $list(given: task text, key text, chain_id text))"""

# 0, not the time: a clock that is set back must not give a key back to who let it go
RETIRE = """
    UPDATE holdfast_unique SET until = 0
    WHERE (until IS NULL OR until > 0) AND scope $any(scopes: text) AND (task, key, chain_id) IN (
        SELECT given.task, given.key, given.chain_id FROM $list(given: task text, key text, chain_id text))"""


async def free(tx: Tx, held: Sequence[tuple[str, str, UUID]], scopes: Sequence[str] = SCOPES) -> None:
    """Let go of the keys (task, key) that these chains hold, in *scopes*; what others hold by now is left alone."""
    if not held:
        return
    given = [(task, key, str(chain_id)) for task, key, chain_id in held]
    await tx.execute(DELETE, given=given, scopes=list(scopes))
    await tx.execute(RETIRE, given=given, scopes=list(scopes))


class Turn(NamedTuple):
    """One row, by its key."""

    task: str = ""
    key: str = ""
    number: int = -1


WALK = """
    SELECT task, key, turn, chain_id, coalesce(until <= $now, false),
        (SELECT 1 FROM holdfast_job AS chain WHERE chain.id = holdfast_unique.chain_id)
    FROM holdfast_unique
    WHERE (task, key, turn) > (:task, :key, :turn)
    ORDER BY task, key, turn LIMIT :most"""
MOST_WALKED = 500


class Walked(NamedTuple):
    """What was met on a walk over some rows: keys (task, key, chain) that nobody frees, and rows that are over."""

    lost: list[tuple[str, str, UUID]]
    over: list[Turn]
    last: Turn | None
    """How far it came; None at the end of the table."""


async def walk(tx: Tx, after: Turn) -> Walked:
    """Look at some rows behind *after*.

    A key and its chain come in one commit, so one that is seen without its chain has lost it, by somebody's own SQL.
    Nobody will ever close that chain, and whoever asks for the key would be told for ever to try again.
    """
    rows = await tx.fetch_all(WALK, task=after.task, key=after.key, turn=after.number, most=MOST_WALKED)
    lost = [(task, key, UUID(chain_id)) for task, key, _, chain_id, over, there in rows if there is None and not over]
    over = [Turn(task, key, turn) for task, key, turn, _, over, _ in rows if over]
    return Walked(lost, over, Turn(*rows[-1][:3]) if len(rows) == MOST_WALKED else None)


# a start that goes on from a row is seen only once it has committed: so nobody may be half-way through one. It is not
# waited for, or all other starts would stand behind us
LOCK_TABLE = ("SET LOCAL lock_timeout = 50", "LOCK TABLE holdfast_unique IN SHARE ROW EXCLUSIVE MODE")
# while an earlier turn has time left, which is so if the clock was set back, the later one says that it has not
SWEEP = """
    DELETE FROM holdfast_unique
    WHERE until <= $now
        AND (task, key, turn) IN (SELECT given.task, given.key, given.turn
            FROM $list(given: task text, key text, turn bigint))
        AND (SELECT 1 FROM holdfast_unique AS earlier
            WHERE earlier.task = holdfast_unique.task AND earlier.key = holdfast_unique.key
                AND earlier.turn < holdfast_unique.turn AND (earlier.until IS NULL OR earlier.until > $now)
            LIMIT 1) IS NULL
    RETURNING task"""


async def sweep(tx: Tx, over: Sequence[Turn]) -> int:
    """Delete rows whose time has passed; answer how many. Raises `Busy` while somebody is just writing keys."""
    if not over:
        return 0
    if tx.database == "postgres":
        for statement in LOCK_TABLE:
            await tx.execute(statement)
    return len(await tx.fetch_all(SWEEP, given=[(each.task, each.key, each.number) for each in over]))
