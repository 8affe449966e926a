"""A face with a few tasks whose ends are told by webhooks, and questions about what came of them."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from standardwebhooks.webhooks import Webhook

from holdfast import Holdfast, Retry, Tasks
from holdfast.models import Delivery
from holdfast.runtime import Runtime
from holdfast.store import outbox
from holdfast.worker.upkeep.outbox import OutboxMaker
from tests.support.conditions import until
from tests.support.log_rows import as_events
from tests.webhooks.receivers import Received

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


class PostOffice:
    """A face, and tasks: `greet`, which succeeds, and `struggle`, which fails *times* times before it does."""

    def __init__(self, hf: Holdfast, tasks: Tasks) -> None:
        self.hf = hf
        tried: dict[int, int] = {}

        @tasks.task(name="greet")
        async def greet(name: str = "Ada") -> str:
            return f"Hello, {name}"

        @tasks.task(name="struggle", retry=Retry(attempts=9, first=0.01, maximum=0.01))
        async def struggle(number: int, times: int) -> int:
            tried[number] = tried.get(number, 0) + 1
            if tried[number] <= times:
                raise ValueError(f"try {tried[number]}")
            return number

        self.greet, self.struggle = greet, struggle

    async def deliveries(self, **wanted: Any) -> list[Delivery]:
        """List deliveries, the oldest first."""
        return list((await self.hf.webhooks.deliveries(**wanted)).items)[::-1]

    async def until_ended(self, count: int, seconds: float = 20) -> list[Delivery]:
        """Wait until there are *count* deliveries and all have ended; give them."""

        async def have_ended() -> bool:
            found = await self.deliveries()
            return len(found) == count and all(each.finished_at is not None for each in found)

        await until(have_ended, f"{count} deliveries end", seconds)
        return await self.deliveries()

    async def until_tried(self, times: int, seconds: float = 20) -> Delivery:
        """Wait until the one delivery there is has been tried so often and waits for more; give it."""

        async def is_tried() -> bool:
            found = await self.deliveries()
            return any(each.attempts >= times and str(each.status) == "pending" for each in found)

        await until(is_tried, f"the delivery is tried {times} times", seconds)
        return (await self.deliveries())[0]

    async def facts(self, job_id: UUID) -> list[tuple[str, dict[str, Any]]]:
        """Give the events of a job with their facts, in order."""

        async def fetch(tx: Any) -> list[tuple[str, str | None]]:
            sql = """SELECT name, facts FROM holdfast_event
                WHERE job = (SELECT seq FROM holdfast_job WHERE id = :id) ORDER BY seq"""
            return as_events(await tx.fetch_all(sql, id=str(job_id)), "name, facts")

        return [(name, json.loads(facts) if facts else {}) for name, facts in await self.hf.store.read(fetch)]

    async def make_deliveries(self) -> None:
        """Make deliveries of all events that wait in the outbox, as a worker does."""
        maker = OutboxMaker(self.hf.store, Runtime(), lambda: None)
        while await maker.step():
            pass

    async def backlog(self) -> int:
        """Count the events that wait for their deliveries to be made."""
        return await self.hf.store.read(outbox.backlog)

    async def is_outbox_empty(self) -> bool:
        """Tell whether all deliveries are made."""
        return await self.backlog() == 0

    async def count_jobs(self) -> int:
        """Count all jobs there are, the engine's own too."""

        async def fetch(tx: Any) -> int:
            return int((await tx.fetch_all("SELECT count(*) FROM holdfast_job"))[0][0])

        return await self.hf.store.read(fetch)


def said(request: Received, secret: str = SECRET) -> Any:
    """Have another library check the signature of a request; give what it says."""
    return Webhook(secret).verify(request.body, request.headers)
