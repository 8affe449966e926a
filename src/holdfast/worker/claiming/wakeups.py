"""When a worker looks for work: by a hint, when the next arrival is due, or by the poll, the net below both."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from holdfast.database.hints import OnHint, SleepMark
from holdfast.errors import StoreError
from holdfast.store import polls, workers
from holdfast.store.jobs.claiming import Want
from holdfast.store.workers import Member
from holdfast.worker.claiming.core import WorkerCore
from holdfast.worker.health import HintMode

AGAIN_SECONDS = 0.025  # for an arrival that is due and was passed over, because somebody has locked it
BEAT_SECONDS = 60.0
GOODBYE_SECONDS = 1.0


class Wakeups:
    """Listens for the worker *member*, which serves *wants*; *hear* is called in any thread when a hint has come."""

    def __init__(self, core: WorkerCore, member: Member, wants: Sequence[Want], hear: OnHint) -> None:
        self._core = core
        self._monotonic = core.runtime.monotonic
        self._member = member
        self._wants = wants
        self._watch = core.store.watch(hear)
        self._rest = SleepMark(self._watch, self._monotonic, core.options.poll)
        self._is_hinted = False
        self._look_at = self._monotonic() + core.options.poll

    @property
    def hint_mode(self) -> HintMode:
        """How the worker hears of new work at this moment."""
        if self._core.store.database == "sqlite":
            return "watching"
        return "listening" if self._watch.is_listening else "polling"

    @property
    def _member_now(self) -> Member:
        return self._member.saying(hint_mode=self.hint_mode)

    @property
    def is_due(self) -> bool:
        return self._is_hinted or self._rest.wants_to_sleep or self.seconds() <= 0

    def seconds(self) -> float:
        """Say how long the worker may wait for a hint."""
        return self._look_at - self._monotonic()

    @property
    def is_disturbed(self) -> bool:
        """Tell whether there are so many hints that it is better to say that none are wanted."""
        return self._rest.wants_to_wake

    def note_hint(self) -> None:
        """Look soon; called in any thread."""
        self._rest.count_hint()
        self._is_hinted = True

    def take_hint(self) -> bool:
        """Tell whether a hint has come since this was asked last."""
        if not self._is_hinted:  # and leave it at that: one that comes just now is for the next time
            return False
        self._is_hinted = False
        return True

    def plan(self, next_ms: int | None) -> None:
        """Look again when the next arrival is due, in *next_ms*, or at the next poll."""
        seconds = self._rest.seconds()
        if next_ms is not None:
            seconds = min(seconds, next_ms / 1000 if next_ms > 0 else AGAIN_SECONDS)
        self._look_at = self._monotonic() + seconds

    def plan_sooner(self, next_ms: int | None) -> None:
        """Look again when the next arrival is due, in *next_ms*, unless a look before that is planned."""
        planned = self._look_at
        self.plan(next_ms)
        self._look_at = min(planned, self._look_at)

    async def look(self, wants: Sequence[Want]) -> bool:
        """Say that we sleep, if that is new, and then read whether there is something to do of *wants*."""
        self._is_hinted = False
        self.plan(None)  # so that the worker's other loop does not look as well
        if self._rest.wants_to_sleep:
            await self._core.store.run(workers.mark_asleep, self._member_now)
            self._rest.has_marked()
        elif self._rest.wants_to_wake:
            await self._core.store.run(workers.mark_awake, self._member.id)
            self._rest.has_unmarked()
        found = await self._core.store.read(polls.waiting_work, wants or self._wants)  # without any there is no horizon
        self._rest.has_looked(found.horizon)
        self._core.note_look(found)
        if not wants:
            return False
        self.plan(found.next_ms)
        return found.is_there

    async def run(self) -> None:
        """Say every now and then that we live, and forget those that are silent; until cancelled."""
        while True:
            with suppress(Exception):  # the worker itself says that the store is in trouble
                await self._core.store.run(workers.give_sign, self._member_now, is_asleep=self._rest.is_marked)
            await self._core.runtime.sleep(BEAT_SECONDS * (0.9 + 0.2 * self._core.runtime.chance.random()))

    async def stop(self) -> None:
        """Listen no more, and strike us off."""
        await self._core.runtime.threads.call(self._rest.stop)
        with suppress(StoreError, TimeoutError):  # a row that is left behind has no beat, and is forgotten
            async with asyncio.timeout(GOODBYE_SECONDS):
                await self._core.store.run(workers.forget, [self._member.id])
