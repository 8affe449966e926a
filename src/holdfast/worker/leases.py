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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from math import inf

from holdfast.database.tx import Store
from holdfast.errors import Busy
from holdfast.fault_points import reach
from holdfast.logging import reason_of, say
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


@dataclass(slots=True, eq=False)
class Lease:
    """The lease of the jobs that one call has claimed, and when its last good renewal, or the claim, was sent.

    They have the same length, and are renewed together, so what is known of one is known of all of them.
    """

    seconds: float
    sent: float
    spared_until: float
    """Until when it has its margin to be renewed, though it may be late at first sight."""
    is_fenced: bool = False

    @property
    def late_at(self) -> float:
        """The instant from which on it may be over soon."""
        return self.sent + self.seconds - margin(self.seconds)

    @property
    def fenced_at(self) -> float:
        """The instant from which on it is given up."""
        return max(self.late_at, self.spared_until)

    def spare(self, now: float) -> None:
        self.spared_until = now + margin(self.seconds)


def _due_at(leases: Iterable[Lease]) -> float:
    """Say when to renew them all: a claim that had to wait for its commit may need it at once."""
    return min(lease.sent + lease.seconds / 3 for lease in leases)


@cache
def margin(seconds: float) -> float:
    """Say how long before the end of a lease of *seconds* it is given up."""
    return min(MARGIN_SECONDS, seconds / 6)


