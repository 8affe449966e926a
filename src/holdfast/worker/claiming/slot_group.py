"""Slots beside those of the handlers in this process, for jobs that take none of these.

There are three kinds: webhooks, acting on many jobs, and child processes.

To claim for them is a transaction more, which must cost nothing to speak of where there is nothing for them to do: a
busy worker reads twice a second whether there is something (for acting on many jobs every two seconds), for an idle
one the look that it takes anyway tells. Only where some was found it claims, and then as soon as there is room; also
ahead, where its jobs are short.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.models import BULK, BULK_QUEUE, DELIVER, INTERNAL_QUEUE
from holdfast.store import polls
from holdfast.store.jobs.claiming import LOWEST, Claimed, Claims, Place, Want
from holdfast.tasks.task import Task
from holdfast.webhooks.receivers import Receivers, ReceiverTrouble
from holdfast.worker.attempts.active import OWN_SLOTS, Slot
from holdfast.worker.builtin.webhook import DeliveryTask
from holdfast.worker.claiming.claim_ahead import MOST_CLAIMED, ClaimAhead

LOOK_SECONDS, BULK_LOOK_SECONDS = 0.5, 2.0
WEBHOOK_SHARE, LEAST_WEBHOOKS = 4, 128
"""There is one slot for webhooks beside so many for handlers, and at least so many: a delivery only waits for a
stranger's server, with a body of 64 KiB at most. Three quarters of the least are what those have together that do not
answer, or have not answered yet (`webhooks.receivers`)."""
WHOLE_SHARE, WHOLE_SECONDS = 20, 1.0
"""The whole index is looked at when so many times as long has passed as the last such look took, or so many seconds."""


class SlotGroup:
    """The slots of one kind: what they are for, *wants*, and *most*, which says how many there are at this moment.

    Those of handlers are one, too, but when to look for them is for the claimer's loops to say.
    """

    def __init__(
        self,
        slot: Slot,
        wants: Sequence[Want],
        most: Callable[[], int],
        monotonic: Callable[[], float],
        receivers: Receivers | None = None,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self.slot = slot
        self.receivers = receivers
        self._every_seconds = look_seconds
        self.shares_queues = slot not in OWN_SLOTS.values()
        """Whether the worker's own handlers have jobs in the same queues: then a claim for either takes up for both."""
        self.is_looked_for = slot is not Slot.DELIVERY
        """Whether it is looked for while all handlers are at work and none ends; deliveries come by the outbox."""
        self.wants = wants
        self._most = most
        self._monotonic = monotonic
        self._look_at = 0.0
        self._next_at: float | None = None
        self._is_active = False
        self.is_unseen = False
        """Whether something may have come for them that nobody has looked for yet."""
        self.is_wanted = False
        """Whether there is reason to believe that something is there: to be claimed as soon as there is room."""
        self.reserved = 0
        """How many are being claimed."""
        self.position = ScanPosition(monotonic)
        self.is_crowded = False
        """Whether the last claim has left arrivals that nobody has admitted."""
        self.claim_ahead = ClaimAhead(most, monotonic)
        self._may_wait = any(each.ahead_below for each in wants)

    @property
    def size(self) -> int:
        """How many slots there are at this moment."""
        return self._most()

    def room(self, running: int) -> int:
        """Say how many may be claimed, beside *running* ones; none before it is time to look."""
        return self.free(running) if self.is_wanted or self.look_seconds == 0 else 0

    def free(self, running: int) -> int:
        """Say how many may be claimed, if there is something: for slots that are free beside *running*, and ahead."""
        ahead, most = self.claim_ahead.most, self._most()
        waiting = running + self.reserved - most
        if not (most and self._may_wait) or 2 * waiting > ahead:  # what was claimed ahead is used up by half first
            ahead = 0
        return max(0, min(MOST_CLAIMED, ahead - waiting))

    def idle(self, running: int) -> int:
        return max(0, self._most() - running - self.reserved)

    @property
    def look_seconds(self) -> float:
        """How long until it is time to look, while others are busy."""
        next_at = self._next_at if self.slot is Slot.BULK and self._next_at is not None else self._look_at
        return max(0.0, min(self._look_at, next_at) - self._monotonic())

    def leave_out(self) -> None:
        """Take note that a look was not for these slots, all of which are taken."""
        self.is_unseen = self.shares_queues

    def has_room(self) -> None:
        """Take note that a slot has come free: look for what came meanwhile, if there may be something."""
        self.is_wanted |= self._is_active or self.is_unseen

    def has_settled(self) -> None:
        """Take note that ends were written down, and arrivals taken up: both may let run what is for these slots."""
        self.is_unseen = self.shares_queues
        self.is_wanted |= self._is_active

    def begin(self, most: int) -> None:
        """Take note of a look, or a claim, for up to *most* that is under way."""
        self.reserved += most
        self.is_wanted = False
        self.note_seen()

    def note_seen(self) -> None:
        """Take note that somebody looks for what has come for these slots."""
        self.is_unseen = False
        self._look_at = self._monotonic() + self._every_seconds

    def note_look(self, found: polls.WaitingWork) -> None:
        self._is_active = False
        self._plan(found.next_ms)

    def note(self, claims: Claims, most: int, place: Place, sent: float) -> None:
        """Learn from what a claim of up to *most* has found, which began at *place* and was sent at *sent*."""
        self.position.note(place, sent, claims.jobs, most)
        self.claim_ahead.note_claim(len(claims.jobs), most)
        self.is_crowded = claims.is_crowded
        self._is_active = bool(claims.jobs)
        self.is_wanted |= claims.more
        self._plan(claims.next_ms)
        if self.receivers is not None and claims.put_off:
            self.receivers.note_put_off(claims.put_off)

    def troubles(self) -> Sequence[ReceiverTrouble]:
        """Name the receivers whose deliveries are not to be claimed, or not as many as there are."""
        return () if self.receivers is None else self.receivers.troubles()

    def _plan(self, next_ms: int | None) -> None:
        self._next_at = None if next_ms is None else self._monotonic() + next_ms / 1000

    def sooner(self, next_ms: int | None) -> int | None:
        """Give what comes first: *next_ms*, in which something else is due, or the next delivery that is."""
        if self._next_at is None:
            return next_ms
        own_ms = round((self._next_at - self._monotonic()) * 1000)
        if own_ms <= 0:
            self._next_at = None
            self.is_wanted = True
            return next_ms
        return own_ms if next_ms is None else min(next_ms, own_ms)


