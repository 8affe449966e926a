"""Keeps the leases of a worker's jobs, and learns what is asked of them, from a thread and a connection of its own.

A handler may block the event loop for longer than its lease, so renewal must not need the loop. Every third of the
shortest lease all tokens are renewed in one statement that passes over locked rows; in between, every two seconds, the
requests are only read. What is learnt goes to the loop.

*Self-fencing.* A lease that could not be renewed will be taken. When the last renewal that succeeded was *sent* longer
ago than lease minus margin, by our own monotonic clock, the handlers are stopped: before the lease is over, whatever
the clocks of others say. A renewal may be without an answer at that moment, so it is another thread that stops them,
which does nothing else and waits for nobody. What is late at first sight, since its call has waited for long or the
process stood still, has its margin in which a renewal may succeed, for it may well be ours yet. A locked row is no lost
lease: the round trip counts, not the row, and the row is asked for again every two seconds. Nor is it a loss when
SQLite's right to write cannot be had, or has not been had yet: nobody else has it for a reap.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from holdfast.database.tx import Store
from holdfast.errors import Busy
from holdfast.fault_points import reach
from holdfast.runtime import Runtime, Stepper
from holdfast.store.jobs import claiming
from holdfast.store.jobs.claiming import ClaimState, Token

LOOK_SECONDS = 2.0
HINTED_SECONDS = 0.25  # the least between two looks, however many hints come
SHORTEST_SECONDS = 0.05
MARGIN_SECONDS = 5.0
STANDSTILL_SECONDS = 1.0  # a thread that comes later than that was stopped, with its whole process
QUEUEING_SECONDS = 1.0  # the most between two words to child processes, while SQLite's right to write is waited for

logger = logging.getLogger(__name__)


class ClaimStateReceiver(Protocol):
    """Receives what became of the claims; called in the threads that keep the leases."""

    def on_claim_states(self, states: dict[Token, ClaimState]) -> None:
        """Act on the states of the claims, such as a request to cancel."""

    def on_fenced(self, tokens: list[Token]) -> None:
        """Stop these handlers: their leases may be over soon."""

    def on_step(self) -> None:
        """Look after the event loop; called at each step of the first thread."""


@dataclass(slots=True)
class Lease:
    """One lease that is to be kept: its length, and when its last good renewal, or its claim, was sent."""

    seconds: float
    sent: float
    is_fenced: bool = False
    spared_until: float = float("-inf")

    @property
    def late_at(self) -> float:
        """The instant from which on it may be over soon."""
        return self.sent + self.seconds - margin(self.seconds)

    @property
    def fenced_at(self) -> float:
        """The instant from which on it is given up."""
        return max(self.late_at, self.spared_until)

    def is_late(self, now: float) -> bool:
        """Tell whether it may be over soon."""
        return now >= self.late_at

    def spare(self, now: float) -> None:
        """Leave it its margin to be renewed, though it may be late at first sight."""
        self.spared_until = now + margin(self.seconds)


def _due_at(leases: Iterable[Lease]) -> float:
    """Say when to renew them all: a claim that had to wait for its commit may need it at once."""
    return min(lease.sent + lease.seconds / 3 for lease in leases)


def _new_lease(seconds: float, sent: float, now: float) -> Lease:
    """Make a lease that is spared, though it may be late at first sight."""
    return Lease(seconds, sent, spared_until=now + margin(seconds))


@cache
def margin(seconds: float) -> float:
    """Say how long before the end of a lease of *seconds* it is given up."""
    return min(MARGIN_SECONDS, seconds / 6)


class LeaseKeeper:
    """The leases that this worker holds."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        receiver: ClaimStateReceiver,
        on_extended: Callable[[], None] | None = None,
    ) -> None:
        """Keep leases and notify *receiver*; *on_extended* is called whenever `good_until` may say more than before."""
        self._store = store
        self._on_extended = on_extended
        self._monotonic = runtime.monotonic
        self._receiver = receiver
        self._leases: dict[Token, Lease] = {}
        self._locked: set[Token] = set()
        self._looked_at = self._monotonic() - HINTED_SECONDS
        self._is_failing = False
        self._is_queueing = False
        self._is_renewing = False
        self._lock = threading.Lock()
        self._next_look_at: float | None = None
        """When the first thread will look, without being woken."""
        self._next_fence_at: float | None = None
        """When the second thread will look, without being woken."""
        self._stepper: Stepper = runtime.stepper(self.step, "holdfast-leases")
        self._fence_stepper: Stepper = runtime.stepper(self.fence, "holdfast-fence")

    def add(self, tokens: dict[Token, float], sent: float) -> None:
        """Keep the leases of jobs that were claimed by a call that was sent at *sent*; seconds by token."""
        if not tokens:
            return
        now = self._monotonic()
        self._leases |= {token: _new_lease(seconds, sent, now) for token, seconds in tokens.items()}
        shortest = [_new_lease(min(tokens.values()), sent, now)]  # of those that begin now it is late and due first
        self._fence_in_time(shortest)
        self._look_by(min(now + LOOK_SECONDS, _due_at(shortest)))

    def hint(self) -> None:
        """Look soon: something may be asked of a handler that runs here."""
        if self._leases:
            self._look_by(max(self._monotonic(), self._looked_at + HINTED_SECONDS) + SHORTEST_SECONDS)

    def drop(self, token: Token) -> None:
        """Keep a lease no longer."""
        self._leases.pop(token, None)

    def __contains__(self, token: Token) -> bool:
        return token in self._leases

    def may_complete(self, token: Token) -> bool:
        """Tell whether a lease is surely still ours, by our own clock; a renewal that succeeds makes it so again."""
        lease = self._leases.get(token)
        return lease is not None and (self._waits_to_write or not lease.is_late(self._monotonic()))

    def good_until(self, token: Token) -> tuple[float, float] | None:
        """Say how long a lease may be counted on without a word from us, as by a child process.

        First when `may_complete` would say no, then when the handler is to stop; None if it is not kept here.
        """
        lease = self._leases.get(token)
        if lease is None:
            return None
        spare = margin(lease.seconds)
        late_at = self._monotonic() + spare if self._waits_to_write else lease.late_at
        return late_at, max(late_at, lease.fenced_at) + spare / 2  # we stop it earlier, if we can

    def stop(self) -> None:
        """End the threads."""
        self._stepper.stop()
        self._fence_stepper.stop()

    def step(self) -> float | None:
        """Renew what is due, read what is asked, stop what is late; answer when to look again."""
        with self._lock:
            self._next_look_at = None  # what comes from now on may be too late for this look: it wakes us for the next
        seconds = self._step()
        if seconds is not None:
            with self._lock:
                self._next_look_at = self._monotonic() + seconds
        return seconds

    def _look_by(self, at: float) -> None:
        """Have the first thread look by *at*; while jobs come and go it mostly will, and to wake it costs a switch."""
        with self._lock:
            is_known = self._next_look_at is not None and self._next_look_at <= at
        if not is_known:
            self._stepper.wake()

    def _step(self) -> float | None:
        leases = dict(self._leases)
        self._receiver.on_step()
        if not leases:
            return None
        now = self._monotonic()
        third = min(lease.seconds for lease in leases.values()) / 3
        due_at = _due_at(leases.values())
        early = min(self._looked_at + HINTED_SECONDS, due_at) - now
        if early > 0 and not self._is_failing:
            return early
        self._looked_at = now
        try:
            self._receiver.on_claim_states(self._ask(leases, now, is_due=now >= due_at or self._is_failing))
        except Exception as error:  # noqa: BLE001 - no error ends the renewal
            is_first = not self._is_failing
            self._failing(error)
            if is_first:  # a process that was stopped for long finds its call too late, and learns the truth by another
                return 0.0
        self._give_up_late(self._monotonic())
        until_due = third if self._is_failing else _due_at(leases.values()) - self._monotonic()
        return min(LOOK_SECONDS, max(until_due, SHORTEST_SECONDS))

    def _ask(self, leases: dict[Token, Lease], now: float, *, is_due: bool) -> dict[Token, ClaimState]:
        due = leases if is_due else {token: leases[token] for token in self._locked if token in leases}
        if not due:
            return self._store.read_sync(claiming.claim_states, list(leases))
        reach("renew.before")
        self._is_renewing = True
        try:
            states = self._store.run_sync(claiming.renew, list(due))
        finally:
            self._is_renewing = False
        reach("renew.after")
        self._locked = {token for token, state in states.items() if state is ClaimState.LOCKED}
        answered = self._monotonic()
        for lease in due.values():
            lease.sent, lease.is_fenced = max(lease.sent, now), False
            lease.spare(answered)
        self._fence_in_time(due.values())
        if self._on_extended is not None:
            self._on_extended()
        if is_due:
            self._is_queueing = False
            if self._is_failing:
                self._is_failing = False
                logger.warning("leases_renewed_again")
            return states
        rest = [token for token in leases if token not in due]
        return states | (self._store.read_sync(claiming.claim_states, rest) if rest else {})

    def _failing(self, error: Exception) -> None:
        self._is_queueing = isinstance(error, Busy) and self._store.database == "sqlite"
        if not self._is_failing:
            self._is_failing = True
            logger.warning("leases_not_renewed", extra={"reason": str(error)})

    def fence(self) -> float | None:
        """Stop what is late, whatever a renewal waits for; answer when to look again."""
        now = self._monotonic()
        with self._lock:
            if self._next_fence_at is not None and now - self._next_fence_at > STANDSTILL_SECONDS:
                for lease in list(self._leases.values()):
                    lease.spare(now)
        self._give_up_late(now)
        with self._lock:  # what is late and was not given up, `step` looks at, as soon as it has its answer
            ahead = [lease.fenced_at for lease in list(self._leases.values()) if lease.fenced_at > now]
            if self._on_extended is not None and self._leases and self._waits_to_write:
                ahead.append(
                    now + min(QUEUEING_SECONDS, *(margin(lease.seconds) / 4 for lease in self._leases.values()))
                )
            self._next_fence_at = min(ahead, default=None)
            seconds = None if self._next_fence_at is None else self._next_fence_at - now
        if self._on_extended is not None and self._waits_to_write:
            self._on_extended()
        return seconds

    def _fence_in_time(self, leases: Iterable[Lease]) -> None:
        """Have the second thread look when the first of *leases* is to be given up; mostly it will look before that."""
        fenced_at = min(lease.fenced_at for lease in leases)
        with self._lock:
            is_known = self._next_fence_at is not None and self._next_fence_at <= fenced_at
        if not is_known:
            self._fence_stepper.wake()

    @property
    def _waits_to_write(self) -> bool:
        """Tell whether nothing but SQLite's right to write keeps us from renewing: others wait for it as well."""
        return self._is_queueing or (self._is_renewing and self._store.database == "sqlite")

    def _give_up_late(self, now: float) -> None:
        if self._waits_to_write:
            return
        with self._lock:
            late = {token: lease for token, lease in list(self._leases.items()) if now >= lease.fenced_at}
            given_up = [token for token, lease in late.items() if not lease.is_fenced]
            for lease in late.values():
                lease.is_fenced = True
        if given_up:
            logger.warning("leases_given_up", extra={"jobs": len(given_up)})
            self._receiver.on_fenced(given_up)
