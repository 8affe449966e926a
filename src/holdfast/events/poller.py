"""Looking at the store again and again, for all who want to know in this process: at hints, and at every poll.

A poller has a thread, made when somebody first wants to know, and let go when nobody has wanted to for a while. What
it looks at is its target's. When there is nothing more to see it says so in the `worker` table, so that a hint is
sent, and looks once more (`database/hints` has the theory). A store that is away for a while is told once, and looked
at again.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import Literal, Protocol

from holdfast.database.hints import Horizon, SleepMark
from holdfast.database.tx import Store
from holdfast.errors import HoldfastError, StoreError
from holdfast.logging import reason_of, say
from holdfast.runtime import Runtime, Stepper
from holdfast.store import workers
from holdfast.store.workers import Member

SHORTEST_SECONDS = 0.005  # between two looks, so that a storm of hints costs little
LINGER_SECONDS = 5.0  # after the last who wanted to know, for the next one
BEAT_SECONDS = 60.0
TROUBLE_SECONDS = 0.5

logger = logging.getLogger(__name__)


class Pollable(Protocol):
    """What is looked at, and for whom."""

    @property
    def is_wanted(self) -> bool:
        """Tell whether anybody wants to know."""

    def look(self) -> Horizon | None:
        """Read once for all of them, and tell them; give what was under way then, or None if nothing was read."""

    def break_off(self, error: HoldfastError) -> None:
        """Tell all of them that no look is possible."""


class Poller:
    """The thread that looks; *kind* names it, in logs and in the `worker` table."""

    def __init__(self, store: Store, runtime: Runtime, target: Pollable, kind: Literal["waiter", "feed"]) -> None:
        self._store = store
        self._runtime = runtime
        self._monotonic = runtime.monotonic
        self._target = target
        self._kind = kind
        self._member = Member.here(f"{kind}-{runtime.chance.getrandbits(48):012x}", looks_out_as=kind)
        self._change = threading.Lock()
        self._thread: Stepper | None = None
        self.sleep_mark: SleepMark | None = None
        self.is_failing = False
        self._looked_at = self._wanted_at = self._beaten_at = self._monotonic()

    def wake(self) -> None:
        """Look soon."""
        with self._change:
            if self._thread is None:
                self._thread = self._runtime.stepper(self._step, f"holdfast-{self._kind}")
            self._thread.wake()

    def release(self) -> None:
        """Let go, in a while, if nobody wants to know any more."""
        with self._change:
            if self._thread is not None and not self._target.is_wanted:
                self._thread.wake()

    def close(self) -> None:
        """Let go of the thread; the next wake begins anew."""
        with self._change:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()
        self._go_away()

    def _on_hint(self) -> None:
        mark, thread = self.sleep_mark, self._thread
        if mark is not None and thread is not None:
            mark.count_hint()
            thread.wake()

    def _step(self) -> float | None:
        """Look, if anybody wants to know; answer when to look again."""
        now = self._monotonic()
        if not self._target.is_wanted:
            if (left := self._wanted_at + LINGER_SECONDS - now) > 0:
                return left
            self._go_away()
            return None
        if (early := self._looked_at + SHORTEST_SECONDS - now) > 0:
            return early
        self._looked_at = self._wanted_at = now
        try:
            return self._look()
        except StoreError as error:
            if not self.is_failing:
                self.is_failing = True
                say(logger, "reader_fails", reader=self._kind, reason=reason_of(error))
            return TROUBLE_SECONDS
        except Exception as error:  # noqa: BLE001 - it belongs to those who want to know, and the thread lives on
            broken = error if isinstance(error, HoldfastError) else StoreError(f"the {self._kind} broke off: {error!r}")
            self._target.break_off(broken)
            return LINGER_SECONDS

    def _look(self) -> float:
        mark = self.sleep_mark
        if mark is None:
            hints = self._store.watch(self._on_hint, follows_log=self._kind == "feed")
            mark = self.sleep_mark = SleepMark(hints, self._monotonic)
        if mark.wants_to_wake:
            self._store.run_sync(workers.mark_awake, self._member.id)
            mark.has_unmarked()
        self._glance(mark)
        if mark.wants_to_sleep and self._target.is_wanted:
            self._store.run_sync(workers.mark_asleep, self._member)
            mark.has_marked()
            self._glance(mark)
        now = self._monotonic()
        if mark.is_marked and now - self._beaten_at > BEAT_SECONDS:
            self._beaten_at = now
            self._store.run_sync(workers.beat, self._member, is_asleep=True)
        if self.is_failing:
            self.is_failing = False
            say(logger, "reader_works_again", reader=self._kind)
        return mark.seconds()

    def _glance(self, mark: SleepMark) -> None:
        horizon = self._target.look()
        if horizon is not None:
            mark.has_looked(horizon)

    def _go_away(self) -> None:
        mark, self.sleep_mark = self.sleep_mark, None
        if mark is None:
            return
        mark.stop()
        if mark.is_marked:
            with suppress(HoldfastError):  # a row that is left behind has no beat, and is forgotten
                self._store.run_sync(workers.forget, [self._member.id])
