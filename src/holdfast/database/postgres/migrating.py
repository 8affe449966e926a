"""Takes a step of the schema beside programs that work.

To change a table, a step waits for every transaction that uses it, and everybody who comes later waits behind the step.
So it waits for a moment only, gives way, and tries again: a transaction that stays open stops the step and nobody else.
"""

from __future__ import annotations

import logging

import psycopg

from holdfast.database import migrations
from holdfast.database.postgres.address import MIGRATION_SECONDS, Address
from holdfast.database.postgres.colours import Side
from holdfast.database.postgres.deadline import Deadline
from holdfast.database.postgres.errors import Trouble, diagnose
from holdfast.database.postgres.execution import Execution
from holdfast.database.tx import Row, Tx, bound
from holdfast.errors import StoreError
from holdfast.logging import say

SHORTEST_WAY, LONGEST_WAY = 2.0, 10.0
"""How many seconds others have to get through between two tries; more each time."""
LOOK_SECONDS = 5.0

# `granted`: who waits behind us is not who we wait for; what others' sessions do is shown to some roles only
OLDEST_USER = """
    SELECT pg_locks.pid, CAST(extract(epoch FROM clock_timestamp() - xact_start) AS bigint)
    FROM pg_catalog.pg_locks JOIN pg_catalog.pg_stat_activity ON pg_stat_activity.pid = pg_locks.pid
    WHERE granted AND pg_locks.pid <> pg_backend_pid()
        AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
        AND relation IN (SELECT pg_class.oid FROM pg_catalog.pg_class
            JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace
            WHERE nspname = $schema AND starts_with(relname, 'holdfast_'))
    ORDER BY xact_start NULLS LAST LIMIT 1"""

logger = logging.getLogger(__name__)


class TakingStep(Execution[str | None]):
    """Takes the next step, if there is one, and names it; gives way to others while it cannot have its locks."""

    def __init__(self, side: Side, address: Address, *, anew: bool = True) -> None:
        deadline = Deadline(side.monotonic, MIGRATION_SECONDS)
        step = bound(migrations.step, "postgres", anew=anew)
        super().__init__(side, step, address.migration, deadline, is_repeatable=True)
        self._look = address.view
        self._way = SHORTEST_WAY

    async def _pause_or_raise(self, error: psycopg.Error) -> None:
        if diagnose(error) is Trouble.LOCKED:
            await self._tell()
        await super()._pause_or_raise(error)

    def _may_repeat(self, trouble: Trouble) -> bool:
        return trouble is Trouble.LOCKED or super()._may_repeat(trouble)

    def _pause(self, trouble: Trouble) -> float:
        if trouble is not Trouble.LOCKED:
            return super()._pause(trouble)
        way, self._way = self._way, min(LONGEST_WAY, self._way * 1.5)
        return way * (0.5 + 0.5 * self._side.chance.random())

    async def _tell(self) -> None:
        """Say whose transaction is in the way; it may have ended by now, and to know it is worth no error."""
        try:
            found = await Execution(
                self._side, oldest_user, self._look, Deadline(self._side.monotonic, LOOK_SECONDS)
            ).run()
        except StoreError:
            return
        for pid, seconds in found:
            say(logger, "migration_waits", pid=pid, age="an unknown time" if seconds is None else f"{seconds} s")


async def oldest_user(tx: Tx) -> list[Row]:
    """Find the process of the server whose transaction has used our tables for longest, and for how many seconds."""
    return await tx.fetch_all(OLDEST_USER)