class LeaseKeeper:
    """The leases that this worker holds; what it calls, it calls in its threads.

    *on_claim_states* acts on what is asked of the jobs, such as to cancel one; *on_fenced* stops handlers whose leases
    may be over soon. *on_step* is called at each step of the first thread, and *on_extended* whenever `good_until` may
    say more than before.
    """

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        on_claim_states: Callable[[dict[Token, ClaimState]], None],
        on_fenced: Callable[[list[Token]], None],
        *,
        on_step: Callable[[], None] = lambda: None,
        on_extended: Callable[[], None] | None = None,
    ) -> None:
        self._store = store
        self._on_claim_states = on_claim_states
        self._on_fenced = on_fenced
        self._on_step = on_step
        self._on_extended = on_extended
        self._monotonic = runtime.monotonic
        self._leases: dict[Token, Lease] = {}
        self._locked: set[Token] = set()
        self._looked_at = self._monotonic() - HINTED_SECONDS
        self._is_failing = False
        self._is_queueing = False
        self._is_renewing = False
        self._lock = threading.Lock()
        self._next_look_at = self._next_fence_at = inf
        """When the first thread will look, and when the second, without being woken."""
        self._stepper: Stepper = runtime.stepper(self.step, "holdfast-leases")
        self._fence_stepper: Stepper = runtime.stepper(self.fence, "holdfast-fence")

    def add(self, tokens: Mapping[float, Iterable[Token]], sent: float) -> None:
        """Keep the leases of jobs that were claimed by a call that was sent at *sent*; tokens by their seconds."""
        if not tokens:
            return
        now = self._monotonic()
        leases = [Lease(seconds, sent, now + margin(seconds)) for seconds in tokens]
        for lease, claimed in zip(leases, tokens.values(), strict=True):
            self._leases |= dict.fromkeys(claimed, lease)
        self._fence_in_time(leases)
        self._look_by(min(now + LOOK_SECONDS, _due_at(leases)))

    def hint(self) -> None:
        """Look soon: something may be asked of a handler that runs here."""
        if self._leases:
            self._look_by(max(self._monotonic(), self._looked_at + HINTED_SECONDS) + SHORTEST_SECONDS)

    def drop(self, *tokens: Token) -> None:
        for token in tokens:
            self._leases.pop(token, None)

    def may_complete(self, token: Token) -> bool:
        """Tell whether a lease is surely still ours, by our own clock; a renewal that succeeds makes it so again."""
        return self.completable()(token)

    def completable(self) -> Callable[[Token], bool]:
        """Give `may_complete` as it is at this moment, for many."""
        now, waits_to_write, leases = self._monotonic(), self._waits_to_write, self._leases

        def may_complete(token: Token) -> bool:
            lease = leases.get(token)
            return lease is not None and (waits_to_write or now < lease.late_at)

        return may_complete

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
        self._stepper.stop()
        self._fence_stepper.stop()

    def step(self) -> float | None:
        """Renew what is due, read what is asked, stop what is late; answer when to look again."""
        with self._lock:
            self._next_look_at = inf  # what comes from now on may be too late for this look: it wakes us for the next
        seconds = self._step()
        if seconds is not None:
            with self._lock:
                self._next_look_at = self._monotonic() + seconds
        return seconds

    def _look_by(self, at: float) -> None:
        """Have the first thread look by *at*; while jobs come and go it mostly will, and to wake it costs a switch."""
        with self._lock:
            is_known = self._next_look_at <= at
        if not is_known:
            self._stepper.wake()

    def _step(self) -> float | None:
        leases = dict(self._leases)
        self._on_step()
        if not leases:
            return None
        now = self._monotonic()
        distinct = set(leases.values())
        third = min(lease.seconds for lease in distinct) / 3
        due_at = _due_at(distinct)
        early = min(self._looked_at + HINTED_SECONDS, due_at) - now
        if early > 0 and not self._is_failing:
            return early
        self._looked_at = now
        try:
            self._on_claim_states(self._ask(leases, now, is_due=now >= due_at or self._is_failing))
        except Exception as error:  # noqa: BLE001 - no error ends the renewal
            is_first = not self._is_failing
            self._failing(error)
            if is_first:  # a process that was stopped for long finds its call too late, and learns the truth by another
                return 0.0
        self._spare_unasked(leases)
        self._give_up_late(self._monotonic())
        until_due = third if self._is_failing else _due_at(distinct) - self._monotonic()
        return min(LOOK_SECONDS, max(until_due, SHORTEST_SECONDS))

    def _ask(self, leases: dict[Token, Lease], now: float, *, is_due: bool) -> dict[Token, ClaimState]:
        due = list(leases) if is_due else [token for token in self._locked if token in leases]
        if not due:
            return self._store.read_sync(claiming.claim_states, list(leases))
        reach("renew.before")
        self._is_renewing = True
        try:
            states = self._store.run_sync(claiming.renew, due)
            if is_due:  # before the other thread may look again: it would give up what has just been renewed
                self._extend(set(leases.values()), now)
        finally:
            self._is_renewing = False
        reach("renew.after")
        self._locked = {token for token, state in states.items() if state is ClaimState.LOCKED}
        if not is_due:  # some that were locked: the others of their claims are as they were
            rest = [token for token in leases if token not in states]
            return states | (self._store.read_sync(claiming.claim_states, rest) if rest else {})
        self._note_renewal(set(leases.values()))
        return states

    def _extend(self, leases: Iterable[Lease], sent: float) -> None:
        """Count *leases* from *sent*, when the renewal was that has just succeeded."""
        answered = self._monotonic()
        for lease in leases:
            lease.sent, lease.is_fenced = max(lease.sent, sent), False
            lease.spare(answered)

    def _spare_unasked(self, asked: Mapping[Token, Lease]) -> None:
        """Give those that were claimed while this look waited to write their chance to be renewed by the next one."""
        now = self._monotonic()
        if self._store.database == "sqlite":
            for lease in self._distinct() - set(asked.values()):
                lease.spare(now)

    def _note_renewal(self, leases: Iterable[Lease]) -> None:
        """Take note that *leases* go on."""
        self._fence_in_time(leases)
        if self._on_extended is not None:
            self._on_extended()
        self._is_queueing = False
        if self._is_failing:
            self._is_failing = False
            say(logger, "leases_renewed_again")

    def _failing(self, error: Exception) -> None:
        self._is_queueing = isinstance(error, Busy) and self._store.database == "sqlite"
        if not self._is_failing:
            self._is_failing = True
            say(logger, "leases_not_renewed", reason=reason_of(error))

    def fence(self) -> float | None:
        """Stop what is late, whatever a renewal waits for; answer when to look again."""
        now = self._monotonic()
        with self._lock:
            if now - self._next_fence_at > STANDSTILL_SECONDS:
                for lease in self._distinct():
                    lease.spare(now)
        self._give_up_late(now)
        with self._lock:  # what is late and was not given up, `step` looks at, as soon as it has its answer
            leases = self._distinct()
            ahead = [lease.fenced_at for lease in leases if lease.fenced_at > now]
            if self._on_extended is not None and leases and self._waits_to_write:
                ahead.append(now + min(QUEUEING_SECONDS, *(margin(lease.seconds) / 4 for lease in leases)))
            self._next_fence_at = min(ahead, default=inf)
        if self._on_extended is not None and self._waits_to_write:
            self._on_extended()
        return self._next_fence_at - now if ahead else None

    def _distinct(self) -> set[Lease]:
        """Give the leases, each of which may be that of many jobs."""
        return set(list(self._leases.values()))  # noqa: C414 - a list is made at once, while the loop may add some

    def _fence_in_time(self, leases: Iterable[Lease]) -> None:
        """Have the second thread look when the first of *leases* is to be given up; mostly it will look before that."""
        fenced_at = min(lease.fenced_at for lease in leases)
        with self._lock:
            is_known = self._next_fence_at <= fenced_at
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
            late = {lease for lease in self._distinct() if now >= lease.fenced_at and not lease.is_fenced}
            given_up = [token for token, lease in list(self._leases.items()) if lease in late] if late else []
            for lease in late:
                lease.is_fenced = True
        if given_up:
            say(logger, "leases_given_up", jobs=len(given_up))
            self._on_fenced(given_up)
