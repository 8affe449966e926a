"""Makes webhook deliveries of the events in the outbox: every worker that posts does, in bounded steps. No leader.

The looks that a worker takes anyway tell whether there is something (`polls.WAITING_WORK`): an idle outbox costs no
statement. While there is, the next look comes after each commit of the worker's own ends, which may have added to it.
But who is busy with handlers, and always has a delivery to claim, takes no looks: one receiver's backlog would keep the
events for all others in here. So these commits look by themselves where nobody else has for a moment.

Two workers may take up the same rows. If the second one finds them gone, it rests for a moment: to encode everything
twice helps nobody. If it finds them locked, it goes on with other jobs, and comes back to these after some seconds: who
has locked them may be at work, or stand still in its transaction until the server ends that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial

from holdfast.database.tx import Store
from holdfast.errors import Unreadable
from holdfast.logging import level_beside, reason_of, say
from holdfast.runtime import Runtime
from holdfast.store import outbox
from holdfast.store.outbox import OutboxBatch, OutboxRow
from holdfast.unreadable import tell

LOOK_SECONDS = 1.0
"""For how long nobody else has looked before an end that was written down does; a busy worker looks more often."""
REST_SECONDS = 1.0
"""How long we leave the outbox to somebody else at most."""
HELD_SECONDS = 2.0
"""How long we leave a job to who has its rows locked; it also bounds how many jobs we keep in mind."""
PASSED_SECONDS = 60.0
"""How long we pass over a job with a row that this code cannot read, before we try it again."""
TROUBLE_SECONDS = 5.0

logger = logging.getLogger(__name__)


class OutboxMaker:
    """Makes deliveries when it is woken, until the outbox is empty; *on_made* is called after steps that made some."""

    def __init__(self, store: Store, runtime: Runtime, on_made: Callable[[], None]) -> None:
        self._store = store
        self._runtime = runtime
        self._on_made = on_made
        self._woken = asyncio.Event()
        self._woken.set()  # what was left by others is looked for at the start
        self._is_active = self._has_failed = False
        self._looked_at = runtime.monotonic()
        self._passed: dict[int, float] = {}
        """Jobs with a row that this code cannot read, and until when: all theirs are left to another release, for the
        sake of order, as long as that row is there."""
        self._held: dict[int, float] = {}
        """Jobs with a row that another worker has locked, and until when we leave them to it."""

    def note_look(self, *, has_events: bool) -> None:
        """Take note that somebody has looked whether events are in the outbox."""
        self._looked_at = self._runtime.monotonic()
        if has_events:
            self._woken.set()

    def has_settled(self) -> None:
        """Take note that ends were written down; where some were wanted a moment ago, these may be, too."""
        if self._is_active or self._runtime.monotonic() - self._looked_at >= LOOK_SECONDS:
            self._woken.set()

    async def run(self) -> None:
        """Make deliveries until cancelled."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            try:
                while await self.step():
                    pass
            except Exception as error:  # noqa: BLE001 - whatever it is, the rows are still there
                self._has_failed = True
                say(logger, "deliveries_not_made", level=level_beside(error), trace=error, reason=reason_of(error))
                await self._runtime.sleep(TROUBLE_SECONDS * (0.5 + self._runtime.chance.random() / 2))
                self._woken.set()

    async def step(self) -> bool:
        """Make the deliveries of the oldest events; tell whether there were any, or are some that others hold."""
        now = self._looked_at = self._runtime.monotonic()
        self._held, self._passed = _those_after(now, self._held), _those_after(now, self._passed)
        batch = await self._store.read(outbox.oldest, sorted(self._passed.keys() | self._held.keys()))
        self._is_active = bool(batch.rows or self._held)
        if batch.rows:
            await self._make(batch)
        elif self._held:
            await self._rest()
        return self._is_active

    async def _make(self, batch: OutboxBatch) -> None:
        packed = await self._runtime.threads.call(partial(outbox.pack, batch))
        self._pass_over(packed.unreadable)
        if not packed.parcels:
            return
        deliver = outbox.deliver_patiently if self._has_failed else outbox.deliver
        taken, held = await self._store.run(deliver, packed.parcels)
        self._has_failed = False
        self._held |= dict.fromkeys(held, self._runtime.monotonic() + HELD_SECONDS)
        if taken:
            self._on_made()
        elif not held:
            await self._rest()

    async def _rest(self) -> None:
        await self._runtime.sleep(REST_SECONDS * self._runtime.chance.random())

    def _pass_over(self, unreadable: Mapping[OutboxRow, Unreadable]) -> None:
        until = self._runtime.monotonic() + PASSED_SECONDS
        for row, error in unreadable.items():
            self._passed[row.job] = until
            tell(error)


def _those_after(now: float, times: Mapping[int, float]) -> dict[int, float]:
    return {job: until for job, until in times.items() if until > now}
