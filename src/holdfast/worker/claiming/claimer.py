"""Claims jobs for the free slots of a worker, and writes down what has ended, in one transaction.

Two loops overlap, so that handlers of one batch run while the other's commit is under way. Each asks `plan` what to do
next, by how the worker stands, and does it. A loop with nothing to do sleeps until it is woken by an end, by a hint, by
the next arrival that becomes due, or by the poll, the net below all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from holdfast.errors import Busy, HoldfastError, TenantNotFound, Unavailable, UnknownOutcome
from holdfast.fault_points import reach
from holdfast.logging import reason_of, say
from holdfast.outcomes import Kind
from holdfast.store import polls
from holdfast.store.jobs import claiming, exchanging
from holdfast.store.jobs.claiming import LOWEST, Claimed, Claims, Token, Want
from holdfast.store.jobs.exchanging import Exchanged, Request
from holdfast.store.jobs.settling import Settled, Settlement
from holdfast.worker.attempts.active import Slot
from holdfast.worker.claiming import exhaustion, plan
from holdfast.worker.claiming.batch_size import size_of
from holdfast.worker.claiming.claim_ahead import MOST_CLAIMED
from holdfast.worker.claiming.core import WorkerCore
from holdfast.worker.claiming.dispatcher import Dispatcher
from holdfast.worker.claiming.executor import Executor
from holdfast.worker.claiming.slot_group import SlotGroup
from holdfast.worker.claiming.slot_share import Share
from holdfast.worker.claiming.unknown_claims import UnknownClaims
from holdfast.worker.claiming.wakeups import Wakeups

R = TypeVar("R")

LOOPS = 2
SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
BUSY_SECONDS = 0.025  # until a settlement is tried again whose row somebody has locked
LONGEST_REST = 0.01
MARK_SECONDS = 1.0  # until a row says that its handler has begun which was claimed ahead
SHORT_SECONDS = 0.1  # a handler that ends within this is not worth a mark
NO_SLOT = "no slot has come free here"

logger = logging.getLogger(__name__)


class Claimer:
    """The loops of a worker that serves *wants*, by its handlers, and what the *groups* of slots beside them do."""

    def __init__(
        self,
        core: WorkerCore,
        wants: Sequence[Want],
        groups: Sequence[SlotGroup],
        executor: Executor,
        dispatcher: Dispatcher,
        wakeups: Wakeups,
    ) -> None:
        self._core = core
        self._monotonic = core.runtime.monotonic
        self._handlers = SlotGroup(Slot.HANDLER, wants, lambda: core.options.concurrency, self._monotonic)
        self._handlers.is_wanted = True
        self._groups = groups
        self._last_group = -1
        self._executor = executor
        self._dispatcher = dispatcher
        self._wakeups = wakeups
        self._unknown = UnknownClaims(core)
        self._listening = 0
        self._rests_until = 0.0
        self.trouble_since: float | None = None
        self.trouble: str | None = None
        self._trouble_with: type[plan.Step] = plan.Exchange
        self._answered_at = 0.0
        self.claimed: float | None = None
        self.worked: float | None = None
        """When something was claimed last, or written down."""
        if core.share is not None:
            executor.on_end = partial(self._note_end, core.share, executor.on_end)

    def note_hint(self) -> bool:
        """Take note of a hint, in any thread; tell whether a loop waits for it, and is to be woken.

        Without a free slot, and before a claim that comes anyway, nobody does.
        """
        self._wakeups.note_hint()
        return self._listening > 0

    def wake(self) -> None:
        """Look for work soon; a hint, which may be lost, doubled or wrong."""
        self._handlers.is_wanted = True
        self._core.woken.set()

    def drain(self) -> None:
        """Give back what has not begun, and end when all is written down."""
        self._dispatcher.drain()
        self._core.woken.set()
        reach("shutdown.after_stop_claim")

    @property
    def is_at_work(self) -> bool:
        """Tell whether something runs, waits to begin, is being claimed, or is to be written down."""
        is_idle = self._executor.is_idle and self._dispatcher.is_empty and not self._core.unsettled
        return self._is_claiming or not is_idle or self._unknown.seconds() is not None

    async def run(self) -> None:
        """Go round, as one of the loops, until the worker has drained."""
        failures = 0
        step: plan.Step | None = None
        while not isinstance(step := plan.next_step(self._situation(step)), plan.Finish):
            if isinstance(step, plan.Sleep):
                await self._sleep(step)
                continue
            began = self._monotonic()
            try:
                await self._carry_out(step)
                failures = 0
                self._after_success(step)
            except Exception as error:  # noqa: BLE001 - whatever it is, the worker lives on
                failures += 1
                await self._after_trouble(step, error, failures, began)
        self._core.woken.set()

    async def _carry_out(self, step: plan.Step) -> None:
        match step:
            case plan.Resolve():
                await self._unknown.resolve(self._begin)
            case plan.GiveBack():
                claim_ahead = self._handlers.claim_ahead
                self._executor.give_back_queue(NO_SLOT, self._monotonic() - claim_ahead.longest_wait)
                claim_ahead.note_given_back()
            case plan.ClaimFor(number, most):
                self._last_group = number
                await self._claim_for(self._groups[number], most)
            case plan.Exchange(free, ahead):
                await self._exchange(self._core.unsettled.take(), free, ahead)
            case plan.Look(free):
                if await self._claim_for_hint(free):
                    await self._core.runtime.sleep(0)  # handlers first: to send the look takes a third of a millisecond
                await self._look(has_slots=free > 0)
                self.claimed = self._monotonic()

    # how the worker stands

    def _situation(self, last: plan.Step | None) -> plan.Situation:
        core, now = self._core, self._monotonic()
        free, ahead = self._room()
        may_claim_beside = not core.shutdown.is_draining and self._dispatcher.room(1) > 0
        marked_by, waits = min(self._executor.unmarked.values(), default=None), self._executor.waiting_since
        return plan.Situation(
            concurrency=core.options.concurrency,
            free=free,
            ahead=ahead,
            waiting=len(self._executor.queue),
            is_at_work=not (self._executor.is_idle and self._dispatcher.is_empty) or self._is_claiming,
            has_ends=core.unsettled.has_some(),
            has_withheld=bool(core.unsettled),
            groups=tuple(self._free_for(each, free) for each in self._groups) if may_claim_beside else (),
            last_group=self._last_group,
            beside_seconds=self._beside_seconds() if may_claim_beside else None,
            was_for_group=isinstance(last, plan.ClaimFor),
            is_hungry=self._handlers.is_wanted,
            rest_seconds=self._rests_until - now,
            is_quiet=self._is_quiet(free + ahead),
            is_disturbed=self._wakeups.is_disturbed,
            look_seconds=0.0 if self._wakeups.is_due else self._wakeups.seconds(),
            poll_seconds=core.options.poll,
            mark_seconds=None if marked_by is None else marked_by + MARK_SECONDS - now,
            stale_seconds=None if waits is None else waits + self._handlers.claim_ahead.longest_wait - now,
            unknown_seconds=self._unknown.seconds(),
            is_draining=core.shutdown.is_draining,
            is_over=core.shutdown.is_over,
        )

    def _room(self) -> tuple[int, int]:
        """Say how many may be claimed to begin, and how many further ones to wait."""
        handlers, concurrency = self._handlers, self._core.options.concurrency
        running = self._core.active.taken(Slot.HANDLER) + self._executor.waiting
        free = handlers.idle(running)
        room, ahead = self._dispatcher.room(free), 0
        if room >= free:
            ahead = concurrency + handlers.claim_ahead.most - running - handlers.reserved - free
            room, ahead = min(free, MOST_CLAIMED), max(0, min(ahead, MOST_CLAIMED - free))
        share = self._core.share
        return (room, ahead) if share is None else self._shared_room(share, room, ahead)

    def _shared_room(self, share: Share, free: int, ahead: int) -> tuple[int, int]:
        """Say the same by what this worker's host grants it; who only looks for work takes no slot of it."""
        is_wanted = self._handlers.is_wanted or self._core.unsettled.has_some()
        if self._core.shutdown.is_draining or not is_wanted:
            share.ask(self._used, 0)
            return free, 0
        granted = share.ask(self._used, free)
        return granted, share.spare(ahead) if granted == free else 0

    @property
    def _used(self) -> int:
        """How many slots are taken, have been claimed for, or are being claimed for."""
        return self._core.active.taken(Slot.HANDLER) + self._executor.waiting + self._handlers.reserved

    def _note_end(self, share: Share, then: Callable[[], None]) -> None:
        """Leave the slots that have come free to whoever waits for one, also while both loops wait for an answer."""
        then()
        share.report(self._used)

    def _reserve(self, free: int, ahead: int = 0) -> None:
        """Count so many, which may be below zero, as being claimed: to begin at once, and to wait."""
        self._handlers.reserved += free + ahead
        if self._core.share is not None and free + ahead > 0:
            self._core.share.take(free + ahead)
        self._executor.keep_slots(free)

    @property
    def _is_claiming(self) -> bool:
        return any(each.reserved for each in (self._handlers, *self._groups))

    def _is_quiet(self, room: int) -> bool:
        """Tell whether no claim is under way, and none for so much *room* is wanted before a hint, or the next look."""
        return not (self._is_claiming or (self._handlers.is_wanted and room))

    def _free_for(self, group: SlotGroup, free: int) -> int:
        """Say how many may be claimed for *group*, beside *free* slots of handlers."""
        running = self._core.active.taken(group.slot)
        if not (free and self._is_quiet(free)):
            return group.room(running)
        return group.free(running) if group.is_wanted or group.is_unseen else 0  # who is idle, and listens, looks first

    def _beside_seconds(self) -> float | None:
        """Say how long until slots beside those of handlers that are idle are looked for work for; None if none is."""
        idle = [each for each in self._groups if each.is_looked_for and each.idle(self._core.active.taken(each.slot))]
        return min((each.look_seconds for each in idle), default=None)

    # what it does

    async def _exchange(self, batch: list[Settlement], free: int, ahead: int) -> None:
        """Settle *batch* and claim; whatever happens, nothing that ended is forgotten."""
        nonce, sent, most = self._nonce(), self._monotonic(), free + ahead
        place = self._handlers.position.place()
        request = Request(
            settlements=batch,
            reports=self._core.progress.rest(each.token for each in batch),
            begun=[token for token, at in self._executor.unmarked.items() if sent - at >= SHORT_SECONDS],
            wants=self._handlers.wants,
            free=free,
            ahead=ahead,
            worker=self._core.id,
            nonce=nonce,
            place=place,
            is_crowded=self._handlers.is_crowded,
        )
        self._reserve(free, ahead)
        if most:
            self._handlers.is_wanted = False
        try:
            answer = await self._answer(self._ask(request), nonce, sent)
        except (Unavailable, Busy, UnknownOutcome) as error:
            self._core.unsettled.add(*batch)  # what was written down already comes back as lost, which is harmless
            self._note_missed(batch, sent, error)
            raise
        except Exception:
            await self._core.unsettled.settle_alone(batch)
            raise
        except BaseException:
            self._core.unsettled.add(*batch)
            raise
        finally:
            self._reserve(-free, -ahead)
        settled, claims, _ = answer
        self._take_in(request, answer, sent)
        if self._core.shutdown.is_draining and any(each.outcome.kind is Kind.GIVE_BACK for each in batch):
            reach("shutdown.after_giveback")
        if settled.busy and not settled.done and not claims.jobs:
            await self._core.runtime.sleep(BUSY_SECONDS)

    def _note_missed(self, batch: Sequence[Settlement], sent: float, error: HoldfastError) -> None:
        """Try less the next time, if that may help."""
        if batch and not isinstance(error, Busy):
            self._core.unsettled.batch_size.note_missed(batch)
            seconds = round(self._monotonic() - sent, 1)
            facts: dict[str, Any] = {"jobs": len(batch), "bytes": sum(map(size_of, batch)), "seconds": seconds}
            say(logger, "exchange_not_answered", **facts, reason=reason_of(error))

    def _take_in(self, request: Request, answer: Exchanged, sent: float) -> None:
        settled, claims, marked = answer
        now = self.claimed = self._monotonic()
        self._executor.note_marked(request.begun, marked)
        for each in self._groups:
            each.has_settled()
        if self._core.outbox is not None:
            self._core.outbox.has_settled()
        if request.settlements:
            self.worked = now
            self._core.unsettled.batch_size.note_answered(now - sent)
        self._core.unsettled.note(request.settlements, settled)
        self._handlers.claim_ahead.note_exchange(now - sent, self._executor.ended[Slot.HANDLER])
        if most := request.free + request.ahead:
            self._handlers.note(claims, most, request.place, sent)
            self._rests_until = now + min(LONGEST_REST, now - sent)
            self._wakeups.plan(self._sooner(claims.next_ms))
        else:
            self._handlers.is_wanted = True  # nobody has looked for what these ends let run
        self._begin(claims.jobs, sent)

    async def _answer(self, claim: Coroutine[Any, Any, R], nonce: str, sent: float) -> R:
        """Wait for what *claim* comes to; what became of one whose answer is lost is looked for later."""
        try:
            return await asyncio.shield(claim)
        except UnknownOutcome:
            self._unknown.add(nonce, sent)
            raise

    def _ask(self, request: Request) -> Coroutine[Any, Any, Exchanged]:
        is_for_exchange = request.settlements or request.begun or request.place == LOWEST or request.is_crowded
        if not is_for_exchange:
            return self._claim_alone(request)
        is_patient = request.settlements and self._core.unsettled.batch_size.is_least
        return self._core.store.run(exchanging.exchange_patiently if is_patient else exchanging.exchange, request)

    async def _claim_alone(self, request: Request) -> Exchanged:
        """Claim, with nothing to write down and nobody to admit: on PostgreSQL one round trip instead of four."""
        claimed = await self._core.store.run(claiming.claim, *request.claim)
        return Exchanged(Settled([], {}, []), Claims(claimed, more=True), [])

    async def _claim_for_hint(self, most: int) -> bool:
        """Claim what is ready, by one statement, if a hint has come; tell whether that was something.

        The look that follows tells what else there is. Where statements are round trips, a look before it would be one
        more. On SQLite it costs less than the right to write, which a hint for somebody else is not worth.
        """
        if not (most and self._wakeups.take_hint()) or self._core.store.database == "sqlite":
            return False
        if self._core.share is not None and not (most := self._core.share.ask(self._used, most)):
            return False
        nonce, sent = self._nonce(), self._monotonic()
        self._reserve(most)
        try:
            claim = self._core.store.run(claiming.claim, self._handlers.wants, most, self._core.id, nonce)
            claimed = await self._answer(claim, nonce, sent)
        finally:
            self._reserve(-most)
        self._begin(claimed, sent)
        return bool(claimed)

    async def _claim_for(self, group: SlotGroup, most: int) -> None:
        """Claim up to *most* for *group*, if something is there for it."""
        wants, is_wanted, store = group.wants, group.is_wanted, self._core.store
        free, place = min(most, group.idle(self._core.active.taken(group.slot))), group.position.place()
        nonce, sent = self._nonce(), self._monotonic()
        group.begin(most)
        try:
            if not is_wanted:
                found = await store.read(polls.waiting_work, wants)
                self._core.note_look(found)
                if not found.is_there:
                    group.note_look(found)
                    self._plan_for(group)
                    return
            given = (wants, free, self._core.id, nonce, place, most - free)
            claim = store.run(claiming.admit_and_claim, *given, is_crowded=group.is_crowded, troubles=group.troubles())
            claims = await self._answer(claim, nonce, sent)
        finally:
            group.reserved -= most
        group.claim_ahead.note_exchange(self._monotonic() - sent, self._executor.ended[group.slot])
        group.note(claims, most, place, sent)
        self._plan_for(group)
        self._handlers.is_wanted |= group.shares_queues and claims.admitted > len(claims.jobs)
        self._begin(claims.jobs, sent)

    def _plan_for(self, group: SlotGroup) -> None:
        """Look again when the next of *group* is due; of a queue that nobody else serves the next claim tells."""
        if group.shares_queues:
            self._wakeups.plan_sooner(self._sooner(None))

    def _sooner(self, next_ms: int | None) -> int | None:
        """Give what comes first: *next_ms*, in which something else is due, or what is due for a group."""
        for each in self._groups:
            next_ms = each.sooner(next_ms)
        return next_ms

    async def _look(self, *, has_slots: bool) -> None:
        """Read whether there is something to do for the slots that are free, of whatever kind."""
        free = [each for each in self._groups if each.free(self._core.active.taken(each.slot))]
        for each in self._groups:
            if each not in free:
                each.leave_out()
            elif not has_slots:
                each.note_seen()
        wants = [*(self._handlers.wants if has_slots else ()), *(want for each in free for want in each.wants)]
        is_there = await self._wakeups.look(wants)
        self._handlers.is_wanted |= is_there or not has_slots  # nobody has looked for what is for handlers
        for each in free if is_there else ():
            each.is_wanted = True

    def _nonce(self) -> str:
        return f"{self._core.runtime.chance.getrandbits(64):016x}"

    def _begin(self, claimed: Sequence[Claimed], sent: float) -> None:
        """Keep the leases of what a call has claimed that was sent at *sent*, and begin it."""
        if claimed:
            self.worked = self._monotonic()
        tokens: defaultdict[float, list[Token]] = defaultdict(list)
        for each in claimed:
            tokens[self._core.tasks.get(each.task).policy.lease].append(each.token)
        self._core.leases.add(tokens, sent)
        self._dispatcher.begin(claimed)

    async def _sleep(self, step: plan.Sleep) -> None:
        self._core.woken.clear()
        self._listening += step.for_hints
        try:
            if step.for_hints and self._wakeups.is_due:  # by a hint that came just before we listened
                return
            async with asyncio.timeout(step.seconds):
                await self._core.woken.wait()
        except TimeoutError:
            self._handlers.is_wanted |= self._unknown.seconds() is not None
        finally:
            self._listening -= step.for_hints

    def _after_success(self, step: plan.Step) -> None:
        """See whether the trouble is over; that something can be read does not say that it can be written."""
        if self.trouble_since is not None and isinstance(step, plan.Exchange | self._trouble_with):
            seconds = self._monotonic() - self.trouble_since
            say(logger, "worker_store_answers", seconds=round(seconds, 1))
            self.trouble_since, self.trouble = None, None
            self._answered_at = self._monotonic()

    def _give_up_if_exhausted(self, error: Exception, seconds: float) -> None:
        """End the worker by *error* if this process has had no memory or descriptors for so long.

        Its leases are over by then. A new process may have some, and an exit code makes whoever watches us start it.
        """
        if seconds > exhaustion.EXHAUSTED_SECONDS and exhaustion.is_exhausted(error):
            say(logger, "worker_gives_up", seconds=round(seconds), reason=reason_of(error))
            raise error

    async def _after_trouble(self, step: plan.Step, error: Exception, failures: int, began: float) -> None:
        self._handlers.is_wanted = True
        # the other loop may have had its answer while this call, which is as old as that trouble, still waited
        if self.trouble_since is None and began >= self._answered_at:
            self.trouble_since, self._trouble_with = self._monotonic(), type(step)
            unexpected = None if isinstance(error, HoldfastError) else error
            is_dropped = isinstance(error, TenantNotFound) and self._core.options.host is not None  # its host closes it
            level = logging.DEBUG if is_dropped else None
            say(logger, "worker_store_trouble", level=level, trace=unexpected, reason=reason_of(error))
        if self.trouble_since is not None:
            self.trouble = reason_of(error)
            self._give_up_if_exhausted(error, self._monotonic() - self.trouble_since)
        shutdown = self._core.shutdown
        if shutdown.is_draining and self._core.options.grace is None and shutdown.last_moment is None:
            shutdown.begin_last_moment()
        longest = min(LONGEST_PAUSE, SHORTEST_PAUSE * 2 ** min(failures, 10))
        await self._core.runtime.sleep(longest * (0.5 + self._core.runtime.chance.random() / 2))
