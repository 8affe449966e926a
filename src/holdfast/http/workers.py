"""`/api/workers`: the worker processes, by what they last said of themselves."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from holdfast.http.endpoint import Inquiry, NoBody, NoQuery
from holdfast.wire.inventory_json import WorkerObject, worker_object


class WorkerList(BaseModel):
    """All workers, those seen last first; at most 1,000."""

    items: list[WorkerObject]


async def list_all(ask: Inquiry[NoQuery, NoBody]) -> dict[str, Any]:
    """List the workers: what they serve, how much they run, and when they were last seen."""
    return {"items": [worker_object(each) for each in await ask.hf.list_workers()]}
