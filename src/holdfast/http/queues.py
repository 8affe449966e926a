"""`/api/queues`, `/api/queue`: which queues there are, why one does not move, and to pause and resume it."""

from __future__ import annotations

from typing import Any

from pydantic import AwareDatetime, BaseModel

from holdfast.http.endpoint import Inquiry, NoBody, NoQuery, Taken
from holdfast.http.jobs import WhyBody
from holdfast.times import instant_text
from holdfast.wire.explanation_json import ReasonObject, reason_object
from holdfast.wire.figures_json import QueueFiguresObject, queue_figures_object
from holdfast.wire.inventory_json import QueueObject, queue_object


class QueueQuery(Taken):
    """Which queue."""

    name: str


class PauseQueueBody(WhyBody):
    """Why a queue is paused; with *until* it goes on by itself then."""

    until: AwareDatetime | None = None


class QueueList(BaseModel):
    """All queues, by name; at most 1,000."""

    items: list[QueueObject]


class QueueAnswer(BaseModel):
    """A queue, and how it stands by the last sample; null for one that nobody knows."""

    queue: QueueObject | None
    figures: QueueFiguresObject | None


class QueueExplained(BaseModel):
    """Why the jobs of a queue do not run: all reasons that hold, or that it is moving."""

    queue: str
    reasons: list[ReasonObject]
    until: str | None
    """When time alone ends all of them."""


class QueueResumed(BaseModel):
    """Whether the queue was paused."""

    was_paused: bool


async def list_all(ask: Inquiry[NoQuery, NoBody]) -> dict[str, Any]:
    """List the queues: whether they are paused, and which workers serve them."""
    return {"items": [queue_object(each) for each in await ask.hf.list_queues()]}


async def read(ask: Inquiry[QueueQuery, NoBody]) -> dict[str, Any]:
    """Read a queue: who has paused it, who serves it, and how many jobs stand in it."""
    name = ask.hf.queue(ask.query.name).name
    queue = next((each for each in await ask.hf.list_queues() if each.name == name), None)
    figures = next((each for each in (await ask.hf.overview()).queues if each.name == name), None)
    return {
        "queue": None if queue is None else queue_object(queue),
        "figures": None if figures is None else queue_figures_object(figures),
    }


async def explain(ask: Inquiry[QueueQuery, NoBody]) -> dict[str, Any]:
    """Say why the jobs of a queue do not run."""
    found = await ask.hf.explain_queue(ask.query.name)
    reasons = [reason_object(each, ask.shown.reader) for each in found.reasons]
    return {"queue": found.queue, "reasons": reasons, "until": instant_text(found.until)}


async def pause(ask: Inquiry[QueueQuery, PauseQueueBody]) -> None:
    """Pause a queue: none of its jobs is claimed; what runs is left to finish."""
    await ask.hf.queue(ask.query.name).pause(until=ask.body.until)


async def resume(ask: Inquiry[QueueQuery, WhyBody]) -> dict[str, Any]:
    """Resume a queue; say whether it was paused."""
    return {"was_paused": await ask.hf.queue(ask.query.name).resume()}
