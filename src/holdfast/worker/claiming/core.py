"""What the parts of one worker share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from holdfast.database.tx import Store
from holdfast.runtime import Runtime
from holdfast.store.polls import WaitingWork
from holdfast.tasks.registry import Tasks
from holdfast.worker.attempts.active import Active
from holdfast.worker.attempts.progress import Progress
from holdfast.worker.claiming.slot_share import Share
from holdfast.worker.claiming.unsettled import Unsettled
from holdfast.worker.leases import LeaseKeeper
from holdfast.worker.options import WorkerOptions
from holdfast.worker.shutdown import Shutdown
from holdfast.worker.tally import Tally
from holdfast.worker.upkeep.outbox import OutboxMaker
from holdfast.worker.upkeep.reaper import LostLeases
from holdfast.worker.upkeep.ticks import Ticker


@dataclass(slots=True)
class WorkerCore:
    """A worker's own: who it is, what it knows, what runs, what has ended, and how far its own end has come."""

    id: str
    store: Store
    runtime: Runtime
    options: WorkerOptions
    tasks: Tasks
    shutdown: Shutdown
    lost_leases: LostLeases
    active: Active = field(default_factory=Active)
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there may be something to write or to claim."""
    # these are made when the worker begins, in its loop
    leases: LeaseKeeper = field(init=False)
    progress: Progress = field(init=False)
    tally: Tally = field(init=False)
    unsettled: Unsettled = field(init=False)
    outbox: OutboxMaker | None = None
    """Only if this worker posts webhooks."""
    share: Share | None = None
    """What it has of the slots of its host; None for a worker without one, whose slots are all its own."""

    ticker: Ticker | None = None

    def note_look(self, found: WaitingWork) -> None:
        """Have deliveries made and schedules taken up, as far as a look has found some."""
        if self.ticker is not None:
            self.ticker.note_look(found.tick_ms)
        if self.outbox is not None:
            self.outbox.note_look(has_events=found.has_outbox)