def webhook_slots(delivery: DeliveryTask | None, concurrency: int, monotonic: Callable[[], float]) -> SlotGroup:
    """Make the slots for *delivery*, which posts webhooks, beside *concurrency* others; none for a worker without."""
    if delivery is None:
        return SlotGroup(Slot.DELIVERY, [], lambda: 0, monotonic)
    wants = [Want(INTERNAL_QUEUE, DELIVER, round(delivery.task.policy.lease * 1000))]
    most = max(LEAST_WEBHOOKS, concurrency // WEBHOOK_SHARE)
    return SlotGroup(Slot.DELIVERY, wants, lambda: most, monotonic, delivery.receivers)


def bulk_slot(task: Task[..., Any], monotonic: Callable[[], float]) -> SlotGroup:
    """Make the one slot for *task*, which acts on many jobs: of each chain one step is there at a time."""
    wants = [Want(BULK_QUEUE, BULK, round(task.policy.lease * 1000))]
    group = SlotGroup(Slot.BULK, wants, lambda: 1, monotonic, look_seconds=BULK_LOOK_SECONDS)
    group.note_seen()  # the first look of a worker is for all of its slots, if it has nothing else to do
    return group


class ScanPosition:
    """Where a claim begins to look: behind what was claimed last, as long as there is more than the slots can take.

    What was claimed leaves dead entries at the front of the index, which every later claim would walk over until the
    database has cleaned up; while anybody keeps an old snapshot open, that is never (28.2k jobs/s with a floor, 22.6k
    without). But what becomes ready with a higher priority, is given back or is tried again sorts below the floor. So
    the whole index is looked at now and then, and always when a claim from the floor did not fill its slots.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._place = LOWEST
        self._whole_at = 0.0

    def place(self) -> Place:
        """Say where the next claim begins; the lowest place of all, if it is time for that."""
        now = self._monotonic()
        if now >= self._whole_at:
            self._whole_at = now + WHOLE_SECONDS  # so that the other loop does not do the same
            return LOWEST
        return self._place

    def note(self, place: Place, sent: float, claimed: Sequence[Claimed], most: int) -> None:
        now = self._monotonic()
        if place == LOWEST:
            self._whole_at = now + min(WHOLE_SECONDS, WHOLE_SHARE * (now - sent))
        if len(claimed) < most:
            self._place = LOWEST
        elif place in (LOWEST, self._place):  # else the other loop has moved it, perhaps down to what is urgent
            self._place = (claimed[-1].sort_key, claimed[-1].token.seq)
