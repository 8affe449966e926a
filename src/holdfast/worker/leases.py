"""Keeps the leases of a worker's jobs, and learns what is asked of them, from a thread and a connection of its own.

A handler may block the event loop for longer than its lease, so renewal must not need the loop. Every third of the
shortest lease all tokens are renewed in one statement that passes over locked rows; in between, every two seconds, the
requests are only read. What is learnt goes to the loop.

*Self-fencing.* A lease that could not be renewed will be taken. When the last renewal that succeeded was *sent* longer
ago than lease minus margin, by our own monotonic clock, the handlers are stopped: before the lease is over, whatever
the clocks of others say. A locked row is no lost lease: the round trip counts, not the row, and the row is asked for
again every two seconds. Nor is it a loss when SQLite's right to write cannot be had: nobody else has it for a reap.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from holdfast.crashpoints import reach
from holdfast.errors import Busy
from holdfast.store import jobs
from holdfast.store.jobs import Hold, Token
from holdfast.store.tx import Store
from holdfast.surroundings import Shell, Surroundings

LOOK_SECONDS = 2.0
HINTED_SECONDS = 0.25  # the least between two looks, however many hints come
SHORTEST_SECONDS = 0.05
MARGIN_SECONDS = 5.0

logger = logging.getLogger(__name__)


class Watcher(Protocol):
    """Who is told what became of the leases; called in the leases' thread."""

    def holds(self, holds: dict[Token, Hold]) -> None:
        """Take in how the claims stand."""

    def fenced(self, tokens: list[Token]) -> None:
        """Stop these handlers: their leases may be over soon."""

    def looked(self) -> None:
        """Take note that the thread is alive; called at each of its steps."""


@dataclass(slots=True)
class Lease:
    """One lease that is to be kept: its length, and when its last good renewal, or its claim, was sent."""

    seconds: float
    sent: float
    is_fenced: bool = False

    def is_late(self, now: float) -> bool:
        """Tell whether it may be over soon."""
        return now - self.sent > self.seconds - margin(self.seconds)


def _due_at(leases: Iterable[Lease]) -> float:
    """Say when to renew them all: a claim that had to wait for its commit may need it at once."""
    return min(lease.sent + lease.seconds / 3 for lease in leases)


def margin(seconds: float) -> float:
    """Say how long before the end of a lease of *seconds* it is given up."""
    return min(MARGIN_SECONDS, seconds / 6)


class Leases:
    """The leases that this worker holds."""

    def __init__(self, store: Store, surroundings: Surroundings, watcher: Watcher) -> None:
        self._store = store
        self._monotonic = surroundings.monotonic
        self._watcher = watcher
        self._held: dict[Token, Lease] = {}
        self._locked: set[Token] = set()
        self._looked = self._monotonic() - HINTED_SECONDS
        self._is_failing = False
        self._is_queueing = False
        self._shell: Shell = surroundings.shell(self.step, "holdfast-leases")

    def add(self, tokens: dict[Token, float], sent: float) -> None:
        """Keep the leases of jobs that were claimed by a call that was sent at *sent*; seconds by token."""
        if not tokens:
            return
        self._held |= {token: Lease(seconds, sent) for token, seconds in tokens.items()}
        self._shell.wake()

    def hint(self) -> None:
        """Look soon: something may be asked of a handler that runs here."""
        if self._held:
            self._shell.wake()

    def drop(self, token: Token) -> None:
        """Keep a lease no longer."""
        self._held.pop(token, None)

    def __contains__(self, token: Token) -> bool:
        return token in self._held

    def may_complete(self, token: Token) -> bool:
        """Tell whether a lease is surely still ours, by our own clock; a renewal that succeeds makes it so again."""
        lease = self._held.get(token)
        return lease is not None and (self._is_queueing or not lease.is_late(self._monotonic()))

    def stop(self) -> None:
        """End the thread."""
        self._shell.stop()

    def step(self) -> float | None:
        """Renew what is due, read what is asked, stop what is late; answer when to look again."""
        held = dict(self._held)
        self._watcher.looked()
        if not held:
            return None
        now = self._monotonic()
        third = min(lease.seconds for lease in held.values()) / 3
        due_at = _due_at(held.values())
        early = min(self._looked + HINTED_SECONDS, due_at) - now
        if early > 0 and not self._is_failing:
            return early
        self._looked = now
        try:
            self._watcher.holds(self._ask(held, now, is_due=now >= due_at or self._is_failing))
        except Exception as error:  # noqa: BLE001 - no error ends the renewal
            is_first = not self._is_failing
            self._failing(error)
            if is_first:  # a process that was stopped for long finds its call too late, and learns the truth by another
                return 0.0
        if not self._is_queueing:
            self._fence()
        until_due = third if self._is_failing else _due_at(held.values()) - self._monotonic()
        return min(LOOK_SECONDS, max(until_due, SHORTEST_SECONDS))

    def _ask(self, held: dict[Token, Lease], now: float, *, is_due: bool) -> dict[Token, Hold]:
        due = held if is_due else {token: held[token] for token in self._locked if token in held}
        if not due:
            return self._store.read_sync(jobs.look, list(held))
        reach("renew.before")
        holds = self._store.run_sync(jobs.renew, list(due))
        reach("renew.after")
        self._locked = {token for token, hold in holds.items() if hold is Hold.LOCKED}
        for lease in due.values():
            lease.sent, lease.is_fenced = max(lease.sent, now), False
        if is_due:
            self._succeeded()
            return holds
        rest = [token for token in held if token not in due]
        return holds | (self._store.read_sync(jobs.look, rest) if rest else {})

    def _succeeded(self) -> None:
        self._is_queueing = False
        if self._is_failing:
            self._is_failing = False
            logger.warning("leases_renewed_again")

    def _failing(self, error: Exception) -> None:
        self._is_queueing = isinstance(error, Busy) and self._store.database == "sqlite"
        if not self._is_failing:
            self._is_failing = True
            logger.warning("leases_not_renewed", extra={"reason": str(error)})

    def _fence(self) -> None:
        now = self._monotonic()
        late = [token for token, lease in list(self._held.items()) if lease.is_late(now) and not lease.is_fenced]
        for token in late:
            if (lease := self._held.get(token)) is not None:
                lease.is_fenced = True
        if late:
            logger.warning("leases_given_up", extra={"jobs": len(late)})
            self._watcher.fenced(late)
